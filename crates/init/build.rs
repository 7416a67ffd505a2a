//! Compiles the program of this package (`src/bin/init`), which its library contains: static, small, and independent of
//! the options of the programs that link the library.
//!
//! It needs the target's standard library, and also the static C library: `libc6-dev` on Debian, `glibc-static` on
//! Fedora; musl's targets come with theirs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set while the program is compiled, with the library, which cannot contain it yet.
const NESTED: &str = "OCI_HOOKS_INIT_NESTED";

/// Package of the program only: it belongs to no workspace, so it needs neither its members nor dependencies of tests.
const MANIFEST: &str = r#"
[workspace]

[package]
name = "init"
edition = "2024"

[[bin]]
name = "init"
path = "PACKAGE/src/bin/init/main.rs"

[dependencies]
libc = "0.2"
oci-hooks-init = { path = "PACKAGE" }
rustix = "1"

[profile.release]
codegen-units = 1
lto = "fat"
opt-level = "s"
panic = "abort"
strip = "symbols"
"#;

fn main() {
    let variable = |name: &str| env::var(name).expect("cargo sets what it documents");
    let out = PathBuf::from(variable("OUT_DIR"));
    let lock = Path::new("../../Cargo.lock");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=Cargo.toml");
    println!("cargo::rerun-if-env-changed={NESTED}");
    // docs.rs builds documentation only, for targets that may lack a linker and a C library.
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if [NESTED, "DOCS_RS"].iter().any(|name| env::var_os(name).is_some()) {
        fs::write(out.join("init"), "").expect("cargo makes the directory of output");
        return;
    }
    let manifest = MANIFEST.replace("PACKAGE", &variable("CARGO_MANIFEST_DIR"));
    fs::write(out.join("Cargo.toml"), manifest).expect("cargo makes the directory of output");
    // The versions of the repository; a published package has none.
    if lock.exists() {
        println!("cargo::rerun-if-changed={}", lock.display());
        // Not its mode: sources may be read-only, and cargo removes what the program does not need.
        let versions = fs::read(lock).expect("the file exists");
        fs::write(out.join("Cargo.lock"), versions).expect("the directory of output is writable");
    }

    let (target, built) = (variable("TARGET"), out.join("target"));
    let mut cargo = Command::new(variable("CARGO"));
    // In this directory, not in that of the output, whose parents may have settings for cargo from any user.
    cargo.args(["build", "--quiet", "--release", "--target", &target, "--target-dir"]).arg(&built);
    cargo.arg("--manifest-path").arg(out.join("Cargo.toml"));
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("CARGO_CFG_") {
            cargo.env_remove(name);
        }
    }
    cargo.env(NESTED, "1").env("CARGO_INCREMENTAL", "0").env("CARGO_BUILD_BUILD_DIR", &built);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let name = target.to_uppercase().replace(['-', '.'], "_");
        cargo.env(format!("CARGO_TARGET_{name}_LINKER"), linker);
    }
    // Of the flags of the outer build, only those for reproducible builds.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let remaps = flags.split('\x1f').filter(|flag| flag.starts_with("--remap-path-prefix="));
    let flags =
        ["-Ctarget-feature=+crt-static", "-Crelocation-model=static"].into_iter().chain(remaps);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.collect::<Vec<_>>().join("\x1f"));
    let status = cargo.status().expect("cargo, which runs this, can be executed");
    assert!(
        status.success(),
        "cannot compile src/bin/init: if the linker does not find -lc, install the static C library \
         (Debian: libc6-dev, Fedora: glibc-static)"
    );
    fs::copy(built.join(target).join("release/init"), out.join("init"))
        .expect("cargo has built the program");
}
