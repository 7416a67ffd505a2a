//! The test programs of `cargo test`, run by an ordinary user of a minimal Debian 12 with Rust, without
//! network, in a checkout whose path contains spaces.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use oci_hooks_testsupport::{debian_root, program};

/// Runs a script of `tests/support` without the deadline of `program::run`, which builds on a busy machine
/// may exceed.
#[track_caller]
fn run(script: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program::repository("tests/support").join(script));
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().expect("bash can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{script}: {}\n{text}", output.status);
    text
}

/// Runs the test programs with this mode of the home directory and this umask.
#[track_caller]
fn assert_pass(home_mode: &str, umask: &str) {
    static BUILT: OnceLock<String> = OnceLock::new();
    program::require_root();
    let debian = debian_root::image().to_str().expect("the path is text");
    let built = BUILT.get_or_init(|| run("default-tests.sh", &[]));
    let mut arguments = vec![debian, home_mode, umask];
    arguments.extend(built.lines());
    let output = run("ordinary-user.sh", &arguments);
    assert_eq!(output.matches("test result: ok.").count(), arguments.len() - 3, "{output}");
}

#[test]
fn default_tests_pass_with_a_home_that_is_not_writable() {
    assert_pass("555", "022");
}

#[test]
fn default_tests_pass_with_umask_077() {
    assert_pass("755", "077");
}
