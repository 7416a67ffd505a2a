//! An older package gives way to this one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::as_root;
use crate::support::debian_root::DebianRoot;
use crate::support::packages::debs;
use crate::support::program;

/// Makes the package of an older version.
fn older(deb: &Path, directory: &Path) -> PathBuf {
    let script = "dpkg-deb --raw-extract \"$1\" \"$2/root\" &&
        sed -i 's/^Version: .*/Version: 0.0.9-1/' \"$2/root/DEBIAN/control\" &&
        dpkg-deb --root-owner-group -Zgzip -z1 --build \"$2/root\" \"$2/older.deb\"";
    program::run(Command::new("sh").args(["-c", script, "sh"]).arg(deb).arg(directory)).success();
    directory.join("older.deb")
}

#[test]
fn an_upgrade_keeps_what_the_admin_changed_and_enabled() {
    let root = DebianRoot::boot();
    let directory = program::temporary_directory();
    let deb = &debs()[0];
    root.copy_in(&older(deb, directory.path()), "/home/runner");
    root.copy_in(deb, "/home/runner");
    let change = "dpkg --install /home/runner/older.deb &&
        mkdir -p /etc/systemd/system/oci-hooks-monitor.service.d /etc/oci-hooks &&
        printf '[Service]\\nNice=5\\n' >/etc/systemd/system/oci-hooks-monitor.service.d/override.conf &&
        echo '# mine' >/etc/oci-hooks/runtime.toml &&
        systemctl daemon-reload && systemctl enable --now oci-hooks-monitor.service";
    as_root(&root, change).success();
    let pid = "systemctl show --value --property=MainPID oci-hooks-monitor.service";
    let before = as_root(&root, pid).success();
    as_root(&root, "apt-get install --quiet --yes /home/runner/oci-hooks_*.deb").success();
    let state = "dpkg-query --show --showformat='${Version}\\n' oci-hooks &&
        systemctl is-enabled oci-hooks-monitor.service && systemctl is-active oci-hooks-monitor.service &&
        systemctl show --value --property=Nice oci-hooks-monitor.service && cat /etc/oci-hooks/runtime.toml &&
        systemctl reload oci-hooks-monitor.service";
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("{version}-1\nenabled\nactive\n5\n# mine\n");
    assert_eq!(as_root(&root, state).success(), expected);
    assert_ne!(as_root(&root, pid).success(), before, "the old program runs on");
}
