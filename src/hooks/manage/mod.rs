//! Changing the files of a hook directory: install, remove, disable, enable.
//!
//! Changes go to the last directory that a consumer reads, where a file hides files of the
//! same name in earlier directories. A hook that came with a package is disabled by a *mask*: a file of
//! the same name in the last directory, with a hook that never applies. A hook in the last
//! directory itself is renamed to `NAME.json.disabled`, which no consumer reads. A symlink is
//! renamed, replaced or removed itself; its target is only read.
//!
//! The program of a mask is `/`. Consumers silently drop a hook whose program does not exist, and
//! then use the hook that it masked: a mask that named the hook's own program would stop working
//! when a package moves that program. `/` always exists and is never run.
//!
//! A [`HookEditor`] plans the [`ChangeStep`]s first and then applies them, under a lock on the
//! directory. Each step is atomic, and their order ensures that a process killed at any moment
//! leaves either the old or the new hooks active. Repeating the call finishes the work.

mod change;
mod directory;
mod edit;
mod error;
#[cfg(test)]
mod tests;

pub use change::{ChangeNote, ChangeStep, HookChange, HookName};
pub use edit::{EditMode, HookEditor, MigrationDestination, OverwritePolicy, write_migration};
pub use error::ManageError;
