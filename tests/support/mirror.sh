#!/usr/bin/env bash
# Prints the mirror that this machine uses for its packages. For another distribution, prints that
# distribution's default mirror.
#
#   mirror.sh debian                     its address
#   mirror.sh debian SUITE [deb-src]     apt sources for a suite of Debian, with updates and security
#
# DEBIAN_MIRROR or UBUNTU_MIRROR in the environment overrides it.
set -euo pipefail
distribution=$1 suite=${2:-} type=${3:-deb}

# The first repository of this machine with this origin or label, as of the last `apt-get update`.
repository() {
    # shellcheck disable=SC2016 # apt expands these
    apt-get indextargets --format '$(ORIGIN)/$(LABEL) $(REPO_URI)' 'Identifier: Packages' 2>/dev/null |
        awk -v name="$1" '$1 == name && !found++ { print $2 }' || true
}

case $distribution in
debian) mirror=${DEBIAN_MIRROR:-$(repository Debian/Debian)} own=http://deb.debian.org/debian ;;
ubuntu) mirror=${UBUNTU_MIRROR:-$(repository Ubuntu/Ubuntu)} own=http://archive.ubuntu.com/ubuntu ;;
*)
    echo "mirror.sh: unknown distribution $distribution: expected debian or ubuntu" >&2
    exit 2
    ;;
esac
if [ -z "$mirror" ]; then
    if grep -qx "ID=$distribution" /etc/os-release; then
        echo "mirror.sh: apt does not know this machine's mirror yet: run apt-get update" >&2
        exit 1
    fi
    mirror=$own
fi
# Cloud images have a list of mirrors.
case $mirror in
mirror+file:*) mirror=$(awk '/^[a-z]+:/ && !found++ { print $1 }' "${mirror#mirror+file:}") ;;
esac
mirror=${mirror%/}
if [ -z "$suite" ]; then
    echo "$mirror"
    exit
fi
security=$(repository Debian/Debian-Security)
security=${security:-$mirror-security}
signed="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
echo "$type $signed $mirror $suite main"
echo "$type $signed $mirror $suite-updates main"
echo "$type $signed ${security%/} $suite-security main"
