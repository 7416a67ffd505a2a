//! The id maps of a user namespace, and writing them directly or with newuidmap and newgidmap.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::process::{ChildProgram, ProgramEnd};
use rustix::process::{getegid, geteuid};

use super::Privilege;
use super::error::PrivilegeError;
use super::ranges::{MappedIds, SubordinateIds, SubordinateRange};

/// Directories of newuidmap and newgidmap.
const DIRECTORIES: [&str; 4] = ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"];

const TIMEOUT: Duration = Duration::from_secs(20);

/// The id maps of a new user namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdMaps {
    /// Id 0 is the calling user, and ids from 1 on are its subordinate ids; written by newuidmap and newgidmap.
    Ranges(SubordinateIds),
    /// Id 0 is the calling user, and no other id is mapped.
    Single,
    /// The ids of the calling process's user namespace, unchanged; the process is root there. The
    /// fields are the lines of both maps.
    Same { uids: String, gids: String },
}

impl IdMaps {
    /// Returns the maps that the calling process can write.
    pub fn of_process() -> Result<Self, PrivilegeError> {
        if geteuid().is_root() {
            let read = |name| {
                let path = Path::new("/proc/self").join(name);
                fs::read_to_string(&path).with_path("read", &path)
            };
            let (uids, gids) =
                (to_identity_map(&read("uid_map")?), to_identity_map(&read("gid_map")?));
            return Ok(IdMaps::Same { uids, gids });
        }
        let ranges = SubordinateIds::of_user(geteuid().as_raw())?;
        Ok(if ranges.is_empty() { IdMaps::Single } else { IdMaps::Ranges(ranges) })
    }

    /// Returns the privilege of root of a user namespace with these maps.
    pub fn privilege(&self) -> Privilege {
        let ids = match self {
            IdMaps::Single => MappedIds::SINGLE,
            IdMaps::Ranges(SubordinateIds { uids, gids }) => {
                MappedIds { uids: total(uids), gids: total(gids) }
            }
            IdMaps::Same { uids, gids } => {
                MappedIds::of_maps(uids, gids).unwrap_or(MappedIds::SINGLE)
            }
        };
        if ids == MappedIds::SINGLE { Privilege::Single } else { Privilege::Mapped(ids) }
    }

    /// Writes the maps of the new user namespace of a process.
    pub(super) fn write(&self, pid: u32) -> Result<(), PrivilegeError> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        let put = |name: &str, text: &str| {
            let path = PathBuf::from(format!("/proc/{pid}/{name}"));
            fs::write(&path, text).map_err(|source| PrivilegeError::Map { path, source })
        };
        match self {
            IdMaps::Ranges(ranges) => {
                run("newuidmap", pid, uid, &ranges.uids)?;
                run("newgidmap", pid, gid, &ranges.gids)
            }
            IdMaps::Single => {
                // The kernel accepts a group map without root only if setgroups(2), which could drop groups, is denied.
                put("setgroups", "deny")?;
                put("uid_map", &format!("0 {uid} 1\n"))?;
                put("gid_map", &format!("0 {gid} 1\n"))
            }
            IdMaps::Same { uids, gids } => {
                put("uid_map", uids)?;
                put("gid_map", gids)
            }
        }
    }
}

/// Returns the number of mapped ids: the user's own id and the ranges.
fn total(ranges: &[SubordinateRange]) -> u32 {
    ranges.iter().fold(1, |sum: u32, range| sum.saturating_add(range.count))
}

/// Returns the map that gives a child namespace the same ids. No line may span two lines of the parent's map.
fn to_identity_map(map: &str) -> String {
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

/// Runs newuidmap or newgidmap to map 0 to the user's own id, and the following ids to the ranges.
fn run(
    name: &'static str,
    pid: u32,
    own: u32,
    ranges: &[SubordinateRange],
) -> Result<(), PrivilegeError> {
    let uid = geteuid().as_raw();
    let found = find_id_map_program(name).ok_or(PrivilegeError::NoProgram { uid, name })?;
    let mut words = vec![pid, 0, own, 1];
    let mut next = 1;
    for range in ranges {
        words.extend([next, range.first, range.count]);
        next += range.count;
    }
    let words: Vec<OsString> = words.iter().map(|word| word.to_string().into()).collect();
    let mut program = ChildProgram::new(&found, Path::new("/"));
    program.argv = [OsStr::new(name)].into_iter().chain(words.iter().map(AsRef::as_ref)).collect();
    program.timeout = Some(TIMEOUT);
    let finished = program.run()?;
    if finished.end == ProgramEnd::Exited(0) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&finished.stderr).trim().to_owned();
    let said = if said.is_empty() { finished.end.to_string() } else { said };
    Err(PrivilegeError::Refused { uid, name, said })
}

/// Returns the path of newuidmap or newgidmap; `None` if it is not installed.
pub fn find_id_map_program(name: &str) -> Option<PathBuf> {
    DIRECTORIES.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_namespace_maps_the_same_ids() {
        let map = "         0       2001          1\n         1     100000      65536\n";
        assert_eq!(to_identity_map(map), "0 0 1\n1 1 65536\n");
        let map = IdMaps::Same { uids: to_identity_map(map), gids: to_identity_map(map) };
        assert_eq!(map.privilege(), Privilege::Mapped(MappedIds { uids: 65537, gids: 65537 }));
    }

    #[test]
    fn ranges_follow_the_users_own_id() {
        let range = |first, count| SubordinateRange { first, count };
        let ranges =
            SubordinateIds { uids: vec![range(7, 10), range(100, 5)], gids: vec![range(7, 3)] };
        let privilege = IdMaps::Ranges(ranges).privilege();
        assert_eq!(privilege, Privilege::Mapped(MappedIds { uids: 16, gids: 4 }));
        assert_eq!(IdMaps::Single.privilege(), Privilege::Single);
    }
}
