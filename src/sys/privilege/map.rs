//! How the ids of a user namespace are mapped to those of its parent, and who may write that down.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{getegid, geteuid};

use super::Privilege;
use super::error::PrivilegeError;
use super::ranges::{Ids, Range, Ranges};
use crate::sys::fs::PathContext as _;
use crate::sys::process::{End, Program};

/// The programs that may write the maps of a user's own ranges, and where they are.
const DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"];

const TIMEOUT: Duration = Duration::from_secs(20);

/// The maps of a user namespace that is about to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Map {
    /// User 0 is the calling user, and those from 1 on are of the ranges: newuidmap and newgidmap write it.
    Ranges(Ranges),
    /// User 0 is the calling user, and there is no other.
    Single,
    /// The same ids as in the namespace of the calling process, which is root of it: the lines of both maps.
    Same { uids: String, gids: String },
}

impl Map {
    /// Returns the one that the calling process can have.
    pub fn of_process() -> Result<Self, PrivilegeError> {
        if geteuid().is_root() {
            let read = |name| {
                let path = Path::new("/proc/self").join(name);
                fs::read_to_string(&path).at("read", &path)
            };
            let (uids, gids) = (same(&read("uid_map")?), same(&read("gid_map")?));
            return Ok(Map::Same { uids, gids });
        }
        let ranges = Ranges::of_user(geteuid().as_raw())?;
        Ok(if ranges.is_empty() { Map::Single } else { Map::Ranges(ranges) })
    }

    /// Returns what a process with these ids may do.
    pub fn privilege(&self) -> Privilege {
        let ids = match self {
            Map::Single => Ids::SINGLE,
            Map::Ranges(Ranges { uids, gids }) => Ids { uids: total(uids), gids: total(gids) },
            Map::Same { uids, gids } => Ids::of_maps(uids, gids).unwrap_or(Ids::SINGLE),
        };
        if ids == Ids::SINGLE { Privilege::Single } else { Privilege::Mapped(ids) }
    }

    /// Gives the user namespace of a process this map, which has none yet.
    pub(super) fn write(&self, pid: u32) -> Result<(), PrivilegeError> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let put = |name: &str, text: &str| {
            let path = PathBuf::from(format!("/proc/{pid}/{name}"));
            fs::write(&path, text).map_err(|source| PrivilegeError::Map { path, source })
        };
        match self {
            Map::Ranges(ranges) => {
                run("newuidmap", pid, uid, &ranges.uids)?;
                run("newgidmap", pid, gid, &ranges.gids)
            }
            Map::Single => {
                // The kernel takes a map of a group from a user only if groups cannot be left by it.
                put("setgroups", "deny")?;
                put("uid_map", &format!("0 {uid} 1\n"))?;
                put("gid_map", &format!("0 {gid} 1\n"))
            }
            Map::Same { uids, gids } => {
                put("uid_map", uids)?;
                put("gid_map", gids)
            }
        }
    }
}

/// Returns one more than the last id that is mapped.
fn total(ranges: &[Range]) -> u32 {
    ranges.iter().fold(1, |sum: u32, range| sum.saturating_add(range.count))
}

/// Returns the map that gives a namespace below the same ids. A line may not span two of those above.
fn same(map: &str) -> String {
    let of_line = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [first, _, count] = words[..] else { return None };
        Some([first, first, count].join(" "))
    };
    map.lines().filter_map(of_line).fold(String::new(), |mut text, line| {
        writeln!(text, "{line}").expect("a string takes all");
        text
    })
}

/// Has a program of the system map the user's own id to 0, and those of the ranges to what follows.
fn run(name: &'static str, pid: u32, own: u32, ranges: &[Range]) -> Result<(), PrivilegeError> {
    let uid = geteuid().as_raw();
    let found = find(name).ok_or(PrivilegeError::NoProgram { uid, name })?;
    let mut words = vec![pid, 0, own, 1];
    let mut next = 1;
    for range in ranges {
        words.extend([next, range.first, range.count]);
        next += range.count;
    }
    let words: Vec<OsString> = words.iter().map(|word| word.to_string().into()).collect();
    let mut program = Program::new(&found, Path::new("/"));
    program.argv = [OsStr::new(name)].into_iter().chain(words.iter().map(AsRef::as_ref)).collect();
    program.timeout = Some(TIMEOUT);
    let finished = program.run()?;
    if finished.end == End::Exited(0) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
    Err(PrivilegeError::Refused { uid, name, said })
}

/// Returns where such a program is; none if it is not installed.
pub fn find(name: &str) -> Option<PathBuf> {
    DIRECTORIES.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_below_has_the_same_ids_line_by_line() {
        let map = "         0       2001          1\n         1     100000      65536\n";
        assert_eq!(same(map), "0 0 1\n1 1 65536\n");
        let map = Map::Same { uids: same(map), gids: same(map) };
        assert_eq!(map.privilege(), Privilege::Mapped(Ids { uids: 65537, gids: 65537 }));
    }

    #[test]
    fn ranges_follow_the_users_own_id() {
        let range = |first, count| Range { first, count };
        let ranges = Ranges { uids: vec![range(7, 10), range(100, 5)], gids: vec![range(7, 3)] };
        let privilege = Map::Ranges(ranges).privilege();
        assert_eq!(privilege, Privilege::Mapped(Ids { uids: 16, gids: 4 }));
        assert_eq!(Map::Single.privilege(), Privilege::Single);
    }
}
