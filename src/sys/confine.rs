//! A program that reads what strangers wrote: it runs as a user who owns nothing of the host, and
//! sees less of it.
//!
//! It believes to be root, of a user namespace whose numbers no user of the host has, as far as there
//! are such. The homes of users, and other places where nothing is that it needs, are empty, and its
//! own; what it gets of the host is mounted there.

mod groups;
mod ids;

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;

use rustix::fs::{AtFlags, CWD, Mode, chownat, mkdirat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, mount, mount_change, mount_remount,
    move_mount,
};
use rustix::process::{Gid, Uid};
use rustix::thread::{
    LinkNameSpaceType, UnshareFlags, move_into_link_name_space, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid, unshare_unsafe,
};
use tracing::debug;

pub use ids::ConfinedIds;

use super::detached::{Depth, Detached};
use super::fs::PathError;
use super::host_file::HostFile;
use super::spawn;

/// Where nothing is that a program needs which the system has installed. It may write there, for
/// itself.
const HIDDEN: [&str; 9] =
    ["/boot", "/dev/shm", "/home", "/media", "/mnt", "/root", "/srv", "/tmp", "/var"];

/// All that a program sees of the host if it is a user who has files there: what systems install, and
/// what the kernel shows.
const SYSTEM: [&str; 11] =
    ["bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "usr"];

/// Of that, where users keep what is theirs.
const OF_USERS: [&str; 3] = ["/dev/shm", "/usr/local/src", "/usr/src"];

/// What a program may see and have.
#[derive(Debug)]
pub struct Confinement {
    ids: ConfinedIds,
    namespace: OwnedFd,
    /// Directories of the host that are empty for the program.
    hidden: Vec<CString>,
    /// Options of a file system in memory that belongs to the program.
    memory: CString,
    given: Vec<Given>,
}

#[derive(Debug)]
struct Given {
    tree: Detached,
    target: CString,
    read_only: bool,
}

impl Confinement {
    /// Makes the user namespace.
    pub fn new(ids: ConfinedIds) -> io::Result<Self> {
        let namespace = ids.mapping().namespace()?;
        let hidden = if ids.are_its_own() {
            HIDDEN.iter().map(|path| c_string(path.as_bytes())).collect()
        } else {
            beyond_the_system()?
        };
        let (uid, gid) = ids.owner();
        let memory = c_string(format!("mode=755,uid={uid},gid={gid},size=64m").as_bytes());
        Ok(Confinement { ids, namespace, hidden, memory, given: Vec::new() })
    }

    /// Gives the program a directory, at a path directly in a place that is its own. The directory
    /// and all that it makes there belong to it.
    pub fn give(&mut self, dir: &Path, at: &str) -> Result<(), PathError> {
        self.take(dir, at, false)
    }

    /// Shows the program a directory at such a path, which it cannot change. The directory becomes the
    /// program's; so should be what is in it, see [`ConfinedIds::owner`].
    pub fn show(&mut self, dir: &Path, at: &str) -> Result<(), PathError> {
        self.take(dir, at, true)
    }

    fn take(&mut self, dir: &Path, at: &str, read_only: bool) -> Result<(), PathError> {
        let dir = HostFile::open_trusted(dir)?;
        let (uid, gid) = self.ids.owner();
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        chownat(&dir, c"", uid, gid, AtFlags::EMPTY_PATH)
            .map_err(|error| dir.error("set the owner of", error))?;
        self.add(Detached::copy_of(&dir, Depth::Single)?, at, read_only);
        Ok(())
    }

    fn add(&mut self, tree: Detached, at: &str, read_only: bool) {
        self.given.push(Given { tree, target: c_string(at.as_bytes()), read_only });
    }

    /// Runs a command so, to its end. It is the first process of a namespace of processes: whatever it
    /// started ends with it. It is killed if we are.
    pub fn run(self, command: &mut Command) -> io::Result<ExitStatus> {
        debug!(program = ?command.get_program(), "execute confined");
        self.apply(command);
        spawn::die_with_us(command);
        // Where the next process goes is said of a thread, and is said once.
        let run = || {
            unshare(UnshareFlags::NEWPID)?;
            command.status()
        };
        thread::scope(|scope| scope.spawn(run).join()).expect("running a program does not panic")
    }

    /// Has a command run so, once. What is set for it by other means must be set afterwards, such as the
    /// signal it gets when its parent dies: a change of users takes that away.
    fn apply(self, command: &mut Command) {
        #[expect(unsafe_code, reason = "there is no other way to do this for a child")]
        // SAFETY: between fork and exec only system calls are made; they allocate nothing and take
        // no lock. What they name is in memory that the command keeps.
        unsafe {
            command.pre_exec(move || Ok(self.enter()?));
        }
    }

    /// Confines the calling process, which has one thread.
    fn enter(&self) -> Result<(), Errno> {
        unshare(UnshareFlags::NEWNS)?;
        mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        for hidden in &self.hidden {
            match mount(c"tmpfs", hidden, c"tmpfs", flags, &*self.memory) {
                Err(Errno::NOENT | Errno::NOTDIR) => {}
                done => done?,
            }
        }
        // Of its own processes, and of nobody else's. In a container that hides parts of it there is none.
        match mount(c"proc", c"/proc", c"proc", flags | MountFlags::NOEXEC, None) {
            Err(Errno::PERM) => {}
            done => done?,
        }
        for Given { tree, target, read_only } in &self.given {
            mkdirat(CWD, target, Mode::from_raw_mode(0o755))?;
            let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            move_mount(tree.as_fd(), c"", CWD, target, empty)?;
            if *read_only {
                mount_remount(target, flags | MountFlags::BIND | MountFlags::RDONLY, c"")?;
            }
        }
        move_into_link_name_space(self.namespace.as_fd(), Some(LinkNameSpaceType::User))?;
        match set_thread_groups(&[]) {
            // Without ranges of ids nobody may leave a group, which could be one that denies something.
            Err(Errno::PERM) if !self.ids.are_its_own() => {}
            done => done?,
        }
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
        // Another one, which belongs to the user namespace: there it may mount, and not take away what
        // is mounted now.
        unshare(UnshareFlags::NEWNS)?;
        if self.ids.are_its_own() { Ok(()) } else { groups::pretend_to_change() }
    }
}

fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: no open files are parted from.
    unsafe {
        unshare_unsafe(flags)
    }
}

/// Returns the directories of the host beside those of its system.
fn beyond_the_system() -> io::Result<Vec<CString>> {
    let mut hidden: Vec<_> = OF_USERS.iter().map(|path| c_string(path.as_bytes())).collect();
    for entry in fs::read_dir("/")? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_dir() && !SYSTEM.iter().any(|system| name == *system) {
            hidden.push(c_string(&[b"/", name.as_bytes()].concat()));
        }
    }
    Ok(hidden)
}

/// Returns a path or options for the kernel. None of ours has a zero.
fn c_string(bytes: &[u8]) -> CString {
    CString::new(bytes).expect("neither names of files nor texts of ours have a zero")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_user_with_files_the_program_sees_the_system_alone() {
        let hidden = beyond_the_system().unwrap();
        for path in [c"/home", c"/var", c"/tmp", c"/dev/shm"] {
            assert!(hidden.iter().any(|hidden| hidden.as_c_str() == path), "{path:?}");
        }
        for path in [c"/usr", c"/etc", c"/proc", c"/dev"] {
            assert!(!hidden.iter().any(|hidden| hidden.as_c_str() == path), "{path:?}");
        }
    }
}
