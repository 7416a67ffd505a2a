//! The code for the services of `step-runner` is what its `.proto` files say.

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

const FILES: [&str; 2] = ["steps.proto", "document.proto"];

#[test]
fn generated_code_is_that_of_the_proto_files() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/step_runner/wire");
    let descriptors = protox::compile(FILES, [&dir]).unwrap();
    let out = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .btree_map(".")
        .build_transport(false)
        .out_dir(out.path())
        .compile_fds(descriptors.clone())
        .unwrap();
    fs::write(out.path().join("descriptors.bin"), descriptors.encode_to_vec()).unwrap();

    let names =
        fs::read_dir(out.path()).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    for name in names {
        let new = fs::read(out.path().join(&name)).unwrap();
        let committed = dir.join(&name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(committed, new).unwrap();
        } else if fs::read(&committed).unwrap_or_default() != new {
            panic!("{} is out of date: run this with UPDATE_GOLDEN=1", committed.display());
        }
    }
}
