//! The ids of a user namespace, and the subordinate ids of a user: from `/etc/subuid` and `/etc/subgid`, or from
//! another database by way of `getsubids`.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::process::{ChildProgram, ProgramEnd};

use super::error::PrivilegeError;
use crate::users;

const SUBUID: &str = "/etc/subuid";
const SUBGID: &str = "/etc/subgid";

/// Program that queries the database for subordinate ids in `/etc/nsswitch.conf`, such as LDAP.
const GETSUBIDS: &str = "/usr/bin/getsubids";

/// Time limit for `getsubids`, which may query a directory service.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A range of ids of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubordinateRange {
    pub first: u32,
    pub count: u32,
}

/// The subordinate ids that a user may map into user namespaces; both lists may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubordinateIds {
    pub uids: Vec<SubordinateRange>,
    pub gids: Vec<SubordinateRange>,
}

impl SubordinateIds {
    /// Returns the subordinate ids of a user.
    pub fn of_user(uid: u32) -> Result<Self, PrivilegeError> {
        let name = users::user_by_id(uid).map(|user| user.name).unwrap_or_default();
        let of_file = |path: &'static str| match fs::read_to_string(path) {
            Ok(text) => Ok(parse_ranges(&text, &name, uid)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).with_path("read", Path::new(path)),
        };
        let mut ranges = SubordinateIds { uids: of_file(SUBUID)?, gids: of_file(SUBGID)? };
        if ranges.is_empty() && !name.is_empty() && Path::new(GETSUBIDS).exists() {
            ranges = SubordinateIds {
                uids: query_ranges(&[], &name),
                gids: query_ranges(&["-g"], &name),
            };
        }
        Ok(ranges)
    }

    /// Returns whether the user lacks subordinate uids or gids: both are needed.
    pub fn is_empty(&self) -> bool {
        self.uids.is_empty() || self.gids.is_empty()
    }
}

/// Parses the lines of one user, by name or number, of the form `NAME:FIRST:COUNT`.
fn parse_ranges(text: &str, name: &str, uid: u32) -> Vec<SubordinateRange> {
    let uid = uid.to_string();
    let of_line = |line: &str| {
        let (owner, numbers) = line.trim().split_once(':')?;
        let is_own = owner == uid || (!name.is_empty() && owner == name);
        let (first, count) = numbers.split_once(':')?;
        range(first, count).filter(|_| is_own)
    };
    text.lines().filter_map(of_line).collect()
}

/// Runs `getsubids` and parses its output, lines of the form `0: NAME FIRST COUNT`.
fn query_ranges(options: &[&str], name: &str) -> Vec<SubordinateRange> {
    let mut program = ChildProgram::new(Path::new(GETSUBIDS), Path::new("/"));
    program.argv = ["getsubids"].iter().chain(options).chain([&name]).map(OsStr::new).collect();
    program.timeout = Some(TIMEOUT);
    // `getsubids` fails for a user without subordinate ids.
    let finished = program.run().ok().filter(|finished| finished.end == ProgramEnd::Exited(0));
    let text = finished.map(|finished| String::from_utf8_lossy(&finished.stdout).into_owned());
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        range(words.next()?, words.next()?)
    };
    text.unwrap_or_default().lines().filter_map(of_line).collect()
}

/// Parses a range; `None` if it is empty or contains the last id, which is invalid.
fn range(first: &str, count: &str) -> Option<SubordinateRange> {
    let (first, count): (u32, u32) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
    (count > 0 && first.checked_add(count)? < u32::MAX).then_some(SubordinateRange { first, count })
}

/// Number of mapped user and group ids of a user namespace, from 0 on without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedIds {
    pub uids: u32,
    pub gids: u32,
}

impl MappedIds {
    /// The ids of a user without subordinate ids.
    pub const SINGLE: MappedIds = MappedIds { uids: 1, gids: 1 };

    /// Returns the ids of the user namespace of a process, given its directory in `/proc`; `None` if all ids are
    /// mapped, as in that of the host.
    pub(super) fn of_namespace(process: &Path) -> io::Result<Option<Self>> {
        let read = |name: &str| fs::read_to_string(process.join(name));
        Ok(MappedIds::of_maps(&read("uid_map")?, &read("gid_map")?))
    }

    /// Returns the ids in the two maps; `None` if all ids are mapped.
    pub(super) fn of_maps(uids: &str, gids: &str) -> Option<Self> {
        let is_whole = |map: &str| map.split_whitespace().eq(["0", "0", "4294967295"]);
        let is_all = is_whole(uids) && is_whole(gids);
        (!is_all).then(|| MappedIds { uids: from_zero(uids), gids: from_zero(gids) })
    }
}

/// Returns the number of ids in a map from 0 on without a gap.
fn from_zero(map: &str) -> u32 {
    let line = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let (first, _, count) =
            (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some((first, count))
    };
    let mut ranges: Vec<_> = map.lines().filter_map(line).collect();
    ranges.sort_unstable();
    ranges.iter().fold(0, |end, &(first, count)| if first == end { end + count } else { end })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subid_lines_match_by_name_and_number() {
        let text =
            "a:100000:65536\nb:165536:65536\n2001:300000:10\na:x:1\n:1:2\na:5:0\na:4294967290:9\n";
        let range = |first, count| SubordinateRange { first, count };
        assert_eq!(parse_ranges(text, "a", 2001), [range(100_000, 65536), range(300_000, 10)]);
        assert_eq!(parse_ranges(text, "b", 7), [range(165_536, 65536)]);
        assert_eq!(parse_ranges(text, "", 7), []);
    }

    fn of(uid_map: &str, gid_map: &str) -> Option<MappedIds> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("uid_map"), uid_map).unwrap();
        fs::write(dir.path().join("gid_map"), gid_map).unwrap();
        MappedIds::of_namespace(dir.path()).unwrap()
    }

    #[test]
    fn ids_are_counted_from_0_to_the_first_gap() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(of(whole, whole), None);
        assert_eq!(of("0 2001 1\n", "0 2001 1\n"), Some(MappedIds::SINGLE));
        let ids = of("1 100000 65536\n0 2001 1\n", "0 2001 1\n1 100000 1000\n2000 200000 7\n");
        assert_eq!(ids, Some(MappedIds { uids: 65537, gids: 1001 }));
        assert_eq!(of("0 0 10\n", whole), Some(MappedIds { uids: 10, gids: u32::MAX }));
    }
}
