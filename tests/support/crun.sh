#!/bin/sh
# Runs crun. On a host with cgroup v1 and, at /sys/fs/cgroup/unified, cgroup v2, crun fails ("cgroups in
# hybrid mode not supported"), so there it runs in a mount namespace without v2.
if grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts; then
    # shellcheck disable=SC2016 # the inner shell expands "$@"
    exec unshare --mount --propagation slave \
        sh -c 'umount --lazy /sys/fs/cgroup/unified && exec crun "$@"' crun "$@"
fi
exec crun "$@"
