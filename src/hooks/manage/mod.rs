//! Changing the files of a hook directory: install, remove, disable, enable.
//!
//! Changes go to one directory, the last of those a consumer reads, where a file hides those of the
//! same name in earlier directories. That is also how a hook is disabled that came with a package:
//! a *mask*, a hook that never applies, takes its name. A hook that lives in the last directory
//! itself is renamed to `NAME.json.disabled`, which no consumer reads.
//!
//! The program of a mask is `/`. Consumers drop a hook whose program does not exist, with nothing
//! said, and what it hid would be back: a mask that named the hook's own program would give way on
//! the day when a package moves it. `/` is always there, and no one runs it.
//!
//! An [`Editor`] works out the [`Step`]s first and then takes them, under a lock on the directory.
//! Each step is one system call that happens or does not, and they stand in such an order that a
//! process killed between two of them leaves the old hooks or the new ones in force. The same call
//! again finishes the work.

mod change;
mod directory;
mod edit;
mod error;
#[cfg(test)]
mod tests;

pub use change::{Change, HookName, Note, Step};
pub use edit::{Destination, Editor, Mode, Overwrite, write_migration};
pub use error::ManageError;
