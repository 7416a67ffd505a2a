//! Writes the audit log of containers of this host, before they are created.

use std::path::Path;

use container_hook_job::audit::{AuditError, AuditEvent};
use container_hook_job::options::NetworkMode;
use oci_hooks_engine::bundle::{self, MountSource};
use oci_hooks_engine::network::NetworkEndpoint;

use super::backend::EngineBackend;
use super::plan::PendingContainer;

/// Logs a container that is about to be created, with the host resources that it gets.
pub fn container(
    backend: &EngineBackend<'_>,
    container: &PendingContainer<'_>,
    options: &bundle::BundleOptions,
    runtime: &Path,
) -> Result<(), AuditError> {
    let PendingContainer { plan, image, id, endpoint } = container;
    let own = AuditEvent::Container {
        container: id.clone(),
        role: plan.container.role.name().to_owned(),
        image: image.reference.to_string(),
        digest: image.digest.to_string(),
        runtime: runtime.display().to_string(),
        network: match plan.network_mode() {
            _ if endpoint.is_some() => "job",
            NetworkMode::Host => "host",
            NetworkMode::Job | NetworkMode::None => "none",
        }
        .to_owned(),
        user_namespace: options.user_namespace.is_some(),
        privileged: options.security.privileged,
        capabilities: options.security.cap_add.clone(),
    };
    let nesting =
        options.security.nesting.then(|| AuditEvent::Allowed { option: "nesting".to_owned() });
    let mounts = options.mounts.iter().map(|mount| {
        let (kind, source) = match &mount.source {
            MountSource::Bind { file, .. } | MountSource::System { file } => {
                ("bind", Some(file.display().to_string()))
            }
            MountSource::Trusted { path, .. } => ("bind", Some(path.display().to_string())),
            MountSource::Volume { path, .. } => ("volume", Some(path.display().to_string())),
            MountSource::Tmpfs(_) => ("tmpfs", None),
        };
        AuditEvent::Mount {
            container: id.clone(),
            kind: kind.to_owned(),
            source,
            target: mount.target.display().to_string(),
            read_only: mount.read_only,
        }
    });
    let devices = options.devices.iter();
    let devices =
        devices.map(|it| (it.host.display().to_string(), it.container.display().to_string()));
    let cdi = options.cdi.edits.device_nodes.iter();
    let devices = devices.chain(cdi.map(|node| (node.host_path().to_owned(), node.path.clone())));
    let devices = devices.map(|(source, target)| AuditEvent::Device {
        container: id.clone(),
        source,
        target,
    });
    backend.context.audit.write(
        backend.context.runner,
        &plan.container.title,
        [own].into_iter().chain(nesting).chain(mounts).chain(devices),
    )
}

/// Logs the published ports of a container.
pub fn ports(
    backend: &EngineBackend<'_>,
    subject: &str,
    id: &str,
    endpoint: &NetworkEndpoint,
) -> Result<(), AuditError> {
    let ports = endpoint.published.iter().map(|port| AuditEvent::Port {
        container: id.to_owned(),
        host_ip: port.host_ip,
        host_port: port.host_port,
        container_port: port.container_port,
        protocol: port.protocol,
    });
    backend.context.audit.write(backend.context.runner, subject, ports)
}
