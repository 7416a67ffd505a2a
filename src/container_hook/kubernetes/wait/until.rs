//! Asks for a pod until it is what is waited for.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::{Instant, sleep};

use super::ended::{self, title};
use super::observe::{Expect, Observer, PodFault, Verdict};
use crate::container_hook::context::Log;
use crate::container_hook::kubernetes::client::{Cluster, ClusterError};

/// How often a pod is asked for: often at first, when it may be a matter of moments.
const INTERVALS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How often is asked whether a quota has room.
const QUOTA_INTERVAL: Duration = Duration::from_secs(5);
/// The end of a log that is shown after a failure.
const LOG_LINES: u32 = 30;

/// A pod is not, and will not be, what was waited for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Failed(#[from] PodFault),
    #[error("pod {pod} is not ready after {} s: {waits}", after.as_secs())]
    TimedOut { pod: String, after: Duration, waits: String },
    #[error("{} still there after {} s", left(pods), after.as_secs())]
    Left { pods: Vec<String>, after: Duration },
}

fn left(pods: &[String]) -> String {
    let verb = if pods.len() == 1 { "pod {} is" } else { "pods {} are" };
    verb.replace("{}", &pods.join(", "))
}

/// Pauses from the shortest to the longest.
struct Intervals(Duration);

impl Intervals {
    fn new() -> Self {
        Intervals(INTERVALS.0)
    }

    async fn pause(&mut self) {
        sleep(self.0).await;
        self.0 = INTERVALS.1.min(self.0 * 11 / 10);
    }
}

/// Makes a pod. If a quota has no room for it, that is waited for, no longer than `limit`.
///
/// # Errors
///
/// Fails if the API server refuses the pod, or the quota has no room in time.
pub async fn create(
    cluster: &Cluster,
    pod: &Pod,
    log: &dyn Log,
    limit: Duration,
) -> Result<Pod, WaitError> {
    let began = Instant::now();
    let mut told = String::new();
    loop {
        let error = match cluster.create_pod(pod).await {
            Ok(pod) => return Ok(pod),
            Err(error) => error,
        };
        if !error.is_quota() || began.elapsed() >= limit {
            return Err(error.into());
        }
        let problem = error.refusal().map(|refusal| refusal.message.clone()).unwrap_or_default();
        if told != problem {
            log.line(&format!("waits for room in the quota: {}", ended::one_line(&problem)));
            told = problem;
        }
        sleep(QUOTA_INTERVAL.min(limit.saturating_sub(began.elapsed()))).await;
    }
}

/// Waits until the containers of a pod run and are ready, and returns it as it is then. What goes on is
/// said in the log, line by line; so is the end of what a container wrote that failed.
///
/// # Errors
///
/// Fails as soon as the cluster says that it will never be, in its words, or after `limit`.
pub async fn until_ready(
    cluster: &Cluster,
    pod_name: &str,
    expect: &Expect,
    log: &dyn Log,
    limit: Duration,
) -> Result<Pod, WaitError> {
    let began = Instant::now();
    let mut observer = Observer::default();
    let (mut told, mut ended) = (BTreeSet::new(), BTreeSet::new());
    let mut intervals = Intervals::new();
    loop {
        let pod = cluster.pod(pod_name).await?;
        let seen = observer.look(pod.as_ref(), pod_name, expect, began.elapsed());
        for line in seen.progress {
            if told.insert(line.clone()) {
                match expect.shows_progress {
                    true => log.line(&line),
                    false => log.debug(&line),
                }
            }
        }
        for line in seen.lines {
            if told.insert(line.clone()) {
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
            (Verdict::Ready, Some(pod)) => return Ok(pod),
            (Verdict::Failed(fault, container), _) => {
                if let Some(container) = container {
                    show_log(cluster, pod_name, &container, log).await;
                }
                return Err(fault.into());
            }
            _ if began.elapsed() >= limit => {
                let (pod, waits) = (pod_name.to_owned(), seen.waits.join("; "));
                return Err(WaitError::TimedOut { pod, after: began.elapsed(), waits });
            }
            _ => intervals.pause().await,
        }
    }
}

/// Waits until there is no pod with these labels any more.
///
/// # Errors
///
/// Fails if the cluster cannot be asked, or there still are some after `limit`.
pub async fn until_gone(
    cluster: &Cluster,
    selector: &str,
    limit: Duration,
) -> Result<(), WaitError> {
    let began = Instant::now();
    let mut intervals = Intervals::new();
    loop {
        let pods = cluster.pods(selector).await?;
        if pods.is_empty() {
            return Ok(());
        }
        if began.elapsed() >= limit {
            let pods = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
            return Err(WaitError::Left { pods, after: began.elapsed() });
        }
        intervals.pause().await;
    }
}

/// Shows the end of what a container wrote. That it cannot be had hides nothing of the failure.
async fn show_log(cluster: &Cluster, pod: &str, container: &str, log: &dyn Log) {
    match cluster.log(pod, container, Some(LOG_LINES)).await {
        Ok(text) if text.is_empty() => {}
        Ok(text) => log.output(container, &text),
        Err(error) => log.debug(&crate::sys::error::chain(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::{Value, json};

    use super::*;
    use crate::container_hook::kubernetes::client::testing::{Reply, answer, answering, cluster};
    use crate::image::{Progress, ProgressEvent};

    /// Keeps what is said.
    #[derive(Default)]
    struct Kept(Mutex<Vec<String>>);

    impl Kept {
        fn add(&self, kind: &str, text: &str) {
            self.0.lock().unwrap().push(format!("{kind}: {text}"));
        }

        fn all(self) -> Vec<String> {
            self.0.into_inner().unwrap()
        }
    }

    impl Progress for Kept {
        fn event(&self, _: ProgressEvent<'_>) {}
    }

    impl Log for Kept {
        fn group(&self, _: &str) {}
        fn end_group(&self) {}
        fn line(&self, text: &str) {
            self.add("line", text);
        }
        fn warning(&self, text: &str) {
            self.add("warning", text);
        }
        fn debug(&self, text: &str) {
            self.add("debug", text);
        }
        fn output(&self, name: &str, text: &[u8]) {
            self.add(name, &String::from_utf8_lossy(text));
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    fn expect() -> Expect {
        Expect { running: vec!["job".to_owned()], shows_progress: true }
    }

    fn pod(state: &Value) -> Reply {
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
    fn changes_are_said_once() {
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        let running = json!({"running": {}});
        let (cluster, calls) = cluster(vec![pod(&waiting), pod(&waiting), pod(&running)]);
        let log = Kept::default();
        cluster.run(until_ready(&cluster, "p", &expect(), &log, LIMIT)).unwrap();
        assert_eq!(log.all(), ["line: pod p is on node n", "line: image node:22 is pulled"]);
        assert_eq!(calls.lock().unwrap().len(), 3);
    }

    #[test]
    fn where_an_action_writes_only_what_is_waited_for_is_said() {
        let pull = json!({"waiting": {"reason": "ErrImagePull", "message": "i/o timeout"}});
        let (cluster, _) = cluster(vec![pod(&pull), pod(&json!({"running": {}}))]);
        let log = Kept::default();
        let expect = Expect { shows_progress: false, ..expect() };
        cluster.run(until_ready(&cluster, "p", &expect, &log, LIMIT)).unwrap();
        let said = [
            "debug: pod p is on node n",
            "line: image node:22 is not pulled yet: i/o timeout",
            "debug: image node:22 is pulled",
        ];
        assert_eq!(log.all(), said);
    }

    #[test]
    fn a_failure_comes_with_the_end_of_the_log() {
        let ended = json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let (cluster, calls) = cluster(vec![pod(&ended), answer(200, "last words\n")]);
        let log = Kept::default();
        let error = cluster.run(until_ready(&cluster, "p", &expect(), &log, LIMIT));
        assert_eq!(error.unwrap_err().to_string(), "the job container of pod p ended with code 3");
        assert!(log.all().contains(&"job: last words\n".to_owned()));
        let asked = &calls.lock().unwrap()[1].0;
        assert!(asked.contains("/pods/p/log?&container=job") && asked.contains("tailLines=30"));
    }

    #[test]
    fn the_limit_says_what_was_waited_for() {
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        let (cluster, _) = answering(move |_, _| pod(&waiting));
        let limit = Duration::from_millis(1);
        let error = cluster.run(until_ready(&cluster, "p", &expect(), &Kept::default(), limit));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("pod p is not ready after 0 s: "), "{error}");
        assert!(error.ends_with("the job container: ContainerCreating"), "{error}");
    }

    #[test]
    fn a_quota_without_room_is_waited_for_to_the_limit() {
        let full = || answer(403, r#"{"message":"pods \"p\" is forbidden: exceeded quota: q"}"#);
        let wanted: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}})).unwrap();
        let (cluster, _) = cluster(vec![full(), Reply::Echo(201)]);
        let log = Kept::default();
        // It is asked once more at the limit.
        let limit = Duration::from_millis(300);
        cluster.run(create(&cluster, &wanted, &log, limit)).unwrap();
        let said = "line: waits for room in the quota: pods \"p\" is forbidden: exceeded quota: q";
        assert_eq!(log.all(), [said]);
        let (cluster, _) = answering(move |_, _| full());
        let error = cluster.run(create(&cluster, &wanted, &Kept::default(), limit)).unwrap_err();
        assert!(matches!(&error, WaitError::Cluster(error) if error.is_quota()), "{error}");
    }

    #[test]
    fn pods_are_gone_when_none_is_listed() {
        let one = || answer(200, r#"{"items": [{"metadata": {"name": "p"}}]}"#);
        let (cluster, _) = cluster(vec![one(), answer(200, r#"{"items": []}"#)]);
        cluster.run(until_gone(&cluster, "a=b", LIMIT)).unwrap();
        let (cluster, _) = answering(move |_, _| one());
        let error = cluster.run(until_gone(&cluster, "a=b", Duration::ZERO)).unwrap_err();
        assert_eq!(error.to_string(), "pod p is still there after 0 s");
    }
}
