//! Error messages of jobs: masked, and shortened.

use super::super::engine::{JobOutcome, Reason};
use super::super::redact::Redactor;
use super::super::wire::proto::step_result::Status;
use super::settings::TimeLimit;

/// Length limit of a message: one gRPC response contains the messages of all jobs.
const MAX_BYTES: usize = 4 << 10;

/// Text before the exit code, for which GitLab's runner searches.
const EXIT_STATUS: &str = "exit status ";

/// Returns the message of a job that has ended.
///
/// If it was stopped, that is what the message says, and the exit code of the command that was stopped is
/// not at its end: GitLab's runner would take it for the job's.
pub(super) fn stopped_message(
    outcome: &JobOutcome,
    reason: Option<Reason>,
    limit: TimeLimit,
) -> String {
    match (outcome.status, reason) {
        (Status::Cancelled, _) => format!("job cancelled ({})", outcome.error),
        (Status::Failure, Some(Reason::Timeout)) => {
            format!("job exceeded its maximum run time of {limit} ({})", outcome.error)
        }
        _ => outcome.message.clone(),
    }
}

/// Masks and shortens a message. The exit code at its end is kept.
pub fn masked_message(message: &str, secrets: &Redactor) -> String {
    let is_code =
        |at: &usize| message[at + EXIT_STATUS.len()..].bytes().all(|byte| byte.is_ascii_digit());
    let end = message.rfind(EXIT_STATUS).filter(is_code).unwrap_or(message.len());
    let (text, code) = message.split_at(end);
    let mut text = secrets.text(text);
    if text.len() > MAX_BYTES {
        let at = (0..=MAX_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(at);
        text += "...: ";
    }
    text + code
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::super::log::Masking;
    use super::*;

    #[test]
    fn secrets_are_masked_and_the_exit_code_stays() {
        let secrets =
            Masking { phrases: vec!["3".to_owned(), "hidden".to_owned()], ..Masking::default() };
        let secrets = Redactor::new(secrets, BTreeMap::new());
        let cases = [
            ("step \"a\": exec: exit status 3", "step \"a\": exec: exit status 3"),
            ("exec: exec: \"hidden\": not found", "exec: exec: \"[MASKED]\": not found"),
            ("exit status hidden", "exit status [MASKED]"),
            ("", ""),
        ];
        for (message, expected) in cases {
            assert_eq!(masked_message(message, &secrets), expected);
        }
    }

    #[test]
    fn a_long_message_keeps_its_end() {
        let message = format!("step {}: exit status 12", "é".repeat(10_000));
        let told = masked_message(&message, &Redactor::new(Masking::default(), BTreeMap::new()));
        assert!(told.len() < MAX_BYTES + 100);
        assert!(told.ends_with("...: exit status 12"), "{told}");
    }
}
