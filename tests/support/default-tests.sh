#!/usr/bin/env bash
# Builds the programs that `cargo test` runs, which have the default features, for a checkout in a directory with spaces
# in its name, and prints their paths. The checkout is a link at the path that they know, and they are run where a copy is
# there. Dependencies are compiled where `cargo test --features …` has them. A minute of CPU time, two more for dependencies
# once, and a second when nothing has changed.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Cargo sets these for tests, and build scripts of dependencies that look at them would run again each time.
for name in "${!CARGO_PKG_@}" "${!CARGO_MANIFEST_@}" "${!CARGO_BIN_@}"; do
    unset "$name"
done
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")
place="$target/default tests"
mkdir -p "$place"
ln --symbolic --force --no-dereference "$PWD" "$place/checkout"
# Programs go to a directory of their own: those with all features keep their paths. What `cargo test` itself makes here
# has another name than what has no debug information.
CARGO_BUILD_BUILD_DIR=$target cargo test --quiet --locked --no-run --message-format json-render-diagnostics \
    --config profile.dev.package.oci-hooks.debug=false \
    --manifest-path "$place/checkout/Cargo.toml" --target-dir "$place" |
    jq --raw-output 'select(.profile.test and .executable).executable'
