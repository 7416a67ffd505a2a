//! Changing the files of a hook directory: install, remove, disable, enable.
//!
//! Changes go to the last directory that a consumer reads, where a file hides those of the same
//! name in earlier directories. A hook that came with a package is disabled the same way: a *mask*,
//! a hook that never applies, takes its name. A hook in the last directory itself is renamed to
//! `NAME.json.disabled`, which no consumer reads.
//!
//! The program of a mask is `/`. Consumers silently drop a hook whose program does not exist, and
//! the hook that it hid would be back: a mask that named the hook's own program would stop working
//! when a package moves that program. `/` always exists and is never run.
//!
//! An [`HookEditor`] plans the [`ChangeStep`]s first and then applies them, under a lock on the directory.
//! Each step is one atomic system call, and their order ensures that a process killed between two
//! of them leaves the old hooks or the new ones in force. Repeating the call finishes the work.

mod change;
mod directory;
mod edit;
mod error;
#[cfg(test)]
mod tests;

pub use change::{ChangeNote, ChangeStep, HookName, PlannedChange};
pub use edit::{EditMode, HookEditor, MigrationDestination, OverwritePolicy, write_migration};
pub use error::ManageError;
