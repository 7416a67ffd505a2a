//! Whether root of an instance is root of this machine, and what the settings give it then.

use std::os::unix::fs::MetadataExt as _;

use oci_hooks::garm::{Flavor, Users};
use oci_hooks::program::checks::{Check, owners};

use crate::settings::Settings;

const NAME: &str = "user namespace";

/// Looks at the user namespaces of instances, and at the flavors that need them.
pub fn checks(settings: &Settings) -> Vec<Check> {
    let users = settings.users();
    let mut checks = vec![namespace(users)];
    if users != Users::Host {
        checks.push(owners::user_namespaces("instances have the users of this machine without"));
        checks.push(owners::idmapped_mounts(
            &settings.store,
            "instances copy their image and cannot write to [mounts] and [caches]: update the kernel, or put \
             the store on another file system",
        ));
    }
    checks.extend(flavors(settings, users));
    checks
}

fn namespace(users: Users) -> Check {
    match users {
        Users::Own => Check::ok(NAME, "each instance has its own"),
        Users::Host => Check::warn(
            NAME,
            "root of an instance is root of this machine: user-namespace = \"host\" under [security]",
            "take that out of the settings if no flavor needs it",
        ),
        Users::HostOnly => Check::warn(
            NAME,
            "root of an instance is root of this machine, kept in by capabilities and seccomp alone",
            "instances have their own users with Linux 5.19 or newer, and user.max_user_namespaces above 0",
        ),
    }
}

/// Names the flavors that there can be no instances of, and those that give this machine away.
fn flavors(settings: &Settings, users: Users) -> Vec<Check> {
    let with = |has: fn(&Flavor) -> bool| {
        let names = settings.flavors.iter().filter(|(_, flavor)| has(flavor));
        let names: Vec<_> = names.map(|(name, _)| name.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let (nesting, privileged) = (with(|flavor| flavor.nesting), with(|flavor| flavor.privileged));
    let refused = |name, flavors: String| {
        let found = format!(
            "instances of flavors {flavors} are refused: they have no user namespace of their own"
        );
        Check::fail(name, found, "take it out of these flavors, or see `user namespace` above")
    };
    let mut checks = Vec::new();
    if users != Users::Own {
        checks.extend(nesting.map(|flavors| refused("nesting", flavors)));
    }
    checks.extend(privileged.and_then(|flavors| match users {
        Users::Own => None,
        Users::HostOnly => Some(refused("privileged", flavors)),
        Users::Host => Some(Check::warn(
            "privileged",
            format!(
                "everyone who can change a workflow of flavors {flavors} is root of this machine"
            ),
            "take it out of these flavors, or user-namespace = \"host\" out of [security]",
        )),
    }));
    checks
}

/// Names the writable mounts that belong to root.
pub fn mounts(settings: &Settings) -> Vec<Check> {
    let writable = settings.mounts.iter().filter(|(_, mount)| !mount.read_only);
    let of_root = writable.filter(|(_, mount)| {
        mount.source.metadata().is_ok_and(|found| found.uid() == 0 || found.gid() == 0)
    });
    let checks = of_root.map(|(name, mount)| {
        let source = mount.source.display();
        let found =
            format!("mount {name:?} is writable, and {source} belongs to root: it is refused");
        let hint =
            format!("give it to a user and a group that are not root: chown USER:GROUP {source}");
        Check::fail("mounts", found, hint)
    });
    checks.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, users: Users) -> String {
        let settings: Settings = toml::from_str(text).unwrap();
        serde_json::to_string(&flavors(&settings, users)).unwrap()
    }

    #[test]
    fn flavors_that_need_users_of_their_own_are_named_where_there_are_none() {
        let text = "[flavors.a]\nnesting = true\n[flavors.b]\nprivileged = true\n[flavors.c]\n";
        assert_eq!(found(text, Users::Own), "[]");
        let refused = found(text, Users::HostOnly);
        assert_eq!(refused.matches("refused").count(), 2, "{refused}");
        assert!(
            refused.contains("flavors a are") && refused.contains("flavors b are"),
            "{refused}"
        );
        let by_choice = found(text, Users::Host);
        assert_eq!(by_choice.matches("refused").count(), 1, "{by_choice}");
        assert!(by_choice.contains("workflow of flavors b is root of this machine"), "{by_choice}");
    }
}
