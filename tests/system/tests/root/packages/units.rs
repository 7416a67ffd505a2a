//! systemd units and drop-ins.

use oci_hooks_testsupport::debian_root::DebianRoot;
use oci_hooks_testsupport::packages::{NAMES, debs};

use crate::packages::as_root;

const UNITS: [&str; 5] = [
    "oci-hooks-nri.service",
    "container-hook-prune.service",
    "container-hook-prune.timer",
    "garm-provider-runc-prune.service",
    "garm-provider-runc-prune.timer",
];

/// Returns a system with all packages but without their dependencies.
fn installed_system() -> DebianRoot {
    let root = DebianRoot::boot();
    for deb in debs() {
        root.copy_in(&deb, "/home/runner");
    }
    as_root(&root, "dpkg --install --force-depends /home/runner/*.deb").success();
    root
}

#[test]
fn units_are_valid_and_not_enabled_by_default() {
    let root = installed_system();
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
    let root = installed_system();
    let script = "set -e
        for example in container-hook/examples/oci-hooks-delegate garm-provider-runc/examples/garm-oci-hooks; do
            name=${example##*/}
            mkdir -p /etc/systemd/system/$name.service.d
            cp /usr/share/doc/$example.conf /etc/systemd/system/$name.service.d/
            printf '[Service]\\nExecStart=/bin/true\\n' >/etc/systemd/system/$name.service
            systemd-analyze verify /etc/systemd/system/$name.service 2>&1
        done";
    let said = as_root(&root, script).success();
    // systemd 252 of Debian 12 does not know it yet, but starts the service anyway.
    let said: Vec<_> = said.lines().filter(|line| !line.contains("'DelegateSubgroup'")).collect();
    assert_eq!(said, [""; 0]);
}
