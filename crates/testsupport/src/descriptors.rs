//! Tests in a process with a low limit of open files.

use std::io::{self, Write as _};
use std::process::Command;
use std::{panic, thread};

use rustix::process::{Resource, Rlimit, setrlimit};

/// Stack that code without recursion needs at most. A function that calls itself for each of two thousand
/// levels of directories needs more.
const STACK: usize = 512 << 10;

/// Runs the test of this name again in a process with a low limit of open files, on a small stack.
pub fn with_few_descriptors(test: &str, body: impl FnOnce() + Send) {
    const MARK: &str = "OCI_HOOKS_TEST_WITH_FEW_DESCRIPTORS";
    if std::env::var_os(MARK).is_some() {
        let few = Rlimit { current: Some(64), maximum: Some(64) };
        setrlimit(Resource::Nofile, few).expect("a limit may be lowered");
        return thread::scope(|scope| {
            let thread = thread::Builder::new().stack_size(STACK).spawn_scoped(scope, body);
            let ended = thread.expect("there is memory for it").join();
            ended.unwrap_or_else(|cause| panic::resume_unwind(cause));
        });
    }
    let mut command = Command::new(std::env::current_exe().expect("/proc is mounted"));
    command.args([test, "--exact", "--nocapture"]).env(MARK, "1");
    let output = command.output().expect("a test can be run");
    // The output contains the duration of the test.
    let _ = io::stdout().write_all(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("1 passed"), "{test} is not what this test is called");
}
