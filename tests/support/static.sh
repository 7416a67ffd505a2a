#!/usr/bin/env bash
# Builds all programs as a release has them, linked statically, but quickly: not optimized, and with the dependencies
# that `cargo test --features 'full oci-spec'` has compiled already. Prints the directory they are in. Two minutes of CPU
# time when the tests are built, and a second when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Cargo sets these for tests, and build scripts of dependencies that look at them would run again each time.
for name in "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}" "${!CARGO_BIN_@}"; do
    unset "$name"
done
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
# Cargo builds the package apart for another wrapper, and dependencies once. The programs go to a directory of their
# own. A test is named since only then dependencies have the features that tests build them with.
RUSTC_WORKSPACE_WRAPPER=$PWD/tests/support/static-rustc.sh CARGO_BUILD_BUILD_DIR=$target CARGO_INCREMENTAL=0 \
    cargo build --quiet --locked --features 'full oci-spec' --test allocations --target-dir "$target/static" >&2
echo "$target/static/debug"
