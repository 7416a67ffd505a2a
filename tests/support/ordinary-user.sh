#!/bin/bash
# Runs the programs of default-tests.sh as user id 1000 with nothing but Rust: in the minimal Debian 12 of
# debian-12.sh, in memory and in namespaces, without network. The user owns a copy of the checkout:
# ordinary-user.sh DEBIAN HOME-MODE UMASK PROGRAM…
set -euo pipefail
if [ "${1-}" != inside ]; then
    exec unshare --net --mount --propagation private --pid --uts --ipc --fork --kill-child "$0" inside "$@"
fi
debian=$2 home_mode=$3 umask=$4
shift 4

root=/mnt
mount -t tmpfs -o mode=755 tmpfs $root
tar --extract --numeric-owner --file "$debian/minimal.tar" --directory $root
mkdir -p $root/{proc,dev}
mount -t proc proc $root/proc
mount --rbind /dev $root/dev
mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
ip link set lo up
echo runner:x:1000:1000::/home/runner:/bin/bash >>$root/etc/passwd
echo runner:x:1000: >>$root/etc/group
install -d -o 1000 -g 1000 -m "$home_mode" $root/home/runner

# Mounts a directory of this machine read-only: bind FROM TO.
bind() {
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    mount -o remount,bind,ro "$root$2"
}
# The source of a mount may be below root's home.
chmod a+x $root/root
target=${debian%/*}
toolchain=$(rustc --print sysroot)
bind "$toolchain" "$toolchain"
bind "${CARGO_HOME:-$HOME/.cargo}/registry" /home/runner/.cargo/registry
bind "$target/debug" "$target/debug"
bind "$target/default tests/debug" "$target/default tests/debug"

copy="$target/default tests/checkout"
install -d -o 1000 -g 1000 "$root$copy"
# shellcheck disable=SC2016 # the variables are for the user's shell
tar --create --exclude=target --exclude=.git --directory "$copy" . | chroot --userspec=1000:1000 $root \
    env --ignore-environment --chdir="$copy" HOME=/home/runner LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin sh -c '
        umask '"$umask"' && tar --extract || exit
        for program; do
            # These tests take minutes, and the test of README runs them as the same user.
            "$program" --skip robustness:: </dev/null || failed="$failed$program "
        done
        test -z "$failed"' sh "$@"
