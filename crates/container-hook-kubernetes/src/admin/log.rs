//! Logs of containers in a cluster.

use jiff::Timestamp;
use serde::Serialize;

use super::super::client::{ClusterClient, ClusterError};

/// A line of a log. Kubernetes merges both streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PodLogLine {
    pub time: Option<Timestamp>,
    /// Text without the line ending; invalid UTF-8 is replaced.
    pub text: String,
}

/// Returns the names of the containers of a pod; `None` if the pod does not exist.
///
/// # Errors
///
/// Fails if the cluster is unreachable or denies the request.
pub async fn containers(
    cluster: &ClusterClient,
    pod: &str,
) -> Result<Option<Vec<String>>, ClusterError> {
    let Some(pod) = cluster.pod(pod).await? else { return Ok(None) };
    let spec = pod.spec.unwrap_or_default();
    let prepare = spec.init_containers.into_iter().flatten();
    Ok(Some(spec.containers.into_iter().chain(prepare).map(|one| one.name).collect()))
}

/// Returns the log of a container, or its last lines.
///
/// # Errors
///
/// Fails if the container does not exist or has not started, or if the cluster denies the request.
pub async fn log(
    cluster: &ClusterClient,
    pod: &str,
    container: &str,
    tail_lines: Option<u32>,
) -> Result<Vec<PodLogLine>, ClusterError> {
    let bytes = cluster.log_with_times(pod, container, tail_lines).await?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(text.lines().map(line).collect())
}

/// Splits the timestamp off a line.
fn line(text: &str) -> PodLogLine {
    let parts = text.split_once(' ').unwrap_or((text, ""));
    match parts.0.parse() {
        Ok(time) => PodLogLine { time: Some(time), text: parts.1.to_owned() },
        Err(_) => PodLogLine { time: None, text: text.to_owned() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::testing::{answer, cluster};

    #[test]
    fn lines_have_times_if_the_cluster_gives_any() {
        let text = "2026-01-01T00:00:00.123456789Z a b\n2026-01-01T00:00:01Z \nunable to\n";
        let (cluster, calls) = cluster(vec![answer(200, text)]);
        let lines = cluster.run(log(&cluster, "p", "job", Some(3))).unwrap();
        let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(texts, ["a b", "", "unable to"]);
        let times: Vec<_> = lines.iter().map(|line| line.time.is_some()).collect();
        assert_eq!(times, [true, true, false]);
        let asked = &calls.lock().unwrap()[0].0;
        assert!(asked.contains("tailLines=3") && asked.contains("timestamps=true"), "{asked}");
    }

    #[test]
    fn missing_pod_has_no_containers() {
        let pod = r#"{"metadata": {}, "spec": {"containers": [{"name": "job"}],
            "initContainers": [{"name": "fs-init"}]}}"#;
        let (cluster, _) = cluster(vec![answer(404, "{}"), answer(200, pod)]);
        assert_eq!(cluster.run(containers(&cluster, "p")).unwrap(), None);
        let found = cluster.run(containers(&cluster, "p")).unwrap().unwrap();
        assert_eq!(found, ["job", "fs-init"]);
    }
}
