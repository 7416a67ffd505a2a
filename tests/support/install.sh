#!/usr/bin/env bash
# Installs the missing Debian packages that tests/packages lists for checks, crates and names of tests: install.sh MODE NAME…,
# where MODE is gate, all or some. Prints them and their size, and on a terminal asks first, unless YES is set. Their daemons are
# not started.
set -euo pipefail
cd "$(dirname "$0")/../.."

mode=$1 chosen=" ${*:2} "
[ "$chosen" = ' format ' ] || chosen+="every "
for name in "${@:2}"; do
    [[ $name = *::* ]] || continue
    # The crates with a module of this name.
    chosen+="$(grep --files-with-matches --extended-regexp "^(pub )?mod ${name%%::*};" {.,crates/*,tests/system}/{src/lib.rs,src/bin/*/main.rs,tests/*/main.rs} 2>/dev/null |
        sed 's,^\./.*,oci-hooks,; s,^tests/system/.*,system,; s,^crates/\([^/]*\)/.*,\1,' | tr '\n' ' ' || true) "
done
mapfile -t packages < <(awk -F '[:+]' -v mode="$mode" -v chosen="$chosen" '!/^#/ && (mode != "some" || index(chosen, " " $1 " ")) {
    print $2, (mode == "gate" ? "" : $3) }' tests/packages | xargs --no-run-if-empty --max-args 1 | sort --unique)

missing=()
for package in "${packages[@]}"; do
    [ "$(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>&1)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} != 0 ] || exit 0

as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || {
        echo "error: sudo is missing: install it, or run tests/run as root" >&2
        exit 2
    }
    as_root=(sudo)
fi
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --no-install-recommends)
echo "== install ${missing[*]}"
"${apt[@]}" --quiet --quiet update
"${apt[@]}" --assume-no install "${missing[@]}" | grep --extended-regexp 'newly installed|disk space' || true
if [ -z "${YES-}" ] && [ -t 0 ]; then
    read -r -p "Install them? [Y/n] " answer
    [[ ${answer:-y} = [yY]* ]] || exit 2
fi

# Scripts of packages ask this program whether they may start a service: 101 means no.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap '"${as_root[@]}" rm -f $policy' EXIT
    printf '#!/bin/sh\n# By tests/support/install.sh of oci-hooks\nexit 101\n' | "${as_root[@]}" install -m 755 /dev/stdin $policy
fi
"${apt[@]}" --quiet --quiet --yes install "${missing[@]}" >/dev/null
