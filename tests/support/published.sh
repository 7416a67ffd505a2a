#!/usr/bin/env bash
# Checks that the package that `cargo publish` would upload compiles: library and programs, with default features and
# with all. Dependencies are those that the lints have compiled.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
cargo package --quiet --locked --no-verify --allow-dirty
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
unpacked=$(mktemp --directory)
trap 'rm -rf "$unpacked"' EXIT
tar --extract --gzip --file "$target/package/oci-hooks-$version.crate" --directory "$unpacked"
cd "$unpacked/oci-hooks-$version"
export CARGO_TARGET_DIR=$target CARGO_INCREMENTAL=0
cargo check --quiet --locked --lib --bins
cargo check --quiet --locked --lib --bins --examples --features 'full oci-spec'
