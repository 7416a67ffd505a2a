//! What the log of a job says of its services: by which names they are reached, that one has ended, and
//! at last what they wrote.

use super::backend::EngineBackend;
use super::plan::PendingContainer;
use crate::container::{LogTail, Record, Role, Wait};
use crate::container_hook::error::HookError;
use crate::container_hook::plan;
use crate::sys::error::chain;

/// How many of the last lines of a container are shown when something is wrong with it, and of how many
/// bytes they are at most.
const LAST: (usize, u64) = (100, 64 << 10);

/// The same of each service at the end of a job.
const ALL: (usize, u64) = (2000, 256 << 10);

/// Says by which names and ports services are reached.
pub fn report_names(backend: &EngineBackend<'_>, asked: &[PendingContainer<'_>]) {
    let services = asked.iter().filter(|one| one.plan.container.role == plan::Role::Service);
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
            format!("port {own}/{protocol} is {} of this machine{host}", port.host_port)
        }));
        if !ways.is_empty() {
            backend.context.log.line(&format!("{}: {}", container.title, ways.join("; ")));
        }
    }
}

/// Says which services of the runner's job have ended, each once, and shows what they wrote last.
pub fn report_ended(backend: &EngineBackend<'_>, when: &str) -> Result<(), HookError> {
    for service in tell_ended(backend, when)? {
        show_last(backend, &service);
    }
    Ok(())
}

/// Says which services have ended, each once, and returns them.
pub fn tell_ended(backend: &EngineBackend<'_>, when: &str) -> Result<Vec<Record>, HookError> {
    let mut services = services(backend)?;
    services.retain(|service| tell_end(backend, service, when));
    Ok(services)
}

/// Shows what all services wrote, as the runner does that has no hooks.
pub fn show_all(backend: &EngineBackend<'_>) -> Result<(), HookError> {
    for service in services(backend)? {
        let title = format!("Print service container logs: {}", service.name);
        show(backend, &service, &title, ALL);
    }
    Ok(())
}

/// Shows what a container wrote last.
pub fn show_last(backend: &EngineBackend<'_>, container: &Record) {
    let title = format!("Last output of {} {}", container.role.name(), container.name);
    show(backend, container, &title, LAST);
}

fn services(backend: &EngineBackend<'_>) -> Result<Vec<Record>, HookError> {
    let mut services = backend.engine.containers_of(&backend.context.runner.owner())?;
    services.retain(|record| record.role == Role::Service);
    Ok(services)
}

/// Says that a service has ended, unless it runs or that was said before. Returns whether it said so.
fn tell_end(backend: &EngineBackend<'_>, service: &Record, when: &str) -> bool {
    let Wait::Ended { code } = backend.engine.state(service) else { return false };
    if !backend.engine.tell_end(service) {
        return false;
    }
    let with = match code {
        Some(code) if code > 128 => format!(" with code {code} (signal {})", code - 128),
        Some(code) => format!(" with code {code}"),
        None => String::new(),
    };
    let text = format!("service {} ended{with} {when}", service.name);
    match code {
        // It may have had no more to do.
        Some(0) => backend.context.log.line(&text),
        _ => backend.context.log.warning(&text),
    }
    true
}

/// Shows the end of what a container wrote, folded away.
fn show(
    backend: &EngineBackend<'_>,
    container: &Record,
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
