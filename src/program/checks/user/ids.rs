//! The subordinate ids of a user, and the programs that map them.

use std::fs;
use std::ops::Range as Numbers;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use super::super::Check;
use crate::sys::privilege::{self, Map, Range, Ranges};
use crate::sys::users;

const NAME: &str = "id ranges";

/// How many ids distributions count on: 0 to 65535, the last but one of which is `nobody`'s.
const ENOUGH: u32 = 65_536;

/// Where ranges begin on systems that give them out by themselves.
const FIRST: u32 = 100_000;

/// A file of ranges, what it holds, and the option of usermod that adds to it.
struct Kind {
    file: &'static str,
    ids: &'static str,
    option: &'static str,
}

const USERS: Kind = Kind { file: "/etc/subuid", ids: "user ids", option: "--add-subuids" };
const GROUPS: Kind = Kind { file: "/etc/subgid", ids: "group ids", option: "--add-subgids" };

/// A range of somebody.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    owner: String,
    range: Range,
}

/// Looks at what a user namespace can be given, and at what gives it.
pub fn checks(map: &Map) -> Vec<Check> {
    match map {
        Map::Ranges(own) => {
            let mut checks = ranges(own);
            checks.push(programs(is_nested()));
            checks
        }
        Map::Single => {
            let own = Ranges::of_user(rustix::process::geteuid().as_raw());
            ranges(&own.unwrap_or_default())
        }
        Map::Same { .. } => {
            vec![Check::ok(NAME, "those of the container around this, whose root this is")]
        }
    }
}

/// Looks at the ranges of the user who runs this.
fn ranges(ranges: &Ranges) -> Vec<Check> {
    let uid = rustix::process::geteuid().as_raw();
    let name = users::name(uid).unwrap_or_else(|| uid.to_string());
    let entries =
        [USERS, GROUPS].map(|kind| entries(&fs::read_to_string(kind.file).unwrap_or_default()));
    let own = [&ranges.uids, &ranges.gids];
    let mut checks = vec![enough(&name, own, &entries)];
    for ((kind, own), entries) in [USERS, GROUPS].iter().zip(own).zip(&entries) {
        let others =
            entries.iter().filter(|entry| entry.owner != name && entry.owner != uid.to_string());
        checks.extend(shared(kind, own, others));
    }
    checks
}

/// Looks whether there are as many as images need.
fn enough(name: &str, own: [&Vec<Range>; 2], entries: &[Vec<Entry>; 2]) -> Check {
    let counts = own.map(|ranges| ranges.iter().map(|range| range.count).sum::<u32>());
    let kinds = [USERS, GROUPS];
    let hint = || command(name, counts, entries);
    let missing: Vec<_> = kinds.iter().zip(counts).filter(|(_, count)| *count == 0).collect();
    if !missing.is_empty() {
        let files: Vec<_> = missing.iter().map(|(kind, _)| kind.file).collect();
        return Check::warn(
            NAME,
            format!(
                "{name} has none in {}: containers have user 0 alone, and all files of images are its; steps \
                 as another user, `su`, `chown` and package managers fail",
                files.join(" and ")
            ),
            hint(),
        );
    }
    let [uids, gids] = counts;
    let found = format!("{uids} user ids and {gids} group ids of {name}");
    if uids.min(gids) < ENOUGH {
        let found = format!("{found}: images with files of ids beyond them cannot be unpacked");
        return Check::warn(NAME, found, hint());
    }
    Check::ok(NAME, found)
}

/// Returns the command that gives a user what is missing, of ids that nobody has.
fn command(name: &str, counts: [u32; 2], entries: &[Vec<Entry>; 2]) -> String {
    // The same numbers of both kinds are easier to live with.
    let last = entries.iter().flatten().map(|entry| end(entry.range)).max();
    let first = last.unwrap_or(FIRST).max(FIRST);
    let range = format!("{first}-{}", u64::from(first) + u64::from(ENOUGH) - 1);
    let kinds = [USERS, GROUPS].into_iter().zip(counts).filter(|(_, count)| *count < ENOUGH);
    let options: Vec<_> = kinds.map(|(kind, _)| format!("{} {range}", kind.option)).collect();
    format!("sudo usermod {} {name}", options.join(" "))
}

/// Looks for ids that another user may use too, or that are a user.
fn shared<'a>(
    kind: &Kind,
    own: &[Range],
    others: impl Iterator<Item = &'a Entry>,
) -> Option<Check> {
    let shares = |other: &&Entry| own.iter().any(|range| meet(*range, other.range));
    if let Some(other) = others.into_iter().find(shares) {
        let Range { first, count } = other.range;
        return Some(Check::warn(
            NAME,
            format!(
                "{} {first} to {} are of {} too: containers of one reach files and processes of the other's",
                kind.ids,
                first + (count - 1),
                other.owner
            ),
            format!("change one of the two lines in {}", kind.file),
        ));
    }
    let lowest = own.iter().map(|range| range.first).min().filter(|first| *first < ENOUGH)?;
    Some(Check::warn(
        NAME,
        format!("{} from {lowest} on may be those of users of this host", kind.ids),
        format!("have the range begin at {FIRST} or later in {}", kind.file),
    ))
}

fn end(range: Range) -> u32 {
    range.first.saturating_add(range.count)
}

fn meet(a: Range, b: Range) -> bool {
    let numbers = |range: Range| -> Numbers<u32> { range.first..end(range) };
    let (a, b) = (numbers(a), numbers(b));
    a.start < b.end && b.start < a.end
}

/// Reads lines as `OWNER:FIRST:COUNT`.
fn entries(text: &str) -> Vec<Entry> {
    let of_line = |line: &str| {
        let mut fields = line.trim().split(':');
        let owner = fields.next().filter(|owner| !owner.is_empty())?.to_owned();
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (count > 0).then_some(Entry { owner, range: Range { first, count } })
    };
    text.lines().filter_map(of_line).collect()
}

/// A program that maps ids, with the capability that it needs for that.
struct Program {
    name: &'static str,
    capability: u32,
    /// What sets it.
    set: &'static str,
}

const PROGRAMS: [Program; 2] = [
    Program { name: "newuidmap", capability: 7, set: "cap_setuid" },
    Program { name: "newgidmap", capability: 6, set: "cap_setgid" },
];

/// Returns whether this process is in a user namespace that is not the host's: root is another user there.
fn is_nested() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    !map.split_whitespace().eq(["0", "0", "4294967295"])
}

/// Looks at the programs that a user with ranges needs, in a user namespace of the host or another.
fn programs(is_nested: bool) -> Check {
    const NAME: &str = "newuidmap";
    let mut found = Vec::new();
    for program in PROGRAMS {
        let Some(path) = privilege::find(program.name) else {
            return Check::fail(
                NAME,
                format!("{} is not installed", program.name),
                "apt install uidmap, dnf install shadow-utils",
            );
        };
        let powers = powers(&path, program.capability);
        let fix = format!("setcap {}+ep {}", program.set, path.display());
        let problem = match powers {
            Powers::None => Some("neither set-user-ID of root nor with file capabilities"),
            Powers::SetUser if is_nested => {
                Some("set-user-ID of a root that does not own the user namespaces here")
            }
            _ if is_nosuid(&path) => Some("on a file system mounted nosuid"),
            _ => None,
        };
        if let Some(problem) = problem {
            let hint = match powers {
                Powers::None => format!("sudo chmod u+s {0}, or sudo {fix}", path.display()),
                _ => format!("chmod u-s {}; {fix}", path.display()),
            };
            return Check::fail(NAME, format!("{} is {problem}", path.display()), hint);
        }
        found.push(format!("{} ({})", path.display(), powers.name()));
    }
    if has_no_new_privileges("/proc/self/status".as_ref()) {
        return Check::fail(
            NAME,
            "this process may not gain privileges (no_new_privs), and the programs that map ids need them",
            "NoNewPrivileges=no in the service; in a pod allowPrivilegeEscalation: true",
        );
    }
    Check::ok(NAME, found.join(", "))
}

/// Returns whether a process may gain nothing by set-user-ID programs, by its `status` in `/proc`.
pub fn has_no_new_privileges(status: &Path) -> bool {
    let text = fs::read_to_string(status).unwrap_or_default();
    text.lines().any(|line| line.split_whitespace().eq(["NoNewPrivs:", "1"]))
}

/// By what a program has more privilege than its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Powers {
    None,
    SetUser,
    Capabilities,
}

impl Powers {
    fn name(self) -> &'static str {
        match self {
            Powers::None => "none",
            Powers::SetUser => "set-user-ID",
            Powers::Capabilities => "file capabilities",
        }
    }
}

fn powers(path: &Path, capability: u32) -> Powers {
    let mut value = [0; 64];
    let length = rustix::fs::getxattr(path, "security.capability", &mut value).unwrap_or_default();
    if permits(&value[..length], capability) {
        return Powers::Capabilities;
    }
    match path.metadata() {
        Ok(found) if found.uid() == 0 && found.permissions().mode() & 0o4000 != 0 => {
            Powers::SetUser
        }
        _ => Powers::None,
    }
}

/// Returns whether the value of `security.capability` has a capability below 32 that is permitted, and in
/// effect from the start (`struct vfs_cap_data`).
fn permits(value: &[u8], capability: u32) -> bool {
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

    fn range(first: u32, count: u32) -> Range {
        Range { first, count }
    }

    fn fields(check: &Check) -> [String; 3] {
        let mut value = serde_json::to_value(check).unwrap();
        ["status", "found", "hint"].map(|key| match value[key].take() {
            Value::String(text) => text,
            _ => String::new(),
        })
    }

    #[test]
    fn who_has_none_is_told_what_to_add() {
        let files = [entries("a:100000:65536\n# x\nb:200000:65536\n"), entries("a:100000:65536\n")];
        let [status, found, hint] = fields(&enough("c", [&vec![], &vec![]], &files));
        assert_eq!(status, "warn");
        assert!(found.starts_with("c has none in /etc/subuid and /etc/subgid: "), "{found}");
        let command = "sudo usermod --add-subuids 265536-331071 --add-subgids 265536-331071 c";
        assert_eq!(hint, command);
        // One kind alone is of no use.
        let own = vec![range(100_000, 65_536)];
        let [_, found, hint] = fields(&enough("a", [&own, &vec![]], &files));
        assert!(found.starts_with("a has none in /etc/subgid: "), "{found}");
        assert_eq!(hint, "sudo usermod --add-subgids 265536-331071 a");
    }

    #[test]
    fn as_many_as_distributions_count_on_are_enough() {
        let (enough_ids, few) = (vec![range(1, 65_000), range(90_000, 536)], vec![range(7, 2000)]);
        let files = [Vec::new(), Vec::new()];
        let [status, found, _] = fields(&enough("a", [&enough_ids, &enough_ids], &files));
        assert_eq!(
            (status.as_str(), found.as_str()),
            ("ok", "65536 user ids and 65536 group ids of a")
        );
        let [status, _, hint] = fields(&enough("a", [&enough_ids, &few], &files));
        assert_eq!(status, "warn");
        assert_eq!(hint, "sudo usermod --add-subgids 100000-165535 a");
    }

    #[test]
    fn ids_of_two_users_are_found() {
        let found = |own: Range, others: &str| {
            let others = entries(others);
            shared(&USERS, &[own], others.iter()).map(|check| fields(&check)[1].clone())
        };
        assert_eq!(found(range(100_000, 10), "b:100010:5\nb:99990:10\nb:x:1\n:1:2\n"), None);
        let expected = "user ids 100009 to 100013 are of b too: containers of one reach files and processes \
                        of the other's";
        assert_eq!(found(range(100_000, 10), "b:100009:5\n").unwrap(), expected);
        assert!(
            found(range(1000, 65_536), "").unwrap().starts_with("user ids from 1000 on may be")
        );
    }

    #[test]
    fn file_capabilities_are_read_as_the_kernel_writes_them() {
        // `setcap cap_setuid+ep`: revision 2, in effect; then bit 7.
        let value = [1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(permits(&value, 7) && !permits(&value, 6));
        assert!(!permits(&[0, 0, 0, 2, 0x80, 0, 0, 0], 7), "only permitted, and not in effect");
        assert!(!permits(&value[..7], 7) && !permits(&[], 7));
    }
}
