//! Selects the capabilities of a container's processes: Docker's defaults, `--cap-add` and `--cap-drop`, limited to
//! those that this process can grant.

use oci_spec::runtime::{Capabilities, Capability, LinuxCapabilities};
pub use rustix::thread::CapabilitySet;

use super::BundleError;
use super::options::ContainerSecurity;

/// Docker's default for root in a container, except `CAP_MKNOD`: on an idmapped mount of a host directory,
/// device nodes would belong to the host's user.
pub const DEFAULT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::AUDIT_WRITE);

/// Returns the capabilities that this process can grant.
pub fn grantable_capabilities() -> CapabilitySet {
    // The call can only fail for other processes.
    rustix::thread::capabilities(None).map_or(CapabilitySet::all(), |sets| sets.permitted)
}

/// Returns the capabilities of root in the container.
pub fn capabilities(
    security: &ContainerSecurity,
    available: CapabilitySet,
) -> Result<CapabilitySet, BundleError> {
    let (add, drop) = (parse_names(&security.cap_add)?, parse_names(&security.cap_drop)?);
    let is_harmless = CapabilitySet::NET_BIND_SERVICE.contains(add) && !is_all(&security.cap_add);
    if security.restricted && !is_harmless {
        return Err(BundleError::Restricted {
            what: "add capabilities other than NET_BIND_SERVICE",
        });
    }
    let wanted = if security.privileged {
        CapabilitySet::all()
    } else if is_all(&security.cap_add) {
        CapabilitySet::all() - drop
    } else if is_all(&security.cap_drop) || security.restricted {
        add
    } else {
        (DEFAULT - drop) | add
    };
    Ok(wanted & available)
}

fn is_all(names: &[String]) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case("all"))
}

fn parse_names(names: &[String]) -> Result<CapabilitySet, BundleError> {
    let mut set = CapabilitySet::empty();
    for name in names.iter().filter(|name| !name.eq_ignore_ascii_case("all")) {
        let upper = name.to_ascii_uppercase();
        let short = upper.strip_prefix("CAP_").unwrap_or(&upper);
        let found = CapabilitySet::from_name(short);
        set |= found.ok_or_else(|| BundleError::Capability { name: name.clone() })?;
    }
    Ok(set)
}

/// Returns `process.capabilities`.
///
/// Only root has effective and permitted capabilities: an executed program of another user would
/// lose them anyway, and until then they could only be misused. None can be inherited
/// (CVE-2022-24769).
pub fn process_capabilities(set: CapabilitySet, uid: u32) -> LinuxCapabilities {
    let bounding: Capabilities =
        set.iter_names().filter_map(|(name, _)| name.parse().ok()).collect();
    let effective = if uid == 0 { bounding.clone() } else { Capabilities::new() };
    let mut capabilities = LinuxCapabilities::default();
    capabilities
        .set_bounding(Some(bounding))
        .set_permitted(Some(effective.clone()))
        .set_effective(Some(effective))
        .set_inheritable(Some(Capabilities::new()))
        .set_ambient(Some(Capabilities::new()));
    capabilities
}

/// Grants `CAP_KILL` to a non-root init, so that it can kill processes that `sudo` started in a step. Only for
/// our init, which does not pass the capability to steps.
pub fn allow_kill(capabilities: &mut LinuxCapabilities) {
    // An executed program of a non-root user keeps ambient capabilities only, which must be inheritable and permitted.
    let kill = Capabilities::from([Capability::Kill]);
    capabilities
        .set_permitted(Some(kill.clone()))
        .set_effective(Some(kill.clone()))
        .set_inheritable(Some(kill.clone()))
        .set_ambient(Some(kill));
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};

    use super::*;

    fn set(add: &[&str], drop: &[&str]) -> CapabilitySet {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        let security = ContainerSecurity {
            cap_add: words(add),
            cap_drop: words(drop),
            ..ContainerSecurity::default()
        };
        capabilities(&security, CapabilitySet::all()).unwrap()
    }

    #[test]
    fn thirteen_capabilities_remain_by_default() {
        let default = set(&[], &[]);
        assert_eq!(default.iter_names().count(), 13);
        assert!(!default.contains(CapabilitySet::MKNOD));
        assert!(set(&["mknod"], &[]).contains(CapabilitySet::MKNOD));
    }

    #[test]
    fn adding_and_dropping_combine_as_in_docker() {
        assert_eq!(set(&["CAP_SYS_PTRACE"], &[]), DEFAULT | CapabilitySet::SYS_PTRACE);
        assert_eq!(set(&[], &["net_raw"]), DEFAULT - CapabilitySet::NET_RAW);
        assert_eq!(set(&["net_raw"], &["all"]), CapabilitySet::NET_RAW);
        assert_eq!(set(&["ALL"], &["SYS_ADMIN"]), CapabilitySet::all() - CapabilitySet::SYS_ADMIN);
        assert_eq!(set(&["ALL"], &["ALL"]), CapabilitySet::all());
    }

    #[test]
    fn unknown_names_are_rejected() {
        let security = ContainerSecurity {
            cap_add: vec!["SYS_MAGIC".to_owned()],
            ..ContainerSecurity::default()
        };
        let error = capabilities(&security, CapabilitySet::all()).unwrap_err();
        assert_eq!(error.to_string(), r#"unknown capability "SYS_MAGIC""#);
    }

    #[test]
    fn privileges_beyond_this_process_are_not_granted() {
        let security = ContainerSecurity { privileged: true, ..ContainerSecurity::default() };
        let all = CapabilitySet::all() - CapabilitySet::SYS_RESOURCE;
        assert_eq!(capabilities(&security, all).unwrap(), all);
    }

    #[test]
    fn restricted_profile_leaves_no_capabilities() {
        let mut security = ContainerSecurity { restricted: true, ..ContainerSecurity::default() };
        assert_eq!(capabilities(&security, CapabilitySet::all()).unwrap(), CapabilitySet::empty());
        security.cap_add = vec!["NET_ADMIN".to_owned()];
        assert!(capabilities(&security, CapabilitySet::all()).is_err());
    }

    #[test]
    fn every_capability_has_a_name() {
        let all = process_capabilities(CapabilitySet::all(), 0);
        let written = all.bounding().as_ref().unwrap().len();
        assert_eq!(written, CapabilitySet::all().iter_names().count());
    }

    #[test]
    fn only_root_has_effective_capabilities() {
        let of_process = |set, uid| to_value(process_capabilities(set, uid)).unwrap();
        let json = of_process(CapabilitySet::KILL, 0);
        assert_eq!(json["effective"], json!(["CAP_KILL"]));
        let json = of_process(CapabilitySet::KILL, 1000);
        assert_eq!((&json["effective"], &json["bounding"]), (&json!([]), &json!(["CAP_KILL"])));
        assert_eq!((&json["inheritable"], &json["ambient"]), (&json!([]), &json!([])));
    }
}
