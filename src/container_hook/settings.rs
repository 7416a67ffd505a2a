//! What the admin decides for all backends.

use super::policy::Policy;
use super::template::TemplateSettings;

/// What jobs may ask for, and what all of them get.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What `options:` and `volumes:` may ask for.
    pub policy: Policy,
    /// The pod template, which changes what jobs get.
    pub template: TemplateSettings,
}
