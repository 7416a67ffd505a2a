//! What tests need: few files that may be open at a time, records that cannot be read.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Resource, Rlimit, setrlimit};

/// Runs a test again, in a process that may have few files open.
pub(crate) fn with_few_descriptors(test: &str, body: impl FnOnce()) {
    const MARK: &str = "OCI_HOOKS_TEST_WITH_FEW_DESCRIPTORS";
    if std::env::var_os(MARK).is_some() {
        let few = Rlimit { current: Some(64), maximum: Some(64) };
        setrlimit(Resource::Nofile, few).expect("a limit may be lowered");
        return body();
    }
    let mut command = Command::new(std::env::current_exe().expect("/proc is mounted"));
    command.args([test, "--exact", "--nocapture"]).env(MARK, "1");
    let output = command.output().expect("a test can be run");
    // How long it took.
    let _ = io::stdout().write_all(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What may become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    Empty,
    CutOff,
    NotText,
    OtherVersion,
    Directory,
    Fifo,
    Link,
}

impl Damage {
    pub const ALL: [Damage; 7] = [
        Damage::Empty,
        Damage::CutOff,
        Damage::NotText,
        Damage::OtherVersion,
        Damage::Directory,
        Damage::Fifo,
        Damage::Link,
    ];

    /// Does it to the record at a path.
    #[track_caller]
    pub fn inflict(self, path: &Path) {
        let text = fs::read(path).expect("the record is there before");
        fs::remove_file(path).expect("it is a file");
        let done = match self {
            Damage::Empty => fs::write(path, ""),
            Damage::CutOff => fs::write(path, &text[..text.len() / 2]),
            Damage::NotText => fs::write(path, b"\xff\0\xfe"),
            Damage::OtherVersion => fs::write(path, r#"{"version": 9}"#),
            Damage::Directory => fs::create_dir_all(path.join("something/in it")),
            Damage::Fifo => mkfifoat(CWD, path, Mode::RUSR | Mode::WUSR).map_err(io::Error::from),
            // To itself: nobody gets anywhere.
            Damage::Link => symlink(path, path),
        };
        done.expect("the directory can be written to");
    }
}
