//! A program that reads what strangers wrote: it runs as a user who owns nothing of the host, and
//! sees less of it.
//!
//! It believes to be root, of a user namespace whose numbers no user of the host has. The homes of
//! users, and other places where nothing is that it needs, are empty, and its own; what it gets of the
//! host is mounted there.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
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

use super::detached::{Depth, Detached};
use super::fs::PathError;
use super::host_file::HostFile;
use super::spawn;
use super::userns::{IdRange, Mapping};

/// The users of the host that those of the program are. systemd's list of who uses which numbers has
/// nobody for these.
const FIRST: u32 = 0x7000_0000;
const COUNT: u32 = 1 << 24;

/// The user and group of the host that the program takes for root.
pub const OWNER: (u32, u32) = (FIRST, FIRST);

/// Options of a file system in memory that belongs to the program.
const OWN: &CStr = c"mode=755,uid=1879048192,gid=1879048192,size=64m";

/// Where nothing is that a program needs which the system has installed. It may write there, for
/// itself.
const HIDDEN: [&CStr; 8] =
    [c"/boot", c"/home", c"/media", c"/mnt", c"/root", c"/srv", c"/tmp", c"/var"];

/// What a program may see and have.
#[derive(Debug)]
pub struct Confinement {
    namespace: OwnedFd,
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
    pub fn new() -> io::Result<Self> {
        let all = || vec![IdRange { disk: 0, view: FIRST, count: COUNT }];
        let namespace = Mapping { uids: all(), gids: all() }.namespace()?;
        Ok(Confinement { namespace, given: Vec::new() })
    }

    /// Gives the program a directory, at a path directly in a place that is its own. The directory
    /// and all that it makes there belong to it.
    pub fn give(&mut self, dir: &Path, at: &str) -> Result<(), PathError> {
        self.take(dir, at, false)
    }

    /// Shows the program a directory at such a path, which it cannot change. The directory becomes the
    /// program's; so should be what is in it, see [`OWNER`].
    pub fn show(&mut self, dir: &Path, at: &str) -> Result<(), PathError> {
        self.take(dir, at, true)
    }

    fn take(&mut self, dir: &Path, at: &str, read_only: bool) -> Result<(), PathError> {
        let dir = HostFile::open_trusted(dir)?;
        let owner = (Some(Uid::from_raw(FIRST)), Some(Gid::from_raw(FIRST)));
        chownat(&dir, c"", owner.0, owner.1, AtFlags::EMPTY_PATH)
            .map_err(|error| dir.error("set the owner of", error))?;
        self.add(Detached::copy_of(&dir, Depth::Single)?, at, read_only);
        Ok(())
    }

    fn add(&mut self, tree: Detached, at: &str, read_only: bool) {
        let target = CString::new(at).expect("paths of ours have no zero");
        self.given.push(Given { tree, target, read_only });
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
        for hidden in HIDDEN {
            match mount(c"tmpfs", hidden, c"tmpfs", flags, OWN) {
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
        set_thread_groups(&[])?;
        set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
        set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?;
        // Another one, which belongs to the user namespace: there it may mount, and not take away what
        // is mounted now.
        unshare(UnshareFlags::NEWNS)
    }
}

fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    #[expect(unsafe_code, reason = "rustix calls it unsafe for what other flags do")]
    // SAFETY: no open files are parted from.
    unsafe {
        unshare_unsafe(flags)
    }
}

#[test]
fn file_systems_of_the_program_are_its_own() {
    let options = OWN.to_str().unwrap();
    assert!(options.contains(&format!(",uid={FIRST},gid={FIRST},")));
}
