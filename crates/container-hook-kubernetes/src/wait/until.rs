//! Polls a pod until its condition is met.

use std::collections::BTreeSet;
use std::time::Duration;

use container_hook_job::HookLog;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep};

use super::checks::until_unhealthy;
use super::ended::{self, title};
use super::observe::{PodExpectation, PodFault, PodObserver, PodVerdict};
use crate::client::{ClusterClient, ClusterError};
use crate::image_volumes;

/// First and longest poll interval: short at first, when a pod may be ready within moments.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Poll interval for room in a quota.
const QUOTA_INTERVAL: Duration = Duration::from_secs(5);
/// Number of last log lines shown after a failure.
const LOG_LINES: u32 = 30;

/// Errors of waiting for a pod.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Failed(#[from] PodFault),
    #[error(
        "pod {pod} is not ready after {} s (see `prepare-timeout` under [kubernetes] of the settings): {waits}",
        after.as_secs()
    )]
    TimedOut { pod: String, after: Duration, waits: String },
    /// The container of steps cannot be started, perhaps because of the runner image as a volume.
    #[error("the pod cannot be started with the runner image as a volume: {problem}")]
    ImageVolume { problem: String },
    #[error("{} still not deleted after {} s", format_remaining(pods), after.as_secs())]
    PodsRemain { pods: Vec<String>, after: Duration },
}

fn format_remaining(pods: &[String]) -> String {
    let verb = if pods.len() == 1 { "pod {} is" } else { "pods {} are" };
    verb.replace("{}", &pods.join(", "))
}

/// Growing pauses between polls, by `INTERVALS`.
struct PollPauses(Duration);

impl PollPauses {
    fn new() -> Self {
        PollPauses(INTERVALS.0)
    }

    async fn pause(&mut self) {
        sleep(self.0).await;
        self.0 = INTERVALS.1.min(self.0 * 11 / 10);
    }
}

/// Creates a pod, waiting up to `limit` for room in a quota.
///
/// # Errors
///
/// Fails if the API server rejects the pod, or if the quota has no room in time.
pub async fn create(
    cluster: &ClusterClient,
    pod: &Pod,
    log: &dyn HookLog,
    limit: Duration,
) -> Result<Pod, WaitError> {
    let began = Instant::now();
    let mut logged = String::new();
    loop {
        let error = match cluster.create_pod(pod).await {
            Ok(pod) => return Ok(pod),
            Err(error) => error,
        };
        if !error.is_quota() || began.elapsed() >= limit {
            return Err(error.into());
        }
        let problem =
            error.rejection().map(|rejection| rejection.message.clone()).unwrap_or_default();
        if logged != problem {
            log.line(&format!(
                "the pod waits for room in the resource quota: {}",
                ended::to_one_line(&problem)
            ));
            logged = problem;
        }
        sleep(QUOTA_INTERVAL.min(limit.saturating_sub(began.elapsed()))).await;
    }
}

/// Waits until the containers of a pod run and are ready. Logs the progress, and the last log lines of failed
/// containers. Returns the pod, and the containers whose end was logged.
///
/// # Errors
///
/// Fails after `limit`, or as soon as the pod can no longer become ready.
pub async fn wait_for_ready_pod(
    cluster: &ClusterClient,
    pod_name: &str,
    expect: &PodExpectation,
    log: &dyn HookLog,
    limit: Duration,
) -> Result<(Pod, BTreeSet<String>), WaitError> {
    let began = Instant::now();
    let mut observer = PodObserver::default();
    let (mut logged, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let mut pauses = PollPauses::new();
    let (mut checked, mut checks) = (BTreeSet::new(), FuturesUnordered::new());
    let mut scheduled = None;
    loop {
        let pod = cluster.pod(pod_name).await?;
        if let Some(pod) = pod.as_ref().filter(|pod| image_volumes::is_in(pod)) {
            if pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some()) {
                scheduled.get_or_insert_with(Instant::now);
            }
            let is_late = scheduled.is_some_and(|since| since.elapsed() > limit / 2);
            if let Some(problem) = image_volumes::start_problem(pod, is_late) {
                return Err(WaitError::ImageVolume { problem });
            }
        }
        let seen = observer.observe_pod(pod.as_ref(), pod_name, expect, began.elapsed());
        for line in seen.progress {
            if logged.insert(line.clone()) {
                match expect.shows_progress {
                    true => log.line(&line),
                    false => log.debug(&line),
                }
            }
        }
        for line in seen.lines {
            if logged.insert(line.clone()) {
                log.line(&line);
            }
        }
        for (container, end) in seen.ended {
            if ended.insert(container.clone()) {
                log.warning(&format!("{} {end}", title(&container)));
                show_log(cluster, pod_name, &container, log).await;
            }
        }
        match (seen.verdict, pod) {
            (PodVerdict::Ready, Some(pod)) => return Ok((pod, ended)),
            (PodVerdict::Failed(fault, container), _) => {
                if let Some(container) = container {
                    show_log(cluster, pod_name, &container, log).await;
                }
                return Err(fault.into());
            }
            _ if began.elapsed() >= limit => {
                let (pod, waits) = (pod_name.to_owned(), seen.waits.join("; "));
                return Err(WaitError::TimedOut { pod, after: began.elapsed(), waits });
            }
            _ => {}
        }
        for container in seen.unready {
            let check = expect.checks.iter().find(|check| check.container == container);
            if let Some(check) = check
                && checked.insert(container)
            {
                checks.push(async move {
                    (until_unhealthy(cluster, pod_name, check).await, &check.container)
                });
            }
        }
        tokio::select! {
            () = pauses.pause() => {}
            Some((fault, container)) = checks.next() => {
                show_log(cluster, pod_name, container, log).await;
                return Err(fault.into());
            }
        }
    }
}

/// Returns the pod if no service has failed.
///
/// # Errors
///
/// Fails if a service has ended with another code than 0 and is not restarted, and shows the service's last lines.
pub async fn check_services(
    cluster: &ClusterClient,
    pod_name: &str,
    services: &[String],
    log: &dyn HookLog,
) -> Result<Option<Pod>, WaitError> {
    let pod = cluster.pod(pod_name).await?;
    let restarts = pod.as_ref().and_then(|pod| pod.spec.as_ref()?.restart_policy.as_deref());
    if restarts != Some("Never") {
        return Ok(pod);
    }
    let failed = pod.iter().flat_map(ended::statuses).find_map(|status| {
        let terminated = ended::termination_state(status).filter(|end| end.exit_code != 0)?;
        services.contains(&status.name).then_some((&status.name, terminated))
    });
    let Some((name, terminated)) = failed else { return Ok(pod) };
    show_log(cluster, pod_name, name, log).await;
    Err(PodFault::from(ended::container_end(pod_name, name, terminated)).into())
}

/// Waits until all pods that the label selector matches are deleted.
///
/// # Errors
///
/// Fails if the cluster cannot be queried, or if pods remain after `limit`.
pub async fn wait_for_deletion(
    cluster: &ClusterClient,
    selector: &str,
    limit: Duration,
) -> Result<(), WaitError> {
    let began = Instant::now();
    let mut pauses = PollPauses::new();
    loop {
        let pods = cluster.pods(selector).await?;
        if pods.is_empty() {
            return Ok(());
        }
        if began.elapsed() >= limit {
            let pods = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
            return Err(WaitError::PodsRemain { pods, after: began.elapsed() });
        }
        pauses.pause().await;
    }
}

/// Logs the last lines of a container. An unreadable log does not hide the failure.
pub async fn show_log(cluster: &ClusterClient, pod: &str, container: &str, log: &dyn HookLog) {
    match cluster.log(pod, container, Some(LOG_LINES)).await {
        Ok(text) if text.is_empty() => {}
        Ok(text) => log.output(container, &text),
        Err(error) => log.debug(&oci_hooks_files::error::chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::client::testing::{ScriptedReply, answer, cluster, cluster_with_replies};
    use crate::testing::KeptLog;

    const LIMIT: Duration = Duration::from_secs(600);

    fn expect() -> PodExpectation {
        PodExpectation {
            running: vec!["job".to_owned()],
            shows_progress: true,
            ..Default::default()
        }
    }

    fn pod(state: &Value) -> ScriptedReply {
        let job = json!({"name": "job", "image": "node:22"});
        let status = json!({"name": "job", "image": "", "imageID": "", "ready": true,
            "restartCount": 0, "state": state});
        let pod = json!({
            "metadata": {"name": "p"},
            "spec": {"containers": [job], "nodeName": "n", "restartPolicy": "Never"},
            "status": {"phase": "Pending", "containerStatuses": [status]}
        });
        answer(200, &pod.to_string())
    }

    #[test]
    fn changes_are_logged_once() {
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        let running = json!({"running": {}});
        let (cluster, calls) = cluster(vec![pod(&waiting), pod(&waiting), pod(&running)]);
        let log = KeptLog::default();
        cluster.run(wait_for_ready_pod(&cluster, "p", &expect(), &log, LIMIT)).unwrap();
        assert_eq!(log.lines(), ["line: pod p is on node n", "line: image node:22 is pulled"]);
        assert_eq!(calls.lock().unwrap().len(), 3);
    }

    #[test]
    fn action_log_shows_only_the_reason_of_the_wait() {
        let pull = json!({"waiting": {"reason": "ErrImagePull", "message": "i/o timeout"}});
        let (cluster, _) = cluster(vec![pod(&pull), pod(&json!({"running": {}}))]);
        let log = KeptLog::default();
        let expect = PodExpectation { shows_progress: false, ..expect() };
        cluster.run(wait_for_ready_pod(&cluster, "p", &expect, &log, LIMIT)).unwrap();
        let said = [
            "debug: pod p is on node n",
            "line: image node:22 is not pulled yet: i/o timeout",
            "debug: image node:22 is pulled",
        ];
        assert_eq!(log.lines(), said);
    }

    #[test]
    fn failure_is_logged_with_the_end_of_the_container_log() {
        let ended = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let (cluster, calls) = cluster(vec![pod(&ended), answer(200, "last words\n")]);
        let log = KeptLog::default();
        let error = cluster.run(wait_for_ready_pod(&cluster, "p", &expect(), &log, LIMIT));
        assert_eq!(error.unwrap_err().to_string(), "the job container of pod p ended with code 3");
        assert!(log.lines().contains(&"job: last words\n".to_owned()));
        let asked = &calls.lock().unwrap()[1].0;
        assert!(asked.contains("/pods/p/log?&container=job") && asked.contains("tailLines=30"));
    }

    #[test]
    fn timeout_names_the_unmet_condition() {
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        let (cluster, _) = cluster_with_replies(move |_, _| pod(&waiting));
        let limit = Duration::from_millis(1);
        let error =
            cluster.run(wait_for_ready_pod(&cluster, "p", &expect(), &KeptLog::default(), limit));
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("pod p is not ready after 0 s (see `prepare-timeout` "),
            "{error}"
        );
        assert!(error.ends_with("the job container: ContainerCreating"), "{error}");
    }

    #[test]
    fn exhausted_quota_is_waited_for_up_to_the_limit() {
        let full = || answer(403, r#"{"message":"pods \"p\" is forbidden: exceeded quota: q"}"#);
        let wanted: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        let (cluster, _) = cluster(vec![full(), ScriptedReply::Echo(201)]);
        let log = KeptLog::default();
        cluster.run(create(&cluster, &wanted, &log, LIMIT)).unwrap();
        let said = "line: the pod waits for room in the resource quota: pods \"p\" is forbidden: exceeded quota: q";
        assert_eq!(log.lines(), [said]);
        let (cluster, _) = cluster_with_replies(move |_, _| full());
        // The quota is polled once more at the limit.
        let limit = Duration::from_millis(300);
        let error = cluster.run(create(&cluster, &wanted, &KeptLog::default(), limit)).unwrap_err();
        assert!(matches!(&error, WaitError::Cluster(error) if error.is_quota()), "{error}");
    }

    #[test]
    fn pods_are_gone_when_the_list_is_empty() {
        let one = || answer(200, r#"{"items": [{"metadata": {"name": "p"}}]}"#);
        let (cluster, _) = cluster(vec![one(), answer(200, r#"{"items": []}"#)]);
        cluster.run(wait_for_deletion(&cluster, "a=b", LIMIT)).unwrap();
        let (cluster, _) = cluster_with_replies(move |_, _| one());
        let error = cluster.run(wait_for_deletion(&cluster, "a=b", Duration::ZERO)).unwrap_err();
        assert_eq!(error.to_string(), "pod p is still not deleted after 0 s");
    }
}
