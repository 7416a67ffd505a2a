//! The ids of a user namespace, and the subordinate ids of a user: `/etc/subuid` and `/etc/subgid`, or what another database of the system has.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use super::error::PrivilegeError;
use crate::sys::fs::PathContext as _;
use crate::sys::process::{End, Program};
use crate::sys::users;

const SUBUID: &str = "/etc/subuid";
const SUBGID: &str = "/etc/subgid";

/// Asks the database that `/etc/nsswitch.conf` names for subordinate ids, such as LDAP.
const GETSUBIDS: &str = "/usr/bin/getsubids";

/// Time for a directory to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A run of ids of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub first: u32,
    pub count: u32,
}

/// The ids that a user may map into user namespaces, besides their own; both kinds may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    pub uids: Vec<Range>,
    pub gids: Vec<Range>,
}

impl Ranges {
    /// Returns those of a user.
    pub fn of_user(uid: u32) -> Result<Self, PrivilegeError> {
        let name = users::user_by_id(uid).ok().flatten().map(|user| user.name).unwrap_or_default();
        let of_file = |path: &'static str| match fs::read_to_string(path) {
            Ok(text) => Ok(of_text(&text, &name, uid)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error).at("read", Path::new(path)),
        };
        let mut ranges = Ranges { uids: of_file(SUBUID)?, gids: of_file(SUBGID)? };
        if ranges.is_empty() && !name.is_empty() && Path::new(GETSUBIDS).exists() {
            ranges = Ranges { uids: of_program(&[], &name), gids: of_program(&["-g"], &name) };
        }
        Ok(ranges)
    }

    /// Returns whether the user has not both kinds: one alone is of no use.
    pub fn is_empty(&self) -> bool {
        self.uids.is_empty() || self.gids.is_empty()
    }
}

/// Reads lines as `NAME:FIRST:COUNT`, with a name or a number, of one user.
fn of_text(text: &str, name: &str, uid: u32) -> Vec<Range> {
    let uid = uid.to_string();
    let of_line = |line: &str| {
        let (owner, numbers) = line.trim().split_once(':')?;
        let is_own = owner == uid || (!name.is_empty() && owner == name);
        let (first, count) = numbers.split_once(':')?;
        range(first, count).filter(|_| is_own)
    };
    text.lines().filter_map(of_line).collect()
}

/// Reads what `getsubids` writes: lines as `0: NAME FIRST COUNT`.
fn of_program(options: &[&str], name: &str) -> Vec<Range> {
    let mut program = Program::new(Path::new(GETSUBIDS), Path::new("/"));
    program.argv = ["getsubids"].iter().chain(options).chain([&name]).map(OsStr::new).collect();
    program.timeout = Some(TIMEOUT);
    // A user who has none is a failure to it.
    let finished = program.run().ok().filter(|finished| finished.end == End::Exited(0));
    let text = finished.map(|finished| String::from_utf8_lossy(&finished.stdout).into_owned());
    let of_line = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        range(words.next()?, words.next()?)
    };
    text.unwrap_or_default().lines().filter_map(of_line).collect()
}

/// Returns a run that is one: of ids below the last number, which stands for none.
fn range(first: &str, count: &str) -> Option<Range> {
    let (first, count): (u32, u32) = (first.trim().parse().ok()?, count.trim().parse().ok()?);
    (count > 0 && first.checked_add(count)? < u32::MAX).then_some(Range { first, count })
}

/// How many user and group ids there are, from 0 on without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    pub uids: u32,
    pub gids: u32,
}

impl Ids {
    /// The ids of a user without ranges.
    pub const SINGLE: Ids = Ids { uids: 1, gids: 1 };

    /// Returns those that the user namespace of a process has, whose directory in `/proc` this is; none if
    /// it has all, as that of the host.
    pub(super) fn of_namespace(process: &Path) -> io::Result<Option<Self>> {
        let read = |name: &str| fs::read_to_string(process.join(name));
        Ok(Ids::of_maps(&read("uid_map")?, &read("gid_map")?))
    }

    /// Returns those of two maps; none if they have all.
    pub(super) fn of_maps(uids: &str, gids: &str) -> Option<Self> {
        let is_whole = |map: &str| map.split_whitespace().eq(["0", "0", "4294967295"]);
        let is_all = is_whole(uids) && is_whole(gids);
        (!is_all).then(|| Ids { uids: from_zero(uids), gids: from_zero(gids) })
    }
}

/// Returns how many ids a map has from 0 on without a gap.
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
    fn lines_of_the_user_count_by_name_and_by_number() {
        let text =
            "a:100000:65536\nb:165536:65536\n2001:300000:10\na:x:1\n:1:2\na:5:0\na:4294967290:9\n";
        let range = |first, count| Range { first, count };
        assert_eq!(of_text(text, "a", 2001), [range(100_000, 65536), range(300_000, 10)]);
        assert_eq!(of_text(text, "b", 7), [range(165_536, 65536)]);
        assert_eq!(of_text(text, "", 7), []);
    }

    fn of(uid_map: &str, gid_map: &str) -> Option<Ids> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("uid_map"), uid_map).unwrap();
        fs::write(dir.path().join("gid_map"), gid_map).unwrap();
        Ids::of_namespace(dir.path()).unwrap()
    }

    #[test]
    fn ids_are_counted_from_0_to_the_first_gap() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(of(whole, whole), None);
        assert_eq!(of("0 2001 1\n", "0 2001 1\n"), Some(Ids::SINGLE));
        let ids = of("1 100000 65536\n0 2001 1\n", "0 2001 1\n1 100000 1000\n2000 200000 7\n");
        assert_eq!(ids, Some(Ids { uids: 65537, gids: 1001 }));
        assert_eq!(of("0 0 10\n", whole), Some(Ids { uids: 10, gids: u32::MAX }));
    }
}
