//! Compiles the first process of containers (`src/sys/init/program.rs`) for the target: a static
//! program without a C library, which a target of this package cannot be, since the options of the
//! compiler are the same for all of them.

use std::env;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = "src/sys/init/program.rs";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    if env::var_os("CARGO_FEATURE_ENGINE").is_none() {
        return;
    }
    let variable = |name: &str| env::var(name).expect("cargo sets what it documents");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=bin", "--crate-name=init"]);
    rustc.args(["--target", &variable("TARGET")]);
    rustc.args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "-Crelocation-model=static"]);
    rustc.arg("-Clink-args=-nostartfiles -nostdlib -static -no-pie -Wl,--build-id=none");
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.to_string_lossy()));
    }
    rustc.arg("-o").arg(Path::new(&variable("OUT_DIR")).join("init")).arg(SOURCE);
    let status = rustc.status().expect("the compiler that compiles us can be executed");
    assert!(status.success(), "cannot compile {SOURCE}");
}
