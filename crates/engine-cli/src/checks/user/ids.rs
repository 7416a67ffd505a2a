//! Subordinate ids of a user, and the programs that map them.

use std::fs;
use std::ops::Range as Numbers;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use oci_hooks_host::privilege::{IdMaps, SubordinateIds, SubordinateRange, find_id_map_program};
use oci_hooks_host::users;

use super::super::HostCheck;

const NAME: &str = "id ranges";

/// Number of ids that distributions use: 0 to 65535, including the overflow user 65534.
const ENOUGH: u32 = 65_536;

/// First subordinate id that distributions assign to users by default.
const FIRST: u32 = 100_000;

/// `/etc/subuid` or `/etc/subgid`, and the option of usermod that adds a range to the file.
struct SubidKind {
    file: &'static str,
    ids: &'static str,
    option: &'static str,
}

const USERS: SubidKind =
    SubidKind { file: "/etc/subuid", ids: "user ids", option: "--add-subuids" };
const GROUPS: SubidKind =
    SubidKind { file: "/etc/subgid", ids: "group ids", option: "--add-subgids" };

/// A line of `/etc/subuid` or `/etc/subgid`.
#[derive(Debug, PartialEq, Eq)]
struct SubidEntry {
    owner: String,
    range: SubordinateRange,
}

/// Checks the ids that can be mapped in a user namespace, and the programs that map them.
pub fn checks(map: &IdMaps) -> Vec<HostCheck> {
    match map {
        IdMaps::Ranges(own) => {
            let mut checks = ranges(own);
            checks.push(programs(is_nested()));
            checks
        }
        IdMaps::Single => {
            let own = SubordinateIds::of_user(rustix::process::geteuid().as_raw());
            ranges(&own.unwrap_or_default())
        }
        IdMaps::Same { .. } => {
            vec![HostCheck::ok(NAME, "those of the outer container, whose root runs this process")]
        }
    }
}

/// Checks the ranges of the current user.
fn ranges(ranges: &SubordinateIds) -> Vec<HostCheck> {
    let uid = rustix::process::geteuid().as_raw();
    let name = users::user_by_id(uid).map_or_else(|| uid.to_string(), |user| user.name);
    let entries =
        [USERS, GROUPS].map(|kind| entries(&fs::read_to_string(kind.file).unwrap_or_default()));
    let own = [&ranges.uids, &ranges.gids];
    let mut checks = vec![check_id_count(&name, own, &entries)];
    for ((kind, own), entries) in [USERS, GROUPS].iter().zip(own).zip(&entries) {
        let others =
            entries.iter().filter(|entry| entry.owner != name && entry.owner != uid.to_string());
        checks.extend(check_shared_ids(kind, own, others));
    }
    checks
}

/// Checks that a user has enough ids for images.
fn check_id_count(
    name: &str,
    own: [&Vec<SubordinateRange>; 2],
    entries: &[Vec<SubidEntry>; 2],
) -> HostCheck {
    let count = |ranges: &Vec<SubordinateRange>| {
        ranges.iter().fold(0, |sum: u32, range| sum.saturating_add(range.count))
    };
    let counts = own.map(count);
    let kinds = [USERS, GROUPS];
    let hint = || command(name, counts, entries);
    let missing: Vec<_> = kinds.iter().zip(counts).filter(|(_, count)| *count == 0).collect();
    if !missing.is_empty() {
        let files: Vec<_> = missing.iter().map(|(kind, _)| kind.file).collect();
        return HostCheck::warn(
            NAME,
            format!(
                "{name} has none in {}: containers have only user 0, which owns all files of images; steps \
                 as another user, `su`, `chown` and package managers fail",
                files.join(" and ")
            ),
            hint(),
        );
    }
    let [uids, gids] = counts;
    let found = format!("{uids} user ids and {gids} group ids of {name}");
    if uids.min(gids) < ENOUGH {
        let found = format!("{found}: images with files of higher ids cannot be unpacked");
        return HostCheck::warn(NAME, found, hint());
    }
    HostCheck::ok(NAME, found)
}

/// Returns the `usermod` command that adds the missing ranges, above all assigned ids. `counts` has
/// the numbers of user ids and group ids that the user already has.
fn command(name: &str, counts: [u32; 2], entries: &[Vec<SubidEntry>; 2]) -> String {
    // The same range for user and group ids is easier to administer.
    let valid = entries.iter().flatten().map(|entry| entry.range);
    // The ranges of mistaken lines end beyond the last id.
    let valid = valid.filter(|range| range.first.checked_add(range.count).is_some());
    let last = valid.map(end).max();
    let first = last.unwrap_or(FIRST).max(FIRST);
    let range = format!("{first}-{}", u64::from(first) + u64::from(ENOUGH) - 1);
    let kinds = [USERS, GROUPS].into_iter().zip(counts).filter(|(_, count)| *count < ENOUGH);
    let options: Vec<_> = kinds.map(|(kind, _)| format!("{} {range}", kind.option)).collect();
    format!("sudo usermod {} {name}", options.join(" "))
}

/// Checks that a user's ranges overlap neither ranges of other users nor ids of regular users.
fn check_shared_ids<'a>(
    kind: &SubidKind,
    own: &[SubordinateRange],
    others: impl Iterator<Item = &'a SubidEntry>,
) -> Option<HostCheck> {
    let shares = |other: &&SubidEntry| own.iter().any(|range| ranges_overlap(*range, other.range));
    if let Some(other) = others.into_iter().find(shares) {
        let SubordinateRange { first, count } = other.range;
        return Some(HostCheck::warn(
            NAME,
            format!(
                "{} {first} to {} also belong to {}: containers of one user can access files and \
                 processes of the other's",
                kind.ids,
                first.saturating_add(count.saturating_sub(1)),
                other.owner
            ),
            format!("change one of the two lines in {}", kind.file),
        ));
    }
    let lowest = own.iter().map(|range| range.first).min().filter(|first| *first < ENOUGH)?;
    Some(HostCheck::warn(
        NAME,
        format!("{} from {lowest} on may belong to users of this host", kind.ids),
        format!("start the range at {FIRST} or later in {}", kind.file),
    ))
}

fn end(range: SubordinateRange) -> u32 {
    range.first.saturating_add(range.count)
}

fn ranges_overlap(a: SubordinateRange, b: SubordinateRange) -> bool {
    let numbers = |range: SubordinateRange| -> Numbers<u32> { range.first..end(range) };
    let (a, b) = (numbers(a), numbers(b));
    a.start < b.end && b.start < a.end
}

/// Parses the content of `/etc/subuid` or `/etc/subgid`, lines `OWNER:FIRST:COUNT`; skips invalid
/// lines.
fn entries(text: &str) -> Vec<SubidEntry> {
    let of_line = |line: &str| {
        let mut fields = line.trim().split(':');
        let owner = fields.next().filter(|owner| !owner.is_empty())?.to_owned();
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (count > 0).then_some(SubidEntry { owner, range: SubordinateRange { first, count } })
    };
    text.lines().filter_map(of_line).collect()
}

/// A program that maps ids, with the capability that it needs.
struct IdMapProgram {
    name: &'static str,
    capability: u32,
    /// Name of the capability for setcap.
    set: &'static str,
}

pub(super) const SETGID: u32 = 6;
pub(super) const SETUID: u32 = 7;

const PROGRAMS: [IdMapProgram; 2] = [
    IdMapProgram { name: "newuidmap", capability: SETUID, set: "cap_setuid" },
    IdMapProgram { name: "newgidmap", capability: SETGID, set: "cap_setgid" },
];

/// Returns whether this process is in a user namespace other than the host's, where root is another user.
fn is_nested() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Checks newuidmap and newgidmap, which a user with ranges needs.
fn programs(is_nested: bool) -> HostCheck {
    const NAME: &str = "newuidmap";
    let mut found = Vec::new();
    for program in PROGRAMS {
        let Some(path) = find_id_map_program(program.name) else {
            return HostCheck::fail(
                NAME,
                format!("{} is not installed", program.name),
                "apt install uidmap, dnf install shadow-utils",
            );
        };
        let powers = program_privilege(&path, program.capability);
        let fix = format!("setcap {}+ep {}", program.set, path.display());
        let problem = match powers {
            ProgramPrivilege::None => Some((
                "neither set-user-ID root nor with file capabilities",
                format!("sudo chmod u+s {0}, or sudo {fix}", path.display()),
            )),
            ProgramPrivilege::SetUser if is_nested => Some((
                "set-user-ID root, but root of this container does not own the user namespaces",
                format!("chmod u-s {}; {fix}", path.display()),
            )),
            _ if is_nosuid(&path) => Some((
                "on a file system mounted nosuid",
                "mount that file system without nosuid".to_owned(),
            )),
            _ => None,
        };
        if let Some((problem, hint)) = problem {
            return HostCheck::fail(NAME, format!("{} is {problem}", path.display()), hint);
        }
        found.push(format!("{} ({})", path.display(), powers.name()));
    }
    if has_no_new_privileges("/proc/self/status".as_ref()) {
        return HostCheck::fail(
            NAME,
            "this process may not gain privileges (no_new_privs), and the programs that map ids need them",
            "NoNewPrivileges=no in the service; in a pod allowPrivilegeEscalation: true",
        );
    }
    HostCheck::ok(NAME, found.join(", "))
}

/// Returns whether `no_new_privs` is set for a process, given its `status` file in `/proc`.
pub fn has_no_new_privileges(status: &Path) -> bool {
    let text = fs::read_to_string(status).unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"]))
}

/// Mechanism that gives a program more privilege than its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProgramPrivilege {
    None,
    SetUser,
    Capabilities,
}

impl ProgramPrivilege {
    fn name(self) -> &'static str {
        match self {
            ProgramPrivilege::None => "none",
            ProgramPrivilege::SetUser => "set-user-ID",
            ProgramPrivilege::Capabilities => "file capabilities",
        }
    }
}

pub(super) fn program_privilege(path: &Path, capability: u32) -> ProgramPrivilege {
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(path, "security.capability", &mut value).unwrap_or_default();
    if permits_capability(&value[..length], capability) {
        return ProgramPrivilege::Capabilities;
    }
    match path.metadata() {
        Ok(found) if found.uid() == 0 && found.permissions().mode() & 0o4000 != 0 => {
            ProgramPrivilege::SetUser
        }
        _ => ProgramPrivilege::None,
    }
}

/// Returns whether a value of `security.capability` (`struct vfs_cap_data`) permits a capability below 32, and has the
/// effective bit.
fn permits_capability(value: &[u8], capability: u32) -> bool {
    let word = |at: usize| {
        let bytes = value.get(at * 4..at * 4 + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().expect("it is four bytes")))
    };
    let (Some(magic), Some(permitted)) = (word(0), word(1)) else { return false };
    magic & 1 != 0 && permitted & (1 << capability) != 0
}

fn is_nosuid(path: &Path) -> bool {
    let flags = rustix::fs::statvfs(path).map(|found| found.f_flag);
    flags.is_ok_and(|flags| flags.contains(rustix::fs::StatVfsMountFlags::NOSUID))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn range(first: u32, count: u32) -> SubordinateRange {
        SubordinateRange { first, count }
    }

    fn fields(check: &HostCheck) -> [String; 3] {
        let mut value = serde_json::to_value(check).unwrap();
        ["status", "found", "hint"].map(|key| match value[key].take() {
            Value::String(text) => text,
            _ => String::new(),
        })
    }

    #[test]
    fn user_without_ids_is_told_what_to_add() {
        let files = [entries("a:100000:65536\n# x\nb:200000:65536\n"), entries("a:100000:65536\n")];
        let [status, found, hint] = fields(&check_id_count("c", [&vec![], &vec![]], &files));
        assert_eq!(status, "warn");
        assert!(found.starts_with("c has none in /etc/subuid and /etc/subgid: "), "{found}");
        let command = "sudo usermod --add-subuids 265536-331071 --add-subgids 265536-331071 c";
        assert_eq!(hint, command);
        // Both user and group ids are needed.
        let own = vec![range(100_000, 65_536)];
        let [_, found, hint] = fields(&check_id_count("a", [&own, &vec![]], &files));
        assert!(found.starts_with("a has none in /etc/subgid: "), "{found}");
        assert_eq!(hint, "sudo usermod --add-subgids 265536-331071 a");
    }

    #[test]
    fn default_id_count_of_distributions_is_enough() {
        let (enough_ids, few) = (vec![range(1, 65_000), range(90_000, 536)], vec![range(7, 2000)]);
        let files = [Vec::new(), Vec::new()];
        let [status, found, _] = fields(&check_id_count("a", [&enough_ids, &enough_ids], &files));
        assert_eq!(
            (status.as_str(), found.as_str()),
            ("ok", "65536 user ids and 65536 group ids of a")
        );
        let [status, _, hint] = fields(&check_id_count("a", [&enough_ids, &few], &files));
        assert_eq!(status, "warn");
        assert_eq!(hint, "sudo usermod --add-subgids 100000-165535 a");
    }

    #[test]
    fn overlapping_ids_of_two_users_are_found() {
        let found = |own: SubordinateRange, others: &str| {
            let others = entries(others);
            check_shared_ids(&USERS, &[own], others.iter()).map(|check| fields(&check)[1].clone())
        };
        assert_eq!(found(range(100_000, 10), "b:100010:5\nb:99990:10\nb:x:1\n:1:2\n"), None);
        let expected = "user ids 100009 to 100013 also belong to b: containers of one user can access files and \
                        processes of the other's";
        assert_eq!(found(range(100_000, 10), "b:100009:5\n").unwrap(), expected);
        // Ranges of mistaken lines end beyond the last id.
        assert!(found(range(100_000, 10), "b:100009:4294967295\n").is_some());
        let own = vec![range(1, u32::MAX), range(9, u32::MAX)];
        let files = [Vec::new(), Vec::new()];
        assert_eq!(fields(&check_id_count("a", [&own, &own], &files))[0], "ok");
        assert!(
            found(range(1000, 65_536), "").unwrap().starts_with("user ids from 1000 on may be")
        );
    }

    #[test]
    fn file_capabilities_are_parsed_like_in_the_kernel() {
        // `setcap cap_setuid+ep`: revision 2, effective; then bit 7.
        let value = [1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(permits_capability(&value, 7) && !permits_capability(&value, 6));
        assert!(
            !permits_capability(&[0, 0, 0, 2, 0x80, 0, 0, 0], 7),
            "only permitted, and not in effect"
        );
        assert!(!permits_capability(&value[..7], 7) && !permits_capability(&[], 7));
    }
}
