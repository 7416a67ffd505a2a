#!/bin/sh
# Runs crun. It refuses a host that has cgroup v1 and, at /sys/fs/cgroup/unified, cgroup v2 as
# well ("cgroups in hybrid mode not supported"): there it runs in a mount namespace without the
# latter.
if grep -q ' /sys/fs/cgroup/unified ' /proc/self/mounts; then
    # shellcheck disable=SC2016 # the inner shell expands "$@"
    exec unshare --mount --propagation slave \
        sh -c 'umount --lazy /sys/fs/cgroup/unified && exec crun "$@"' crun "$@"
fi
exec crun "$@"
