#!/bin/bash
# Boots the Debian 12 built by debian-12.sh, in memory and in namespaces, with systemd as init: debian-boot.sh
# DIRECTORY. Prints the process id of systemd once the system is up. At the end of standard input the system
# is stopped and removed. Each line of DEBIAN_MOUNTS contains a directory of this machine, its mount point in
# the system, and `ro` or `rw`, separated by colons.
set -euo pipefail

# Prints the parent directories of a new system's cgroups, one of each hierarchy.
hierarchies() {
    if [ -e /sys/fs/cgroup/cgroup.procs ]; then
        echo /sys/fs/cgroup
    else
        find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d
    fi
}

# In the new namespaces, as PID 1: mounts the file systems and executes systemd.
if [ "${2-}" = inside ]; then
    root=/mnt
    mount -t tmpfs -o mode=755 tmpfs $root
    tar --extract --numeric-owner --file "$1/root.tar" --directory $root
    mount --bind "$1/packages" $root/srv/packages
    mount -o remount,bind,ro $root/srv/packages
    while IFS=: read -r from to mode; do
        [ -n "$from" ] || continue
        mkdir -p "$root$to"
        mount --bind "$from" "$root$to"
        mount -o "remount,bind,$mode" "$root$to"
    done <<<"${DEBIAN_MOUNTS-}"
    mount -t proc proc $root/proc
    mount -t sysfs sysfs $root/sys
    mount -t tmpfs -o mode=755 tmpfs $root/dev
    mkdir $root/dev/{net,shm,pts}
    mount -t devpts -o newinstance,ptmxmode=666,gid=5 devpts $root/dev/pts
    mount -t tmpfs -o mode=1777 tmpfs $root/dev/shm
    while read -r name major minor; do
        mknod -m 666 "$root/dev/$name" c "$major" "$minor"
    done <<'DEVICES'
null 1 3
zero 1 5
full 1 7
random 1 8
urandom 1 9
tty 5 0
fuse 10 229
net/tun 10 200
DEVICES
    ln -s pts/ptmx $root/dev/ptmx
    ln -s /proc/self/fd $root/dev/fd
    ln -s /proc/self/fd/0 $root/dev/stdin
    ln -s /proc/self/fd/1 $root/dev/stdout
    ln -s /proc/self/fd/2 $root/dev/stderr
    mount -t tmpfs -o mode=755 tmpfs $root/run
    arguments=(--log-target=journal --show-status=0)
    if [ -e /sys/fs/cgroup/cgroup.procs ]; then
        mount -t cgroup2 cgroup2 $root/sys/fs/cgroup
    else
        mount -t tmpfs -o mode=755 tmpfs $root/sys/fs/cgroup
        for hierarchy in $(hierarchies); do
            name=${hierarchy##*/}
            # crun rejects v1 beside a v2 with controllers, and systemd would mount both.
            if [ "$name" = unified ] && [ -n "$(cat "$3/cgroup.controllers")" ]; then
                arguments+=(systemd.unified_cgroup_hierarchy=no systemd.legacy_systemd_cgroup_controller=yes)
                continue
            fi
            mkdir "$root/sys/fs/cgroup/$name"
            case $name in
            unified) mount -t cgroup2 cgroup2 $root/sys/fs/cgroup/unified ;;
            systemd) mount -t cgroup -o none,name=systemd cgroup $root/sys/fs/cgroup/systemd ;;
            *) mount -t cgroup -o "$name" cgroup "$root/sys/fs/cgroup/$name" ;;
            esac
        done
    fi
    # At its start systemd sets kernel parameters of the whole machine, which this prevents.
    mount --bind $root/proc/sys $root/proc/sys
    mount -o remount,bind,ro $root/proc/sys
    printf '%s\n' '127.0.0.1 localhost' '127.0.1.1 debian' '::1 localhost' >$root/etc/hosts
    ip link set lo up
    cd $root
    mkdir old
    pivot_root . old
    umount --lazy /old
    rmdir /old
    exec env --ignore-environment --default-signal container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        /lib/systemd/systemd "${arguments[@]}" </dev/null >/dev/null 2>&1
fi

name=$(basename "$(mktemp --dry-run --tmpdir oci-hooks-debian-XXXXXXXXXX)")
mapfile -t cgroups < <(hierarchies | sed "s|\$|/$name|")
namespaces=
remove() {
    if [ -n "$namespaces" ]; then
        kill -KILL "$namespaces" || :
        wait "$namespaces" || :
    fi
    # Exited processes leave their cgroups a moment later.
    for _ in $(seq 600); do
        find "${cgroups[@]}" -depth -type d -exec rmdir {} + || :
        [ -n "$(find "${cgroups[@]}" -maxdepth 0)" ] || return 0
        sleep 0.05
    done
} 2>/dev/null
trap remove EXIT

for cgroup in "${cgroups[@]}"; do
    mkdir "$cgroup"
    for setting in cpuset.cpus cpuset.mems; do
        [ ! -e "$cgroup/$setting" ] || [ -e "$cgroup/cgroup.controllers" ] ||
            cat "${cgroup%/*}/$setting" >"$cgroup/$setting"
    done
done
(
    for cgroup in "${cgroups[@]}"; do
        echo "$BASHPID" >"$cgroup/cgroup.procs"
    done
    exec unshare --cgroup --net --mount --propagation private --pid --uts --ipc --fork --kill-child \
        "$0" "$1" inside "/sys/fs/cgroup/unified/$name"
) </dev/null &
namespaces=$!

# PID 1 is the child of `unshare`.
inside() {
    nsenter --target "$first" --all "$@"
}
first=
# A systemd that cannot go on, as without inotify instances, neither ends nor answers.
boot_deadline=$((SECONDS + 300))
until [ -n "$first" ] && [ "$(cat "/proc/$first/comm" 2>/dev/null)" = systemd ] &&
    inside timeout 20 systemctl is-system-running >/dev/null 2>&1; do
    ((SECONDS < boot_deadline)) || {
        echo "debian-boot.sh: Debian has not booted after 300 s" >&2
        exit 1
    }
    kill -0 "$namespaces" 2>/dev/null || {
        echo "debian-boot.sh: Debian does not boot" >&2
        exit 1
    }
    if [ -n "$first" ] && [ "$(inside timeout 20 systemctl is-system-running 2>/dev/null || :)" = degraded ]; then
        inside systemctl --no-pager --failed >&2
        exit 1
    fi
    sleep 0.05
    read -r first <"/proc/$namespaces/task/$namespaces/children" || :
    first=${first% }
done
inside umount --lazy /proc/sys
echo "$first"
exec >&-
cat >/dev/null
