//! The generated code is what the `.proto` files beside it say.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message;

#[test]
fn generated_code_of_step_runner_is_that_of_the_proto_files() {
    let dir = source("src/step_runner/wire");
    let descriptors = protox::compile(["steps.proto", "document.proto"], [&dir]).unwrap();
    let out = tempfile::tempdir().unwrap();
    let own = "crate::step_runner::wire::proto";
    let generate = |out: &Path| {
        let generate = generate(out);
        // Read by the types of their fields, not by the numbers.
        ["RunRequest", "CancelRequest"].iter().fold(generate, |generate, name| {
            generate.extern_path(format!(".proto.{name}"), format!("{own}::{name}"))
        })
    };
    generate(out.path()).compile_fds(descriptors.clone()).unwrap();
    fs::rename(out.path().join("proto.rs"), out.path().join("gitlab.rs")).unwrap();
    // Once more, with the first package's types by the path that they have here.
    let document = tempfile::tempdir().unwrap();
    generate(document.path()).extern_path(".proto", own).compile_fds(descriptors.clone()).unwrap();
    fs::remove_file(out.path().join("oci_hooks.steps.v1.rs")).unwrap();
    let generated = document.path().join("oci_hooks.steps.v1.rs");
    fs::copy(generated, out.path().join("document.rs")).unwrap();
    fs::write(out.path().join("descriptors.bin"), descriptors.encode_to_vec()).unwrap();
    compare(out.path(), &dir);
}

#[test]
fn generated_code_of_nri_is_that_of_the_proto_files() {
    let dir = source("src/nri/wire");
    let descriptors = protox::compile(["nri.proto", "ttrpc.proto"], [&dir]).unwrap();
    let out = tempfile::tempdir().unwrap();
    generate(out.path()).compile_fds(descriptors).unwrap();
    let generated = out.path().join("nri.pkg.api.v1alpha1.rs");
    fs::rename(generated, out.path().join("nri.rs")).unwrap();
    compare(out.path(), &dir);
}

fn source(dir: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)
}

fn generate(out: &Path) -> tonic_prost_build::Builder {
    tonic_prost_build::configure().btree_map(".").build_transport(false).out_dir(out)
}

/// Compares what was generated with what is committed, or replaces it.
fn compare(new: &Path, dir: &Path) {
    let names = fs::read_dir(new).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    for name in names {
        let new = fs::read(new.join(&name)).unwrap();
        let committed = dir.join(&name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            fs::write(committed, new).unwrap();
        } else if fs::read(&committed).unwrap_or_default() != new {
            panic!("{} is out of date: run this with UPDATE_GOLDEN=1", committed.display());
        }
    }
}
