//! Units and drop-ins.

use crate::as_root;
use crate::support::debian_root::DebianRoot;
use crate::support::packages::{NAMES, debs};

const UNITS: [&str; 5] = [
    "oci-hooks-nri.service",
    "container-hook-prune.service",
    "container-hook-prune.timer",
    "garm-provider-runc-prune.service",
    "garm-provider-runc-prune.timer",
];

/// A system with all packages, whatever they depend on.
fn installed() -> DebianRoot {
    let root = DebianRoot::boot();
    for deb in debs() {
        root.copy_in(&deb, "/home/runner");
    }
    as_root(&root, "dpkg --install --force-depends /home/runner/*.deb").success();
    root
}

#[test]
fn units_are_valid_and_neither_enabled_nor_started_and_end_with_their_package() {
    let root = installed();
    let verify =
        format!("cd /usr/lib/systemd/system && systemd-analyze verify {} 2>&1", UNITS.join(" "));
    assert_eq!(as_root(&root, &verify).success(), "");
    for unit in UNITS {
        let state =
            as_root(&root, &format!("systemctl is-enabled {unit}; systemctl is-active {unit}"));
        let state = if state.status.success() { state.success() } else { state.stdout };
        let begin = if state.starts_with("static") { "static" } else { "disabled" };
        assert_eq!(state, format!("{begin}\ninactive\n"), "{unit}");
    }
    let enable = "systemctl enable --now container-hook-prune.timer \
        garm-provider-runc-prune.timer && systemctl enable oci-hooks-nri.service && \
        systemctl start container-hook-prune.service garm-provider-runc-prune.service && \
        systemctl is-active garm-provider-runc-prune.timer container-hook-prune.timer";
    assert_eq!(as_root(&root, enable).success(), "active\nactive\n");
    as_root(&root, &format!("apt-get remove --quiet --yes {}", NAMES.join(" "))).success();
    let left = "find /etc/systemd /usr/lib/systemd /run/systemd/units -name '*oci-hooks*' -o -name '*-prune.*' \
        -o -name '*garm-provider*'; pgrep -a oci-hooks || true";
    assert_eq!(as_root(&root, left).success(), "");
}

#[test]
fn drop_ins_are_valid() {
    let root = installed();
    let script = "set -e
        for example in container-hook/examples/oci-hooks-delegate garm-provider-runc/examples/garm-oci-hooks; do
            name=${example##*/}
            mkdir -p /etc/systemd/system/$name.service.d
            cp /usr/share/doc/$example.conf /etc/systemd/system/$name.service.d/
            printf '[Service]\\nExecStart=/bin/true\\n' >/etc/systemd/system/$name.service
            systemd-analyze verify /etc/systemd/system/$name.service 2>&1
        done";
    let said = as_root(&root, script).success();
    // systemd 252 of Debian 12 does not have it yet, and starts the service all the same.
    let said: Vec<_> = said.lines().filter(|line| !line.contains("'DelegateSubgroup'")).collect();
    assert_eq!(said, [""; 0]);
}
