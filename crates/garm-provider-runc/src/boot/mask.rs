//! Masks secrets in the output of a runner before it is sent to GARM, which stores it in its database and shows it to
//! all its users.

use std::sync::LazyLock;

use regex::Regex;

use super::spec::BootSpec;

const MASK: &str = "***";

/// Minimum length of a secret; shorter values of variables may be part of any word.
const MIN_SECRET_BYTES: usize = 8;

/// Patterns of unknown secrets: tokens of GARM and GitHub, registration tokens, and credentials in URLs. A script with
/// `set -x` prints all of them.
static LIKE_SECRETS: LazyLock<Regex> = LazyLock::new(|| {
    let patterns = [
        r"eyJ[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*",
        r"(gh[a-z]_|github_pat_)[A-Za-z0-9_]{20,}",
        r"[A-Z0-9]{25,}",
        r"(?i:bearer) [^ ]{8,}",
        r"://[^/ @]+@",
    ];
    Regex::new(&patterns.join("|")).expect("these are patterns")
});

/// Masks the secrets of an instance.
pub struct SecretMask {
    values: Vec<String>,
}

impl SecretMask {
    /// Returns a mask for the token and the long variables in a boot spec.
    pub fn new(spec: &BootSpec) -> Self {
        let mut values: Vec<_> = spec.env.values().chain([&spec.token]).cloned().collect();
        values.retain(|value| value.len() >= MIN_SECRET_BYTES);
        // Longest first, because a secret may be part of another one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        SecretMask { values }
    }

    #[cfg(test)]
    pub(super) fn of(values: &[&str]) -> Self {
        SecretMask { values: values.iter().map(|value| (*value).to_owned()).collect() }
    }

    /// Replaces these secrets, and text that looks like a secret.
    pub fn mask_secrets(&self, text: &str) -> String {
        let text =
            self.values.iter().fold(text.to_owned(), |text, value| text.replace(value, MASK));
        LIKE_SECRETS.replace_all(&text, MASK).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_and_text_like_secrets_are_masked() {
        let mask = SecretMask::of(&["hunter2hunter2"]);
        for (text, expected) in [
            ("password hunter2hunter2.", "password ***."),
            ("+ T=eyJhbGciOi.J9x_-.abc; echo", "+ T=***; echo"),
            ("-H Authorization: Bearer abcdef0123 x", "-H Authorization: *** x"),
            (
                "./config.sh --token AABF3JGZDX3P5PMEXLND6TS6FCWO6 --name a",
                "./config.sh --token *** --name a",
            ),
            ("T='AABF3JGZDX3P5PMEXLND6TS6FCWO6'", "T='***'"),
            ("ghs_abcdefghijklmnopqrst1 é", "*** é"),
            ("GET https://u:p@host/x", "GET https***host/x"),
            (
                "Runner listener exit with terminated error",
                "Runner listener exit with terminated error",
            ),
            ("", ""),
        ] {
            assert_eq!(mask.mask_secrets(text), expected);
        }
    }
}
