//! Permission checks of hooks.
//!
//! Hooks run as root. A user who can write a hook file, its program, the program's interpreter, or
//! a directory on the way to them can run anything as root; podman and CRI-O do not check this.

pub(super) mod interpreter;

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use oci_hooks_files::fs::{
    AccessSubject, MAX_SYMLINKS, PathContext, PathError, PermittedBy, WriteAccess, status, writers,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, openat, readlinkat};
use rustix::io::Errno;

use super::{HookFile, HookStage, OciStage};
use interpreter::EnvLookup;

/// Mount point of a pod's service account; on other machines only root could create it.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Maximum length of a chain of script interpreters, as in the kernel.
pub(super) const MAX_INTERPRETERS: usize = 5;

/// The users whose files are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrustOptions {
    /// Users who may own and write hooks. Groups with the same IDs are trusted too: root's, and
    /// user private groups.
    pub uids: Vec<u32>,
    /// If set, modes of files on read-only mounts are ignored, since users cannot write there.
    /// Outside of containers, the same files may be writable through another mount.
    pub read_only_mounts: bool,
}

impl Default for TrustOptions {
    /// Returns options that trust only root.
    fn default() -> Self {
        TrustOptions { uids: vec![0], read_only_mounts: false }
    }
}

impl TrustOptions {
    /// Returns options that trust root and the user of this process.
    pub fn of_process() -> Self {
        let uids = vec![0, rustix::process::geteuid().as_raw()];
        TrustOptions { uids, ..TrustOptions::default() }
    }

    /// Returns the options of [`Self::of_process`], which in a Kubernetes pod also trust read-only
    /// mounts: pods mount config maps and secrets with directories of mode 0777.
    pub fn of_process_or_pod() -> Self {
        let read_only_mounts = Path::new(SERVICE_ACCOUNT).is_dir();
        TrustOptions { read_only_mounts, ..TrustOptions::of_process() }
    }

    fn trusts(&self, who: &AccessSubject) -> bool {
        matches!(who, AccessSubject::User(id) | AccessSubject::Group(id) if self.uids.contains(id))
    }
}

/// Checks a hook's file, its program with the interpreter of a script, and every directory and
/// symbolic link on the way to them.
///
/// Untrusted users cannot swap any of them between this check and their use: that requires write
/// access to a checked directory.
pub fn check(file: &HookFile, options: &TrustOptions) -> Result<(), TrustError> {
    let mut checker = TrustChecker::new(options.clone());
    let path = std::path::absolute(&file.path).with_path("look up", &file.path)?;
    checker.check_path(&path)?;
    // Programs of startContainer are in the container.
    let on_host = |stage: &HookStage| *stage != HookStage::Oci(OciStage::StartContainer);
    if !file.definition.stages.iter().any(on_host) {
        return Ok(());
    }
    let hook = &file.definition.hook;
    // The last `PATH` counts, as in runc.
    let path = hook.env.iter().flatten().rev().find_map(|entry| entry.strip_prefix("PATH="));
    checker.check_program(Path::new(&hook.path), path.map(OsStr::new))
}

/// Checks each component of an absolute path, starting at the root.
pub fn check_path(path: &Path, options: &TrustOptions) -> Result<(), TrustError> {
    TrustChecker::new(options.clone()).check_path(path)
}

/// Checks many paths, and their common directories only once.
#[derive(Debug)]
pub struct TrustChecker {
    options: TrustOptions,
    /// Directories that passed the check, by their path without symbolic links.
    good: HashSet<PathBuf>,
}

impl TrustChecker {
    /// Returns a checker that has not checked any path.
    pub fn new(options: TrustOptions) -> Self {
        TrustChecker { options, good: HashSet::new() }
    }

    /// Checks each component of an absolute path, starting at the root.
    pub fn check_path(&mut self, path: &Path) -> Result<(), TrustError> {
        let mut links = 0;
        let mut current = PathBuf::new();
        let mut rest = VecDeque::from([OsString::from("/")]);
        push(&mut rest, path);
        while let Some(name) = rest.pop_front() {
            if name == ".." {
                current.pop();
                continue;
            }
            let next = current.join(&name);
            if self.good.contains(&next) {
                current = next;
                continue;
            }
            let Some(target) = self.check_one(&next)? else {
                current = next;
                continue;
            };
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(PathError::new("look up", path, Errno::LOOP).into());
            }
            if target.is_absolute() {
                current = PathBuf::from("/");
            }
            push(&mut rest, &target);
        }
        Ok(())
    }

    /// Checks a program and, if it is a script, its interpreter. If the interpreter is `env`, also
    /// checks the program that `env` finds in `path`, the hook's `PATH`, and the directories that
    /// `env` searches before it.
    pub fn check_program(
        &mut self,
        program: &Path,
        path: Option<&OsStr>,
    ) -> Result<(), TrustError> {
        let mut next = program.to_owned();
        for _ in 0..=MAX_INTERPRETERS {
            self.check_absolute(&next)?;
            // The path can be read again: only trusted users can have replaced the program
            // meanwhile.
            let Some(found) = interpreter::of(&next).with_path("read", &next)? else {
                return Ok(());
            };
            if found.is_env() {
                self.check_absolute(&found.program)?;
                let unclear = || TrustError::Unclear { path: next.clone() };
                let sought = found.env_lookup(path).ok_or_else(unclear)?;
                next = self.find(&sought, &next)?;
            } else {
                next = found.program;
            }
        }
        Err(PathError::new("find the interpreter of", program, Errno::LOOP).into())
    }

    fn check_absolute(&mut self, path: &Path) -> Result<(), TrustError> {
        if path.is_relative() {
            return Err(TrustError::Relative { path: path.to_owned() });
        }
        self.check_path(path)
    }

    /// Finds the interpreter of a script in a search path as `env` does. Fails if an untrusted user could add
    /// such a program to an earlier directory.
    fn find(&mut self, sought: &EnvLookup, script: &Path) -> Result<PathBuf, TrustError> {
        if sought.name.as_os_str().as_bytes().contains(&b'/') {
            return Ok(sought.name.clone());
        }
        for directory in std::env::split_paths(&sought.path) {
            let program = directory.join(&sought.name);
            match self.check_absolute(&program) {
                Ok(()) if is_executable(&program) => return Ok(program),
                Ok(()) => {}
                // The existing part of the path passed the check. In a sticky directory, other
                // users can create the rest, which matters only here.
                Err(TrustError::Lookup(error)) if is_missing(&error) => {
                    let there = directory.ancestors().find(|above| above.is_dir());
                    self.check_additions(there.unwrap_or(Path::new("/")))?;
                }
                Err(error) => return Err(error),
            }
        }
        let (name, path) = (sought.name.display(), sought.path.display());
        let text = format!("no program {name} in PATH={path}");
        let source = io::Error::new(io::ErrorKind::NotFound, text);
        Err(PathError::new("find the interpreter of", script, source).into())
    }

    /// Checks that no other user can create files in a checked directory: the sticky bit protects
    /// only existing files from being replaced.
    pub fn check_additions(&self, directory: &Path) -> Result<(), TrustError> {
        let (file, stat) = open(directory, OFlags::DIRECTORY).with_path("look up", directory)?;
        self.check_writers(directory, file.as_fd(), &stat, |_| true)
    }

    /// Checks one entry of a checked directory, and returns its target if it is a symbolic link.
    fn check_one(&mut self, path: &Path) -> Result<Option<PathBuf>, TrustError> {
        let (file, stat) = open(path, OFlags::NOFOLLOW).with_path("look up", path)?;
        if !self.options.uids.contains(&stat.st_uid) {
            return Err(TrustError::Owner { path: path.to_owned(), uid: stat.st_uid });
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_symlink() {
            let target = readlinkat(&file, c"", Vec::new()).with_path("look up", path)?;
            return Ok(Some(OsString::from_vec(target.into_bytes()).into()));
        }
        if self.options.read_only_mounts && is_read_only(&file).with_path("look up", path)? {
            return Ok(None);
        }
        // In a sticky directory such as /tmp, users cannot replace files of other users.
        let is_sticky = kind.is_dir() && stat.st_mode & 0o1000 != 0;
        let counts = |writer: &WriteAccess| !is_sticky || writer.by == PermittedBy::DefaultAcl;
        self.check_writers(path, file.as_fd(), &stat, counts)?;
        if kind.is_dir() {
            self.good.insert(path.to_owned());
        }
        Ok(None)
    }

    fn check_writers(
        &self,
        path: &Path,
        file: BorrowedFd<'_>,
        stat: &Stat,
        counts: impl Fn(&WriteAccess) -> bool,
    ) -> Result<(), TrustError> {
        let writers = writers(file, stat).with_path("read the access control list of", path)?;
        let other = writers.into_iter().find(|w| !self.options.trusts(&w.who) && counts(w));
        other.map_or(Ok(()), |writer| {
            let mode = stat.st_mode & 0o7777;
            Err(TrustError::Writable { path: path.to_owned(), mode, writer })
        })
    }
}

/// Returns whether the file is on a read-only mount.
fn is_read_only(file: &rustix::fd::OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatvfs(file)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Returns whether a path is a file with execute permission.
pub(super) fn is_executable(program: &Path) -> bool {
    open(program, OFlags::empty()).is_ok_and(|(_, stat)| {
        FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mode & 0o111 != 0
    })
}

fn is_missing(error: &PathError) -> bool {
    matches!(error.source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Opens a path with `O_PATH`, and returns its status.
pub(super) fn open(path: &Path, flags: OFlags) -> io::Result<(rustix::fd::OwnedFd, Stat)> {
    let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty())?;
    let stat = status(file.as_fd())?;
    Ok((file, stat))
}

/// Prepends the components of a path to the components that remain to be checked.
fn push(rest: &mut VecDeque<OsString>, path: &Path) {
    // The root is omitted: `current` starts with it, and it is checked once, at the start.
    let names = path.components().filter(|c| !matches!(c, Component::RootDir | Component::CurDir));
    let at_root = rest.len() == 1 && rest[0] == "/";
    for (at, name) in names.enumerate() {
        rest.insert(at + usize::from(at_root), name.as_os_str().to_owned());
    }
}

/// Reasons to distrust a hook.
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
        /// The user or group that can write, and the permission.
        writer: WriteAccess,
    },
    /// The program's path is relative to the working directory of the runtime.
    #[error("{} is a relative path", path.display())]
    Relative { path: PathBuf },
    /// The interpreter of a script cannot be determined, because its first line runs `env` with
    /// unsupported arguments.
    #[error("{} does not show which program `env` starts", path.display())]
    Unclear { path: PathBuf },
    /// A path cannot be looked up.
    #[error(transparent)]
    Lookup(#[from] PathError),
}

impl TrustError {
    /// Returns the file, directory or link of the error.
    pub fn path(&self) -> &Path {
        match self {
            TrustError::Owner { path, .. }
            | TrustError::Writable { path, .. }
            | TrustError::Relative { path }
            | TrustError::Unclear { path }
            | TrustError::Lookup(PathError { path, .. }) => path,
        }
    }

    /// Returns a hint for fixing the error.
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

    /// Returns the hint as a suffix for messages that print no separate hint; empty without a hint.
    pub fn hint_in_message(&self) -> String {
        self.hint().map_or_else(String::new, |hint| format!(" (hint: {hint})"))
    }
}

fn writable(path: &Path, mode: u32, writer: &WriteAccess) -> String {
    let (who, named) = (&writer.who, writer.who.display_name());
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

/// Returns the ACL entry of a user or group in the syntax of `setfacl`; `None` for other subjects.
fn entry(who: &AccessSubject) -> Option<String> {
    let (kind, id) = match who {
        AccessSubject::User(uid) => ('u', uid),
        AccessSubject::Group(gid) => ('g', gid),
        _ => return None,
    };
    Some(format!("{kind}:{}", who.name().unwrap_or_else(|| id.to_string())))
}

#[cfg(test)]
mod tests;
