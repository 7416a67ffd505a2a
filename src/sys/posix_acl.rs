//! Access control lists as values: giving permissions to a user and taking them away again.
//!
//! See `acl(5)`. There is no library for them that works on descriptors without libacl, and the attribute
//! is a few numbers.

use super::fs::acl::{
    ALL, GROUP, MASK, OTHERS, OWNER, OWNING_GROUP, POSIX_VERSION, PosixEntry, USER, mask,
    posix_entries,
};

/// A list in the form that the kernel takes; one without names is no more than a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// Sorted by tag and id.
    entries: Vec<PosixEntry>,
}

/// The id of entries that have none.
const NO_ID: u32 = u32::MAX;

impl Acl {
    /// Returns the list that permits what the permission bits of a mode do.
    pub fn of_mode(mode: u32) -> Self {
        let bits = |shift: u32| u16::try_from(mode >> shift & 7).unwrap_or_default();
        let entry = |tag, permissions| PosixEntry { tag, permissions, id: NO_ID };
        let entries =
            vec![entry(OWNER, bits(6)), entry(OWNING_GROUP, bits(3)), entry(OTHERS, bits(0))];
        Acl { entries }
    }

    /// Reads the value of an attribute; none if it is no list, or an empty one.
    pub fn parse(list: &[u8]) -> Option<Self> {
        let mut entries = posix_entries(list).filter(|entries| !entries.is_empty())?;
        entries.sort_by_key(|entry| (entry.tag, entry.id));
        Some(Acl { entries })
    }

    /// Returns the value of the attribute.
    pub fn to_attribute(&self) -> Vec<u8> {
        posix_list(&self.entries)
    }

    /// Returns the list for those that have no names.
    pub fn without_names(&self) -> Self {
        let mut acl = self.clone();
        acl.revoke(|_| true, |_| true);
        acl
    }

    /// Returns what the owner may.
    pub fn owner(&self) -> u16 {
        self.entries.iter().find(|entry| entry.tag == OWNER).map_or(0, |entry| entry.permissions)
    }

    /// Returns whether somebody is named that has no id in this user namespace: the list cannot be written.
    pub fn names_unknown(&self) -> bool {
        self.named().any(|entry| entry.id == NO_ID)
    }

    /// Returns whether anybody is named.
    pub fn names_anybody(&self) -> bool {
        self.named().next().is_some()
    }

    /// Returns whether a user is named who is chosen.
    pub fn names_user(&self, is_chosen: impl Fn(u32) -> bool) -> bool {
        self.named().any(|entry| entry.tag == USER && is_chosen(entry.id))
    }

    fn named(&self) -> impl Iterator<Item = &PosixEntry> {
        self.entries.iter().filter(|entry| [USER, GROUP].contains(&entry.tag))
    }

    /// Permits a user as much, and everybody else what they were permitted.
    pub fn grant(&mut self, uid: u32, permissions: u16) {
        self.apply_mask();
        self.entries.retain(|entry| entry.tag != USER || entry.id != uid);
        self.entries.push(PosixEntry { tag: USER, permissions, id: uid });
        self.renew_mask();
    }

    /// Permits all users that are named as much. Returns whether they were not, by the mask or by their
    /// entries.
    pub fn grant_users(&mut self, permissions: u16) -> bool {
        let before = self.clone();
        self.apply_mask();
        for entry in self.entries.iter_mut().filter(|entry| entry.tag == USER) {
            entry.permissions = permissions;
        }
        self.renew_mask();
        *self != before
    }

    /// Takes the entries of ids away that are chosen, and leaves to everybody else what they were
    /// permitted. Returns whether there were any.
    pub fn revoke(
        &mut self,
        is_user: impl Fn(u32) -> bool,
        is_group: impl Fn(u32) -> bool,
    ) -> bool {
        let before = self.entries.len();
        self.apply_mask();
        self.entries.retain(|entry| match entry.tag {
            USER => !is_user(entry.id),
            GROUP => !is_group(entry.id),
            _ => true,
        });
        let has_changed = self.entries.len() != before;
        self.renew_mask();
        has_changed
    }

    /// Takes from everybody what the mask did not permit them.
    fn apply_mask(&mut self) {
        let mask = mask(&self.entries);
        for entry in &mut self.entries {
            if [USER, OWNING_GROUP, GROUP].contains(&entry.tag) {
                entry.permissions &= mask & ALL;
            }
        }
    }

    /// Has the mask permit what the entries do.
    fn renew_mask(&mut self) {
        self.entries.retain(|entry| entry.tag != MASK);
        if self.names_anybody() {
            let limited = self.entries.iter().filter(|entry| ![OWNER, OTHERS].contains(&entry.tag));
            let permissions = limited.fold(0, |all, entry| all | entry.permissions);
            self.entries.push(PosixEntry { tag: MASK, permissions, id: NO_ID });
        }
        self.entries.sort_by_key(|entry| (entry.tag, entry.id));
    }
}

/// Returns the attribute that consists of entries, in the order of their tags.
fn posix_list(entries: &[PosixEntry]) -> Vec<u8> {
    let mut list = POSIX_VERSION.to_le_bytes().to_vec();
    for PosixEntry { tag, permissions, id } in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(acl: &Acl) -> Vec<(u16, u16, u32)> {
        acl.entries.iter().map(|entry| (entry.tag, entry.permissions, entry.id)).collect()
    }

    #[test]
    fn what_is_granted_is_taken_again_and_nobody_else_gets_more_or_less() {
        for mode in [0o755, 0o644, 0o600, 0o770, 0o047] {
            let before = Acl::of_mode(mode);
            let mut acl = before.clone();
            acl.grant(1000, 7);
            acl.grant(33, 6);
            assert_eq!(Acl::parse(&acl.to_attribute()), Some(acl.clone()));
            assert!(acl.names_user(|uid| uid == 33) && !acl.names_unknown());
            assert!(acl.revoke(|uid| uid == 33, |_| false));
            assert!(acl.revoke(|uid| uid == 1000, |_| false));
            assert!(!acl.revoke(|_| true, |_| true));
            assert_eq!(acl, before, "{mode:o}");
        }
    }

    #[test]
    fn a_mask_that_is_raised_for_one_user_permits_others_nothing_more() {
        let entry = |tag, permissions, id| PosixEntry { tag, permissions, id };
        // As the kernel makes it of a default list and a mode of 0640.
        let made = posix_list(&[
            entry(OWNER, 6, NO_ID),
            entry(USER, 7, 33),
            entry(OWNING_GROUP, 5, NO_ID),
            entry(MASK, 4, NO_ID),
            entry(OTHERS, 0, NO_ID),
        ]);
        let mut acl = Acl::parse(&made).unwrap();
        acl.grant(1000, acl.owner());
        assert_eq!(
            shown(&acl),
            [
                (OWNER, 6, NO_ID),
                (USER, 4, 33),
                (USER, 6, 1000),
                (OWNING_GROUP, 4, NO_ID),
                (MASK, 6, NO_ID),
                (OTHERS, 0, NO_ID)
            ]
        );
        acl.revoke(|_| true, |_| true);
        assert_eq!(acl, Acl::of_mode(0o640));
    }

    #[test]
    fn all_that_are_named_get_what_the_owner_may() {
        let mut acl = Acl::of_mode(0o640);
        assert!(!acl.grant_users(7));
        acl.grant(33, 0);
        acl.grant(1000, 4);
        assert!(acl.grant_users(6));
        assert!(!acl.grant_users(6));
        let named: Vec<_> = acl.named().map(|entry| (entry.id, entry.permissions)).collect();
        assert_eq!(named, [(33, 6), (1000, 6)]);
        assert_eq!(acl.without_names(), Acl::of_mode(0o640));
    }

    #[test]
    fn what_is_no_list_is_none() {
        for bytes in [&b""[..], b"\x02\0\0\0", b"\x01\0\0\0", b"\x02\0\0\0\x01\0\x07\0\0\0\0\0"] {
            assert_eq!(Acl::parse(bytes), None);
        }
    }
}
