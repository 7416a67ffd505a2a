//! Versions of runtimes, and the advisories about them.

use semver::{Comparator, Op, Prerelease, Version, VersionReq};

/// Reads the version that a text begins with, as programs and kernels print it; a number that is not there
/// is 0.
///
/// What distributions add does not count: `1.1.5+ds1` is `1.1.5`, `6.1.0-13-amd64` is `6.1.0`. Candidates
/// do: `1.4.0-rc2`, `1.4.0~rc2` and `1.4.0-rc.2` are the same.
pub(super) fn parse(text: &str) -> Option<Version> {
    let text = text.trim_start_matches('v');
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut numbers = text[..end].split('.').map(str::parse);
    let major = numbers.next()?.ok()?;
    let mut next = || numbers.next().and_then(Result::ok).unwrap_or(0);
    let mut version = Version::new(major, next(), next());
    if let Some(rest) = text[end..].trim_start_matches(['-', '~']).strip_prefix("rc") {
        let digits = rest.trim_start_matches('.');
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let number: u64 = digits[..end].parse().unwrap_or(0);
        version.pre = Prerelease::new(&format!("rc.{number}")).ok()?;
    }
    Some(version)
}

/// A CVE by which containers get out, or worse.
pub(super) struct Advisory {
    /// `runc`, `crun` or `youki`.
    pub(super) runtime: &'static str,
    pub(super) cve: &'static str,
    /// The versions that have the fix, a requirement for each series that got one, in order.
    patched: &'static [&'static str],
}

/// The advisories that matter to containers of strangers, the newest first.
pub(super) const ADVISORIES: [Advisory; 9] = [
    Advisory { runtime: "runc", cve: "CVE-2026-41579", patched: &[">=1.3.6, <1.4.0", ">=1.4.3"] },
    Advisory { runtime: "runc", cve: "CVE-2025-31133", patched: &RUNC_2025 },
    Advisory { runtime: "runc", cve: "CVE-2025-52565", patched: &RUNC_2025 },
    Advisory { runtime: "runc", cve: "CVE-2025-52881", patched: &RUNC_2025 },
    Advisory {
        runtime: "runc",
        cve: "CVE-2024-45310",
        patched: &[">=1.1.14, <1.2.0", ">=1.2.0-rc.3"],
    },
    Advisory { runtime: "runc", cve: "CVE-2024-21626", patched: &[">=1.1.12"] },
    Advisory { runtime: "crun", cve: "CVE-2025-24965", patched: &[">=1.20.0"] },
    Advisory { runtime: "youki", cve: "CVE-2025-62161", patched: &[">=0.5.7"] },
    Advisory { runtime: "youki", cve: "CVE-2025-62596", patched: &[">=0.5.7"] },
];

const RUNC_2025: [&str; 3] = [">=1.2.8, <1.3.0", ">=1.3.3, <1.4.0", ">=1.4.0-rc.3"];

impl Advisory {
    /// Returns whether a version is affected: none of the requirements of patched ones is met.
    pub(super) fn affects(&self, version: &Version) -> bool {
        !self.patched().any(|patched| is_met(&patched, version))
    }

    /// Returns the version to update to: the nearest later one with the fix.
    pub(super) fn fixed_in(&self, version: &Version) -> Option<Version> {
        let fixed = self.patched().filter_map(|patched| patched.comparators.iter().find_map(least));
        fixed.filter(|fixed| fixed > version).min()
    }

    fn patched(&self) -> impl Iterator<Item = VersionReq> {
        self.patched.iter().map(|text| text.parse().expect("a test parses each of them"))
    }
}

/// Returns the version of `>=`.
fn least(comparator: &Comparator) -> Option<Version> {
    let Comparator { op: Op::GreaterEq, major, minor: Some(minor), patch: Some(patch), pre } =
        comparator
    else {
        return None;
    };
    Some(Version { pre: pre.clone(), ..Version::new(*major, *minor, *patch) })
}

/// Returns whether a version meets a requirement. Cargo's rules leave out the candidates of versions that the
/// requirement does not name; those compare as their releases do.
fn is_met(requirement: &VersionReq, version: &Version) -> bool {
    let numbers = (version.major, Some(version.minor), Some(version.patch));
    let is_named = requirement.comparators.iter().any(|c| (c.major, c.minor, c.patch) == numbers);
    if is_named {
        return requirement.matches(version);
    }
    requirement.matches(&Version::new(version.major, version.minor, version.patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cves(runtime: &str, version: &str) -> Vec<&'static str> {
        let version = parse(version).unwrap();
        let own = ADVISORIES.iter().filter(|advisory| advisory.runtime == runtime);
        own.filter(|advisory| advisory.affects(&version)).map(|advisory| advisory.cve).collect()
    }

    #[test]
    fn versions_are_read_as_programs_and_distributions_write_them() {
        for (text, expected) in [
            ("1.1.5+ds1", "1.1.5"),
            ("1.1.5+ds1-1+deb12u1", "1.1.5"),
            ("v1.20", "1.20.0"),
            ("1.4.0~rc2", "1.4.0-rc.2"),
            ("1.4.0-rc2+dev", "1.4.0-rc.2"),
            ("1.4.0-rc.10", "1.4.0-rc.10"),
            ("1.4.0-rc", "1.4.0-rc.0"),
            ("6.1.0-13-amd64", "6.1.0"),
            ("5.15.167.4-microsoft-standard-WSL2", "5.15.167"),
        ] {
            assert_eq!(parse(text).unwrap().to_string(), expected, "{text}");
        }
        for text in ["", "unknown", ".1", "99999999999999999999.1"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn candidates_are_before_their_releases_and_after_all_earlier_ones() {
        for advisory in &ADVISORIES {
            assert!(advisory.patched().all(|patched| !patched.comparators.is_empty()));
        }
        assert!(
            cves("crun", "1.20-rc1") == ["CVE-2025-24965"] && cves("crun", "1.21-rc1").is_empty()
        );
        assert_eq!(cves("runc", "1.4.3-rc1"), ["CVE-2026-41579"]);
        assert_eq!(cves("runc", "1.3.6-rc1"), ["CVE-2026-41579"]);
        assert_eq!(cves("runc", "1.4.4-rc1"), <[&str; 0]>::default());
    }

    #[test]
    fn versions_below_the_fixed_ones_are_named() {
        let of_2025 = ["CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"];
        assert_eq!(cves("runc", "1.4.3"), <[&str; 0]>::default());
        assert_eq!(cves("runc", "1.3.6"), <[&str; 0]>::default());
        assert_eq!(cves("runc", "1.5.0"), <[&str; 0]>::default());
        assert_eq!(cves("runc", "1.3.3"), ["CVE-2026-41579"]);
        assert_eq!(cves("runc", "1.2.8"), ["CVE-2026-41579"]);
        assert_eq!(cves("runc", "1.4.0-rc.3"), ["CVE-2026-41579"]);
        for version in ["1.2.7", "1.3.2", "1.4.0-rc.2", "1.4.0-rc2"] {
            assert_eq!(cves("runc", version)[1..], of_2025, "{version}");
        }
        assert_eq!(cves("runc", "1.1.5+ds1").len(), 6);
        assert_eq!(cves("runc", "1.1.12").len(), 5);
        assert_eq!(cves("crun", "1.8.1"), ["CVE-2025-24965"]);
        assert_eq!(cves("crun", "1.20"), <[&str; 0]>::default());
        assert_eq!(cves("youki", "0.5.6").len(), 2);
        assert_eq!(cves("youki", "0.6.0"), <[&str; 0]>::default());
    }

    #[test]
    fn the_version_to_update_to_is_the_nearest() {
        let closed = |at: usize, version| {
            ADVISORIES[at].fixed_in(&parse(version).unwrap()).unwrap().to_string()
        };
        assert_eq!(closed(0, "1.3.3"), "1.3.6");
        assert_eq!(closed(1, "1.1.5"), "1.2.8");
        assert_eq!(closed(1, "1.4.0-rc.1"), "1.4.0-rc.3");
        assert_eq!(closed(1, "1.4.0~rc2"), "1.4.0-rc.3");
    }
}
