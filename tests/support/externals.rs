//! The runner's `externals`: the node of this machine, for images with glibc and for those without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use super::{images, program};

/// Brings its own libraries, as the runner's build for Alpine brings none but needs none of glibc's.
const ALPINE_NODE: &str = r#"#!/bin/sh
lib=/__e/node20_alpine/lib
exec "$lib"/ld-linux* --library-path "$lib" /__e/node20/bin/node "$@"
"#;

/// Returns the directory, made once for a version of node.
pub(crate) fn shared() -> PathBuf {
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let node = program::find("node");
    let version = program::run(Command::new(&node).arg("--version")).success();
    let key = images::digest(format!("{version}{ALPINE_NODE}").as_bytes());
    let ready = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("externals-{}", &key[7..23]));
    if !ready.exists() {
        let making = program::temporary_directory_in(Path::new(env!("CARGO_TARGET_TMPDIR")));
        fill(making.path(), &node);
        // The directory of a test is for it alone, this one for all users of a container.
        program::run(Command::new("chmod").arg("755").arg(making.path())).success();
        // Another test program may have been faster.
        if fs::rename(making.path(), &ready).is_ok() {
            let _ = making.keep();
        }
    }
    ready
}

fn fill(directory: &Path, node: &Path) {
    for name in ["node20/bin", "node20_alpine/bin", "node20_alpine/lib"] {
        fs::create_dir_all(directory.join(name)).expect("the directory is new");
    }
    program::copy_program(node, &directory.join("node20/bin/node"));
    for library in images::libraries(node) {
        let name = library.file_name().expect("a library is a file");
        program::copy_program(&library, &directory.join("node20_alpine/lib").join(name));
    }
    program::write_program(&directory.join("node20_alpine/bin/node"), ALPINE_NODE);
}
