//! The extended attributes that access control lists are: whom they let write. Owners are left out.
//!
//! See `acl(5)` and `linux/posix_acl_xattr.h`, and for NFSv4 RFC 7530, section 6.2.1. Who wrote the list
//! may be hostile: what is no such list is nothing, never a shorter one.

/// Somebody who an entry lets write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    OwningGroup,
    Everyone,
    User(u32),
    Group(u32),
    /// As a file server calls them.
    Principal(String),
}

pub const POSIX_VERSION: u32 = 2;
const POSIX_WRITE: u16 = 2;

/// Returns whom a POSIX ACL lets write; none if it is not one. What the mask takes away is not there.
pub fn posix_writers(list: &[u8]) -> Option<Vec<Subject>> {
    let entries = posix_entries(list)?;
    let mask = mask(&entries);
    let mut writers = Vec::new();
    for PosixEntry { tag, permissions, id } in entries {
        let (subject, limit) = match tag {
            USER => (Subject::User(id), mask),
            OWNING_GROUP => (Subject::OwningGroup, mask),
            GROUP => (Subject::Group(id), mask),
            OTHERS => (Subject::Everyone, ALL),
            _ => continue,
        };
        if permissions & limit & POSIX_WRITE != 0 {
            writers.push(subject);
        }
    }
    Some(writers)
}

/// Returns the entries of a POSIX ACL; none if it is not one.
pub fn posix_entries(list: &[u8]) -> Option<Vec<PosixEntry>> {
    let (version, entries) = list.split_first_chunk()?;
    let (entries, []) = entries.as_chunks::<8>() else { return None };
    if u32::from_le_bytes(*version) != POSIX_VERSION {
        return None;
    }
    let entries: Vec<_> = entries.iter().map(posix_entry).collect();
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let names_somebody = count(USER) + count(GROUP) > 0;
    // Without any, so says the kernel that there is no list.
    let is_list = entries.is_empty()
        || [OWNER, OWNING_GROUP, OTHERS].iter().all(|tag| count(*tag) == 1)
            && entries.iter().all(|entry| TAGS.contains(&entry.tag))
            && count(MASK) <= 1
            && (!names_somebody || count(MASK) == 1);
    is_list.then_some(entries)
}

/// Returns what is left of the permissions of groups and of those that are named.
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

/// Whom an entry is for, by its tag and an id if the tag is [`USER`] or [`GROUP`], and what it permits.
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
/// To write or append data, or make files; to remove what is in a directory, or the file itself; to
/// change the list, or the owner.
const NFS4_WRITE: u32 = 0x02 | 0x04 | 0x40 | 0x1_0000 | 0x4_0000 | 0x8_0000;

/// Returns whom an NFSv4 ACL lets write; none if it is not one.
///
/// Entries that deny are not taken into account: which come first matters, and servers differ.
/// So this may name somebody who cannot write after all, but leaves out nobody who can.
pub fn nfs4_writers(list: &[u8]) -> Option<Vec<Subject>> {
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
        // An entry that only new files inherit counts as well, as those of default ACLs do.
        if kind != NFS4_ALLOW || permissions & NFS4_WRITE == 0 {
            continue;
        }
        let id = name.parse();
        match (&*name, id) {
            ("OWNER@", _) => {}
            ("GROUP@", _) => writers.push(Subject::OwningGroup),
            ("EVERYONE@", _) => writers.push(Subject::Everyone),
            // Servers that do not map names send numbers.
            (_, Ok(id)) if flags & NFS4_IDENTIFIER_GROUP != 0 => writers.push(Subject::Group(id)),
            (_, Ok(id)) => writers.push(Subject::User(id)),
            (name, Err(_)) => writers.push(Subject::Principal(name.to_owned())),
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

    /// Returns a POSIX ACL of tags, permissions and ids.
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
    fn named_users_and_groups_write_as_far_as_the_mask_lets_them() {
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
        let all = [Subject::User(65534), Subject::OwningGroup, Subject::Group(100)];
        assert_eq!(posix_writers(&list(7)).unwrap(), all);
        assert_eq!(posix_writers(&list(5)).unwrap(), []);
        let others = posix(&[(OWNER, 6, NONE), (OWNING_GROUP, 2, NONE), (OTHERS, 2, NONE)]);
        assert_eq!(posix_writers(&others).unwrap(), [Subject::OwningGroup, Subject::Everyone]);
        assert_eq!(posix_writers(&posix(&[])).unwrap(), []);
    }

    #[test]
    fn what_is_no_posix_list_is_not_taken_for_a_shorter_one() {
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
            // A named user, and no mask.
            with((USER, 6, 65534)),
            posix(&[&least[..], &[(MASK, 7, NONE), (MASK, 0, NONE)]].concat()),
        ] {
            assert_eq!(posix_writers(&bad), None, "{bad:?}");
        }
    }

    /// Returns an NFSv4 ACL of kinds, flags, permissions and names.
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
    fn an_nfs4_list_names_who_may_write_or_take_the_right_to() {
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
            Subject::OwningGroup,
            Subject::Principal("alice@example.com".to_owned()),
            Subject::User(65534),
            Subject::Group(100),
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
        fn no_bytes_are_too_much_for_the_parsers(mut bytes: Vec<u8>) {
            let _ = nfs4_writers(&bytes);
            let _ = posix_writers(&bytes);
            bytes.splice(0..0, POSIX_VERSION.to_le_bytes());
            let _ = posix_writers(&bytes);
        }
    }
}
