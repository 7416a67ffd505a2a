//! Files that packages install, and files left after their removal.

use std::collections::BTreeSet;

use oci_hooks_testsupport::debian_root::DebianRoot;
use oci_hooks_testsupport::packages::{NAMES, debs};

use crate::packages::{as_root, as_user};

/// Returns the files of the system, except those of dpkg and apt and runtime files.
fn files(root: &DebianRoot) -> BTreeSet<String> {
    let script = "find / -xdev -not -path '/var/lib/dpkg/*' -not -path '/var/lib/apt/*' -not -path '/var/cache/*' \
        -not -path '/var/log/*' -not -path '/home/*' -not -path '/root/*' -not -path '/tmp/*' -not -path '/var/tmp/*' \
        -not -path '/var/lib/systemd/*' -not -path '/run/*'";
    as_root(root, script).success().lines().map(str::to_owned).collect()
}

#[test]
fn packages_install_all_files_of_a_program_and_leave_nothing() {
    let root = DebianRoot::boot();
    for deb in debs() {
        root.copy_in(&deb, "/home/runner");
    }
    // Dependencies leave files of their own.
    as_root(&root, "apt-get install --quiet --yes --no-install-recommends runc ca-certificates")
        .success();
    let before = files(&root);
    let install = "apt-get install --quiet --yes --no-install-recommends /home/runner/*.deb";
    as_root(&root, install).success();
    for name in NAMES {
        let version = as_user(&root, &format!("{name} --version")).success();
        if name == "oci-hooks-runtime" {
            assert!(version.starts_with("runc version"), "{version}");
        } else {
            assert_eq!(version, format!("{name} {}\n", env!("CARGO_PKG_VERSION")));
            let complete = format!(
                ". /usr/share/bash-completion/completions/{name} && complete -p {name} && \
                 grep -q '^#compdef {name}' /usr/share/zsh/vendor-completions/_{name} && \
                 grep -q 'complete.*{name}' /usr/share/fish/vendor_completions.d/{name}.fish"
            );
            as_user(&root, &complete).success();
        }
        let doc = format!("/usr/share/doc/{name}");
        let check = format!(
            "man --where {name} && test \"$(dpkg --verify {name})\" = '' && zcat {doc}/changelog.Debian.gz && \
             test -s {doc}/copyright && test -s {doc}/SECURITY.md"
        );
        as_user(&root, &check).success();
    }
    let example = "oci-hooks list --hooks-dir /usr/share/doc/oci-hooks/examples/hooks.d && \
        jq --exit-status .title /usr/share/oci-hooks/hook.schema.json; \
        step-runner lint /usr/share/doc/step-runner/examples/steps/build/step.yml";
    as_user(&root, example).success();
    // Data and settings belong to the administrator.
    let data =
        "mkdir -p /etc/oci-hooks /var/lib/oci-hooks && touch /etc/oci-hooks/container-hook.toml";
    as_root(&root, data).success();
    let purge = format!("apt-get purge --quiet --yes {} 2>&1", NAMES.join(" "));
    let said = as_root(&root, &purge).success();
    for place in ["/etc/oci-hooks", "/var/lib/oci-hooks"] {
        let line = format!("{place} remains: rm --recursive --one-file-system {place}");
        assert!(said.contains(&line), "{said}");
    }
    as_root(&root, "rm -r /etc/oci-hooks /var/lib/oci-hooks").success();
    let after = files(&root);
    let left: Vec<_> = after.symmetric_difference(&before).collect();
    assert!(left.is_empty(), "{left:#?}");
}
