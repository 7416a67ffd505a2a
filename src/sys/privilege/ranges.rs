//! The subordinate ids of a user: `/etc/subuid` and `/etc/subgid`, or what another database of the system has.

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
}
