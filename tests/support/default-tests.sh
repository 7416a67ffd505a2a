#!/usr/bin/env bash
# Builds the test programs of `cargo test`, with the default features, for a checkout in a directory with
# spaces in its name, and prints their paths. The checkout is a symlink at the path compiled into them, and
# they run where a copy exists at that path. Dependencies are shared with `cargo test --workspace`. Takes a
# minute of CPU time, two more for dependencies once, and a second when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Cargo sets these for tests. Build scripts of dependencies that read them would run again each time.
for name in "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}" "${!CARGO_BIN_@}"; do
    unset "$name"
done
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
place="$target/default tests"
mkdir -p "$place"
ln --symbolic --force --no-dereference "$PWD" "$place/checkout"
# A separate target directory, so that programs with all features keep their paths. Without debug information
# the output has other names than that of `cargo test`.
CARGO_BUILD_BUILD_DIR=$target cargo test --quiet --locked --no-run --message-format json-render-diagnostics \
    --config profile.dev.package.oci-hooks.debug=false \
    --manifest-path "$place/checkout/Cargo.toml" --target-dir "$place" |
    jq --raw-output 'select(.profile.test and .executable).executable'
