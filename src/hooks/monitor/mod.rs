//! Following the hook directories as they change.
//!
//! A [`Monitor`] watches the directories with inotify (by the `notify` crate) and, once they are
//! quiet, loads them again. A new set of hooks is built separately and then replaces the old one,
//! without disturbing threads that match against the old one.
//!
//! It notices hook files that are written, replaced by a rename, or removed; directories that are
//! created, removed or renamed, including their parents; symbolic links anywhere on the way, and
//! their targets; programs of hooks that appear, vanish or are written; and another owner, mode or
//! writer of any of these ([`ChangeKind::Altered`]). If only hook files changed, it lists the
//! directories and reads only these files; otherwise it reads all files.
//!
//! Changes that inotify does not report are noticed at the next load of all files, such as by
//! [`Monitor::rescan`]: changes by other hosts on a network file system, changes through another
//! hard link, and file systems mounted over a directory.
//!
//! # Broken files
//!
//! The monitor of podman's Go package `pkg/hooks`, which CRI-O uses, loads again at every event. It
//! drops the hook of an invalid file, so that a masked file of the same name becomes active. This
//! monitor does the same, but only after a quiet period ([`MonitorOptions::coalesce`]): a file is
//! invalid for a moment while it is being written.
//!
//! - A valid file that becomes unreadable or invalid is reported as [`ChangeKind::Broken`].
//! - If the consumer skips such files
//!   ([`BadFilePolicy::Skipped`](super::consumer::BadFilePolicy::Skipped)), the last definition
//!   stays active until the file is valid again, or the file or its program is removed. A hook
//!   often guards something, and a mistake in an editor must not drop the guard.
//! - The hook of a file that was never valid is not active, and the file does not mask another one.
//! - A hook whose program does not exist is not active, regardless of its previous state: every
//!   container would fail, and podman ignores it. It is active again when the program is back.
//!
//! So for a consumer that skips broken files, the active hooks may depend on earlier events: a
//! monitor that starts while a file is broken does not have its hook.
//!
//! # Example
//!
//! ```
//! use oci_hooks::hooks::monitor::{Monitor, MonitorOptions, WakeReason};
//! use oci_hooks::hooks::{LoadOptions, MatchTarget, consumer};
//!
//! let options = LoadOptions::for_consumer(&consumer::CRIO);
//! let mut monitor = Monitor::new(MonitorOptions { load: options, ..Default::default() })?;
//! let current = monitor.current_hooks();
//! let stopper = monitor.stopper();
//! let thread = std::thread::spawn(move || {
//!     while let WakeReason::Changed(changes) = monitor.wait(None)? {
//!         for change in changes {
//!             eprintln!("{} {}", change.kind.name(), change.path.display());
//!         }
//!     }
//!     Ok::<_, oci_hooks::hooks::monitor::MonitorError>(())
//! });
//!
//! // In any thread, for each container; nothing is locked while hooks are matched.
//! let (loaded, target) = (current.snapshot(), MatchTarget::default());
//! let selection = loaded.hooks.select(&target, &consumer::CRIO);
//! # assert!(selection.is_ok());
//!
//! stopper.stop();
//! thread.join().expect("it does not panic")?;
//! # Ok::<_, oci_hooks::hooks::monitor::MonitorError>(())
//! ```

mod attributes;
mod change;
mod devices;
mod follow;
mod interest;
mod trigger;
mod watch;

pub use change::{ChangeKind, FileChange, diff};
pub use devices::{DeviceChange, DeviceMonitor};
pub use follow::{CurrentHooks, Monitor, MonitorOptions, MonitorStopper, WakeReason};
pub use watch::MonitorError;
