//! What the runner shows as the log of a step.

use crate::image::Progress;

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
