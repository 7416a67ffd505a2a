#!/usr/bin/env bash
# Builds all programs statically linked, as in a release, but quickly: not optimized, and with the
# dependencies already compiled by `cargo test --workspace`. Prints their directory. Takes two minutes of CPU
# time if the tests are built, and a second when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Cargo sets these for tests. Build scripts of dependencies that read them would run again each time.
for name in "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}" "${!CARGO_BIN_@}"; do
    unset "$name"
done
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
# Because of the other wrapper, cargo builds the package separately, but dependencies once. The programs have
# a target directory of their own. A test is named because only then dependencies get the features that tests
# use.
RUSTC_WORKSPACE_WRAPPER=$PWD/tests/support/rustc.sh CARGO_BUILD_BUILD_DIR=$target CARGO_INCREMENTAL=0 \
    cargo build --quiet --locked --workspace --bins --test allocations --target-dir "$target/static" >&2
echo "$target/static/debug"
