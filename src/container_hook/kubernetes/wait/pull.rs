//! Images that a node cannot pull, or not yet.

use std::time::Duration;

use super::ended::one_line;

/// After how many pauses of the kubelet, or how long, there is no more hope.
const MAX_BACK_OFFS: u32 = 3;
const MAX_WAIT: Duration = Duration::from_secs(60);

/// What registries and containerd say when the next time is no better, in lower case.
const PERMANENT: [&str; 14] = [
    "not found",
    "notfound",
    "manifest unknown",
    "name unknown",
    "does not exist",
    "denied",
    "unauthorized",
    "authentication required",
    "authorization failed",
    "no basic auth credentials",
    "403 forbidden",
    "no match for platform",
    "does not match the specified platform",
    "invalid reference format",
];

/// The attempts to pull the image of one container.
#[derive(Debug)]
pub(super) struct Pull {
    since: Duration,
    back_offs: u32,
    is_back_off: bool,
    /// What the kubelet said of the last attempt.
    message: String,
}

impl Pull {
    pub(super) fn new(now: Duration) -> Self {
        Pull { since: now, back_offs: 0, is_back_off: false, message: String::new() }
    }

    /// Notes what the kubelet says at a time.
    pub(super) fn note(&mut self, reason: &str, message: &str) {
        let is_back_off = reason == "ImagePullBackOff";
        if is_back_off && !self.is_back_off {
            self.back_offs += 1;
        }
        self.is_back_off = is_back_off;
        // That it pauses says nothing; newer ones say why, too.
        let says_why = !is_back_off || message.contains("Err");
        if says_why && !message.is_empty() || self.message.is_empty() {
            self.message = one_line(if message.is_empty() { reason } else { message });
        }
    }

    /// Returns whether another attempt is of no use, or has had its time.
    pub(super) fn is_hopeless(&self, now: Duration) -> bool {
        let message = self.message.to_lowercase();
        PERMANENT.iter().any(|words| message.contains(words))
            || self.back_offs >= MAX_BACK_OFFS
            || now.saturating_sub(self.since) >= MAX_WAIT
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(5);

    fn pull(said: &[(&str, &str)]) -> Pull {
        let mut pull = Pull::new(AT);
        said.iter().for_each(|(reason, message)| pull.note(reason, message));
        pull
    }

    #[test]
    fn what_the_registry_denies_is_not_waited_for() {
        for message in [
            "rpc error: code = NotFound desc = failed to pull and unpack image \"docker.io/library/nop:1\": \
             failed to resolve reference \"docker.io/library/nop:1\": docker.io/library/nop:1: not found",
            "pull access denied, repository does not exist or may require authorization",
            "failed to authorize: unexpected status: 401 Unauthorized",
            "no match for platform in manifest: not found",
            "manifest unknown",
        ] {
            assert!(pull(&[("ErrImagePull", message)]).is_hopeless(AT), "{message}");
        }
    }

    #[test]
    fn what_may_pass_gets_a_minute_or_three_pauses() {
        let fails = ("ErrImagePull", "dial tcp: i/o timeout");
        let pauses = ("ImagePullBackOff", "Back-off pulling image \"a\"");
        let one = pull(&[fails, pauses, pauses, pauses]);
        assert!(!one.is_hopeless(AT + Duration::from_secs(59)));
        assert!(one.is_hopeless(AT + Duration::from_secs(60)));
        assert_eq!(one.message(), "dial tcp: i/o timeout");
        assert!(!pull(&[fails, pauses, fails, pauses]).is_hopeless(AT));
        assert!(pull(&[fails, pauses, fails, pauses, fails, pauses]).is_hopeless(AT));
    }

    #[test]
    fn a_pause_that_says_why_is_quoted() {
        let newer = "Back-off pulling image \"a\": ErrImagePull: manifest unknown";
        let pull = pull(&[("ErrImagePull", ""), ("ImagePullBackOff", newer)]);
        assert_eq!(pull.message(), newer);
        assert!(pull.is_hopeless(AT));
    }
}
