//! Reports a container that is silent while it runs a step.

use std::cell::Cell;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::session::LinkOpener;
use super::steps::{AgentError, AgentStep};

/// Silence after which a container is suspect. An agent sends a heartbeat every 5 seconds.
const SILENCE_THRESHOLD: Duration = Duration::from_secs(11);
/// Timeout for the cluster's answer about the container, so that a silence is reported within 20 seconds.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of checks for the end of a silence. A silence is also reported only after this delay,
/// so that frames that arrived while this process was stopped are received first.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Logs each silence of a step's container; returns an error when one has lasted for the step's `lost_timeout`.
/// `heard` is the time of the last data.
pub async fn watch(
    opener: &dyn LinkOpener,
    step: &AgentStep<'_>,
    heard: &Cell<Instant>,
) -> AgentError {
    loop {
        let last = heard.get();
        sleep_until(last + SILENCE_THRESHOLD).await;
        sleep(POLL_INTERVAL).await;
        if heard.get() != last {
            continue;
        }
        let (title, seconds) = (step.title, || last.elapsed().as_secs());
        let state = describe(opener).await;
        step.log.warning(&format!("{title} has not answered for {} s: {state}", seconds()));
        while heard.get() == last {
            if last.elapsed() >= step.lost_timeout {
                let (container, state) = (title.to_owned(), describe(opener).await);
                return AgentError::Silent { container, seconds: seconds(), state };
            }
            sleep(POLL_INTERVAL).await;
        }
        step.log.line(&format!("{title} answers again, after {} s", seconds()));
    }
}

async fn describe(opener: &dyn LinkOpener) -> String {
    let answer = timeout(DESCRIBE_TIMEOUT, opener.describe()).await;
    answer.unwrap_or_else(|_| "the API server does not answer either".to_owned())
}
