//! Why something cannot be trusted, and what to do about it.

use std::path::{Path, PathBuf};

use crate::sys::fs::{PathError, PermittedBy, Who, Writer};

/// Why a hook cannot be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    #[error("{} is owned by user {uid}, who can change it", path.display())]
    Owner {
        /// The file, directory or link.
        path: PathBuf,
        uid: u32,
    },
    #[error("{}", writable(path, *mode, writer))]
    Writable {
        path: PathBuf,
        mode: u32,
        /// Who can, and by what.
        writer: Writer,
    },
    /// The program is looked up from wherever the runtime happens to be.
    #[error("{} is a relative path", path.display())]
    Relative { path: PathBuf },
    /// A script for `env` whose interpreter cannot be determined.
    #[error("{} does not show which program `env` starts", path.display())]
    Unclear { path: PathBuf },
    /// It cannot be looked up.
    #[error(transparent)]
    Lookup(#[from] PathError),
}

impl TrustError {
    /// Returns the file, directory or link that it is about.
    pub fn path(&self) -> &Path {
        match self {
            TrustError::Owner { path, .. }
            | TrustError::Writable { path, .. }
            | TrustError::Relative { path }
            | TrustError::Unclear { path }
            | TrustError::Lookup(PathError { path, .. }) => path,
        }
    }

    /// Returns what to do about it.
    pub fn hint(&self) -> Option<String> {
        let path = self.path().display();
        Some(match self {
            TrustError::Owner { .. } => format!("chown root: {path}"),
            TrustError::Writable { writer, .. } => match (writer.by, entry(&writer.who)) {
                (PermittedBy::Acl, Some(entry)) => format!("setfacl -x {entry} {path}"),
                (PermittedBy::DefaultAcl, Some(entry)) => format!("setfacl -d -x {entry} {path}"),
                (PermittedBy::DefaultAcl, None) => format!("setfacl -k {path}"),
                (PermittedBy::Nfs4Acl, _) => format!("nfs4_setfacl -e {path}"),
                _ => format!("chmod go-w {path}"),
            },
            TrustError::Relative { .. } => "write the absolute path of the program".to_owned(),
            TrustError::Unclear { .. } => {
                format!("write the absolute path of the interpreter in the first line of {path}")
            }
            TrustError::Lookup(_) => return None,
        })
    }

    /// Returns the hint for the end of a message that has no other place for it.
    pub fn hint_in_message(&self) -> String {
        self.hint().map_or_else(String::new, |hint| format!(" (hint: {hint})"))
    }
}

fn writable(path: &Path, mode: u32, writer: &Writer) -> String {
    let (who, named) = (&writer.who, writer.who.named());
    let path = path.display();
    match writer.by {
        PermittedBy::Acl => format!("{path} is writable by {named} through an ACL"),
        PermittedBy::DefaultAcl => {
            format!("files created in {path} are writable by {named} through its default ACL")
        }
        PermittedBy::Nfs4Acl => format!("{path} is writable by {named} through an NFSv4 ACL"),
        _ => format!("{path} is writable by {who} (mode {mode:04o})"),
    }
}

/// Returns the entry of an ACL as `setfacl` takes it.
fn entry(who: &Who) -> Option<String> {
    let (kind, id) = match who {
        Who::User(uid) => ('u', uid),
        Who::Group(gid) => ('g', gid),
        _ => return None,
    };
    Some(format!("{kind}:{}", who.name().unwrap_or_else(|| id.to_string())))
}
