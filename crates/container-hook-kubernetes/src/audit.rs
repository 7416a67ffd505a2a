//! Writes the containers of a pod to the audit log before the pod is created.

use container_hook_job::audit::{AuditError, AuditEvent};
use container_hook_job::plan::PlanRole;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::backend::{JOB, KubernetesBackend, name};

/// Writes the containers of a pod to the audit log, before the pod is created; `role` is the role of the
/// container that runs the steps. The digest is empty: the node resolves the image later.
pub fn pod(backend: &KubernetesBackend<'_>, pod: &Pod, role: PlanRole) -> Result<(), AuditError> {
    let Some(spec) = &pod.spec else { return Ok(()) };
    let network = if spec.host_network == Some(true) { "host" } else { "job" };
    let inits = spec.init_containers.iter().flatten().map(|one| (PlanRole::Init, one));
    let others = spec.containers.iter().map(|one| match one.name.as_str() {
        JOB => (role, one),
        _ => (PlanRole::Service, one),
    });
    for (role, container) in inits.chain(others) {
        let event = event(pod, container, role, network);
        let title = role.title(Some(&container.name));
        backend.context.audit.write(backend.context.runner, &title, [event])?;
    }
    Ok(())
}

fn event(pod: &Pod, container: &Container, role: PlanRole, network: &str) -> AuditEvent {
    let security = container.security_context.as_ref();
    let capabilities = security.and_then(|security| security.capabilities.as_ref());
    AuditEvent::Container {
        container: format!("{}/{}", name(pod), container.name),
        role: role.name().to_owned(),
        image: container.image.clone().unwrap_or_default(),
        digest: String::new(),
        runtime: "kubernetes".to_owned(),
        network: network.to_owned(),
        user_namespace: false,
        privileged: security.and_then(|security| security.privileged).unwrap_or(false),
        capabilities: capabilities.and_then(|some| some.add.clone()).unwrap_or_default(),
    }
}
