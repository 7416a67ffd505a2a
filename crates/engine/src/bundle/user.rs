//! Resolves the user and the groups of a container by `/etc/passwd` and `/etc/group` of its image, never by the host's.

use std::fmt;
use std::path::Path;

use oci_hooks_files::fs::PathError;
use oci_hooks_host::privilege::{MappedIds, Privilege};

use super::rootfs_dir::RootfsDir;

/// User, groups and home directory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerUser {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, starting with the primary group.
    pub groups: Vec<u32>,
    /// Home directory; `/` if the image has none.
    pub home: String,
}

/// Errors of resolving a user.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The image has no such user.
    #[error("user {name:?} not found in /etc/passwd of the image")]
    UnknownUser { name: String },
    /// The image has no such group.
    #[error("group {name:?} not found in /etc/group of the image")]
    UnknownGroup { name: String },
    /// The id is out of range.
    #[error("invalid user or group ID {number}: expected 0 to 2147483647")]
    OutOfRange { number: String },
    /// The user namespace of this process does not have the id.
    #[error("{what} {id} is not available in rootless containers: {}", missing(*what, *id, *ids))]
    NoSuchId {
        what: IdKind,
        id: u32,
        /// Numbers of ids in the namespace.
        ids: MappedIds,
    },
    /// Supplementary groups need subordinate ids.
    #[error(
        "supplementary groups are not available in rootless containers: this user has no ranges in /etc/subuid \
         and /etc/subgid; {ADD_RANGES}, or leave out --group-add"
    )]
    NoGroups,
    /// A file of the image cannot be read.
    #[error(transparent)]
    Read(#[from] PathError),
}

/// Kind of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdKind {
    User,
    Group,
}

impl fmt::Display for IdKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IdKind::User => "user",
            IdKind::Group => "group",
        })
    }
}

/// Hint for users without subordinate ids.
const ADD_RANGES: &str =
    "have an administrator add them with the command that this program's `doctor` prints";

/// Returns the reason why an id does not exist, with a hint.
fn missing(what: IdKind, id: u32, ids: MappedIds) -> String {
    if ids == MappedIds::SINGLE {
        return format!(
            "this user has no ranges in /etc/subuid and /etc/subgid, so only {what} 0 is mapped: \
             {ADD_RANGES}, or run as the container's root with `options: --user 0`"
        );
    }
    let (count, file) = match what {
        IdKind::User => (ids.uids, "subuid"),
        IdKind::Group => (ids.gids, "subgid"),
    };
    format!(
        "only {what}s 0 to {} are mapped: add a range of at least {id} ids to /etc/{file}, or choose another {what}",
        count.saturating_sub(1)
    )
}

impl ContainerUser {
    /// Returns the user, without the image's supplementary groups if this process cannot set
    /// supplementary groups.
    ///
    /// # Errors
    ///
    /// Fails if an id does not exist, or if requested groups are not available.
    pub fn limit_to_privilege(
        mut self,
        privilege: Privilege,
        asked: &[String],
    ) -> Result<Self, UserError> {
        let Some(ids) = privilege.ids() else { return Ok(self) };
        if !privilege.has_user(self.uid) {
            return Err(UserError::NoSuchId { what: IdKind::User, id: self.uid, ids });
        }
        if privilege == Privilege::Single {
            if !asked.is_empty() {
                return Err(UserError::NoGroups);
            }
            self.groups.retain(|group| *group == self.gid);
        }
        // The list includes the primary group.
        let missing = self.groups.iter().copied().find(|group| !privilege.has_group(*group));
        missing.map_or(Ok(self), |id| Err(UserError::NoSuchId { what: IdKind::Group, id, ids }))
    }
}

/// Maximum id, as in runc: some programs read a larger id as negative, which can make it root.
const MAX_ID: u32 = i32::MAX.cast_unsigned();

/// Resolves a user with the files of a root file system.
///
/// `words` is `user`, `user:group` or empty, which means root; users and groups are names or numbers. Numbers
/// need not be in the files. `supplementary` groups are added to the image's groups of the user.
pub fn resolve_user(
    rootfs: &Path,
    words: &str,
    supplementary: &[String],
) -> Result<ContainerUser, UserError> {
    resolve(&RootfsDir::open(rootfs)?, words, supplementary)
}

pub(super) fn resolve(
    rootfs: &RootfsDir,
    words: &str,
    supplementary: &[String],
) -> Result<ContainerUser, UserError> {
    let passwd = rootfs.read("/etc/passwd")?.unwrap_or_default();
    let group = rootfs.read("/etc/group")?.unwrap_or_default();
    UserFiles { passwd: &passwd, group: &group }.resolve(words, supplementary)
}

/// The files of users and groups.
#[derive(Clone, Copy, Debug)]
pub struct UserFiles<'a> {
    /// `/etc/passwd`.
    pub passwd: &'a str,
    /// `/etc/group`.
    pub group: &'a str,
}

struct PasswdEntry<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

struct GroupEntry<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl<'a> UserFiles<'a> {
    /// Returns whether a user has this id.
    pub fn has_uid(&self, uid: u32) -> bool {
        self.users().any(|user| user.uid == uid)
    }

    /// Returns whether a user has this name.
    pub fn has_name(&self, name: &str) -> bool {
        self.users().any(|user| user.name == name)
    }

    /// Returns whether a group has this id.
    pub fn has_gid(&self, gid: u32) -> bool {
        self.groups().any(|group| group.gid == gid)
    }

    /// Returns the id of a group by its name.
    pub fn gid_of(&self, name: &str) -> Option<u32> {
        self.groups().find(|group| group.name == name).map(|group| group.gid)
    }

    fn users(&self) -> impl Iterator<Item = PasswdEntry<'a>> {
        self.passwd.lines().filter_map(|line| {
            let mut fields = line.trim().split(':');
            let (name, _) = (fields.next()?, fields.next()?);
            let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            let home = fields.nth(1).unwrap_or_default();
            Some(PasswdEntry { name, uid, gid, home })
        })
    }

    fn groups(&self) -> impl Iterator<Item = GroupEntry<'a>> {
        self.group.lines().filter_map(|line| {
            let mut fields = line.trim().split(':');
            let (name, _) = (fields.next()?, fields.next()?);
            let gid = fields.next()?.parse().ok()?;
            Some(GroupEntry { name, gid, members: fields.next().unwrap_or_default() })
        })
    }

    /// Resolves a user as [`resolve_user`] does.
    pub fn resolve(
        &self,
        words: &str,
        supplementary: &[String],
    ) -> Result<ContainerUser, UserError> {
        let (user, group) = words.split_once(':').unwrap_or((words, ""));
        let user = if user.is_empty() { "0" } else { user };
        let number = id(user)?;
        let entry = self.users().find(|entry| entry.name == user || Some(entry.uid) == number);
        let uid = match (&entry, number) {
            (Some(entry), _) => check_range(entry.uid)?,
            (None, Some(number)) => number,
            (None, None) => return Err(UserError::UnknownUser { name: user.to_owned() }),
        };
        let mut groups = Vec::new();
        let gid = if group.is_empty() {
            let name = entry.as_ref().map(|entry| entry.name);
            let is_member = |group: &GroupEntry<'_>| {
                name.is_some_and(|name| group.members.split(',').any(|member| member == name))
            };
            groups.extend(self.groups().filter(is_member).map(|group| group.gid));
            check_range(entry.as_ref().map_or(0, |entry| entry.gid))?
        } else {
            self.group(group)?
        };
        for group in supplementary {
            groups.push(self.group(group)?);
        }
        // A set-group-ID program could drop the primary group, unless it is a supplementary group too.
        groups.insert(0, gid);
        let mut seen = Vec::with_capacity(groups.len());
        groups.retain(|group| !seen.contains(group) && (seen.push(*group), true).1);
        let home = entry.map(|entry| entry.home).filter(|home| !home.is_empty()).unwrap_or("/");
        Ok(ContainerUser { uid, gid, groups, home: home.to_owned() })
    }

    fn group(&self, word: &str) -> Result<u32, UserError> {
        let number = id(word)?;
        let entry = self.groups().find(|entry| entry.name == word || Some(entry.gid) == number);
        match (entry, number) {
            (Some(entry), _) => check_range(entry.gid),
            (None, Some(number)) => Ok(number),
            (None, None) => Err(UserError::UnknownGroup { name: word.to_owned() }),
        }
    }
}

/// Parses an id; `None` for a name.
fn id(word: &str) -> Result<Option<u32>, UserError> {
    let digits = word.strip_prefix(['-', '+']).unwrap_or(word);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let number = word.parse().ok().filter(|number| *number <= MAX_ID);
    let number = number.ok_or_else(|| UserError::OutOfRange { number: word.to_owned() })?;
    Ok(Some(number))
}

fn check_range(number: u32) -> Result<u32, UserError> {
    if number <= MAX_ID {
        return Ok(number);
    }
    Err(UserError::OutOfRange { number: number.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: UserFiles<'_> = UserFiles {
        passwd: "root:x:0:0:root:/root:/bin/sh\nbroken:x\n\napp:x:1000:100:App:/srv/app:/bin/sh\n\
                 7:x:70:70::/seven:\nbig:x:4294967295:0::/:\n",
        group: "root:x:0:\nusers:x:100:\nwheel:x:10:app,root\ndocker:x:999:other,app\nx:x:-1:app\n",
    };

    fn resolve(words: &str) -> Result<ContainerUser, UserError> {
        IMAGE.resolve(words, &[])
    }

    #[test]
    fn user_without_ranges_has_only_root() {
        let within = |words: &str, asked: &[String]| {
            resolve(words).unwrap().limit_to_privilege(Privilege::Single, asked)
        };
        // Alpine's root is in eleven groups.
        let root = IMAGE.resolve("", &["10".to_owned()]).unwrap();
        assert_eq!(root.clone().limit_to_privilege(Privilege::Single, &[]).unwrap().groups, [0]);
        assert_eq!(root.clone().limit_to_privilege(Privilege::Root, &[]).unwrap(), root);
        let asked = ["10".to_owned()];
        assert!(matches!(within("", &asked), Err(UserError::NoGroups)));
        for (words, what) in [("app", "user 1000"), ("0:100", "group 100")] {
            let error = within(words, &[]).unwrap_err().to_string();
            let expected = format!(
                "{what} is not available in rootless containers: this user has no ranges in"
            );
            assert!(error.starts_with(&expected) && error.contains("--user 0"), "{error}");
        }
    }

    #[test]
    fn user_with_ranges_has_all_their_ids() {
        let mapped = |uids, gids| Privilege::Mapped(MappedIds { uids, gids });
        let within = |privilege| resolve("app").unwrap().limit_to_privilege(privilege, &[]);
        assert_eq!(within(mapped(1001, 1000)).unwrap().groups, [100, 10, 999]);
        let error = within(mapped(1000, 1000)).unwrap_err().to_string();
        assert_eq!(
            error,
            "user 1000 is not available in rootless containers: only users 0 to 999 are mapped: add a range of at \
             least 1000 ids to /etc/subuid, or choose another user"
        );
        let error = within(mapped(1001, 999)).unwrap_err().to_string();
        assert!(error.contains("containers: only groups 0 to 998 are mapped"), "{error}");
    }

    #[track_caller]
    fn expect(words: &str, uid: u32, gid: u32, groups: &[u32], home: &str) {
        let expected = ContainerUser { uid, gid, groups: groups.to_vec(), home: home.to_owned() };
        assert_eq!(resolve(words).unwrap(), expected);
    }

    #[test]
    fn users_and_groups_are_found_by_name_or_number() {
        expect("", 0, 0, &[0, 10], "/root");
        expect("app", 1000, 100, &[100, 10, 999], "/srv/app");
        expect("1000", 1000, 100, &[100, 10, 999], "/srv/app");
        expect("app:root", 1000, 0, &[0], "/srv/app");
        expect("app:55", 1000, 55, &[55], "/srv/app");
        expect("1234", 1234, 0, &[0], "/");
        expect("1234:wheel", 1234, 10, &[10], "/");
        expect(":users", 0, 100, &[100], "/root");
    }

    #[test]
    fn numeric_name_is_looked_up_as_a_name_first() {
        expect("7", 70, 70, &[70], "/seven");
    }

    #[test]
    fn impossible_ids_are_rejected() {
        for words in
            ["4294967296", "-1", "4294967295", "2147483648", "0:-1", "big", "+-0:4294967296"]
        {
            let error = resolve(words).unwrap_err();
            let expected =
                matches!(error, UserError::OutOfRange { .. } | UserError::UnknownUser { .. });
            assert!(expected, "{words}: {error}");
        }
        assert!(matches!(resolve("4294967296"), Err(UserError::OutOfRange { .. })));
    }

    #[test]
    fn unknown_names_are_rejected() {
        assert!(matches!(resolve("nobody"), Err(UserError::UnknownUser { .. })));
        assert!(matches!(resolve("app:none"), Err(UserError::UnknownGroup { .. })));
        let groups = ["none".to_owned()];
        assert!(matches!(IMAGE.resolve("app", &groups), Err(UserError::UnknownGroup { .. })));
    }

    #[test]
    fn supplementary_groups_come_last_without_duplicates() {
        let groups = ["wheel".to_owned(), "5".to_owned(), "5".to_owned()];
        let user = IMAGE.resolve("app:users", &groups).unwrap();
        assert_eq!(user.groups, [100, 10, 5]);
    }
}
