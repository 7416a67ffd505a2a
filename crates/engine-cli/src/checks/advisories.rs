//! Security advisories for runtimes and buildah.

use semver::{Comparator, Op, Version, VersionReq};

use super::HostCheck;

/// A CVE that allows a container escape, or worse.
struct Advisory {
    /// `runc`, `crun`, `youki` or `buildah`.
    program: &'static str,
    cve: &'static str,
    /// Version requirements, one for each release series with a fix, in ascending order: a version
    /// that meets one of them is fixed.
    patched: &'static [&'static str],
}

/// Advisories that matter for untrusted containers, by program, newest first.
const ADVISORIES: [Advisory; 13] = [
    Advisory { program: "runc", cve: "CVE-2026-41579", patched: &[">=1.3.6, <1.4.0", ">=1.4.3"] },
    Advisory { program: "runc", cve: "CVE-2025-31133", patched: &RUNC_2025 },
    Advisory { program: "runc", cve: "CVE-2025-52565", patched: &RUNC_2025 },
    Advisory { program: "runc", cve: "CVE-2025-52881", patched: &RUNC_2025 },
    Advisory {
        program: "runc",
        cve: "CVE-2024-45310",
        patched: &[">=1.1.14, <1.2.0", ">=1.2.0-rc.3"],
    },
    Advisory { program: "runc", cve: "CVE-2024-21626", patched: &[">=1.1.12"] },
    Advisory { program: "crun", cve: "CVE-2026-47766", patched: &[">=1.28.0"] },
    Advisory { program: "crun", cve: "CVE-2026-30892", patched: &[">=1.27.0"] },
    Advisory { program: "crun", cve: "CVE-2025-24965", patched: &[">=1.20.0"] },
    Advisory { program: "youki", cve: "CVE-2025-62161", patched: &[">=0.5.7"] },
    Advisory { program: "youki", cve: "CVE-2025-62596", patched: &[">=0.5.7"] },
    Advisory {
        program: "buildah",
        cve: "CVE-2024-9675",
        patched: &[">=1.26.8, <1.27.0", ">=1.33.10, <1.34.0", ">=1.35.5, <1.36.0", ">=1.38.0"],
    },
    Advisory {
        program: "buildah",
        cve: "CVE-2024-1753",
        patched: &[
            ">=1.24.7, <1.25.0",
            ">=1.26.7, <1.27.0",
            ">=1.29.3, <1.30.0",
            ">=1.33.7, <1.34.0",
            ">=1.35.1",
        ],
    },
];

const RUNC_2025: [&str; 3] = [">=1.2.8, <1.3.0", ">=1.3.3, <1.4.0", ">=1.4.0-rc.3"];

/// Returns the result of a check: a warning if advisories apply to the program's version. `found`
/// describes the program in the report.
pub fn check(
    check: &'static str,
    program: &str,
    version: &Version,
    found: impl Into<String>,
) -> HostCheck {
    let own = ADVISORIES.iter().filter(|advisory| advisory.program == program);
    let open: Vec<_> = own.filter(|advisory| advisory.affects(version)).collect();
    let Some(newest) = open.iter().filter_map(|advisory| advisory.fixed_in(version)).max() else {
        return HostCheck::ok(check, found);
    };
    let cves: Vec<_> = open.iter().map(|advisory| advisory.cve).collect();
    let hint = format!(
        "{program} {newest} or later fixes {}; your distribution may have patched this version: \
         see its security tracker",
        cves.join(", ")
    );
    HostCheck::warn(check, found, hint)
}

impl Advisory {
    /// Returns whether a version is affected, because it meets no requirement in `patched`.
    fn affects(&self, version: &Version) -> bool {
        !self.patched_versions().any(|patched| is_met(&patched, version))
    }

    /// Returns the lowest later version with the fix.
    fn fixed_in(&self, version: &Version) -> Option<Version> {
        let fixed = self
            .patched_versions()
            .filter_map(|patched| patched.comparators.iter().find_map(lowest_version));
        fixed.filter(|fixed| fixed > version).min()
    }

    fn patched_versions(&self) -> impl Iterator<Item = VersionReq> {
        self.patched.iter().map(|text| text.parse().expect("a test parses each of them"))
    }
}

/// Returns the version of a `>=` comparator; `None` for other operators or an incomplete version.
fn lowest_version(comparator: &Comparator) -> Option<Version> {
    let Comparator { op: Op::GreaterEq, major, minor: Some(minor), patch: Some(patch), pre } =
        comparator
    else {
        return None;
    };
    Some(Version { pre: pre.clone(), ..Version::new(*major, *minor, *patch) })
}

/// Returns whether a version meets a requirement. [`VersionReq::matches`] rejects a pre-release
/// unless the requirement names its version number; here, it is then compared like the release.
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
    use oci_hooks_host::version::parse;

    use super::*;

    fn cves(program: &str, version: &str) -> Vec<&'static str> {
        let version = parse(version).unwrap();
        let own = ADVISORIES.iter().filter(|advisory| advisory.program == program);
        own.filter(|advisory| advisory.affects(&version)).map(|advisory| advisory.cve).collect()
    }

    #[test]
    fn release_candidates_are_ordered_before_their_release() {
        for advisory in &ADVISORIES {
            assert!(advisory.patched_versions().all(|patched| !patched.comparators.is_empty()));
        }
        assert_eq!(cves("crun", "1.28-rc1"), ["CVE-2026-47766"]);
        assert_eq!(cves("crun", "1.29-rc1"), <[&str; 0]>::default());
        assert_eq!(cves("runc", "1.4.3-rc1"), ["CVE-2026-41579"]);
        assert_eq!(cves("runc", "1.3.6-rc1"), ["CVE-2026-41579"]);
        assert_eq!(cves("runc", "1.4.4-rc1"), <[&str; 0]>::default());
    }

    #[test]
    fn versions_below_the_fixed_ones_are_reported() {
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
        let of_crun = ["CVE-2026-47766", "CVE-2026-30892", "CVE-2025-24965"];
        assert_eq!(cves("crun", "1.8.1"), of_crun);
        assert_eq!(cves("crun", "1.20"), of_crun[..2]);
        assert_eq!(cves("crun", "1.27"), of_crun[..1]);
        assert_eq!(cves("crun", "1.28"), <[&str; 0]>::default());
        assert_eq!(cves("youki", "0.5.6").len(), 2);
        assert_eq!(cves("youki", "0.6.0"), <[&str; 0]>::default());
        let of_buildah = ["CVE-2024-9675", "CVE-2024-1753"];
        assert_eq!(cves("buildah", "1.28.2"), of_buildah);
        assert_eq!(cves("buildah", "1.29.3"), of_buildah[..1]);
        assert_eq!(cves("buildah", "1.37.0"), of_buildah[..1]);
        for version in ["1.26.8", "1.33.10", "1.35.5", "1.38.0", "1.43.1"] {
            assert_eq!(cves("buildah", version), <[&str; 0]>::default(), "{version}");
        }
    }

    #[test]
    fn nearest_fixed_version_is_suggested() {
        let closed = |at: usize, version| {
            ADVISORIES[at].fixed_in(&parse(version).unwrap()).unwrap().to_string()
        };
        assert_eq!(closed(0, "1.3.3"), "1.3.6");
        assert_eq!(closed(1, "1.1.5"), "1.2.8");
        assert_eq!(closed(1, "1.4.0-rc.1"), "1.4.0-rc.3");
        assert_eq!(closed(1, "1.4.0~rc2"), "1.4.0-rc.3");
    }
}
