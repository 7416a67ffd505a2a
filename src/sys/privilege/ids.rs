//! The ids of a user namespace.

use std::fs;
use std::io;
use std::path::Path;

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
