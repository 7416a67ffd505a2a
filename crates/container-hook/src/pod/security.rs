//! `securityContext` of pod and container.

use std::path::{Component, Path};

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, PodSecurityContext, SeccompProfile, SecurityContext,
};

use oci_hooks_engine::bundle::{self, Seccomp};
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::read_bounded;
use oci_hooks_image::ImageConfig;
use rustix::thread::CapabilitySet;

use container_hook_job::HookSettings;
use container_hook_job::options::capability;
use container_hook_job::template::{FieldPath, TemplateFault};

/// Maximum size of a seccomp profile; real profiles are smaller.
const MAX_PROFILE_BYTES: u64 = 1 << 20;

/// The security contexts of a container and its pod, with their paths.
#[derive(Clone, Copy)]
pub struct SecurityContexts<'a> {
    pub container: (&'a SecurityContext, &'a FieldPath),
    pub pod: (&'a PodSecurityContext, &'a FieldPath),
}

/// The user and group IDs that the template sets for a container.
#[derive(Clone, Debug, Default)]
pub struct RunAsUser {
    user: Option<String>,
    group: Option<String>,
}

impl SecurityContexts<'_> {
    /// Applies the contexts; fields of the container override those of the pod. Returns the user of the
    /// container.
    pub fn apply(
        self,
        settings: &HookSettings,
        options: &mut bundle::BundleOptions,
    ) -> Result<RunAsUser, TemplateFault> {
        let (own, place) = self.container;
        let user = self.user(options)?;
        let security = &mut options.security;
        security.non_root |= own.run_as_non_root.or(self.pod.0.run_as_non_root).unwrap_or(false);
        options.read_only |= own.read_only_root_filesystem == Some(true);
        if own.privileged == Some(true) {
            if !settings.policy.privileged {
                return Err(place.at("privileged").fault(format!(
                    "amounts to root on this machine: remove it, name the capabilities that are \
                     needed, or set `privileged = true` under {}",
                    settings.policy.section("policy")
                )));
            }
            security.privileged = true;
            security.restricted = false;
        }
        if let Some(capabilities) = &own.capabilities {
            merge_capabilities(capabilities, &place.at("capabilities"), security)?;
        }
        match own.allow_privilege_escalation {
            Some(allowed) => security.no_new_privileges = !allowed,
            None if own.privileged == Some(true) => security.no_new_privileges = false,
            None => {}
        }
        match own.proc_mount.as_deref() {
            None => {}
            Some("Default") => security.unmask = false,
            Some("Unmasked") => security.unmask = true,
            Some(other) => {
                let problem = format!("{other:?} is neither `Default` nor `Unmasked`");
                return Err(place.at("procMount").fault(problem));
            }
        }
        let (pod, pod_place) = self.pod;
        let profiles = (own.seccomp_profile.as_ref(), pod.seccomp_profile.as_ref());
        if let Some((profile, place)) = self.pick("seccompProfile", profiles) {
            security.seccomp = seccomp(profile, &place, settings)?;
        }
        let profiles = (own.app_armor_profile.as_ref(), pod.app_armor_profile.as_ref());
        if let Some((profile, place)) = self.pick("appArmorProfile", profiles) {
            security.apparmor_profile = apparmor(profile, &place)?;
        }
        for (at, sysctl) in pod.sysctls.iter().flatten().enumerate() {
            if !bundle::owns_sysctl(&options.namespaces, &sysctl.name) {
                return Err(pod_place.at("sysctls").item(at).fault(format!(
                    "{} would apply to the whole machine: remove it here, and set it on the machine",
                    sysctl.name
                )));
            }
            options.sysctls.insert(sysctl.name.clone(), sysctl.value.clone());
        }
        Ok(user)
    }

    /// Returns the user of the container, and sets its supplementary groups.
    fn user(self, options: &mut bundle::BundleOptions) -> Result<RunAsUser, TemplateFault> {
        let ((own, _), (pod, pod_place)) = (self.container, self.pod);
        let pick_id =
            |field, ids| self.pick(field, ids).map(|(id, place)| number(id, &place)).transpose();
        let user = pick_id("runAsUser", (own.run_as_user, pod.run_as_user))?;
        let group = pick_id("runAsGroup", (own.run_as_group, pod.run_as_group))?;
        match pod.supplemental_groups_policy.as_deref() {
            None | Some("Merge") => {}
            Some(_) => {
                return Err(pod_place
                    .at("supplementalGroupsPolicy")
                    .fault("is not supported: write `Merge`"));
            }
        }
        for (at, &group) in pod.supplemental_groups.iter().flatten().enumerate() {
            options
                .supplementary_groups
                .push(number(group, &pod_place.at("supplementalGroups").item(at))?);
        }
        if let Some(group) = pod.fs_group {
            options.supplementary_groups.push(number(group, &pod_place.at("fsGroup"))?);
        }
        Ok(RunAsUser { user, group })
    }

    /// Returns a field of the container, else of the pod, with its path.
    fn pick<T>(self, field: &str, (own, pod): (Option<T>, Option<T>)) -> Option<(T, FieldPath)> {
        let own = own.map(|value| (value, self.container.1.at(field)));
        own.or_else(|| pod.map(|value| (value, self.pod.1.at(field))))
    }
}

impl RunAsUser {
    /// Sets the user of the container, overriding that of the workflow or the image.
    pub(super) fn apply(&self, image: &ImageConfig, options: &mut bundle::BundleOptions) {
        if self.user.is_none() && self.group.is_none() {
            return;
        }
        let words = options.user.as_deref().unwrap_or(&image.user);
        let (old_user, old_group) = words.split_once(':').unwrap_or((words, ""));
        // The old group belongs to the old user.
        let old_group = if self.user.is_some() { "" } else { old_group };
        let user = self.user.as_deref().unwrap_or(old_user);
        let group = self.group.as_deref().unwrap_or(old_group);
        options.user =
            Some(if group.is_empty() { user.to_owned() } else { format!("{user}:{group}") });
    }
}

fn number(id: i64, place: &FieldPath) -> Result<String, TemplateFault> {
    match u32::try_from(id) {
        Ok(id) if id <= i32::MAX.cast_unsigned() => Ok(id.to_string()),
        _ => Err(place.fault(format!("{id} is not a user or group id: expected 0 to 2147483647"))),
    }
}

/// Adds capabilities to the workflow's and drops some of them; the template takes precedence.
fn merge_capabilities(
    asked: &Capabilities,
    place: &FieldPath,
    security: &mut bundle::ContainerSecurity,
) -> Result<(), TemplateFault> {
    let named = |field: &str, names: Option<&Vec<String>>| {
        let place = place.at(field);
        let names = names.into_iter().flatten().enumerate().map(|(at, name)| {
            let full = capability(name).ok();
            let is_known = |full: &String| {
                let short = full.strip_prefix("CAP_").unwrap_or(full);
                short == "ALL" || CapabilitySet::from_name(short).is_some()
            };
            let problem = || format!("unknown capability {name:?}");
            full.filter(is_known).ok_or_else(|| place.item(at).fault(problem()))
        });
        names.collect::<Result<Vec<_>, _>>()
    };
    let (add, drop) = (named("add", asked.add.as_ref())?, named("drop", asked.drop.as_ref())?);
    let covers =
        |list: &[String], name: &String| list.iter().any(|one| one == name || one == "ALL");
    // The workflow's capabilities have the same spelling.
    security.cap_add.retain(|name| !covers(&drop, name));
    security.cap_drop.retain(|name| !covers(&add, name));
    security.cap_add.extend(add);
    security.cap_drop.extend(drop);
    Ok(())
}

fn seccomp(
    profile: &SeccompProfile,
    place: &FieldPath,
    settings: &HookSettings,
) -> Result<Seccomp, TemplateFault> {
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Seccomp::Default),
        "Unconfined" => Ok(Seccomp::Unconfined),
        "Localhost" => {
            let place = place.at("localhostProfile");
            let name = profile.localhost_profile.as_deref().unwrap_or_default();
            let is_below =
                |name: &Path| name.components().all(|c| matches!(c, Component::Normal(_)));
            if name.is_empty() || !is_below(name.as_ref()) {
                return Err(place.fault("has to be a relative path: that of a file in `seccomp-profiles` under [template] of the settings"));
            }
            let path = settings.template.seccomp_profiles.join(name);
            let text = read_bounded(&path, MAX_PROFILE_BYTES)
                .map_err(|error| place.fault(chain(&error)))?;
            let value = serde_json::from_slice(&text).map_err(|error| {
                place.fault(format!("{} is not a seccomp profile: {error}", path.display()))
            })?;
            Ok(Seccomp::Profile(value))
        }
        other => Err(unknown_profile_type(other, place)),
    }
}

fn apparmor(profile: &AppArmorProfile, place: &FieldPath) -> Result<Option<String>, TemplateFault> {
    match (profile.type_.as_str(), &profile.localhost_profile) {
        // The engine has no AppArmor profile of its own.
        ("RuntimeDefault", _) => Ok(None),
        ("Unconfined", _) => Ok(Some("unconfined".to_owned())),
        ("Localhost", Some(name)) => Ok(Some(name.clone())),
        ("Localhost", None) => Err(place.at("localhostProfile").fault("is missing")),
        (other, _) => Err(unknown_profile_type(other, place)),
    }
}

fn unknown_profile_type(name: &str, place: &FieldPath) -> TemplateFault {
    place.at("type").fault(format!(
        "{name:?} is not a profile type: expected `RuntimeDefault`, `Unconfined` or `Localhost`"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::merge_template;

    fn apply_security(
        own: Value,
        pod: Value,
        asked: &bundle::BundleOptions,
    ) -> Result<bundle::BundleOptions, String> {
        let (own, pod) =
            (serde_json::from_value(own).unwrap(), serde_json::from_value(pod).unwrap());
        let place = merge_template(&json!({})).1;
        let image = ImageConfig { user: "app:staff".to_owned(), ..ImageConfig::default() };
        let mut options = asked.clone();
        SecurityContexts { container: (&own, &place), pod: (&pod, &place) }
            .apply(&HookSettings::default(), &mut options)
            .map_err(|fault| fault.problem)
            .map(|user| {
                user.apply(&image, &mut options);
                options
            })
    }

    #[test]
    fn container_user_overrides_pod_user_and_workflow_user() {
        let user = |own: Value, pod: Value, asked: Option<&str>| {
            let asked = bundle::BundleOptions {
                user: asked.map(str::to_owned),
                ..bundle::BundleOptions::default()
            };
            apply_security(own, pod, &asked).unwrap().user
        };
        let some = |words: &str| Some(words.to_owned());
        assert_eq!(user(json!({}), json!({}), Some("a:b")), some("a:b"));
        assert_eq!(user(json!({"runAsUser": 1}), json!({"runAsUser": 2}), Some("a:b")), some("1"));
        let pod = json!({"runAsUser": 2, "runAsGroup": 3});
        assert_eq!(user(json!({}), pod, None), some("2:3"));
        assert_eq!(user(json!({"runAsGroup": 4}), json!({}), None), some("app:4"));
        assert_eq!(user(json!({"runAsGroup": 4}), json!({}), Some("a:b")), some("a:4"));
        let groups = json!({"supplementalGroups": [7], "fsGroup": 8});
        let options = apply_security(json!({}), groups, &bundle::BundleOptions::default()).unwrap();
        assert_eq!(options.supplementary_groups, ["7", "8"]);
        let options = bundle::BundleOptions::default();
        assert!(apply_security(json!({"runAsUser": -1}), json!({}), &options).is_err());
        assert!(apply_security(json!({"runAsUser": 4294967296_i64}), json!({}), &options).is_err());
    }

    #[test]
    fn template_overrides_capabilities_of_the_workflow() {
        let mut asked = bundle::BundleOptions::default();
        asked.security.cap_add = vec!["CAP_SYS_PTRACE".to_owned(), "CAP_KILL".to_owned()];
        asked.security.cap_drop = vec!["CAP_NET_RAW".to_owned()];
        let own = json!({"capabilities": {"add": ["net_raw"], "drop": ["CAP_KILL"]}});
        let security = apply_security(own, json!({}), &asked).unwrap().security;
        assert_eq!(security.cap_add, ["CAP_SYS_PTRACE", "CAP_NET_RAW"]);
        assert_eq!(security.cap_drop, ["CAP_KILL"]);
        let own = json!({"capabilities": {"drop": ["ALL"]}});
        assert!(apply_security(own, json!({}), &asked).unwrap().security.cap_add.is_empty());
        let own = json!({"capabilities": {"add": ["SYS_MAGIC"]}});
        let said = apply_security(own, json!({}), &asked).unwrap_err();
        assert_eq!(said, "unknown capability \"SYS_MAGIC\"");
    }

    #[test]
    fn profiles_are_files_below_the_profile_directory() {
        let options = bundle::BundleOptions::default();
        let profile = |kind: &str, file: &str| {
            let own = json!({"seccompProfile": {"type": kind, "localhostProfile": file}});
            apply_security(own, json!({}), &options).map(|options| options.security.seccomp)
        };
        assert_eq!(profile("Unconfined", ""), Ok(Seccomp::Unconfined));
        for file in ["", "/etc/passwd", "../x", "none.json"] {
            assert!(profile("Localhost", file).is_err(), "{file}");
        }
        let own = json!({"seccompProfile": {"type": "Unconfined"}});
        let pod = json!({"seccompProfile": {"type": "RuntimeDefault"}});
        let options = apply_security(own, pod, &options).unwrap();
        assert_eq!(options.security.seccomp, Seccomp::Unconfined);
    }
}
