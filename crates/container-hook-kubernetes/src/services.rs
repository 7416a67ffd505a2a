//! Services of a job that runs: their ends and failed health checks are reported once, at the end of the next step
//! or of the job.
//!
//! A file of the runner in `/tmp` records the reported problems. The job's state is not suitable: the runner ignores
//! the hook's answer to a step that fails. Nor is the work directory: a job can write to it.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use container_hook_job::JobState;
use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use oci_hooks_files::append::AppendFile;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{ReadError, read_if_there};
use tokio::time::timeout;
use tracing::debug;

use super::backend::{KubernetesBackend, name};
use super::pod::services_annotation;
use super::wait::{self, ended};

/// Time limit of asking the cluster at the end of a step.
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Directory of the files that record reported problems. No pod of a job can write to it.
const PARENT: &str = "/tmp";
const MAX_FILE_BYTES: u64 = 1 << 20;

/// A problem of a service.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceProblem {
    pub container: String,
    pub text: String,
    /// If set, the last log lines of the container are logged too.
    has_ended: bool,
    /// Identifier of the problem, unique in its pod.
    key: String,
}

/// Reports new problems of the job's services. An unreachable cluster does not fail the step.
pub async fn report_after_step(backend: &KubernetesBackend<'_>, state: Option<&JobState>) {
    let with_services = state.filter(|state| !state.services.is_empty());
    let Ok(pod) = backend.job_pod(with_services) else { return };
    let reporting = async {
        match backend.cluster.pod(pod).await {
            Ok(Some(pod)) => report(backend, &pod, new_problems(&pod)).await,
            Ok(None) => {}
            Err(error) => debug!(error = chain(&error), "cannot read the state of the services"),
        }
    };
    if timeout(REPORT_TIMEOUT, reporting).await.is_err() {
        debug!("reading the state of the services timed out");
    }
}

/// Logs problems, and the last lines of services that have ended.
pub async fn report(backend: &KubernetesBackend<'_>, pod: &Pod, problems: Vec<ServiceProblem>) {
    let log = backend.context.log;
    // A slow log must not hide other problems, which are reported only once.
    problems.iter().for_each(|problem| log.warning(&problem.text));
    for problem in problems.into_iter().filter(|problem| problem.has_ended) {
        wait::show_log(backend.cluster, name(pod), &problem.container, log).await;
    }
}

/// Returns the problems of a pod's services that no earlier call returned.
pub fn new_problems(pod: &Pod) -> Vec<ServiceProblem> {
    let mut problems = problems(pod);
    if let Some(path) = file(pod).filter(|_| !problems.is_empty())
        && let Err(error) = retain_new(&mut problems, &path)
    {
        debug!(
            error = chain(&error),
            "cannot record the reported problems of services: they may be reported again"
        );
    }
    problems
}

/// Removes the record of a pod's reported problems.
pub fn forget(pod: &Pod) {
    // Usually there is no file.
    let _ = file(pod).map(fs::remove_file);
}

fn file(pod: &Pod) -> Option<PathBuf> {
    let uid = pod.metadata.uid.as_deref()?;
    Some(Path::new(PARENT).join(format!("container-hook-{uid}.reported")))
}

/// Removes the problems whose keys are in the file `path`, and adds the keys of the others to the
/// file.
fn retain_new(problems: &mut Vec<ServiceProblem>, path: &Path) -> Result<(), ReadError> {
    // Fails for a file of another user.
    let file = AppendFile::open(path)?;
    let known = read_if_there(path, MAX_FILE_BYTES)?.unwrap_or_default();
    let known = String::from_utf8_lossy(&known);
    problems.retain(|problem| known.lines().all(|line| line != problem.key));
    let mut lines = String::new();
    for problem in problems {
        writeln!(lines, "{}", problem.key).expect("strings take everything");
    }
    Ok(file.append(lines.as_bytes())?)
}

/// Returns whether a container of a pod is a service of the job, not of the template.
pub fn is_service(pod: &Pod, name: &str) -> bool {
    let names = pod.metadata.annotations.as_ref();
    let names = names.and_then(|all| all.get(&services_annotation()).map(String::as_str));
    names.unwrap_or_default().split(' ').any(|one| one == name)
}

fn problems(pod: &Pod) -> Vec<ServiceProblem> {
    let services = ended::statuses(pod).filter(|status| is_service(pod, &status.name));
    services
        .flat_map(|status| [end(status), restart(status), failed_health(pod, status)])
        .flatten()
        .collect()
}

fn end(status: &ContainerStatus) -> Option<ServiceProblem> {
    let terminated = ended::termination_state(status)?;
    let text = format!("{} {}", ended::title(&status.name), ended::end(terminated));
    Some(problem(status, terminated, text))
}

/// Returns the problem of a service that was restarted, as some templates demand; `None` if it was
/// not.
fn restart(status: &ContainerStatus) -> Option<ServiceProblem> {
    let terminated = status.last_state.as_ref()?.terminated.as_ref()?;
    let (title, end) = (ended::title(&status.name), ended::end(terminated));
    let restarted = problem(status, terminated, format!("{title} was restarted: it {end}"));
    // The log is that of the new container.
    Some(ServiceProblem { has_ended: false, ..restarted })
}

fn problem(
    status: &ContainerStatus,
    terminated: &ContainerStateTerminated,
    text: String,
) -> ServiceProblem {
    let (id, container) = (terminated.container_id.as_deref(), status.name.clone());
    let key = format!("end {container} {}", id.unwrap_or_default());
    ServiceProblem { container, text, has_ended: true, key }
}

/// Returns the problem of a running service whose health check fails; `None` if it does not. The
/// service was healthy when the job began.
fn failed_health(pod: &Pod, status: &ContainerStatus) -> Option<ServiceProblem> {
    let container = status.name.clone();
    let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
    let spec =
        pod.spec.iter().flat_map(|spec| &spec.containers).find(|one| one.name == container)?;
    if !runs || status.ready || spec.readiness_probe.is_none() {
        return None;
    }
    let text = format!("{} is unhealthy: its health check fails", ended::title(&container));
    let key = format!("health {container} {}", status.container_id.as_deref().unwrap_or_default());
    Some(ServiceProblem { container, text, has_ended: false, key })
}

#[cfg(test)]
mod tests {
    use oci_hooks_files::fs::random_u64;
    use serde_json::{Value, json};

    use super::*;

    fn pod(services: &[(&str, Value)]) -> Pod {
        let probe = json!({"exec": {"command": ["true"]}});
        let mut containers = vec![json!({"name": "job"})];
        let mut statuses = vec![json!({"name": "job", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "state": {"terminated": {"exitCode": 1}}})];
        for (name, status) in services {
            containers.push(json!({"name": name, "readinessProbe": probe}));
            let mut status = status.clone();
            for (field, value) in [
                ("name", json!(name)),
                ("image", json!("")),
                ("imageID", json!("")),
                ("restartCount", json!(0)),
            ] {
                status[field] = value;
            }
            statuses.push(status);
        }
        let names = services.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" ");
        let pod = json!({
            "metadata": {"name": "p", "uid": format!("test-{:016x}", random_u64()),
                "annotations": {services_annotation(): names}},
            "spec": {"containers": containers}, "status": {"containerStatuses": statuses},
        });
        serde_json::from_value(pod).unwrap()
    }

    fn new_texts(pod: &Pod) -> Vec<String> {
        new_problems(pod).into_iter().map(|problem| problem.text).collect()
    }

    #[test]
    fn containers_of_templates_and_builds_are_no_services() {
        let ended = json!({"ready": false, "state": {"terminated": {"exitCode": 1}}});
        let mut with_sidecar = pod(&[("db", ended.clone()), ("sidecar", ended.clone())]);
        let annotations = with_sidecar.metadata.annotations.as_mut().unwrap();
        annotations.insert(services_annotation(), "db".to_owned());
        assert_eq!(new_texts(&with_sidecar), ["container db ended with code 1"]);
        let mut build = pod(&[("build", ended)]);
        build.metadata.annotations = None;
        assert_eq!(new_texts(&build), [""; 0]);
        forget(&with_sidecar);
    }

    #[test]
    fn each_problem_of_a_service_is_new_once() {
        let running = json!({"running": {}});
        let killed =
            json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "containerID": "c://1"}});
        let cache = |ready| json!({"ready": ready, "state": running, "containerID": "c://2"});
        let healthy = pod(&[("cache", cache(true))]);
        assert_eq!(new_texts(&healthy), [""; 0]);
        let mut ended =
            pod(&[("cache", cache(true)), ("db", json!({"ready": false, "state": killed}))]);
        ended.metadata.uid = healthy.metadata.uid.clone();
        let expected =
            "container db was killed for exceeding its memory limit (OOMKilled, code 137)";
        assert_eq!(new_texts(&ended), [expected]);
        assert_eq!(new_texts(&ended), [""; 0]);
        // The service is restarted, and another one is unhealthy.
        let again = json!({"ready": true, "state": running, "lastState": killed});
        let mut other = pod(&[("cache", cache(false)), ("db", again)]);
        other.metadata.uid = healthy.metadata.uid.clone();
        assert_eq!(new_texts(&other), ["container cache is unhealthy: its health check fails"]);
        forget(&other);
        assert_eq!(new_texts(&other).len(), 2);
        forget(&other);
    }
}
