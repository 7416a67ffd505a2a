//! The [restricted profile] of pod security: sets the defaults that a pod needs to comply, and checks it.
//!
//! [restricted profile]: https://kubernetes.io/docs/concepts/security/pod-security-standards/

use k8s_openapi::api::core::v1::{
    Capabilities, Container, PodSpec, SeccompProfile, SecurityContext, Volume,
};
use oci_hooks_image::ImageConfig;

use super::agent::RUNNER_ID;

/// Only capability that may be added.
const NET_BIND_SERVICE: &str = "NET_BIND_SERVICE";

/// Sysctls that the profile of Kubernetes 1.29 allows.
const SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_syncookies",
];

/// Sets unset fields so that the pod complies. `facts` has the image configurations of the first containers,
/// which are the request's; returns a note for each container whose user is changed.
pub fn fill_in(spec: &mut PodSpec, facts: &[Option<&ImageConfig>]) -> Vec<String> {
    let pod = spec.security_context.get_or_insert_default();
    pod.run_as_non_root.get_or_insert(true);
    pod.seccomp_profile.get_or_insert_with(runtime_default);
    let pod_user = pod.run_as_user;
    let mut notes = Vec::new();
    for (at, container) in spec.containers.iter_mut().enumerate() {
        let context = confine(container);
        // Other containers get their user from the template or the image.
        let Some(facts) = facts.get(at) else { continue };
        let is_said = context.run_as_user.or(pod_user).is_some();
        if !is_said && !facts.is_some_and(has_other_user) {
            context.run_as_user = Some(RUNNER_ID);
            let why = match facts {
                Some(_) => {
                    "the image's user is root or a name, which the restricted profile does not allow"
                }
                None => "the image's user is unknown, and might be root",
            };
            notes.push(format!(
                "container {} runs as user {RUNNER_ID}: {why}; set another user with `--user NUMBER`",
                container.name
            ));
        }
    }
    for container in spec.init_containers.iter_mut().flatten() {
        confine(container);
    }
    notes
}

/// Returns whether the user of an image is a number other than 0; kubelets cannot check user names.
fn has_other_user(image: &ImageConfig) -> bool {
    let user = image.user.split(':').next().unwrap_or_default();
    user.parse::<u32>().is_ok_and(|user| user != 0)
}

fn confine(container: &mut Container) -> &mut SecurityContext {
    let context = container.security_context.get_or_insert_default();
    context.allow_privilege_escalation.get_or_insert(false);
    let capabilities = context.capabilities.get_or_insert(Capabilities { add: None, drop: None });
    let drop = capabilities.drop.get_or_insert_default();
    if !drop.iter().any(|name| name == "ALL") {
        *drop = vec!["ALL".to_owned()];
    }
    context
}

fn runtime_default() -> SeccompProfile {
    SeccompProfile { localhost_profile: None, type_: "RuntimeDefault".to_owned() }
}

/// Returns the violations of the profile, except in SELinux options, hosts of probes and annotations.
pub fn faults(spec: &PodSpec) -> Vec<String> {
    let mut faults = Vec::new();
    let shared = [
        ("hostNetwork", spec.host_network),
        ("hostPID", spec.host_pid),
        ("hostIPC", spec.host_ipc),
    ];
    for (field, _) in shared.iter().filter(|(_, shared)| *shared == Some(true)) {
        faults.push(format!("{field} is true"));
    }
    let volumes = spec.volumes.iter().flatten().filter(|volume| !is_allowed(volume));
    faults.extend(
        volumes.map(|volume| format!("volume {} is of a kind that is not allowed", volume.name)),
    );
    let pod = spec.security_context.clone().unwrap_or_default();
    if pod.run_as_user == Some(0) {
        faults.push("securityContext.runAsUser is 0".to_owned());
    }
    for sysctl in pod.sysctls.iter().flatten() {
        if !SYSCTLS.contains(&sysctl.name.as_str()) {
            faults.push(format!("the sysctl {} is not safe", sysctl.name));
        }
    }
    let is_confined = |profile: Option<&SeccompProfile>| {
        profile.map(|profile| matches!(profile.type_.as_str(), "RuntimeDefault" | "Localhost"))
    };
    let pod_seccomp = is_confined(pod.seccomp_profile.as_ref());
    if pod_seccomp == Some(false) {
        faults.push("securityContext.seccompProfile is Unconfined".to_owned());
    }
    let unconfined = |profile: Option<&str>| profile == Some("Unconfined");
    if unconfined(pod.app_armor_profile.as_ref().map(|profile| profile.type_.as_str())) {
        faults.push("securityContext.appArmorProfile is Unconfined".to_owned());
    }
    let inits = spec.init_containers.iter().flatten();
    for container in spec.containers.iter().chain(inits) {
        let context = container.security_context.clone().unwrap_or_default();
        let mut fault = |text: &str| faults.push(format!("container {}: {text}", container.name));
        if context.privileged == Some(true) {
            fault("it is privileged");
        }
        if context.allow_privilege_escalation != Some(false) {
            fault("allowPrivilegeEscalation is not false");
        }
        if context.run_as_non_root.or(pod.run_as_non_root) != Some(true) {
            fault("runAsNonRoot is not true");
        }
        if context.run_as_user == Some(0) {
            fault("runAsUser is 0");
        }
        if is_confined(context.seccomp_profile.as_ref()).or(pod_seccomp) != Some(true) {
            fault("seccompProfile is neither RuntimeDefault nor Localhost");
        }
        if unconfined(context.app_armor_profile.as_ref().map(|profile| profile.type_.as_str())) {
            fault("appArmorProfile is Unconfined");
        }
        if !matches!(context.proc_mount.as_deref(), None | Some("Default")) {
            fault("procMount is not Default");
        }
        let capabilities = context.capabilities.unwrap_or(Capabilities { add: None, drop: None });
        if !capabilities.drop.iter().flatten().any(|name| name == "ALL") {
            fault("not all capabilities are dropped");
        }
        for name in capabilities.add.iter().flatten().filter(|name| *name != NET_BIND_SERVICE) {
            fault(&format!("it has the capability {name}"));
        }
        if container.ports.iter().flatten().any(|port| port.host_port.is_some_and(|port| port != 0))
        {
            fault("it has a hostPort");
        }
    }
    faults
}

fn is_allowed(volume: &Volume) -> bool {
    volume.config_map.is_some()
        || volume.csi.is_some()
        || volume.downward_api.is_some()
        || volume.empty_dir.is_some()
        || volume.ephemeral.is_some()
        || volume.persistent_volume_claim.is_some()
        || volume.projected.is_some()
        || volume.secret.is_some()
        || volume.image.is_some()
}
