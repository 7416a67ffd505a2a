//! What is mounted and up in the namespaces of a holder before anything runs there.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `CGROUP2_SUPER_MAGIC`.
const CGROUP2: i64 = 0x6367_7270;

/// An action that failed, and why.
pub type Failure = (String, io::Error);

/// Mounts what the namespaces of the calling process need, below its root: what is mounted on the host
/// later appears there, and nothing of it on the host.
pub fn settle(root: &Path) -> Result<(), Failure> {
    private_mounts(root)?;
    let proc = root.join("proc");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", &proc, "proc", flags, None).map_err(failure("mount /proc"))?;
    cover_second_cgroups(root)?;
    up().map_err(|error| ("bring the loopback interface up".to_owned(), error))
}

/// Where cgroups of version 2 are on hosts that have those of version 1 too.
const HYBRID: &str = "sys/fs/cgroup/unified";

/// Covers the cgroups of version 2 of a host with both versions: crun would mount them in each container,
/// which nobody may in a user namespace that has no cgroups of its own.
fn cover_second_cgroups(root: &Path) -> Result<(), Failure> {
    let unified = root.join(HYBRID);
    if !statfs(&unified).is_ok_and(|found| found.f_type == CGROUP2) {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", &unified, "tmpfs", flags, Some(c"mode=755,size=4k"))
        .map_err(failure("cover /sys/fs/cgroup/unified"))
}

/// Has nothing that is mounted from now on appear on the host.
pub fn private_mounts(root: &Path) -> Result<(), Failure> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(root, flags).map_err(failure("make mounts private"))
}

pub(super) fn failure(action: &str) -> impl FnOnce(Errno) -> Failure {
    let action = action.to_owned();
    move |error| (action, error.into())
}

/// Brings it up in the network namespace of the calling thread.
#[expect(unsafe_code, reason = "rustix has no requests for interfaces")]
fn up() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a value of the structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).expect("they are small");
    // SAFETY: the descriptor is open, and the request, which has a name with its end and the flags, lives
    // through the call.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
