//! Output of a running runner: detects that it listens for jobs, and how it ended.

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::Sender;
use std::time::Instant;

use super::guest::OutputWatcher;
use super::mask::SecretMask;
use super::spec::Forge;

/// Number of last lines in a report.
const LAST_LINES: usize = 6;

/// Length limit of each line in a report.
const MAX_LINE_CHARS: usize = 200;

/// Length limit of all last lines together, which GARM shows in one line.
const MAX_LAST_CHARS: usize = 700;

/// Last lines of a runner's output, with secrets masked, joined to one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LastLines(String);

impl fmt::Display for LastLines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "; last lines: {}", self.0) }
    }
}

/// Watches the output of a runner: whether it listens, how it ended, and its last lines.
pub struct RunnerOutputWatcher {
    forge: Option<Forge>,
    deadline: Option<Instant>,
    /// Sends one message when the runner listens for jobs; dropped when the runner has exited.
    listening: Option<Sender<()>>,
    listens: bool,
    listener_failure: Option<String>,
    last: VecDeque<String>,
}

impl RunnerOutputWatcher {
    /// Watches a forge's runner, which must listen for jobs before the deadline; without a forge, watches GARM's
    /// script, whose runner is unknown.
    pub fn new(forge: Option<Forge>, deadline: Option<Instant>, listening: Sender<()>) -> Self {
        RunnerOutputWatcher {
            forge,
            deadline: deadline.filter(|_| forge.is_some()),
            listening: Some(listening),
            listens: false,
            listener_failure: None,
            last: VecDeque::new(),
        }
    }

    /// Closes the channel, after the runner has exited.
    pub fn close(&mut self) {
        self.listening = None;
    }

    /// Returns whether the runner has listened for jobs.
    pub fn has_listened(&self) -> bool {
        self.listens
    }

    /// Returns the reason why GitHub's listener failed; the scripts around it always exit with 0.
    pub fn listener_failure(&self) -> Option<&str> {
        self.listener_failure.as_deref()
    }

    /// Returns the last lines that fit into a report.
    pub fn last_lines(&self, mask: &SecretMask) -> LastLines {
        let mut left = MAX_LAST_CHARS;
        let mut lines = Vec::new();
        for line in self.last.iter().rev() {
            let line: String = mask.mask_secrets(line).chars().take(MAX_LINE_CHARS).collect();
            let Some(rest) = left.checked_sub(line.chars().count() + 3) else { break };
            left = rest;
            lines.push(line);
        }
        lines.reverse();
        LastLines(lines.join(" | "))
    }
}

impl OutputWatcher for RunnerOutputWatcher {
    fn line(&mut self, line: &str) {
        let line = line.trim();
        if line.is_empty() {
            return;
        }
        if self.forge == Some(Forge::Github) {
            self.listener_failure = listener_failure(line, self.listener_failure.take());
        }
        if !self.listens && self.forge.is_some_and(|forge| line.contains(listening_message(forge)))
        {
            self.listens = true;
            self.deadline = None;
            // If the receiver is gone, the message is not needed.
            let _ = self.listening.as_ref().map(|listening| listening.send(()));
        }
        if self.last.len() == LAST_LINES {
            self.last.pop_front();
        }
        self.last.push_back(line.to_owned());
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }
}

/// Returns the message of a runner that has a session with its forge and can get jobs. The runner's own service waits
/// for the same message.
fn listening_message(forge: Forge) -> &'static str {
    match forge {
        Forge::Github => "Listening for Jobs",
        Forge::Gitea => "declare successfully",
    }
}

/// Returns the failure of GitHub's listener that a line reports, or else the earlier one. A successful exit, or one for
/// an update or a retry, clears the earlier failure.
fn listener_failure(line: &str, before: Option<String>) -> Option<String> {
    const ENDS: [&str; 2] = ["Runner listener exit", "Exiting with unknown error code"];
    const FINE: [&str; 3] = ["with 0 return code", "because of updating", "with retryable error"];
    if !ENDS.iter().any(|end| line.starts_with(end)) {
        return before;
    }
    (!FINE.iter().any(|fine| line.contains(fine))).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    #[test]
    fn runner_listens_after_its_message_and_has_no_deadline_then() {
        let deadline = Instant::now() + Duration::from_secs(60);
        for (forge, line) in [
            (Forge::Github, "2026-11-22 18:00:00Z: Listening for Jobs"),
            (
                Forge::Gitea,
                "time=\"x\" level=info msg=\"runner: a, with version: v1, with labels: [b], declare \
                 successfully\"",
            ),
        ] {
            let (send, receive) = channel();
            let mut output = RunnerOutputWatcher::new(Some(forge), Some(deadline), send);
            for other in ["Connected to GitHub", "Starting runner daemon", ""] {
                output.line(other);
            }
            assert!(!output.has_listened() && receive.try_recv().is_err());
            assert_eq!(output.deadline(), Some(deadline));
            output.line(line);
            output.line(line);
            assert!(output.has_listened());
            assert_eq!(output.deadline(), None);
            output.close();
            assert_eq!(receive.iter().count(), 1);
        }
        let (send, _receive) = channel();
        let mut script = RunnerOutputWatcher::new(None, Some(deadline), send);
        script.line("Listening for Jobs");
        assert!(!script.has_listened() && script.deadline().is_none());
    }

    #[test]
    fn reason_of_a_listener_exit_is_parsed_from_its_scripts() {
        for (lines, expected) in [
            (
                &["Runner listener exit with 0 return code, stop the service, no retry needed."][..],
                None,
            ),
            (
                &["Runner listener exit with terminated error, stop the service, no retry needed."],
                Some(
                    "Runner listener exit with terminated error, stop the service, no retry needed.",
                ),
            ),
            (
                &[
                    "Runner listener exit with Session Conflict error, stop the service, no retry needed.",
                ],
                Some(
                    "Runner listener exit with Session Conflict error, stop the service, no retry needed.",
                ),
            ),
            (
                &["Exiting with unknown error code: 134"],
                Some("Exiting with unknown error code: 134"),
            ),
            // An update, or a retry.
            (
                &[
                    "Runner listener exit because of updating, re-launch runner after successful update",
                    "Restarting runner...",
                ],
                None,
            ),
            (&["Runner listener exit with retryable error, re-launch runner in 5 seconds."], None),
            // The message as the name of a job.
            (
                &["2026-11-22 18:00:00Z: Running job: Runner listener exit with terminated error"],
                None,
            ),
        ] {
            let (send, _receive) = channel();
            let mut output = RunnerOutputWatcher::new(Some(Forge::Github), None, send);
            lines.iter().for_each(|line| output.line(line));
            output.line("Exiting runner...");
            assert_eq!(output.listener_failure(), expected);
        }
    }

    #[test]
    fn last_lines_are_limited_and_masked() {
        let (send, _receive) = channel();
        let mut output = RunnerOutputWatcher::new(Some(Forge::Github), None, send);
        let mask = SecretMask::of(&["eyJINSTANCE.T0KEN"]);
        assert_eq!(output.last_lines(&mask).to_string(), "");
        for number in 0..100 {
            output.line(&format!("line {number}\r"));
        }
        output.line("token eyJINSTANCE.T0KEN");
        let last = output.last_lines(&mask).to_string();
        assert_eq!(
            last,
            "; last lines: line 95 | line 96 | line 97 | line 98 | line 99 | token ***"
        );
        for _ in 0..100 {
            output.line(&"ä ".repeat(10_000));
        }
        assert!(output.last_lines(&mask).to_string().chars().count() <= MAX_LAST_CHARS + 20);
    }
}
