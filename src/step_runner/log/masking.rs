//! What is to be masked.

use super::forms::{loose_forms, secret_forms};

/// Prefixes of GitLab's own tokens that are masked always.
pub(super) const BUILT_IN_PREFIXES: [&str; 1] = ["glpat-"];

/// Prefixes of GitLab's own tokens that are masked if asked for.
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

/// What nobody may see in what a job writes.
///
/// Beyond what stands here, the values of `private_token`, `X-Amz-Signature` and the like in URLs
/// are always masked, and what follows `glpat-`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Masking {
    /// Texts that are masked wherever they stand, byte for byte, but for white space around them.
    pub phrases: Vec<String>,
    /// Texts that are masked in upper and lower case, and where line breaks or terminal escape
    /// sequences stand between their characters. Those of less than eight bytes are not.
    pub loose_phrases: Vec<String>,
    /// Prefixes that stay, and after which a token is masked.
    pub token_prefixes: Vec<String>,
    /// Masks all kinds of tokens that GitLab makes, not only personal access tokens.
    pub all_gitlab_tokens: bool,
}

impl Masking {
    /// Adds a secret in each form of [`secret_forms`] and [`loose_forms`].
    pub fn add_secret(&mut self, secret: &str) {
        self.phrases.extend(secret_forms(secret));
        self.loose_phrases.extend(loose_forms(secret));
    }
}

impl std::fmt::Debug for Masking {
    /// Shows what is no secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masking")
            .field("phrases", &self.phrases.len())
            .field("loose_phrases", &self.loose_phrases.len())
            .field("token_prefixes", &self.token_prefixes)
            .field("all_gitlab_tokens", &self.all_gitlab_tokens)
            .finish()
    }
}
