//! Owners, modes, times and extended attributes of copies.

use std::ffi::CStr;
use std::os::fd::{BorrowedFd, OwnedFd};

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::acl::{GROUP, USER};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat,
    chownat, fchmod, fchown, fgetxattr, flistxattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::{CopyOptions, CopyPurpose, OwnerShift};

/// Prefixes of the attributes that overlays use.
const OVERLAY: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Maximum size in bytes of a file's list of attribute names, and of an attribute's value; the
/// kernel's limits.
const MAX_XATTR_BYTES: usize = 64 << 10;

/// Copies owner, mode, extended attributes and times of a file or directory to another.
pub fn attributes(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    stat: &Stat,
    options: CopyOptions,
) -> Result<(), Errno> {
    let (uid, gid) = owner(stat, options.owners);
    fchown(to, uid, gid)?;
    fchmod(to, Mode::from_raw_mode(stat.st_mode))?;
    let mut list = vec![0; MAX_XATTR_BYTES];
    let length = match flistxattr(from, &mut list[..]) {
        Err(Errno::NOTSUP) => 0,
        length => length?,
    };
    let mut value = vec![0; if length > 0 { MAX_XATTR_BYTES } else { 0 }];
    for name in list[..length].split_inclusive(|&byte| byte == 0) {
        let is_overlay = OVERLAY.iter().any(|prefix| name.starts_with(prefix));
        if options.purpose == CopyPurpose::Layer && is_overlay {
            continue;
        }
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let length = fgetxattr(from, name, &mut value[..])?;
        if let Some(shift) = options.owners {
            shift_ids(name.to_bytes(), &mut value[..length], shift);
        }
        match fsetxattr(to, name, &value[..length], XattrFlags::empty()) {
            // Attributes that the target file system cannot store are dropped, as in an image.
            Err(Errno::NOTSUP | Errno::PERM) => {}
            done => done?,
        }
    }
    futimens(to, &times(stat))
}

/// Copies owner, mode and times to a symbolic link, a FIFO or a device.
pub fn node_attributes(to: &OwnedFd, stat: &Stat, options: CopyOptions) -> Result<(), Errno> {
    let (uid, gid) = owner(stat, options.owners);
    chownat(to, c"", uid, gid, AtFlags::EMPTY_PATH)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
        // Before Linux 6.6 (fchmodat2), the mode of an `O_PATH` descriptor can only be changed through /proc.
        chmodat(CWD, descriptor_path(to), Mode::from_raw_mode(stat.st_mode), AtFlags::empty())?;
    }
    utimensat(to, c"", &times(stat), AtFlags::EMPTY_PATH)
}

pub(super) fn owner(stat: &Stat, shift: Option<OwnerShift>) -> (Option<Uid>, Option<Gid>) {
    let shifted = |id| shift.map_or(id, |shift| shift.apply(id));
    (Some(Uid::from_raw(shifted(stat.st_uid))), Some(Gid::from_raw(shifted(stat.st_gid))))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.try_into().unwrap_or_default(),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

/// Extended attributes with POSIX ACLs. A value has a version of four bytes and entries of eight:
/// tag and permissions (two bytes each), and id (four).
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const ACL_HEADER_BYTES: usize = 4;
const ACL_ENTRY_BYTES: usize = 8;
/// The tags of entries for a named user and a named group; other entries have no id.
const ACL_NAMED: [u16; 2] = [USER, GROUP];

/// Extended attribute with file capabilities. Values of version 3 end with the user id of the root
/// of a user namespace.
const CAPABILITY: &[u8] = b"security.capability";
const CAPABILITY_ROOT: std::ops::Range<usize> = 20..24;

/// Applies a shift to the ids in an extended attribute's value: in ACLs and file capabilities.
fn shift_ids(name: &[u8], value: &mut [u8], shift: OwnerShift) {
    let change = |id: &mut [u8]| {
        if let Ok(bytes) = <[u8; 4]>::try_from(&*id) {
            id.copy_from_slice(&shift.apply(u32::from_le_bytes(bytes)).to_le_bytes());
        }
    };
    if ACLS.contains(&name) && value.len() >= ACL_HEADER_BYTES {
        for entry in value[ACL_HEADER_BYTES..].chunks_exact_mut(ACL_ENTRY_BYTES) {
            if ACL_NAMED.contains(&u16::from_le_bytes([entry[0], entry[1]])) {
                change(&mut entry[4..]);
            }
        }
    } else if name == CAPABILITY && value.len() == CAPABILITY_ROOT.end {
        change(&mut value[CAPABILITY_ROOT]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIFT: OwnerShift = OwnerShift { from: 100_000, to: 0, count: 1000 };

    #[test]
    fn ids_in_the_range_are_shifted() {
        let ids = [100_000, 100_999, 101_000, 99_999, 0, u32::MAX].map(|id| SHIFT.apply(id));
        assert_eq!(ids, [0, 999, 101_000, 99_999, 0, u32::MAX]);
        let past_the_end = OwnerShift { from: 0, to: u32::MAX, count: 10 };
        assert_eq!([past_the_end.apply(0), past_the_end.apply(5)], [u32::MAX, 5]);
    }

    #[test]
    fn named_users_and_groups_of_acls_are_shifted() {
        let entry = |tag: u16, id: u32| {
            [&tag.to_le_bytes()[..], &7_u16.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let list = |ids: [u32; 3]| {
            let entries = [entry(1, ids[0]), entry(2, ids[1]), entry(8, ids[2])].concat();
            [&2_u32.to_le_bytes()[..], &entries].concat()
        };
        let mut value = list([u32::MAX, 100_005, 100_006]);
        shift_ids(b"system.posix_acl_access", &mut value, SHIFT);
        assert_eq!(value, list([u32::MAX, 5, 6]));
    }

    #[test]
    fn root_id_of_file_capabilities_is_shifted() {
        let mut value = [&[1; 20][..], &100_000_u32.to_le_bytes()].concat();
        shift_ids(CAPABILITY, &mut value, SHIFT);
        assert_eq!(value, [&[1; 20][..], &[0; 4]].concat());
        let mut old = vec![1; 20];
        shift_ids(CAPABILITY, &mut old, SHIFT);
        assert_eq!(old, [1; 20]);
    }
}
