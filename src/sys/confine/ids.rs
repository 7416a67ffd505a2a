//! Whose a confined program is on the host.

use crate::sys::privilege::{Ids, Privilege};
use crate::sys::userns::{IdRange, Mapping};

/// Ids of the host that nobody has. systemd's list of who uses which numbers has nobody for these.
const FIRST: u32 = 0x7000_0000;
const COUNT: u32 = 1 << 24;

/// As many ids as containers have at least: what is left beyond belongs to no container.
const OF_CONTAINERS: u32 = 1 << 16;

/// The most ids that are taken away from containers for confined programs, and which part of all ids
/// that is where there are few.
const MAX_TAKEN: u32 = 4096;
const PART: u32 = 16;

/// The user and group that own nothing by convention, which images have files of.
const NOBODY: u32 = 65534;

/// The ids of users and groups that a confined program has, as this process sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfinedIds {
    uids: Run,
    gids: Run,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u32,
    count: u32,
}

impl ConfinedIds {
    /// Returns those that nobody else has, as far as there are such: the host's own reserve as its root;
    /// with ranges of an ordinary user the end of them; without, this user itself.
    pub fn of(privilege: Privilege) -> Self {
        match privilege.ids() {
            None => {
                let run = Run { first: FIRST, count: COUNT };
                ConfinedIds { uids: run, gids: run }
            }
            Some(Ids { uids, gids }) => {
                ConfinedIds { uids: Run::end_of(uids), gids: Run::end_of(gids) }
            }
        }
    }

    /// Returns the user and group that the program takes for root.
    pub fn owner(self) -> (u32, u32) {
        (self.uids.first, self.gids.first)
    }

    /// Returns whether the program is a user of its own, who owns nothing else. If not, only what it does
    /// not see is kept from it.
    pub fn are_its_own(self) -> bool {
        self.uids.first != 0 && self.gids.first != 0
    }

    /// Returns the mapping of the program's user namespace.
    pub(super) fn mapping(self) -> Mapping {
        Mapping { uids: self.uids.ranges(), gids: self.gids.ranges() }
    }
}

impl Run {
    /// Returns the end of the ids from 0 on.
    fn end_of(ids: u32) -> Self {
        let count = match ids.saturating_sub(OF_CONTAINERS + 1) {
            // Nobody in containers has any of these.
            more if more > MAX_TAKEN => more.min(COUNT),
            _ => (ids / PART).clamp(1, MAX_TAKEN),
        };
        Run { first: ids.saturating_sub(count), count }
    }

    /// Returns what the program's ids are on the host, from 0 on. Where there are few, the last of them
    /// stands for nobody, whose number is far beyond.
    fn ranges(self) -> Vec<IdRange> {
        let range = |disk, view, count| IdRange { disk, view, count };
        let Run { first, count } = self;
        if count == 1 || count > NOBODY {
            return vec![range(0, first, count)];
        }
        vec![range(0, first, count - 1), range(NOBODY, first + count - 1, 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uids: u32, gids: u32) -> ConfinedIds {
        ConfinedIds::of(Privilege::Mapped(Ids { uids, gids }))
    }

    fn uids(ids: ConfinedIds) -> Vec<(u32, u32, u32)> {
        let ranges = ids.mapping().uids;
        ranges.iter().map(|range| (range.disk, range.view, range.count)).collect()
    }

    #[test]
    fn root_of_the_host_takes_ids_that_nobody_has() {
        let ids = ConfinedIds::of(Privilege::Root);
        assert_eq!(ids.owner(), (0x7000_0000, 0x7000_0000));
        assert!(ids.are_its_own());
        assert_eq!(uids(ids), [(0, 0x7000_0000, 1 << 24)]);
    }

    #[test]
    fn the_end_of_a_users_ranges_is_not_for_containers() {
        let ids = of(65537, 65537);
        assert_eq!(ids.owner(), (61441, 61441));
        assert_eq!(uids(ids), [(0, 61441, 4095), (65534, 65536, 1)]);
        // More than containers have: all that is beyond.
        assert_eq!(uids(of(131_073, 131_073)), [(0, 65537, 65536)]);
        assert_eq!(uids(of(75_537, 75_537)), [(0, 65537, 9999), (65534, 75_536, 1)]);
        // A short range: users and groups may differ.
        let ids = of(2000, 160);
        assert_eq!((ids.owner(), ids.are_its_own()), ((1875, 150), true));
        assert_eq!(uids(ids), [(0, 1875, 124), (65534, 1999, 1)]);
    }

    #[test]
    fn every_id_is_one_that_there_is() {
        for ids in [1, 2, 15, 16, 17, 4095, 65536, 65537, 69633, 69634, 131_073, 1 << 30, u32::MAX]
        {
            for (_, view, count) in uids(of(ids, ids)) {
                assert!(
                    count > 0 && view.checked_add(count).is_some_and(|end| end <= ids),
                    "{ids}"
                );
            }
        }
    }

    #[test]
    fn without_ranges_the_program_is_its_user() {
        let ids = ConfinedIds::of(Privilege::Single);
        assert_eq!((ids.owner(), ids.are_its_own()), ((0, 0), false));
        assert_eq!(uids(ids), [(0, 0, 1)]);
    }
}
