//! What every backend takes of one call of the runner.

use super::audit::AuditLog;
use super::log::Log;
use super::runner::Runner;
use super::settings::Settings;

/// One call of the runner: who calls, what the admin allows, and where it is reported.
#[derive(Clone, Copy)]
pub struct HookContext<'a> {
    pub settings: &'a Settings,
    pub runner: &'a Runner,
    pub audit: &'a AuditLog,
    /// What the runner shows as the log of the step.
    pub log: &'a dyn Log,
}
