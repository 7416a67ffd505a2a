//! A trial of a probe, and the meaning of its outcomes.

use std::{fmt, fs};

use oci_hooks_cli::check::CheckStatus;
use oci_hooks_init::trials::{ProbeAttempt, ProbeOutcome};

/// Owner of a target, which is an address, a socket or a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetOwner {
    Host,
    /// Another container that runs at the same time.
    Other,
}

impl TargetOwner {
    pub(super) fn word(self) -> &'static str {
        match self {
            TargetOwner::Host => "host",
            TargetOwner::Other => "other",
        }
    }
}

impl fmt::Display for TargetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TargetOwner::Host => "host",
            TargetOwner::Other => "other job",
        })
    }
}

/// Outcome that proves that a target was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachCriterion {
    /// Success, which is required: if the probe cannot reach its own servers, unreached targets prove nothing.
    Control,
    /// Only the probe's own token as the answer, because another server may have the same address.
    Token,
    /// Any answer, even a refused connection, which shows that no firewall rule blocks the address.
    Answer,
    /// Success, for example of opening a file.
    Access,
}

/// An attempt to reach a target, with the rule by which its result is judged.
#[derive(Clone, Debug)]
pub struct ProbeCase {
    pub name: String,
    pub attempt: ProbeAttempt,
    meaning: ReachCriterion,
    /// If set, the target is known to exist.
    pub is_there: bool,
    /// Setting that lets jobs reach the target.
    pub allowed: Option<&'static str>,
}

impl ProbeCase {
    pub(super) fn new(name: String, attempt: ProbeAttempt, meaning: ReachCriterion) -> Self {
        ProbeCase { name, attempt, meaning, is_there: false, allowed: None }
    }

    /// Returns a trial of a target that its server has verified.
    pub fn with_verified_server(name: String, attempt: ProbeAttempt) -> Self {
        ProbeCase { is_there: true, ..ProbeCase::new(name, attempt, ReachCriterion::Token) }
    }

    pub(super) fn is_reached(&self, outcome: &ProbeOutcome, token: &str) -> bool {
        match (self.meaning, outcome) {
            (ReachCriterion::Token, ProbeOutcome::Reached(said)) => {
                said == token || matches!(self.attempt, ProbeAttempt::Process(_))
            }
            (_, ProbeOutcome::Reached(_)) | (ReachCriterion::Answer, ProbeOutcome::Refused) => true,
            _ => false,
        }
    }

    /// Returns the status of an outcome in a container; inconclusive outcomes are warnings.
    pub fn status(&self, outcome: &ProbeOutcome, token: &str) -> CheckStatus {
        let is_control = self.meaning == ReachCriterion::Control;
        match outcome {
            ProbeOutcome::Untried(_) => CheckStatus::Warn,
            outcome if self.is_reached(outcome, token) => match self.allowed {
                _ if is_control => CheckStatus::Ok,
                Some(_) => CheckStatus::Warn,
                None => CheckStatus::Fail,
            },
            _ if is_control => CheckStatus::Fail,
            // Another server answered, or the target may not exist.
            ProbeOutcome::Reached(_) => CheckStatus::Warn,
            ProbeOutcome::NoAnswer if !self.is_there => CheckStatus::Warn,
            _ => CheckStatus::Ok,
        }
    }

    /// Removes the file or socket that a server created on this host.
    pub fn remove_file(&self) {
        if let (ReachCriterion::Token, ProbeAttempt::Socket(path) | ProbeAttempt::Read(path)) =
            (self.meaning, &self.attempt)
        {
            // Files of a container do not exist on this host.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(meaning: ReachCriterion, is_there: bool, outcome: ProbeOutcome) -> CheckStatus {
        let attempt = ProbeAttempt::Tcp("192.0.2.1:80".parse().unwrap());
        let trial = ProbeCase { is_there, ..ProbeCase::new(String::new(), attempt, meaning) };
        trial.status(&outcome, "token")
    }

    #[test]
    fn untried_or_missing_target_is_never_ok() {
        let untried = || ProbeOutcome::Untried(String::new());
        for meaning in [ReachCriterion::Token, ReachCriterion::Answer, ReachCriterion::Access] {
            assert_eq!(status(meaning, true, untried()), CheckStatus::Warn);
            assert_eq!(status(meaning, false, ProbeOutcome::NoAnswer), CheckStatus::Warn);
            assert_eq!(status(meaning, true, ProbeOutcome::NoAnswer), CheckStatus::Ok);
            assert_eq!(status(meaning, false, ProbeOutcome::Rejected), CheckStatus::Ok);
        }
        assert_eq!(status(ReachCriterion::Control, true, untried()), CheckStatus::Warn);
        for outcome in [ProbeOutcome::NoAnswer, ProbeOutcome::Rejected, ProbeOutcome::Denied] {
            assert_eq!(status(ReachCriterion::Control, true, outcome), CheckStatus::Fail);
        }
    }

    #[test]
    fn meaning_of_a_reached_target_depends_on_its_criterion() {
        let reached = |said: &str| ProbeOutcome::Reached(said.to_owned());
        assert_eq!(status(ReachCriterion::Token, true, reached("token")), CheckStatus::Fail);
        assert_eq!(status(ReachCriterion::Token, true, reached("another")), CheckStatus::Warn);
        assert_eq!(status(ReachCriterion::Token, true, ProbeOutcome::Refused), CheckStatus::Ok);
        assert_eq!(status(ReachCriterion::Answer, false, reached("")), CheckStatus::Fail);
        assert_eq!(status(ReachCriterion::Answer, false, ProbeOutcome::Refused), CheckStatus::Fail);
        assert_eq!(status(ReachCriterion::Access, false, reached("")), CheckStatus::Fail);
        assert_eq!(status(ReachCriterion::Control, false, reached("own")), CheckStatus::Ok);
    }
}
