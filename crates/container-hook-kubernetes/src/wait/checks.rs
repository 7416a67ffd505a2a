//! Runs the health check of a service while a job waits for it, with Docker's intervals and counts.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::{Instant, sleep, timeout};

use super::ended::{title, to_one_line};
use super::observe::PodFault;
use crate::client::{ClusterClient, ExecEnd};
use crate::pod::HealthCheck;

/// Maximum number of bytes kept of each output stream of a check.
const MAX_OUTPUT_BYTES: u64 = 4 << 10;

/// Result of one run of a check.
enum CheckResult {
    Success,
    /// The check failed, for this reason.
    Failure(String),
    /// The cluster did not run the check.
    Unknown,
}

/// Runs the check of a running container until the container is unhealthy; returns the fault.
pub async fn until_unhealthy(cluster: &ClusterClient, pod: &str, check: &HealthCheck) -> PodFault {
    count(check, async || run(cluster, pod, check).await).await
}

async fn count(check: &HealthCheck, run: impl AsyncFn() -> CheckResult) -> PodFault {
    let began = Instant::now();
    let mut failures = 0;
    loop {
        sleep(check.pause(began.elapsed())).await;
        let at = began.elapsed();
        match run().await {
            CheckResult::Success => failures = 0,
            CheckResult::Failure(problem) if at >= check.start_period => {
                failures += 1;
                if failures >= check.retries {
                    let container = title(&check.container);
                    return PodFault::Unhealthy { container, failures, problem };
                }
            }
            CheckResult::Failure(_) | CheckResult::Unknown => {}
        }
    }
}

async fn run(cluster: &ClusterClient, pod: &str, check: &HealthCheck) -> CheckResult {
    let command: Vec<_> = check.command.iter().map(String::as_str).collect();
    // The check's timeout does not include the connection to the node, which has its own.
    let exec = cluster.exec(pod, &check.container, &command, false).await;
    let Ok(exec) = exec else { return CheckResult::Unknown };
    let (_stdin, stdout, stderr, end) = exec.into_parts();
    let ended = timeout(check.timeout, async { tokio::join!(read(stdout), read(stderr), end) });
    let (stdout, stderr, end) = match ended.await {
        Ok(parts) => parts,
        Err(_) => return CheckResult::Failure(timed_out(check.timeout)),
    };
    let problem = match end {
        ExecEnd::Exited(0) => return CheckResult::Success,
        ExecEnd::Exited(code) => format!("it ended with code {code}"),
        ExecEnd::Failed(problem) => problem,
        ExecEnd::Lost(_) => return CheckResult::Unknown,
    };
    let output = [stdout, stderr].concat();
    let output = to_one_line(&String::from_utf8_lossy(&output));
    CheckResult::Failure(if output.is_empty() { problem } else { format!("{problem}: {output}") })
}

fn timed_out(limit: Duration) -> String {
    format!("it did not end within {limit:?}")
}

/// Returns the start of an output stream.
async fn read(stream: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut start = Vec::new();
    // A read error still leaves the part that was read.
    let _ = stream.take(MAX_OUTPUT_BYTES).read_to_end(&mut start).await;
    start
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn check(retries: u32) -> HealthCheck {
        HealthCheck {
            container: "a".to_owned(),
            command: vec!["check".to_owned()],
            interval: Duration::from_millis(1),
            timeout: Duration::from_secs(1),
            start_period: Duration::ZERO,
            start_interval: None,
            retries,
        }
    }

    /// Returns the number of runs until the container is unhealthy, and the fault.
    fn runs(check: &HealthCheck, is_success: impl Fn(u32) -> bool) -> (u32, String) {
        let runs = Cell::new(0);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let fault = runtime.block_on(count(check, async || {
            runs.set(runs.get() + 1);
            match is_success(runs.get()) {
                true => CheckResult::Success,
                false => CheckResult::Failure("it ended with code 1: no".to_owned()),
            }
        }));
        (runs.get(), fault.to_string())
    }

    #[test]
    fn as_many_failures_as_retries_make_a_container_unhealthy() {
        let (count, fault) = runs(&check(3), |_| false);
        let expected = "container a is unhealthy: its health check failed 3 times in succession, the last time because \
                        it ended with code 1: no";
        assert_eq!((count, fault.as_str()), (3, expected));
        assert_eq!(runs(&check(3), |run| run == 2).0, 5, "a success starts the count again");
    }

    #[test]
    fn failures_in_the_start_period_do_not_count() {
        let start_period = Duration::from_millis(30);
        let began = std::time::Instant::now();
        runs(&HealthCheck { start_period, ..check(1) }, |_| false);
        assert!(began.elapsed() > start_period);
    }

    #[test]
    fn the_interval_is_another_one_in_the_start_period() {
        let (start_period, start_interval) = (Duration::from_secs(9), Some(Duration::from_secs(2)));
        let check = HealthCheck { start_period, start_interval, ..check(1) };
        assert_eq!(check.pause(Duration::from_secs(8)), Duration::from_secs(2));
        assert_eq!(check.pause(Duration::from_secs(9)), check.interval);
    }
}
