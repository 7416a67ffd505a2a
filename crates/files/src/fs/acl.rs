//! Parsing of access control lists in extended attributes: users and groups with write permission, except the owner.
//!
//! See `acl(5)` and `linux/posix_acl_xattr.h`, and for NFSv4 RFC 7530, section 6.2.1. The writer of an ACL
//! may be hostile: a malformed ACL is rejected as a whole, never read in part.

/// The user or group of an ACL entry that permits writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AclSubject {
    OwningGroup,
    Everyone,
    User(u32),
    Group(u32),
    /// A user or group of a file server, by its name there.
    Principal(String),
}

pub const POSIX_VERSION: u32 = 2;
const POSIX_WRITE: u16 = 2;

/// Returns the subjects with write permission in a POSIX ACL after applying its mask; `None` if the ACL is malformed.
pub fn posix_writers(list: &[u8]) -> Option<Vec<AclSubject>> {
    let entries = posix_entries(list)?;
    let mask = mask(&entries);
    let mut writers = Vec::new();
    for PosixEntry { tag, permissions, id } in entries {
        let (subject, limit) = match tag {
            USER => (AclSubject::User(id), mask),
            OWNING_GROUP => (AclSubject::OwningGroup, mask),
            GROUP => (AclSubject::Group(id), mask),
            OTHERS => (AclSubject::Everyone, ALL),
            _ => continue,
        };
        if permissions & limit & POSIX_WRITE != 0 {
            writers.push(subject);
        }
    }
    Some(writers)
}

/// Returns the entries of a POSIX ACL; `None` if the ACL is malformed.
pub fn posix_entries(list: &[u8]) -> Option<Vec<PosixEntry>> {
    let (version, entries) = list.split_first_chunk()?;
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    if u32::from_le_bytes(*version) != POSIX_VERSION {
        return None;
    }
    let entries: Vec<_> = entries.iter().map(posix_entry).collect();
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let names_somebody = count(USER) + count(GROUP) > 0;
    // The kernel returns a list without entries if there is no ACL.
    let is_list = entries.is_empty()
        || [OWNER, OWNING_GROUP, OTHERS].iter().all(|tag| count(*tag) == 1)
            && entries.iter().all(|entry| TAGS.contains(&entry.tag))
            && count(MASK) <= 1
            && (!names_somebody || count(MASK) == 1);
    is_list.then_some(entries)
}

/// Returns the mask, which limits the permissions of groups and named users; all permissions without a mask entry.
pub fn mask(entries: &[PosixEntry]) -> u16 {
    let mask = entries.iter().find(|entry| entry.tag == MASK);
    mask.map_or(ALL, |mask| mask.permissions)
}

pub const OWNER: u16 = 0x01;
pub const USER: u16 = 0x02;
pub const OWNING_GROUP: u16 = 0x04;
pub const GROUP: u16 = 0x08;
pub const MASK: u16 = 0x10;
pub const OTHERS: u16 = 0x20;

const TAGS: [u16; 6] = [OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHERS];

/// Permission to read, write and execute.
pub const ALL: u16 = 7;

/// An entry of a POSIX ACL; the id is valid only if the tag is [`USER`] or [`GROUP`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PosixEntry {
    pub tag: u16,
    pub permissions: u16,
    pub id: u32,
}

fn posix_entry(&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; 8]) -> PosixEntry {
    PosixEntry {
        tag: u16::from_le_bytes([t0, t1]),
        permissions: u16::from_le_bytes([p0, p1]),
        id: u32::from_le_bytes([i0, i1, i2, i3]),
    }
}

const NFS4_ALLOW: u32 = 0;
const NFS4_IDENTIFIER_GROUP: u32 = 0x40;
/// Permissions to write or append data or create files, to delete files in a directory or the file itself,
/// and to change the ACL or the owner.
const NFS4_WRITE: u32 = 0x02 | 0x04 | 0x40 | 0x1_0000 | 0x4_0000 | 0x8_0000;

/// Returns the subjects with write permission in an NFSv4 ACL; `None` if the ACL is malformed.
///
/// Deny entries are ignored: their effect depends on the order of entries, and servers differ.
/// So the result may contain subjects that cannot write after all, but misses none that can.
pub fn nfs4_writers(list: &[u8]) -> Option<Vec<AclSubject>> {
    let mut rest = list;
    let mut writers = Vec::new();
    for _ in 0..number(&mut rest)? {
        let [kind, flags, permissions, length] =
            [number(&mut rest)?, number(&mut rest)?, number(&mut rest)?, number(&mut rest)?];
        let length = usize::try_from(length).ok()?;
        let padded = length.checked_next_multiple_of(4)?;
        let name;
        (name, rest) = rest.split_at_checked(padded)?;
        let name = String::from_utf8_lossy(&name[..length]);
        // Inherit-only entries, which apply to new files only, count as well, like entries of default ACLs.
        if kind != NFS4_ALLOW || permissions & NFS4_WRITE == 0 {
            continue;
        }
        let id = name.parse();
        match (&*name, id) {
            ("OWNER@", _) => {}
            ("GROUP@", _) => writers.push(AclSubject::OwningGroup),
            ("EVERYONE@", _) => writers.push(AclSubject::Everyone),
            // Servers that do not map names send numbers.
            (_, Ok(id)) if flags & NFS4_IDENTIFIER_GROUP != 0 => {
                writers.push(AclSubject::Group(id));
            }
            (_, Ok(id)) => writers.push(AclSubject::User(id)),
            (name, Err(_)) => writers.push(AclSubject::Principal(name.to_owned())),
        }
    }
    rest.is_empty().then_some(writers)
}

fn number(rest: &mut &[u8]) -> Option<u32> {
    let bytes;
    (bytes, *rest) = rest.split_first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Encodes a POSIX ACL from tags, permissions and ids.
    fn posix(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut list = POSIX_VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend(tag.to_le_bytes());
            list.extend(permissions.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        list
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn named_users_and_groups_can_write_within_the_mask() {
        let list = |mask| {
            posix(&[
                (OWNER, 6, NONE),
                (USER, 6, 65534),
                (USER, 5, 7),
                (OWNING_GROUP, 7, NONE),
                (GROUP, 2, 100),
                (MASK, mask, NONE),
                (OTHERS, 4, NONE),
            ])
        };
        let all = [AclSubject::User(65534), AclSubject::OwningGroup, AclSubject::Group(100)];
        assert_eq!(posix_writers(&list(7)).unwrap(), all);
        assert_eq!(posix_writers(&list(5)).unwrap(), []);
        let others = posix(&[(OWNER, 6, NONE), (OWNING_GROUP, 2, NONE), (OTHERS, 2, NONE)]);
        assert_eq!(
            posix_writers(&others).unwrap(),
            [AclSubject::OwningGroup, AclSubject::Everyone]
        );
        assert_eq!(posix_writers(&posix(&[])).unwrap(), []);
    }

    #[test]
    fn malformed_acl_is_rejected_instead_of_truncated() {
        let least = [(OWNER, 6, NONE), (OWNING_GROUP, 4, NONE), (OTHERS, 4, NONE)];
        let with = |entry| posix(&[&least[..], &[entry]].concat());
        let good = posix(&least);
        posix_writers(&good).unwrap();
        let mut other_version = good.clone();
        other_version[0] = 1;
        for bad in [
            Vec::new(),
            other_version,
            good[..good.len() - 1].to_vec(),
            [&good[..], b"x"].concat(),
            posix(&least[..2]),
            with((OWNER, 6, NONE)),
            with((OTHERS, 6, NONE)),
            with((0x40, 6, 1)),
            with((0, 6, 1)),
            // A named user without a mask.
            with((USER, 6, 65534)),
            posix(&[&least[..], &[(MASK, 7, NONE), (MASK, 0, NONE)]].concat()),
        ] {
            assert_eq!(posix_writers(&bad), None, "{bad:?}");
        }
    }

    /// Encodes an NFSv4 ACL from types, flags, permissions and names.
    fn nfs4(entries: &[(u32, u32, u32, &str)]) -> Vec<u8> {
        let mut list = u32::try_from(entries.len()).unwrap().to_be_bytes().to_vec();
        for (kind, flags, permissions, name) in entries {
            let length = u32::try_from(name.len()).unwrap();
            list.extend([*kind, *flags, *permissions, length].map(u32::to_be_bytes).concat());
            list.extend(name.as_bytes());
            list.resize(list.len().next_multiple_of(4), 0);
        }
        list
    }

    #[test]
    fn nfs4_acl_names_users_with_write_or_ownership_rights() {
        const READ: u32 = 0x1;
        let list = nfs4(&[
            (0, 0, 0x2, "OWNER@"),
            (0, 0x40, 0x2, "GROUP@"),
            (0, 0, READ, "EVERYONE@"),
            (0, 0, 0x4_0000, "alice@example.com"),
            (0, 0, 0x4, "65534"),
            (0, 0x40, 0x8_0000, "100"),
            (0, 0, READ, "reader@example.com"),
            (1, 0, 0x2, "denied@example.com"),
        ]);
        let expected = [
            AclSubject::OwningGroup,
            AclSubject::Principal("alice@example.com".to_owned()),
            AclSubject::User(65534),
            AclSubject::Group(100),
        ];
        assert_eq!(nfs4_writers(&list).unwrap(), expected);
        assert_eq!(nfs4_writers(&list[..list.len() - 4]), None);
        assert_eq!(nfs4_writers(&[&list[..], b"\0"].concat()), None);
        let many = u32::MAX.to_be_bytes();
        assert_eq!(nfs4_writers(&many), None);
        assert_eq!(nfs4_writers(&[&[0, 0, 0, 1], &[0; 12][..], &many].concat()), None);
    }

    proptest! {
        #[test]
        fn parsers_accept_arbitrary_bytes(mut bytes: Vec<u8>) {
            let _ = nfs4_writers(&bytes);
            let _ = posix_writers(&bytes);
            bytes.splice(0..0, POSIX_VERSION.to_le_bytes());
            let _ = posix_writers(&bytes);
        }
    }
}
