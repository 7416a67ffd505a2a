//! The init of containers as an executable file.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes the program from another process: a child of another test could inherit a descriptor of this
/// process for a moment, and executing the file would then fail with `ETXTBSY`.
pub fn install_in(dir: &Path, program: &[u8]) -> PathBuf {
    let path = dir.join("init");
    let mut sh = Command::new("sh")
        .args(["-c", "cat > \"$1\" && chmod 755 \"$1\"", "sh"])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    sh.stdin.take().unwrap().write_all(program).unwrap();
    assert!(sh.wait().unwrap().success());
    path
}

/// Writes the program to a new directory.
pub fn install(program: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = install_in(dir.path(), program);
    (dir, path)
}
