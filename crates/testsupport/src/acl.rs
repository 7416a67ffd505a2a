//! POSIX access control lists of files, set without the program `setfacl`.

use std::path::Path;

use rustix::fs::{XattrFlags, setxattr};

/// Sets the `access` or `default` ACL of a file, in the short form of `acl(5)` with numeric ids and in the
/// order that the kernel wants: `u::rwx,u:65534:rwx,g::r-x,g:54321:-w-,m::rwx,o::r-x`. An empty list removes
/// the ACL.
pub fn set(path: &Path, kind: &str, list: &str) {
    let name = format!("system.posix_acl_{kind}");
    setxattr(path, name, &encode(list), XattrFlags::empty()).unwrap();
}

/// Encodes an ACL in the format of `linux/posix_acl_xattr.h`.
fn encode(list: &str) -> Vec<u8> {
    let mut encoded = 2_u32.to_le_bytes().to_vec();
    for entry in list.split_terminator(',') {
        let [kind, id, permissions] = entry.split(':').collect::<Vec<_>>().try_into().unwrap();
        let tag: u16 = match (kind, id) {
            ("u", "") => 0x01,
            ("u", _) => 0x02,
            ("g", "") => 0x04,
            ("g", _) => 0x08,
            ("m", _) => 0x10,
            ("o", _) => 0x20,
            _ => panic!("{entry}"),
        };
        let bits = permissions.bytes().map(|letter| u16::from(letter != b'-'));
        let permissions = bits.fold(0, |sum, bit| sum << 1 | bit);
        encoded.extend(tag.to_le_bytes());
        encoded.extend(permissions.to_le_bytes());
        encoded.extend(id.parse().unwrap_or(u32::MAX).to_le_bytes());
    }
    encoded
}
