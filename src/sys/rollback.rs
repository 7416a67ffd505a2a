//! Undoing: what was made so far is taken back, last first, unless all went well.

use std::fmt;

/// A stack of undo steps that run in reverse order when it is dropped.
///
/// ```
/// use oci_hooks::sys::rollback::Rollback;
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

    /// Adds a step that takes back what was made last.
    ///
    /// A step has nobody to report its failure to: the first failure is what the caller hears of,
    /// and what could not be undone is found by its record later.
    pub fn push(&mut self, step: impl FnOnce() + 'a) {
        self.steps.push(Box::new(step));
    }

    /// Keeps everything that was made.
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
    fn steps_run_last_first() {
        let seen = RefCell::new(Vec::new());
        let mut undo = Rollback::new();
        undo.push(|| seen.borrow_mut().push(1));
        undo.push(|| seen.borrow_mut().push(2));
        drop(undo);
        assert_eq!(*seen.borrow(), [2, 1]);
    }

    #[test]
    fn nothing_runs_once_disarmed() {
        let seen = RefCell::new(Vec::new());
        let mut undo = Rollback::new();
        undo.push(|| seen.borrow_mut().push(1));
        undo.disarm();
        assert!(seen.borrow().is_empty());
    }
}
