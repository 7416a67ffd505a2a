#!/usr/bin/env bash
# Packs the static programs in OCI_HOOKS_STATIC_PROGRAMS, or else those of static.sh, like contrib/dist packs a release, but
# with little compression. Prints the directory of the archive and the .debs. Does nothing if the packed files have not changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
programs=${OCI_HOOKS_STATIC_PROGRAMS:-$(tests/support/static.sh)}
directory=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-target}")/packages
mkdir -p "$directory"
exec 9>"$directory/lock"
flock 9
if ! [ -e "$directory/SHA256SUMS" ] || [ -n "$(find contrib crates/*/{man,*.toml} crates/engine-cli/{apparmor,systemd} docs man \
    hooks.d-examples ./*.md "$programs"/{oci-hooks{,-runtime,-nri},container-hook,step-runner,garm-provider-runc} -maxdepth 9 \
    -newer "$directory/SHA256SUMS" -print -quit)" ]; then
    find "$directory" -mindepth 1 -maxdepth 1 ! -name lock -exec rm -r {} +
    mkdir "$directory/stripped"
    for program in oci-hooks{,-runtime,-nri} container-hook step-runner garm-provider-runc; do
        strip -o "$directory/stripped/$program" "$programs/$program"
    done
    contrib/dist --fast --programs "$directory/stripped" --output "$directory" >&2
    rm -r "$directory/stripped"
fi
echo "$directory"
