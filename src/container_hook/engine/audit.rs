//! What containers of this host are given, written to the audit log before they are made.

use std::path::Path;

use super::backend::EngineBackend;
use super::plan::PendingContainer;
use crate::bundle::{self, MountSource};
use crate::container_hook::audit::{AuditError, AuditEvent};
use crate::container_hook::options::NetworkMode;
use crate::network::Endpoint;

/// Writes down a container that is about to be made, with everything of the host that it gets.
pub fn container(
    backend: &EngineBackend<'_>,
    container: &PendingContainer<'_>,
    options: &bundle::Options,
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
    let devices = options.devices.iter().map(|device| AuditEvent::Device {
        container: id.clone(),
        source: device.host.display().to_string(),
        target: device.container.display().to_string(),
    });
    backend.context.audit.write(
        backend.context.runner,
        &plan.container.title,
        [own].into_iter().chain(nesting).chain(mounts).chain(devices),
    )
}

/// Writes down the ports of the host that lead to a container.
pub fn ports(
    backend: &EngineBackend<'_>,
    subject: &str,
    id: &str,
    endpoint: &Endpoint,
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
