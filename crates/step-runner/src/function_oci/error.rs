//! Errors of the functions that build and publish images.

use std::io;
use std::path::PathBuf;

use oci_hooks_files::fs::PathError;
use oci_hooks_image::{Digest, ImageReference, ImportError, PushError, RegistryError};

use super::super::resolve::OciError;

/// Reasons for which an image was not built or not published.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    #[error("input {path}: {problem}")]
    Input {
        /// Path of the input, such as `common.files`.
        path: String,
        problem: String,
    },
    /// A file of the job cannot be read or written.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A path of the inputs, or a symlink in it, leads out of the job's directory.
    #[error("{} leads out of the job's directory", path.display())]
    Outside { path: PathBuf },
    #[error("{} is {kind}: expected a file or a directory", path.display())]
    Kind { path: PathBuf, kind: &'static str },
    /// A symlink in a copied directory leads out of the directory, and could be dangling in the
    /// image.
    #[error(
        "{} is a symlink to {target:?}: expected a relative target that does not leave the copied directory: change \
         the symlink, or replace it with a copy of its target", path.display()
    )]
    Link { path: PathBuf, target: PathBuf },
    #[error(
        "cannot add {} to an image, where names that begin with \".wh.\" mark removed files: rename it",
        path.display()
    )]
    Whiteout { path: PathBuf },
    #[error("more than {limit} files and directories for one image")]
    TooMany { limit: usize },
    /// The files for a platform contain no step file, so the image could not be called.
    #[error(
        "no func.yml or step.yml among the files for {platform}: add \"func.yml: func.yml\" to \
         common.files"
    )]
    NoStepFile { platform: String },
    /// A step file of the image has errors, which are in the log.
    #[error("{} has {errors} error{} (see the log)", path.display(), if *errors == 1 { "" } else { "s" })]
    StepFile { path: PathBuf, errors: usize },
    /// The archive cannot be read, or is not consistent.
    #[error("invalid archive {}", path.display())]
    Archive { path: PathBuf, source: ImportError },
    #[error("invalid archive {}: expected one image, got {images}", path.display())]
    Images { path: PathBuf, images: usize },
    #[error("invalid archive {}: more than {limit} platforms", path.display())]
    Platforms { path: PathBuf, limit: usize },
    /// The image in the archive has no annotation with its version or tag.
    #[error(
        "{} has no version: expected an archive of builtin://function/oci/build, or one with the \
         annotation org.opencontainers.image.version", path.display()
    )]
    NoVersion { path: PathBuf },
    #[error(
        "invalid version {text:?}: expected MAJOR.MINOR.PATCH or MAJOR.MINOR.PATCH-PRERELEASE{hint}"
    )]
    Version { text: String, hint: &'static str },
    /// The version is already published with other content, on which users of the version rely.
    #[error(
        "{reference} is already published with digest {found}, not {expected}: publish another version, or \
         set the input \"overwrite\""
    )]
    Published { reference: Box<ImageReference>, found: Digest, expected: Digest },
    /// Remote steps are disabled for the job, so there is no registry client.
    #[error("cannot access registries: remote steps are disabled for this job")]
    NoRegistries,
    /// The credentials of the job cannot be read.
    #[error(transparent)]
    Logins(#[from] OciError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Push(#[from] PushError),
    #[error("interrupted: the job was cancelled or exceeded its maximum run time")]
    Cancelled,
    /// The function could not be started: the process is out of threads or file descriptors.
    #[error("cannot start the function")]
    Start(#[source] io::Error),
    /// The archive cannot be written, or a file of the job cannot be read to its end.
    #[error("cannot write the archive")]
    Write(#[from] io::Error),
}
