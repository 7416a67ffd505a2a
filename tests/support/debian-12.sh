#!/bin/bash
# Creates a freshly installed Debian 12 for tests that install packages: debian-12.sh DIRECTORY.
# DIRECTORY/root.tar is the system. DIRECTORY/packages is an apt archive of the packages' dependencies, which
# the system expects in /srv/packages, so that installing needs no network. Does nothing if the result of this
# script exists.
set -euo pipefail
directory=$(realpath --canonicalize-missing "$1")

# Packages of a server that Debian's installer set up.
base=systemd,systemd-sysv,libpam-systemd,dbus,dbus-user-session,sudo,login,passwd,adduser,procps,iproute2,kmod,man-db,bash-completion,less,curl
# Dependencies and recommendations of our packages, packages that documentation pages install, and the setting
# of man-db that skips its index, which it would rebuild for each package.
packages=(
    runc crun nftables uidmap slirp4netns passt buildah podman ca-certificates git jq acl apparmor
    busybox-static docker-registry skopeo e2fsprogs openssh-client gcc libc6-dev
)
# Units that would change this machine, or start during a test.
masked='systemd-sysctl.service systemd-modules-load.service systemd-random-seed.service console-getty.service
getty@.service proc-sys-fs-binfmt_misc.automount apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
e2scrub_all.timer fstrim.timer man-db.timer systemd-tmpfiles-clean.timer'
answer='man-db man-db/auto-update boolean false'

mkdir -p "$directory"
exec 9>"$directory/lock"
flock 9
if cmp --silent "$0" "$directory/made-by"; then
    exit
fi
for tool in mmdebstrap dpkg-scanpackages; do
    command -v "$tool" >/dev/null || {
        echo "debian-12.sh: $tool is missing: tests/run installs it" >&2
        exit 2
    }
done
sources=$("$(dirname "$0")/mirror.sh" debian bookworm)
echo "== unpack Debian 12 into $directory" >&2
rm -rf "$directory"/{made-by,root.tar,packages}
mkdir "$directory/packages"

hooks=(
    "echo '$answer' | chroot \"\$1\" debconf-set-selections"
    "chroot \"\$1\" apt-get --quiet --yes --download-only install ${packages[*]}"
    "chroot \"\$1\" systemctl --quiet mask ${masked//$'\n'/ }"
)
# Characters that apt escapes in file names; it would escape them twice.
# shellcheck disable=SC2016 # $1 is for the hooks
hooks+=(
    'mkdir "$1/srv/packages" && mv "$1"/var/cache/apt/archives/*.deb "$1/srv/packages/"'
    'cd "$1/srv/packages" && for file in *%3a*; do mv "$file" "$(echo "$file" | sed s/%3a/-/)"; done'
    'cd "$1/srv/packages" && dpkg-scanpackages --multiversion . 2>/dev/null >Packages'
    'cd "$1" && rm -f etc/apt/sources.list.d/* etc/apt/apt.conf.d/99mmdebstrap var/lib/apt/lists/*_*'
    'echo "deb [trusted=yes] file:/srv/packages ./" >"$1/etc/apt/sources.list"'
    'echo "Acquire::Languages \"none\";" >"$1/etc/apt/apt.conf.d/languages"'
    'chroot "$1" apt-get --quiet update'
    'echo force-unsafe-io >"$1/etc/dpkg/dpkg.cfg.d/force-unsafe-io"'
    'chroot "$1" useradd --create-home --shell /bin/bash runner'
    'echo LANG=C.UTF-8 >"$1/etc/default/locale" && echo debian >"$1/etc/hostname"'
    "mv \"\$1\"/srv/packages/* '$directory/packages/'"
)
mmdebstrap --quiet --variant=minbase --include="$base" --format=tar --skip=cleanup/apt/lists \
    --aptopt='Acquire::Languages "none"' "${hooks[@]/#/--customize-hook=}" \
    bookworm "$directory/root.tar" "$sources" >/dev/null
cp "$0" "$directory/made-by"
