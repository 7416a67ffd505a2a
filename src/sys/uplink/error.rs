//! Why there is no way out of a network namespace.

use std::io;
use std::path::PathBuf;

use super::{TUN, UplinkKind};
use crate::sys::fs::{PathError, ReadError};
use crate::sys::process::RunError;

/// There is no way out of a network namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UplinkError {
    /// Neither program is there.
    #[error(
        "jobs of an ordinary user get to the network by pasta or slirp4netns, and neither is installed: install \
         passt of 2026-10 or newer, or slirp4netns; jobs that need no network run with `uplink = \"none\"` in \
         [network]"
    )]
    NoProgram,
    /// The program that was chosen is not there.
    #[error("{} is not there: install {}, or choose another `uplink` in [network]", path.display(), kind.package())]
    Missing { kind: UplinkKind, path: PathBuf },
    /// The device that both programs need cannot be used.
    #[error(
        "cannot open {TUN}, which {program} needs: load the kernel's module (`modprobe tun`), let all users have it \
         (`chmod 0666 {TUN}`), and give it to a container that this runs in (`--device {TUN}`); jobs that need no \
         network run with `uplink = \"none\"` in [network]"
    )]
    Tun { program: UplinkKind, source: io::Error },
    /// The program did not come up.
    #[error("{} cannot lead out of the job's network: {message}", program.display())]
    Failed {
        program: PathBuf,
        /// What it said, on one line.
        message: String,
    },
    /// The program does not do what it can be asked for while it runs.
    #[error("{program} does not forward port {port}: {message}")]
    Forward { program: UplinkKind, port: u16, message: String },
    /// What runs cannot be followed.
    #[error("cannot {action} {}", program.display())]
    Follow { action: &'static str, program: PathBuf, source: io::Error },
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
}
