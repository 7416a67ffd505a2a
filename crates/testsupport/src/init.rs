//! The init of containers as an executable file, and its descendants.

use std::fs;
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

/// Returns the children of a process that are not zombies.
pub fn children(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(path).unwrap_or_default();
    let children = text.split_whitespace().map(|pid| pid.parse().unwrap());
    children.filter(|pid| is_alive(*pid)).collect()
}

/// Returns whether a process exists and is more than a zombie.
pub fn is_alive(pid: i32) -> bool {
    let state = status(pid, "State");
    !(state.is_empty() || state.starts_with('Z') || state.starts_with('X'))
}

/// Returns a line of `/proc/PID/status`, or an empty text for a process that is gone.
pub fn status(pid: i32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}
