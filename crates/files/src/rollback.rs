//! Rollback on errors: completed steps are undone in reverse order, unless all steps succeed.

use std::fmt;

/// A stack of undo steps that run in reverse order when it is dropped.
///
/// ```
/// use oci_hooks_files::rollback::Rollback;
///
/// # let dir = std::env::temp_dir().join(format!("rollback-{}", std::process::id()));
/// let mut undo = Rollback::new();
/// std::fs::create_dir(&dir)?;
/// undo.push({
///     let dir = dir.clone();
///     move || drop(std::fs::remove_dir(dir))
/// });
/// // Returning here with an error would remove the directory.
/// undo.disarm();
/// assert!(dir.exists());
/// # std::fs::remove_dir(dir)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Default)]
#[must_use = "everything is undone as soon as this is dropped"]
pub struct Rollback<'a> {
    steps: Vec<Box<dyn FnOnce() + 'a>>,
}

impl<'a> Rollback<'a> {
    /// Returns a stack with nothing to undo.
    pub fn new() -> Self {
        Rollback { steps: Vec::new() }
    }

    /// Adds a step that undoes the last change.
    ///
    /// A step cannot report its own failure: the caller gets the first error, and later calls find
    /// leftovers by their records.
    pub fn push(&mut self, step: impl FnOnce() + 'a) {
        self.steps.push(Box::new(step));
    }

    /// Discards all undo steps without running them.
    pub fn disarm(mut self) {
        self.steps.clear();
    }
}

impl Drop for Rollback<'_> {
    fn drop(&mut self) {
        while let Some(step) = self.steps.pop() {
            step();
        }
    }
}

impl fmt::Debug for Rollback<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rollback").field("steps", &self.steps.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn undo_steps_run_in_reverse() {
        let seen = RefCell::new(Vec::new());
        let mut undo = Rollback::new();
        undo.push(|| seen.borrow_mut().push(1));
        undo.push(|| seen.borrow_mut().push(2));
        drop(undo);
        assert_eq!(*seen.borrow(), [2, 1]);
    }

    #[test]
    fn disarmed_rollback_runs_nothing() {
        let seen = RefCell::new(Vec::new());
        let mut undo = Rollback::new();
        undo.push(|| seen.borrow_mut().push(1));
        undo.disarm();
        assert!(seen.borrow().is_empty());
    }
}
