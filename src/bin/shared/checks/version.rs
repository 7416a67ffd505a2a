//! Versions of runtimes, and those in which holes were closed.

use std::fmt;

/// `MAJOR.MINOR.PATCH`, and the number of the release candidate if it is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    numbers: [u32; 3],
    /// A candidate comes before its release.
    candidate: u32,
}

/// A release that is no candidate.
const RELEASE: u32 = u32::MAX;

impl Version {
    pub(crate) const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Version { numbers: [major, minor, patch], candidate: RELEASE }
    }

    const fn candidate(self, candidate: u32) -> Self {
        Version { candidate, ..self }
    }

    /// Reads the version that a text begins with; a number that is not there is 0.
    ///
    /// What distributions add does not count: `1.1.5+ds1` is `1.1.5`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim_start_matches('v');
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut parts = text[..end].split('.').map(str::parse);
        let mut numbers = [0; 3];
        numbers[0] = parts.next()?.ok()?;
        for number in &mut numbers[1..] {
            *number = parts.next().and_then(Result::ok).unwrap_or(0);
        }
        let candidate = text[end..].trim_start_matches(['-', '~']).strip_prefix("rc");
        let candidate = candidate.map(|rest| {
            let digits = rest.trim_start_matches('.');
            let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
            digits[..end].parse().unwrap_or(0)
        });
        Some(Version { numbers, candidate: candidate.unwrap_or(RELEASE) })
    }

    /// Tells if both are of the same series, as 1.2.3 and 1.2.8.
    fn is_in_series_of(self, other: Version) -> bool {
        self.numbers[..2] == other.numbers[..2]
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        if self.candidate == RELEASE { Ok(()) } else { write!(f, "-rc.{}", self.candidate) }
    }
}

/// A hole by which containers get out, or worse.
pub(super) struct Hole {
    /// `runc`, `crun` or `youki`.
    pub(super) runtime: &'static str,
    pub(super) cve: &'static str,
    /// The versions it was closed in, one of each series that is still made, in order.
    fixed: &'static [Version],
}

/// The holes that matter to containers of strangers, the newest first.
pub(super) const HOLES: [Hole; 9] = [
    Hole {
        runtime: "runc",
        cve: "CVE-2026-41579",
        fixed: &[Version::new(1, 3, 6), Version::new(1, 4, 3)],
    },
    Hole { runtime: "runc", cve: "CVE-2025-31133", fixed: &RUNC_2025 },
    Hole { runtime: "runc", cve: "CVE-2025-52565", fixed: &RUNC_2025 },
    Hole { runtime: "runc", cve: "CVE-2025-52881", fixed: &RUNC_2025 },
    Hole {
        runtime: "runc",
        cve: "CVE-2024-45310",
        fixed: &[Version::new(1, 1, 14), Version::new(1, 2, 0).candidate(3)],
    },
    Hole { runtime: "runc", cve: "CVE-2024-21626", fixed: &[Version::new(1, 1, 12)] },
    Hole { runtime: "crun", cve: "CVE-2025-24965", fixed: &[Version::new(1, 20, 0)] },
    Hole { runtime: "youki", cve: "CVE-2025-62161", fixed: &[Version::new(0, 5, 7)] },
    Hole { runtime: "youki", cve: "CVE-2025-62596", fixed: &[Version::new(0, 5, 7)] },
];

const RUNC_2025: [Version; 3] =
    [Version::new(1, 2, 8), Version::new(1, 3, 3), Version::new(1, 4, 0).candidate(3)];

impl Hole {
    /// Tells if a version has the hole: it is older than the one that closed it in its series or,
    /// if the series got none, than the first that closed it in a later one.
    pub(super) fn is_in(&self, version: Version) -> bool {
        let in_series = self.fixed.iter().find(|fixed| version.is_in_series_of(**fixed));
        in_series
            .or(self.fixed.iter().find(|fixed| **fixed > version))
            .is_some_and(|f| version < *f)
    }

    /// Returns the version to update to.
    pub(super) fn closed_in(&self, version: Version) -> Version {
        let later = self.fixed.iter().find(|fixed| **fixed > version);
        *later.unwrap_or(&self.fixed[self.fixed.len() - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(runtime: &str, version: &str) -> Vec<&'static str> {
        let version = Version::parse(version).unwrap();
        let found = HOLES.iter().filter(|hole| hole.runtime == runtime && hole.is_in(version));
        found.map(|hole| hole.cve).collect()
    }

    #[test]
    fn row_03_versions_below_the_fixed_ones_are_named() {
        let of_2025 = ["CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"];
        assert_eq!(holes("runc", "1.4.3"), <[&str; 0]>::default());
        assert_eq!(holes("runc", "1.3.6"), <[&str; 0]>::default());
        assert_eq!(holes("runc", "1.5.0"), <[&str; 0]>::default());
        assert_eq!(holes("runc", "1.3.3"), ["CVE-2026-41579"]);
        assert_eq!(holes("runc", "1.2.8"), ["CVE-2026-41579"]);
        assert_eq!(holes("runc", "1.4.0-rc.3"), ["CVE-2026-41579"]);
        for version in ["1.2.7", "1.3.2", "1.4.0-rc.2", "1.4.0-rc2"] {
            assert_eq!(holes("runc", version)[1..], of_2025, "{version}");
        }
        assert_eq!(holes("runc", "1.1.5+ds1").len(), 6);
        assert_eq!(holes("runc", "1.1.12").len(), 5);
        assert_eq!(holes("crun", "1.8.1"), ["CVE-2025-24965"]);
        assert_eq!(holes("crun", "1.20"), <[&str; 0]>::default());
        assert_eq!(holes("youki", "0.5.6").len(), 2);
        assert_eq!(holes("youki", "0.6.0"), <[&str; 0]>::default());
    }

    #[test]
    fn the_version_to_update_to_is_the_nearest() {
        let closed =
            |at: usize, version| HOLES[at].closed_in(Version::parse(version).unwrap()).to_string();
        assert_eq!(closed(0, "1.3.3"), "1.3.6");
        assert_eq!(closed(1, "1.1.5"), "1.2.8");
        assert_eq!(closed(1, "1.4.0-rc.1"), "1.4.0-rc.3");
    }
}
