//! The context of one call of the runner, which all backends share.

use oci_hooks_image::PullProgress;

use super::audit::AuditLog;
use super::policy::Policy;
use super::runner::CallingRunner;
use super::template::TemplateSettings;

/// One call of the runner: the caller, the admin's settings, and the logs.
#[derive(Clone, Copy)]
pub struct HookContext<'a> {
    pub settings: &'a HookSettings,
    pub runner: &'a CallingRunner,
    pub audit: &'a AuditLog,
    /// Step log that the runner shows.
    pub log: &'a dyn HookLog,
}

/// The step log. The program that implements it knows how the runner parses its output.
pub trait HookLog: PullProgress + Sync {
    /// Begins a foldable group of lines.
    fn group(&self, title: &str);
    fn end_group(&self);
    fn line(&self, text: &str);
    fn warning(&self, text: &str);
    /// Logs a line that is shown only in debug mode.
    fn debug(&self, text: &str);
    /// Logs the output of a container, so that the runner parses no workflow commands in it.
    fn output(&self, name: &str, text: &[u8]);
}

/// The admin's settings for all jobs.
#[derive(Clone, Debug, Default)]
pub struct HookSettings {
    /// Limits on `options:` and `volumes:`.
    pub policy: Policy,
    /// Pod template, merged into the containers of jobs.
    pub template: TemplateSettings,
}
