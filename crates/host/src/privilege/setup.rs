//! Setup of a pause process's namespaces before any program runs there: mounts and the loopback interface.

use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use rustix::fs::statfs;
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// Type of cgroup2 file systems in `statfs` (`CGROUP2_SUPER_MAGIC`).
const CGROUP2: i64 = 0x6367_7270;

/// An action that failed, and its error.
pub type SetupFailure = (String, io::Error);

/// Sets up the mounts and the loopback interface of the calling process's namespaces. Later mounts on the host
/// propagate into the namespace, but not back.
pub fn set_up_namespaces(root: &Path) -> Result<(), SetupFailure> {
    make_mounts_private(root)?;
    let proc = root.join("proc");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", &proc, "proc", flags, None).map_err(failure("mount /proc"))?;
    cover_second_cgroups(root)?;
    bring_up_loopback().map_err(|error| ("bring the loopback interface up".to_owned(), error))
}

/// Mount point of cgroups of version 2 on hosts with both versions (hybrid hierarchy).
const HYBRID: &str = "sys/fs/cgroup/unified";

/// Covers the cgroups of version 2 on a hybrid host: crun would mount them in each container, which the kernel
/// does not permit in a user namespace without its own cgroup namespace.
fn cover_second_cgroups(root: &Path) -> Result<(), SetupFailure> {
    let unified = root.join(HYBRID);
    if !statfs(&unified).is_ok_and(|found| found.f_type == CGROUP2) {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", &unified, "tmpfs", flags, Some(c"mode=755,size=4k"))
        .map_err(failure("cover /sys/fs/cgroup/unified"))
}

/// Keeps later mounts in this namespace from propagating to the host.
pub fn make_mounts_private(root: &Path) -> Result<(), SetupFailure> {
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change(root, flags).map_err(failure("make mounts private"))
}

pub(super) fn failure(action: &str) -> impl FnOnce(Errno) -> SetupFailure {
    let action = action.to_owned();
    move |error| (action, error.into())
}

/// Brings the loopback interface up in the network namespace of the calling thread.
#[expect(unsafe_code, reason = "rustix has no requests for interfaces")]
fn bring_up_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: all zeros is a value of the structure.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let flags = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags).expect("they are small");
    // SAFETY: the descriptor is open, and the request, with a NUL-terminated name and the flags, lives
    // through the call.
    let result =
        unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw mut request) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
