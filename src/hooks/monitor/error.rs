//! Why directories cannot be followed.

use std::io;
use std::path::PathBuf;

/// Why directories cannot be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// There can be no inotify instance.
    #[error("cannot set up inotify")]
    Setup(#[source] io::Error),
    /// All inotify watches of the user are taken.
    #[error("no inotify watch is left for {}", path.display())]
    WatchLimit { path: PathBuf, source: io::Error },
    /// A directory cannot be watched.
    #[error("cannot watch {}", path.display())]
    Watch { path: PathBuf, source: io::Error },
    /// Events cannot be waited for.
    #[error("cannot wait for inotify events")]
    Read(#[source] io::Error),
}

impl MonitorError {
    /// Returns a stable name of the kind of error, for programs.
    pub fn class(&self) -> &'static str {
        match self {
            MonitorError::Setup(_) => "inotify-setup",
            MonitorError::WatchLimit { .. } => "inotify-watches",
            MonitorError::Watch { .. } | MonitorError::Read(_) => "io",
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            MonitorError::Setup(_) => Some(
                "if too many programs use inotify, raise the limit: sysctl fs.inotify.max_user_instances=1024",
            ),
            MonitorError::WatchLimit { .. } => {
                Some("raise the limit: sysctl fs.inotify.max_user_watches=524288")
            }
            MonitorError::Watch { .. } | MonitorError::Read(_) => None,
        }
    }
}
