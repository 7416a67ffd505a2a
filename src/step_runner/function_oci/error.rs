//! Errors of the functions.

use std::io;
use std::path::PathBuf;

use super::super::resolve::OciError;
use crate::image::{Digest, ImportError, OpenError, PushError, Reference, RegistryError};
use crate::sys::fs::PathError;

/// Why an image was not built or not published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FunctionError {
    /// An input is not as the function takes it.
    #[error("input {path}: {problem}")]
    Input {
        /// The input, with the names of what is in it: `common.files`.
        path: String,
        problem: String,
    },
    /// A file of the job cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A path of the inputs, or a symbolic link on it, leads elsewhere.
    #[error("{} leads out of the job's directory", path.display())]
    Outside { path: PathBuf },
    #[error("{} is {kind}: expected a file or a directory", path.display())]
    Kind { path: PathBuf, kind: &'static str },
    /// A symbolic link that would lead nowhere in the image.
    #[error(
        "{} is a symlink to {target:?}, which is not in the same directory of the image: name the \
         file that it leads to", path.display()
    )]
    Link { path: PathBuf, target: PathBuf },
    #[error("{}: names that begin with \".wh.\" mean removed files in an image", path.display())]
    Whiteout { path: PathBuf },
    #[error("more than {limit} files and directories for one image")]
    TooMany { limit: usize },
    /// Nothing could be called of an image without one.
    #[error(
        "no func.yml or step.yml among the files for {platform}: add \"func.yml: func.yml\" to \
         common.files"
    )]
    NoStepFile { platform: String },
    /// What is wrong with step files is in the log.
    #[error("{} has {errors} error{}", path.display(), if *errors == 1 { "" } else { "s" })]
    StepFile { path: PathBuf, errors: usize },
    /// The archive cannot be read, or is not consistent.
    #[error("invalid archive {}", path.display())]
    Archive { path: PathBuf, source: ImportError },
    #[error("invalid archive {}: expected one image, got {images}", path.display())]
    Images { path: PathBuf, images: usize },
    #[error("invalid archive {}: more than {limit} platforms", path.display())]
    Platforms { path: PathBuf, limit: usize },
    /// Not an archive of the function that builds.
    #[error(
        "{} has no version: expected an archive of builtin://function/oci/build, or one with the \
         annotation org.opencontainers.image.version", path.display()
    )]
    NoVersion { path: PathBuf },
    #[error(
        "invalid version {text:?}: expected MAJOR.MINOR.PATCH or MAJOR.MINOR.PATCH-PRERELEASE{hint}"
    )]
    Version { text: String, hint: &'static str },
    /// Whoever uses the version gets the same as before.
    #[error(
        "{reference} is published already, as {found} and not {expected}: publish another version, or set \
         the input \"overwrite\""
    )]
    Published { reference: Box<Reference>, found: Digest, expected: Digest },
    /// The resolver of the job fetches nothing.
    #[error("no registry client: steps of this job are local only")]
    NoRegistries,
    /// The logins of the job cannot be read.
    #[error(transparent)]
    Logins(#[from] OciError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Push(#[from] PushError),
    #[error("cancelled")]
    Cancelled,
    /// The process is out of threads or file descriptors.
    #[error("cannot start the function")]
    Start(#[source] io::Error),
    /// What goes into a layer cannot be written.
    #[error("cannot write the archive")]
    Write(#[from] io::Error),
}
