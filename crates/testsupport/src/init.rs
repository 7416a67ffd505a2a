//! The init of containers as an executable file.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Writes the program from another process: a child of another test could inherit a descriptor of this
/// process for a moment, and executing the file would then fail with `ETXTBSY`.
pub fn install(program: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("init");
    let mut sh = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    sh.stdin.take().unwrap().write_all(program).unwrap();
    assert!(sh.wait().unwrap().success());
    (dir, path)
}
