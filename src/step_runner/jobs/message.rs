//! What is told of a job that failed: without secrets, and not too long.

use std::time::Instant;

use super::super::log::{Log, Masker, Masking, Output, Source, Stream};

/// How much is told; answers have a limit, and one has the messages of all jobs.
const MAX_BYTES: usize = 4 << 10;

/// Where the exit code is, for GitLab's runner to find.
const CODE: &str = "exit status ";

/// A log, and all that was said to be secret meanwhile.
pub(super) struct Heard<'a> {
    pub(super) log: &'a mut Log,
    pub(super) secrets: Masking,
}

impl Output for Heard<'_> {
    fn write(&mut self, source: Source, stream: Stream, bytes: &[u8]) {
        self.log.write(source, stream, bytes);
    }

    fn flush(&mut self) {
        self.log.flush();
    }

    fn release(&mut self, now: Instant) -> Option<Instant> {
        self.log.release(now)
    }

    fn mask(&mut self, secret: &str) {
        self.secrets.add_secret(secret);
        self.log.mask(secret);
    }
}

/// Returns what may be told of a message. The exit code at its end stays.
pub(super) fn told(message: &str, secrets: &Masking) -> String {
    let is_code = |at: &usize| message[at + CODE.len()..].bytes().all(|byte| byte.is_ascii_digit());
    let end = message.rfind(CODE).filter(is_code).unwrap_or(message.len());
    let (text, code) = message.split_at(end);
    let Ok(mut masker) = Masker::new(secrets) else {
        return format!("there is too much to mask: {code}");
    };
    let mut masked = Vec::new();
    masker.write(text.as_bytes(), &mut masked);
    masker.finish(&mut masked);
    let mut text = String::from_utf8_lossy(&masked).into_owned();
    if text.len() > MAX_BYTES {
        let at = (0..=MAX_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(at);
        text += "...: ";
    }
    text + code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_and_the_exit_code_stays() {
        let secrets =
            Masking { phrases: vec!["3".to_owned(), "hidden".to_owned()], ..Masking::default() };
        let cases = [
            ("step \"a\": exec: exit status 3", "step \"a\": exec: exit status 3"),
            ("exec: exec: \"hidden\": not found", "exec: exec: \"[MASKED]\": not found"),
            ("exit status hidden", "exit status [MASKED]"),
            ("", ""),
        ];
        for (message, expected) in cases {
            assert_eq!(told(message, &secrets), expected);
        }
    }

    #[test]
    fn a_long_message_keeps_its_end() {
        let message = format!("step {}: exit status 12", "é".repeat(10_000));
        let told = told(&message, &Masking::default());
        assert!(told.len() < MAX_BYTES + 100);
        assert!(told.ends_with("...: exit status 12"), "{told}");
    }
}
