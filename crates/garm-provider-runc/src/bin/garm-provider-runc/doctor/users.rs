//! Checks of user namespaces: whether root of an instance is root on this machine, and which flavors depend on it.

use std::os::unix::fs::MetadataExt as _;

use garm_provider_runc::{Flavor, InstanceUserNamespace};
use oci_hooks_engine_cli::checks::{HostCheck, owners};

use crate::settings::GarmFileSettings;

const NAME: &str = "user namespace";

/// Checks the user namespaces of instances, and the flavors that need them.
pub fn checks(settings: &GarmFileSettings) -> Vec<HostCheck> {
    let users = settings.users();
    let mut checks = vec![namespace(users)];
    if users != InstanceUserNamespace::Host {
        checks.push(owners::user_namespaces(
            "without them, root of an instance is root of this machine",
        ));
        checks.push(owners::idmapped_mounts(
            &settings.store,
            "without them, instances copy their image and cannot write to [mounts] and [caches]: update the kernel, or \
             set `root` under [store] to a directory on ext4, XFS or Btrfs",
        ));
    }
    checks.extend(flavors(settings, users));
    checks
}

fn namespace(users: InstanceUserNamespace) -> HostCheck {
    match users {
        InstanceUserNamespace::Own => HostCheck::ok(NAME, "each instance has its own"),
        InstanceUserNamespace::Host => HostCheck::warn(
            NAME,
            "root of an instance is root of this machine, because of user-namespace = \"host\" under [security]",
            "remove user-namespace = \"host\" from [security], unless a flavor needs it to run Docker",
        ),
        InstanceUserNamespace::HostOnly => HostCheck::warn(
            NAME,
            "root of an instance is root of this machine, confined only by capabilities and seccomp",
            "for a user namespace per instance, update to Linux 5.19 or newer, and set the sysctl \
             user.max_user_namespaces above 0",
        ),
    }
}

/// Reports flavors whose instances are rejected, and flavors that give root on this machine.
fn flavors(settings: &GarmFileSettings, users: InstanceUserNamespace) -> Vec<HostCheck> {
    let with = |has: fn(&Flavor) -> bool| {
        let names = settings.flavors.iter().filter(|(_, flavor)| has(flavor));
        let names: Vec<_> = names.map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let (nesting, privileged) = (with(|flavor| flavor.nesting), with(|flavor| flavor.privileged));
    let refused = |name: &'static str, flavors: String| {
        let found = format!(
            "instances of flavors {flavors} are rejected: they have no user namespace of their own"
        );
        let hint = format!("remove `{name}` from these flavors, or see the check `user namespace`");
        HostCheck::fail(name, found, hint)
    };
    let mut checks = Vec::new();
    if users != InstanceUserNamespace::Own {
        checks.extend(nesting.map(|flavors| refused("nesting", flavors)));
    }
    checks.extend(privileged.and_then(|flavors| match users {
        InstanceUserNamespace::Own => None,
        InstanceUserNamespace::HostOnly => Some(refused("privileged", flavors)),
        InstanceUserNamespace::Host => Some(HostCheck::warn(
            "privileged",
            format!(
                "everyone who can change a workflow of flavors {flavors} is root of this machine"
            ),
            "remove `privileged` from these flavors, or user-namespace = \"host\" from [security]",
        )),
    }));
    checks
}

/// Reports writable mounts that belong to root.
pub fn mounts(settings: &GarmFileSettings) -> Vec<HostCheck> {
    let writable = settings.mounts.iter().filter(|(_, mount)| !mount.read_only);
    let of_root = writable.filter(|(_, mount)| {
        mount.source.metadata().is_ok_and(|found| found.uid() == 0 || found.gid() == 0)
    });
    let checks = of_root.map(|(name, mount)| {
        let source = mount.source.display();
        let found = format!(
            "mount {name:?} is writable, but {source} belongs to root or to group root: instances \
             with this mount are rejected"
        );
        let hint = format!(
            "chown USER:GROUP {source}, with another user and group than root, or set \
             `read-only = true` for the mount"
        );
        HostCheck::fail("mounts", found, hint)
    });
    checks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_text(text: &str, users: InstanceUserNamespace) -> String {
        let settings: GarmFileSettings = toml::from_str(text).unwrap();
        serde_json::to_string(&flavors(&settings, users)).unwrap()
    }

    #[test]
    fn flavors_that_need_private_users_are_named_if_unavailable() {
        let text = "[flavors.a]\nnesting = true\n[flavors.b]\nprivileged = true\n[flavors.c]\n";
        assert_eq!(check_text(text, InstanceUserNamespace::Own), "[]");
        let refused = check_text(text, InstanceUserNamespace::HostOnly);
        assert_eq!(refused.matches("rejected").count(), 2, "{refused}");
        assert!(
            refused.contains("flavors a are") && refused.contains("flavors b are"),
            "{refused}"
        );
        let by_choice = check_text(text, InstanceUserNamespace::Host);
        assert_eq!(by_choice.matches("rejected").count(), 1, "{by_choice}");
        assert!(by_choice.contains("workflow of flavors b is root of this machine"), "{by_choice}");
    }
}
