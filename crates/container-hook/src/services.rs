//! Reports services in the log of a job: their host names and ports, exits, and output.

use container_hook_job::HookError;
use container_hook_job::plan;
use oci_hooks_engine::container::{ContainerRecord, ContainerRole, LogTail, WaitOutcome};
use oci_hooks_files::error::chain;

use super::backend::EngineBackend;
use super::plan::PendingContainer;

/// Maximum lines and bytes of a failed container's output that are shown.
const LAST: (usize, u64) = (100, 64 << 10);

/// Maximum lines and bytes of each service's output that are shown at the end of a job.
const ALL: (usize, u64) = (2000, 256 << 10);

/// Logs the host names and published ports of services.
pub fn report_names(backend: &EngineBackend<'_>, asked: &[PendingContainer<'_>]) {
    let services = asked.iter().filter(|one| one.plan.container.role == plan::PlanRole::Service);
    for service in services {
        let Some(endpoint) = &service.endpoint else { continue };
        let container = &service.plan.container;
        let mut ways = Vec::new();
        if !container.names.is_empty() {
            ways.push(format!("reachable as {}", container.names.join(", ")));
        }
        ways.extend(endpoint.published.iter().map(|port| {
            let host = port.host_ip.map_or_else(String::new, |ip| format!(" on {ip}"));
            let (own, protocol) = (port.container_port, port.protocol);
            format!("port {own}/{protocol} is port {} of this machine{host}", port.host_port)
        }));
        if !ways.is_empty() {
            backend.context.log.line(&format!("{}: {}", container.title, ways.join("; ")));
        }
    }
}

/// Logs each service of the runner's job that has exited, once, and shows its last output.
pub fn report_ended(backend: &EngineBackend<'_>, when: &str) -> Result<(), HookError> {
    for service in log_ended_services(backend, when)? {
        show_last(backend, &service);
    }
    Ok(())
}

/// Logs the services that have exited since the last call, and returns them.
pub fn log_ended_services(
    backend: &EngineBackend<'_>,
    when: &str,
) -> Result<Vec<ContainerRecord>, HookError> {
    let mut services = services(backend)?;
    services.retain(|service| log_end(backend, service, when));
    Ok(services)
}

/// Shows the output of all services, like the runner without hooks.
pub fn show_all(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    for service in services(backend)? {
        let title = format!("Print service container logs: {}", service.name);
        show(backend, &service, &title, ALL);
    }
    Ok(())
}

/// Shows the last output of a container.
pub fn show_last(backend: &EngineBackend<'_>, container: &ContainerRecord) {
    let title = format!("Last output of {} {}", container.role.name(), container.name);
    show(backend, container, &title, LAST);
}

fn services(backend: &EngineBackend<'_>) -> Result<Vec<ContainerRecord>, HookError> {
    let mut services = backend.engine.containers_of(&backend.context.runner.owner())?;
    services.retain(|record| record.role == ContainerRole::Service);
    Ok(services)
}

/// Logs that a service has exited, unless it runs or its exit was logged before. Returns whether it logged the
/// exit.
fn log_end(backend: &EngineBackend<'_>, service: &ContainerRecord, when: &str) -> bool {
    let WaitOutcome::Ended { code } = backend.engine.state(service) else { return false };
    if !backend.engine.mark_end_reported(service) {
        return false;
    }
    let with = match code {
        Some(code) if code > 128 => format!(" with code {code} (signal {})", code - 128),
        Some(code) => format!(" with code {code}"),
        None => String::new(),
    };
    let text = format!("service {} ended{with} {when}", service.name);
    match code {
        // Exit code 0 is no warning: the service may have finished its work.
        Some(0) => backend.context.log.line(&text),
        _ => backend.context.log.warning(&text),
    }
    true
}

/// Shows the last output of a container in a foldable group.
fn show(
    backend: &EngineBackend<'_>,
    container: &ContainerRecord,
    title: &str,
    (count, bytes): (usize, u64),
) {
    let log = backend.context.log;
    let LogTail { lines, is_cut, .. } = match backend.engine.log_tail(container, count, bytes) {
        Ok(tail) => tail,
        Err(error) => return log.warning(&chain(&error)),
    };
    log.group(title);
    if is_cut {
        let kib = bytes >> 10;
        log.line(&format!(
            "(earlier output left out: {count} lines and {kib} KiB at most are shown)"
        ));
    }
    let texts: Vec<_> = lines.into_iter().map(|line| line.text).collect();
    if !texts.is_empty() {
        log.output(&container.name, &texts.join(&b'\n'));
    }
    log.end_group();
}
