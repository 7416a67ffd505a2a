//! Compiles the first process of containers (`src/sys/init/program.rs`) for the target: a static
//! program, which a target of this package cannot be, since the options of the compiler are the same
//! for all of them.
//!
//! The standard library of the target is there, or the package could not be compiled either. Of the C
//! library the static one is needed: `libc6-dev` has it on Debian, `glibc-static` on Fedora, and musl's
//! targets come with theirs.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "src/sys/init/program.rs";
const FILES: [&str; 34] = [
    "attached",
    "backlog",
    "call",
    "clients",
    "exchange",
    "files",
    "files/changes",
    "files/remove",
    "files/walk",
    "files/write",
    "frames",
    "frames/failure",
    "frames/files",
    "frames/files/entry",
    "frames/journal",
    "frames/values",
    "keeper",
    "os",
    "os/at",
    "os/ffi",
    "os/stream",
    "place",
    "probe",
    "program",
    "relay",
    "remote",
    "serve",
    "single",
    "start",
    "steps",
    "supervised",
    "supervisor",
    "tree",
    "trials",
];

fn main() {
    let variable = |name: &str| env::var(name).expect("cargo sets what it documents");
    for file in FILES {
        println!("cargo::rerun-if-changed=src/sys/init/{file}.rs");
    }
    if env::var_os("CARGO_FEATURE_ENGINE").is_none() {
        return;
    }
    // Where documentation alone is built, for targets that may have neither linker nor C library.
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        let out = variable("OUT_DIR");
        fs::write(Path::new(&out).join("init"), "").expect("cargo makes the directory of output");
        return;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=bin", "--crate-name=init"]);
    rustc.args(["--target", &variable("TARGET")]);
    rustc.args(["-Copt-level=s", "-Clto=fat", "-Ccodegen-units=1", "-Cpanic=abort"]);
    rustc.args(["-Cstrip=symbols", "-Crelocation-model=static", "-Ctarget-feature=+crt-static"]);
    // Frames are written at the other end, and read at this one.
    rustc.args(["-Adead_code", "-Aunfulfilled_lint_expectations"]);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.to_string_lossy()));
    }
    rustc.arg("-o").arg(Path::new(&variable("OUT_DIR")).join("init")).arg(SOURCE);
    let status = rustc.status().expect("the compiler that compiles us can be executed");
    assert!(
        status.success(),
        "cannot compile {SOURCE}: if the linker does not find -lc, install the static C library \
         (Debian: libc6-dev, Fedora: glibc-static)"
    );
}
