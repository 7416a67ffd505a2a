//! Who can change what a hook does.
//!
//! Hooks run as root. Whoever can write a hook file, its program, the interpreter of that, or a
//! directory on the way to them can do as root what they like; podman and CRI-O do not look.

mod interpreter;

use std::collections::{HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, openat, readlinkat};
use rustix::io::Errno;

use super::{HookFile, OciStage, Stage};
use crate::sys::fs::{PathContext, PathError, PermittedBy, Who, Writer, status, writers};
use interpreter::Sought;

/// How many symbolic links in a row are followed, as in the kernel.
const MAX_SYMLINKS: usize = 40;

/// Where Kubernetes mounts a pod's service account; on other machines only root could make it.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// How many scripts in a row may be interpreters of each other, as in the kernel.
const MAX_INTERPRETERS: usize = 5;

/// The users whose files are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrustOptions {
    /// Users who may own and write hooks. So may the groups of the same numbers: root's, and where
    /// each user has a group of their own, that.
    pub uids: Vec<u32>,
    /// Whether modes say nothing of what is mounted read-only, as nobody can write there. Outside of
    /// containers the same files may be mounted elsewhere, and written there.
    pub read_only_mounts: bool,
}

impl Default for TrustOptions {
    /// Returns the policy that trusts only root.
    fn default() -> Self {
        TrustOptions { uids: vec![0], read_only_mounts: false }
    }
}

impl TrustOptions {
    /// Trusts root, and the user this process runs as.
    pub fn of_process() -> Self {
        let uids = vec![0, rustix::process::geteuid().as_raw()];
        TrustOptions { uids, ..TrustOptions::default() }
    }

    /// Trusts whoever [`Self::of_process`] does, and in a pod of Kubernetes what is mounted read-only: it
    /// mounts config maps and secrets with directories of mode 0777.
    pub fn of_process_or_pod() -> Self {
        let read_only_mounts = Path::new(SERVICE_ACCOUNT).is_dir();
        TrustOptions { read_only_mounts, ..TrustOptions::of_process() }
    }

    fn trusts(&self, who: &Who) -> bool {
        matches!(who, Who::User(id) | Who::Group(id) if self.uids.contains(id))
    }
}

/// Checks a hook's file, its program with the interpreter of a script, and every directory and
/// symbolic link on the way to them.
///
/// Nobody who is not trusted can then swap one of them between this check and its use: for that they
/// would have to write a directory that was checked.
pub fn check(file: &HookFile, options: &TrustOptions) -> Result<(), TrustError> {
    let mut checker = Checker::new(options.clone());
    let path = std::path::absolute(&file.path).at("look up", &file.path)?;
    checker.check_path(&path)?;
    // The programs of startContainer are the container's own.
    let on_host = |stage: &Stage| *stage != Stage::Oci(OciStage::StartContainer);
    if !file.definition.stages.iter().any(on_host) {
        return Ok(());
    }
    let hook = &file.definition.hook;
    // Of several the last one, as in runc.
    let path = hook.env.iter().flatten().rev().find_map(|entry| entry.strip_prefix("PATH="));
    checker.check_program(Path::new(&hook.path), path.map(OsStr::new))
}

/// Checks an absolute path, from the root on.
pub fn check_path(path: &Path, options: &TrustOptions) -> Result<(), TrustError> {
    Checker::new(options.clone()).check_path(path)
}

/// Checks many paths, and looks once at the directories they have in common.
#[derive(Debug)]
pub struct Checker {
    options: TrustOptions,
    /// Directories that were found good, by their path without symbolic links.
    good: HashSet<PathBuf>,
}

impl Checker {
    /// Starts with nothing looked at.
    pub fn new(options: TrustOptions) -> Self {
        Checker { options, good: HashSet::new() }
    }

    /// Checks an absolute path, from the root on.
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

    /// Checks a program and, if it is a script, its interpreter; if that is `env`, also what it finds in
    /// `path`, the `PATH` of whoever runs the program, and where it looks before.
    pub fn check_program(
        &mut self,
        program: &Path,
        path: Option<&OsStr>,
    ) -> Result<(), TrustError> {
        let mut next = program.to_owned();
        for _ in 0..=MAX_INTERPRETERS {
            self.check_absolute(&next)?;
            // Nobody but those who are trusted can have put another one there.
            let Some(found) = interpreter::of(&next).at("read", &next)? else { return Ok(()) };
            if found.is_env() {
                self.check_absolute(&found.program)?;
                let unclear = || TrustError::Unclear { path: next.clone() };
                next = self.find(&found.sought(path).ok_or_else(unclear)?)?;
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

    /// Finds a program as `env` does, unless another user could put one in front of it.
    fn find(&mut self, sought: &Sought) -> Result<PathBuf, TrustError> {
        if sought.name.as_os_str().as_bytes().contains(&b'/') {
            return Ok(sought.name.clone());
        }
        for directory in std::env::split_paths(&sought.path) {
            let program = directory.join(&sought.name);
            match self.check_absolute(&program) {
                Ok(()) if is_executable(&program) => return Ok(program),
                Ok(()) => {}
                // What is there of the way was good; that in a sticky directory others can make the
                // rest does not matter but here.
                Err(TrustError::Lookup(error)) if is_missing(&error) => {
                    let there = directory.ancestors().find(|above| above.is_dir());
                    self.check_additions(there.unwrap_or(Path::new("/")))?;
                }
                Err(error) => return Err(error),
            }
        }
        let source = io::Error::from(io::ErrorKind::NotFound);
        Err(PathError::new("find in the hook's PATH", &sought.name, source).into())
    }

    /// Checks that no other user can create files in a directory that was checked: the sticky bit keeps
    /// only those that are there from being replaced.
    pub fn check_additions(&self, directory: &Path) -> Result<(), TrustError> {
        let (file, stat) = open(directory, OFlags::DIRECTORY).at("look up", directory)?;
        self.check_writers(directory, file.as_fd(), &stat, |_| true)
    }

    /// Checks what has a name in a directory that was checked, and returns where it leads if it is a
    /// symbolic link.
    fn check_one(&mut self, path: &Path) -> Result<Option<PathBuf>, TrustError> {
        let (file, stat) = open(path, OFlags::NOFOLLOW).at("look up", path)?;
        if !self.options.uids.contains(&stat.st_uid) {
            return Err(TrustError::Owner { path: path.to_owned(), uid: stat.st_uid });
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_symlink() {
            let target = readlinkat(&file, c"", Vec::new()).at("look up", path)?;
            return Ok(Some(OsString::from_vec(target.into_bytes()).into()));
        }
        if self.options.read_only_mounts && is_read_only(&file).at("look up", path)? {
            return Ok(None);
        }
        // In a sticky directory, such as /tmp, others cannot touch what is not theirs.
        let is_sticky = kind.is_dir() && stat.st_mode & 0o1000 != 0;
        let counts = |writer: &Writer| !is_sticky || writer.by == PermittedBy::DefaultAcl;
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
        counts: impl Fn(&Writer) -> bool,
    ) -> Result<(), TrustError> {
        let writers = writers(file, stat).at("find out who may change", path)?;
        let other = writers.into_iter().find(|w| !self.options.trusts(&w.who) && counts(w));
        other.map_or(Ok(()), |writer| {
            let mode = stat.st_mode & 0o7777;
            Err(TrustError::Writable { path: path.to_owned(), mode, writer })
        })
    }
}

/// Returns whether something is mounted read-only.
fn is_read_only(file: &rustix::fd::OwnedFd) -> io::Result<bool> {
    Ok(rustix::fs::fstatvfs(file)?.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

fn is_executable(program: &Path) -> bool {
    open(program, OFlags::empty()).is_ok_and(|(_, stat)| {
        FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mode & 0o111 != 0
    })
}

fn is_missing(error: &PathError) -> bool {
    matches!(error.source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Opens something to look at it.
fn open(path: &Path, flags: OFlags) -> io::Result<(rustix::fd::OwnedFd, Stat)> {
    let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty())?;
    let stat = status(file.as_fd())?;
    Ok((file, stat))
}

/// Puts the components of a path in front of those that are still to be walked.
fn push(rest: &mut VecDeque<OsString>, path: &Path) {
    // The root stands in `current` by then; it is checked once, at the start.
    let names = path.components().filter(|c| !matches!(c, Component::RootDir | Component::CurDir));
    let at_root = rest.len() == 1 && rest[0] == "/";
    for (at, name) in names.enumerate() {
        rest.insert(at + usize::from(at_root), name.as_os_str().to_owned());
    }
}

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

#[cfg(test)]
mod tests;
