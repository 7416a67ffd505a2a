//! Following the hook directories as they change.
//!
//! A [`Monitor`] watches the directories with inotify (by the `notify` crate) and, once they are quiet,
//! loads them again. A
//! new set of hooks is built aside and then takes the place of the old one; who matches against the
//! old one meanwhile is not disturbed.
//!
//! What is seen: hook files written, replaced by a rename, removed, or with another mode;
//! directories that are created, removed, renamed or created again, their parents too; symbolic
//! links anywhere on the way, and the files they lead to; programs of hooks that come and go. What
//! inotify does not show is not seen before the next reload or [`Monitor::rescan`]: changes made by
//! other hosts on a network file system, and file systems mounted over a directory.
//!
//! # Broken files
//!
//! The reference forgets all hooks and loads anew at every event. A file that is just being written
//! is invalid for a moment, and in that moment its hook is gone, or the file that it masks is in
//! force. Here a hook is only gone when somebody took it away:
//!
//! - Nothing is loaded before the directories were quiet for a while ([`MonitorOptions::coalesce`]).
//! - A file that was good, and then cannot be read or does not say what a hook file may say, is
//!   reported as [`ChangeKind::Broken`]; what it said last stays in force until it is good again or
//!   is removed. A hook often guards something, and a mistake in an editor must not drop the guard.
//! - A file that was never good is not in force, nor does it mask another one.
//! - A hook whose program does not exist is not in force, whatever it was before: every container
//!   would fail, and the reference ignores it. It is when the program comes back.
//!
//! So the hooks in force may depend on what the monitor saw before: a program that starts while a
//! file is broken does not have that hook.
//!
//! # Example
//!
//! ```
//! use oci_hooks::hooks::monitor::{Monitor, MonitorOptions, Wake};
//! use oci_hooks::hooks::{LoadOptions, Target, consumer};
//!
//! let options = LoadOptions::for_consumer(&consumer::CRIO);
//! let mut monitor = Monitor::new(MonitorOptions { load: options, ..Default::default() })?;
//! let current = monitor.current();
//! let stopper = monitor.stopper();
//! let thread = std::thread::spawn(move || {
//!     while let Wake::Changed(changes) = monitor.wait(None)? {
//!         for change in changes {
//!             eprintln!("{} {}", change.kind.name(), change.path.display());
//!         }
//!     }
//!     Ok::<_, oci_hooks::hooks::monitor::MonitorError>(())
//! });
//!
//! // In any thread, for each container; nothing is locked while hooks are matched.
//! let (loaded, target) = (current.snapshot(), Target::default());
//! let selection = loaded.hooks.select(&target, &consumer::CRIO);
//! # assert!(selection.is_ok());
//!
//! stopper.stop();
//! thread.join().expect("it does not panic")?;
//! # Ok::<_, oci_hooks::hooks::monitor::MonitorError>(())
//! ```

mod change;
mod follow;
mod interest;
mod watch;

pub use change::{Change, ChangeKind, diff};
pub use follow::{Current, Monitor, MonitorOptions, Stopper, Wake};
pub use watch::MonitorError;
