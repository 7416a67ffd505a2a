//! One thing that is tried, and what its outcomes mean.

use std::fmt;
use std::fs;

use crate::program::check::Status;
use crate::sys::init::trials::{Attempt, Outcome};

/// Whose an address, a socket or a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Host,
    /// A container that runs at the same time.
    Other,
}

impl Whose {
    pub(super) fn word(self) -> &'static str {
        match self {
            Whose::Host => "host",
            Whose::Other => "other",
        }
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Whose::Host => "host",
            Whose::Other => "other job",
        })
    }
}

/// What shows that something was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// It must be reached: who does not reach it cannot tell what is out of reach.
    Control,
    /// Only the token does: others may have the same address elsewhere.
    Token,
    /// Any answer, even that nothing listens: no rule is in the way.
    Answer,
    /// That it was opened.
    Access,
}

/// Something that is tried.
#[derive(Clone, Debug)]
pub struct Trial {
    pub name: String,
    pub attempt: Attempt,
    meaning: Meaning,
    /// Whether it is known that there is something to be reached.
    pub is_there: bool,
    /// The setting that lets jobs reach it.
    pub allowed: Option<&'static str>,
}

impl Trial {
    pub(super) fn new(name: String, attempt: Attempt, meaning: Meaning) -> Self {
        Trial { name, attempt, meaning, is_there: false, allowed: None }
    }

    /// Returns one of something that a server has made sure of.
    pub fn served(name: String, attempt: Attempt) -> Self {
        Trial { is_there: true, ..Trial::new(name, attempt, Meaning::Token) }
    }

    pub(super) fn is_reached(&self, outcome: &Outcome, token: &str) -> bool {
        match (self.meaning, outcome) {
            (Meaning::Token, Outcome::Reached(said)) => {
                said == token || matches!(self.attempt, Attempt::Process(_))
            }
            (_, Outcome::Reached(_)) | (Meaning::Answer, Outcome::Refused) => true,
            _ => false,
        }
    }

    /// Returns what an outcome in a container is. What is not known is a warning.
    pub fn status(&self, outcome: &Outcome, token: &str) -> Status {
        let is_control = self.meaning == Meaning::Control;
        match outcome {
            Outcome::Untried(_) => Status::Warn,
            outcome if self.is_reached(outcome, token) => match self.allowed {
                _ if is_control => Status::Ok,
                Some(_) => Status::Warn,
                None => Status::Fail,
            },
            _ if is_control => Status::Fail,
            // Something else answered, or nothing did that may not be there.
            Outcome::Reached(_) => Status::Warn,
            Outcome::NoAnswer if !self.is_there => Status::Warn,
            _ => Status::Ok,
        }
    }

    /// Removes the file or socket that a server created on this host.
    pub fn remove_file(&self) {
        if let (Meaning::Token, Attempt::Socket(path) | Attempt::Read(path)) =
            (self.meaning, &self.attempt)
        {
            // Those of a container are not here.
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(meaning: Meaning, is_there: bool, outcome: Outcome) -> Status {
        let attempt = Attempt::Tcp("192.0.2.1:80".parse().unwrap());
        let trial = Trial { is_there, ..Trial::new(String::new(), attempt, meaning) };
        trial.status(&outcome, "token")
    }

    #[test]
    fn what_was_not_tried_or_may_not_be_there_is_never_out_of_reach() {
        let untried = || Outcome::Untried(String::new());
        for meaning in [Meaning::Token, Meaning::Answer, Meaning::Access] {
            assert_eq!(status(meaning, true, untried()), Status::Warn);
            assert_eq!(status(meaning, false, Outcome::NoAnswer), Status::Warn);
            assert_eq!(status(meaning, true, Outcome::NoAnswer), Status::Ok);
            assert_eq!(status(meaning, false, Outcome::Rejected), Status::Ok);
        }
        assert_eq!(status(Meaning::Control, true, untried()), Status::Warn);
        for outcome in [Outcome::NoAnswer, Outcome::Rejected, Outcome::Denied] {
            assert_eq!(status(Meaning::Control, true, outcome), Status::Fail);
        }
    }

    #[test]
    fn what_shows_that_it_was_reached_depends_on_what_it_is() {
        let reached = |said: &str| Outcome::Reached(said.to_owned());
        assert_eq!(status(Meaning::Token, true, reached("token")), Status::Fail);
        assert_eq!(status(Meaning::Token, true, reached("another")), Status::Warn);
        assert_eq!(status(Meaning::Token, true, Outcome::Refused), Status::Ok);
        assert_eq!(status(Meaning::Answer, false, reached("")), Status::Fail);
        assert_eq!(status(Meaning::Answer, false, Outcome::Refused), Status::Fail);
        assert_eq!(status(Meaning::Access, false, reached("")), Status::Fail);
        assert_eq!(status(Meaning::Control, false, reached("own")), Status::Ok);
    }
}
