//! The runner's `externals`: node of this machine, for glibc and for musl images.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{images, program};

/// Runs node with the glibc libraries beside it: like the musl build, it needs no glibc in the image. A shell
/// script would drop environment variables with a dash in the name.
const ALPINE_NODE: &str = r#"
use std::os::unix::process::CommandExt as _;
fn main() {
    let mut node = std::process::Command::new("/__e/node20_alpine/lib/ld.so");
    node.args(["--library-path", "/__e/node20_alpine/lib", "/__e/node20/bin/node"]);
    panic!("{}", node.args(std::env::args_os().skip(1)).exec());
}
"#;

/// Returns the directory, created once for each version of node.
pub fn shared() -> PathBuf {
    let node = program::find("node");
    let version = program::run(Command::new(&node).arg("--version")).success();
    let key = images::digest(format!("{version}{ALPINE_NODE}").as_bytes());
    program::made_once(&format!("externals-{}", &key[7..23]), |making| {
        fill(making, &node);
        // Temporary directories are private, but all users of a container read the externals.
        program::run(Command::new("chmod").arg("755").arg(making)).success();
    })
}

fn fill(directory: &Path, node: &Path) {
    for name in ["node20/bin", "node20_alpine/bin", "node20_alpine/lib"] {
        fs::create_dir_all(directory.join(name)).expect("the directory is new");
    }
    program::copy_program(node, &directory.join("node20/bin/node"));
    for library in images::libraries(node) {
        let name = library.file_name().expect("a library is a file");
        let is_loader = name.to_string_lossy().starts_with("ld-linux");
        let name = if is_loader { "ld.so".as_ref() } else { name };
        program::copy_program(&library, &directory.join("node20_alpine/lib").join(name));
    }
    let mut rustc = Command::new(program::find("rustc"));
    rustc.args(["--edition=2024", "-Ctarget-feature=+crt-static", "-", "-o"]);
    rustc.arg(directory.join("node20_alpine/bin/node"));
    program::run_with_input(&mut rustc, ALPINE_NODE.as_bytes()).success();
}
