//! Compiles the first process of containers (`src/program.rs`) as a static program for the target.
//! It cannot be a target of this package, because all targets share the compiler's options.
//!
//! Like the package, it needs the target's standard library, and also the static C library:
//! `libc6-dev` on Debian, `glibc-static` on Fedora; musl's targets come with theirs.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "src/program.rs";

fn main() {
    let variable = |name: &str| env::var(name).expect("cargo sets what it documents");
    println!("cargo::rerun-if-changed=src");
    // docs.rs builds documentation only, for targets that may lack a linker and a C library.
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
    // Code that encodes or decodes frames for the host is unused here.
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
