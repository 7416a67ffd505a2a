//! Secrets to mask.

use super::forms::{loose_forms, secret_forms};

/// Prefixes of GitLab tokens after which they are always masked.
pub(super) const BUILT_IN_PREFIXES: [&str; 1] = ["glpat-"];

/// Prefixes of other GitLab tokens, which are masked too unless a job asks for less: as GitLab's runner does
/// while its `FF_MASK_ALL_DEFAULT_TOKENS` is on, the default.
pub(super) const OTHER_PREFIXES: [&str; 13] = [
    "gloas-",
    "gldt-",
    "glrt-",
    "glcbt-",
    "glrtr-",
    "glptt-",
    "glft-",
    "glimt-",
    "glagent-",
    "glsoat-",
    "glffct-",
    "_gitlab_session=",
    "gltok-",
];

/// Secrets to mask in the output of a job.
///
/// The values of `private_token`, `X-Amz-Signature` and similar URL parameters, and tokens that start with
/// `glpat-`, are always masked; other tokens of GitLab, by default.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Masking {
    /// Texts to mask, byte for byte, without surrounding white space.
    pub phrases: Vec<String>,
    /// Texts to mask case-insensitively, and with line breaks or terminal escape sequences between their
    /// characters. Those shorter than eight bytes are ignored.
    pub loose_phrases: Vec<String>,
    /// Prefixes after which a token is masked; the prefix itself is not.
    pub token_prefixes: Vec<String>,
    /// Whether of GitLab's tokens only personal access tokens are masked, `glpat-`.
    pub only_personal_tokens: bool,
}

impl Masking {
    /// Adds a secret in each form of [`secret_forms`] and [`loose_forms`].
    pub fn add_secret(&mut self, secret: &str) {
        self.phrases.extend(secret_forms(secret));
        self.loose_phrases.extend(loose_forms(secret));
    }
}

impl std::fmt::Debug for Masking {
    /// Formats the number of phrases, but no phrase.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masking")
            .field("phrases", &self.phrases.len())
            .field("loose_phrases", &self.loose_phrases.len())
            .field("token_prefixes", &self.token_prefixes)
            .field("only_personal_tokens", &self.only_personal_tokens)
            .finish()
    }
}
