//! Secrets taken out of what a runner wrote, before GARM is told of it: GARM keeps it in its
//! database and shows it to all its users.

use std::sync::LazyLock;

use regex::Regex;

use super::spec::BootSpec;

/// What stands in place of a secret.
const MASK: &str = "***";

/// A variable of a pool that is shorter is no secret, and may be part of any word.
const MIN_SECRET_BYTES: usize = 8;

/// What secrets look like that nobody told us of: tokens of GARM and of GitHub, those by which
/// runners register, and logins in addresses. A script with `set -x` writes all of them.
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

/// The secrets of an instance.
pub struct Mask {
    values: Vec<String>,
}

impl Mask {
    /// Returns the secrets that a boot knows of.
    pub fn new(spec: &BootSpec) -> Self {
        let mut values: Vec<_> = spec.env.values().chain([&spec.token]).cloned().collect();
        values.retain(|value| value.len() >= MIN_SECRET_BYTES);
        // One may be part of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Mask { values }
    }

    #[cfg(test)]
    pub(super) fn of(values: &[&str]) -> Self {
        Mask { values: values.iter().map(|value| (*value).to_owned()).collect() }
    }

    /// Returns a text without secrets.
    pub fn hide(&self, text: &str) -> String {
        let text =
            self.values.iter().fold(text.to_owned(), |text, value| text.replace(value, MASK));
        LIKE_SECRETS.replace_all(&text, MASK).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_or_looks_like_a_secret_is_hidden() {
        let mask = Mask::of(&["hunter2hunter2"]);
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
            assert_eq!(mask.hide(text), expected);
        }
    }
}
