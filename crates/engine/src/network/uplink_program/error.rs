//! Errors of finding and starting an uplink program.

use std::io;
use std::path::PathBuf;

use oci_hooks_files::fs::{PathError, ReadError};
use oci_hooks_files::process::RunError;

use super::{TUN, UplinkKind};

/// Errors of connecting a network namespace to the host's network.
#[derive(Debug, thiserror::Error)]
pub enum UplinkError {
    #[error(
        "rootless jobs need pasta or slirp4netns for network access, and neither is installed: install passt 2026-10 \
         or newer, or slirp4netns; jobs without network run with `uplink = \"none\"` in [network]"
    )]
    NoProgram,
    /// The chosen program is not installed.
    #[error("{} was not found: install {}, or choose another `uplink` in [network]", path.display(), kind.package())]
    Missing { kind: UplinkKind, path: PathBuf },
    /// The device that both programs need cannot be used.
    #[error(
        "cannot open {TUN}, which {program} needs: load the kernel module (`modprobe tun`), make the device accessible \
         to all users (`chmod 0666 {TUN}`), and pass it to an enclosing container (`--device {TUN}`); jobs without \
         network run with `uplink = \"none\"` in [network]"
    )]
    Tun { program: UplinkKind, source: io::Error },
    /// The program failed to start.
    #[error("{} cannot connect the job's network: {message}", program.display())]
    Failed {
        program: PathBuf,
        /// Output of the program, on one line.
        message: String,
    },
    /// The program rejected a port that was requested at run time.
    #[error("{program} does not forward port {port}: {message}")]
    Forward { program: UplinkKind, port: u16, message: String },
    /// Starting slirp4netns, waiting for it or sending it a request failed; `action` is the failed
    /// step.
    #[error("cannot {action} {}", program.display())]
    Slirp4netns { action: &'static str, program: PathBuf, source: io::Error },
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
}
