//! Upgrades from an older package.

use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::debian_root::DebianRoot;
use oci_hooks_testsupport::packages::{NAMES, debs};
use oci_hooks_testsupport::program;

use crate::packages::as_root;

/// Builds the package with an older version.
fn build_older(deb: &Path, directory: &Path) -> PathBuf {
    let script = "dpkg-deb --raw-extract \"$1\" \"$2/root\" &&
        sed -i 's/^Version: .*/Version: 0.0.9-1/' \"$2/root/DEBIAN/control\" &&
        dpkg-deb --root-owner-group -Zgzip -z1 --build \"$2/root\" \"$2/older.deb\"";
    program::run(Command::new("sh").args(["-c", script, "sh"]).arg(deb).arg(directory)).success();
    directory.join("older.deb")
}

#[test]
fn upgrade_keeps_changes_and_enabled_units_of_the_admin() {
    let root = DebianRoot::boot();
    let directory = program::temporary_directory();
    let debs = debs();
    let deb = &debs[NAMES.iter().position(|name| *name == "container-hook").unwrap()];
    root.copy_in(&build_older(deb, directory.path()), "/home/runner");
    root.copy_in(deb, "/home/runner");
    let install = "apt-get install --quiet --yes --no-install-recommends /home/runner";
    let change = format!(
        "{install}/older.deb &&
        mkdir -p /etc/systemd/system/container-hook-prune.service.d /etc/oci-hooks &&
        printf '[Service]\\nNice=5\\n' >/etc/systemd/system/container-hook-prune.service.d/override.conf &&
        echo '# mine' >/etc/oci-hooks/container-hook.toml &&
        systemctl daemon-reload && systemctl enable --now container-hook-prune.timer"
    );
    as_root(&root, &change).success();
    as_root(&root, &format!("{install}/container-hook_*.deb")).success();
    let state = "dpkg-query --show --showformat='${Version}\\n' container-hook &&
        systemctl is-enabled container-hook-prune.timer && systemctl is-active container-hook-prune.timer &&
        systemctl show --value --property=Nice container-hook-prune.service &&
        cat /etc/oci-hooks/container-hook.toml";
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("{version}-1\nenabled\nactive\n5\n# mine\n");
    assert_eq!(as_root(&root, state).success(), expected);
}
