//! POSIX access control lists as values: granting permissions to a user and revoking them.
//!
//! See `acl(5)`. No library works on descriptors without libacl, and the format of the attribute is simple.

use oci_hooks_files::fs::acl::{
    ALL, GROUP, MASK, OTHERS, OWNER, OWNING_GROUP, POSIX_VERSION, PosixEntry, USER, mask,
    posix_entries,
};

/// A POSIX ACL; without named entries it is equivalent to a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    /// ACL entries, sorted by tag and id.
    entries: Vec<PosixEntry>,
}

/// The id of entries without a user or group.
const NO_ID: u32 = u32::MAX;

impl Acl {
    /// Returns the ACL that is equivalent to the permission bits of a mode.
    pub fn of_mode(mode: u32) -> Self {
        let bits = |shift: u32| u16::try_from(mode >> shift & 7).unwrap_or_default();
        let entry = |tag, permissions| PosixEntry { tag, permissions, id: NO_ID };
        let entries =
            vec![entry(OWNER, bits(6)), entry(OWNING_GROUP, bits(3)), entry(OTHERS, bits(0))];
        Acl { entries }
    }

    /// Parses the value of the extended attribute; `None` if it is malformed or has no entries.
    pub fn parse(list: &[u8]) -> Option<Self> {
        let mut entries = posix_entries(list).filter(|entries| !entries.is_empty())?;
        entries.sort_by_key(|entry| (entry.tag, entry.id));
        Some(Acl { entries })
    }

    /// Returns the value of the extended attribute.
    pub fn to_attribute(&self) -> Vec<u8> {
        posix_list(&self.entries)
    }

    /// Returns the ACL without named users and groups.
    pub fn without_names(&self) -> Self {
        let mut acl = self.clone();
        acl.revoke(|_| true, |_| true);
        acl
    }

    /// Returns the permissions of the owner.
    pub fn owner(&self) -> u16 {
        self.entries.iter().find(|entry| entry.tag == OWNER).map_or(0, |entry| entry.permissions)
    }

    /// Returns whether the ACL names a user or group without an id in this user namespace, so that the ACL cannot be
    /// written.
    pub fn names_unknown(&self) -> bool {
        self.named_entries().any(|entry| entry.id == NO_ID)
    }

    /// Returns whether the ACL names any user or group.
    pub fn has_names(&self) -> bool {
        self.named_entries().next().is_some()
    }

    /// Returns whether the ACL names a user whose id matches.
    pub fn names_user(&self, is_chosen: impl Fn(u32) -> bool) -> bool {
        self.named_entries().any(|entry| entry.tag == USER && is_chosen(entry.id))
    }

    fn named_entries(&self) -> impl Iterator<Item = &PosixEntry> {
        self.entries.iter().filter(|entry| [USER, GROUP].contains(&entry.tag))
    }

    /// Sets the permissions of a user, and keeps the effective permissions of all others.
    pub fn grant(&mut self, uid: u32, permissions: u16) {
        self.apply_mask();
        self.entries.retain(|entry| entry.tag != USER || entry.id != uid);
        self.entries.push(PosixEntry { tag: USER, permissions, id: uid });
        self.renew_mask();
    }

    /// Sets the permissions of all named users. Returns whether the ACL changed: the mask or the entries permitted
    /// something else before.
    pub fn grant_users(&mut self, permissions: u16) -> bool {
        let before = self.clone();
        self.apply_mask();
        for entry in self.entries.iter_mut().filter(|entry| entry.tag == USER) {
            entry.permissions = permissions;
        }
        self.renew_mask();
        *self != before
    }

    /// Removes the entries whose ids match, and keeps the effective permissions of all others. Returns whether
    /// entries were removed.
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

    /// Limits all entries to their effective permissions.
    fn apply_mask(&mut self) {
        let mask = mask(&self.entries);
        for entry in &mut self.entries {
            if [USER, OWNING_GROUP, GROUP].contains(&entry.tag) {
                entry.permissions &= mask & ALL;
            }
        }
    }

    /// Recalculates the mask as the union of the entries that it limits.
    fn renew_mask(&mut self) {
        self.entries.retain(|entry| entry.tag != MASK);
        if self.has_names() {
            let limited = self.entries.iter().filter(|entry| ![OWNER, OTHERS].contains(&entry.tag));
            let permissions = limited.fold(0, |all, entry| all | entry.permissions);
            self.entries.push(PosixEntry { tag: MASK, permissions, id: NO_ID });
        }
        self.entries.sort_by_key(|entry| (entry.tag, entry.id));
    }
}

/// Encodes entries, sorted by tag, as the value of the extended attribute.
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

    fn list_entries(acl: &Acl) -> Vec<(u16, u16, u32)> {
        acl.entries.iter().map(|entry| (entry.tag, entry.permissions, entry.id)).collect()
    }

    #[test]
    fn revoking_a_grant_restores_the_permissions() {
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
    fn raised_mask_grants_nothing_to_others() {
        let entry = |tag, permissions, id| PosixEntry { tag, permissions, id };
        // As the kernel derives it from a default ACL and a mode of 0640.
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
            list_entries(&acl),
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
    fn named_users_get_the_permissions_of_the_owner() {
        let mut acl = Acl::of_mode(0o640);
        assert!(!acl.grant_users(7));
        acl.grant(33, 0);
        acl.grant(1000, 4);
        assert!(acl.grant_users(6));
        assert!(!acl.grant_users(6));
        let named: Vec<_> =
            acl.named_entries().map(|entry| (entry.id, entry.permissions)).collect();
        assert_eq!(named, [(33, 6), (1000, 6)]);
        assert_eq!(acl.without_names(), Acl::of_mode(0o640));
    }

    #[test]
    fn invalid_acl_is_none() {
        for bytes in [&b""[..], b"\x02\0\0\0", b"\x01\0\0\0", b"\x02\0\0\0\x01\0\x07\0\0\0\0\0"] {
            assert_eq!(Acl::parse(bytes), None);
        }
    }
}
