//! What every backend takes of one call of the runner.

use super::audit::AuditLog;
use super::policy::Policy;
use super::runner::Runner;
use super::template::TemplateSettings;
use crate::image::Progress;

/// One call of the runner: who calls, what the admin allows, and where it is reported.
#[derive(Clone, Copy)]
pub struct HookContext<'a> {
    pub settings: &'a Settings,
    pub runner: &'a Runner,
    pub audit: &'a AuditLog,
    /// What the runner shows as the log of the step.
    pub log: &'a dyn Log,
}

/// Where what the hook has to say goes. The program knows how the runner reads it.
pub trait Log: Progress + Sync {
    /// Begins a part that people can fold away.
    fn group(&self, title: &str);
    fn end_group(&self);
    /// Shows a line to everyone who looks at the log.
    fn line(&self, text: &str);
    /// Says something that people should look at.
    fn warning(&self, text: &str);
    /// Says something for those who look for a fault.
    fn debug(&self, text: &str);
    /// Shows what a container wrote: nothing in it is a command to the runner.
    fn output(&self, name: &str, text: &[u8]);
}

/// What jobs may ask for, and what all of them get.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What `options:` and `volumes:` may ask for.
    pub policy: Policy,
    /// The pod template, which changes what jobs get.
    pub template: TemplateSettings,
}
