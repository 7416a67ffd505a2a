//! Versions of uplink programs, from their output.

use std::fmt;

use oci_hooks_host::version::parse;

/// A version of three numbers, compared in order. The version of pasta is a date.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UplinkVersion {
    numbers: [u64; 3],
}

/// The oldest pasta that is known to deliver complete answers on half-closed connections. Version 2023-03-09
/// (Debian 12) delivers none; version 2025-05-03 (Debian 13) loses the end of an answer of 100 MB.
pub const FIRST_WITHOUT_LOSS: UplinkVersion = UplinkVersion { numbers: [2026, 10, 2] };

impl fmt::Display for UplinkVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second, third] = self.numbers;
        // Only a date has a first number this high.
        if first >= 2000 {
            write!(f, "{first}-{second:02}-{third:02}")
        } else {
            write!(f, "{first}.{second}.{third}")
        }
    }
}

impl UplinkVersion {
    /// Parses the output of pasta, whose version is a date: `2025_05_03.587980c` upstream, and
    /// `0.0~git20250503.587980c-2` or `0^20250217.ga1e48a0-2.fc41` in distributions. Debian 12's pasta does not know
    /// its version.
    pub(super) fn of_pasta(output: &str) -> Option<Self> {
        let line = output.lines().next()?;
        let words = line.split(|c: char| !c.is_ascii_digit() && c != '_');
        words.map(|word| word.replace('_', "")).find_map(|digits| UplinkVersion::of_date(&digits))
    }

    /// Finds the version in pasta's executable: pasta of 2025 loses its output unless it is a terminal. The
    /// executable contains the version as text if a commit id follows the date.
    pub(super) fn in_pasta(program: &[u8]) -> Option<Self> {
        let texts = program.split(|byte| !byte.is_ascii_graphic());
        let texts = texts.filter_map(|text| std::str::from_utf8(text).ok());
        texts.flat_map(|text| text.match_indices('.').map(move |at| (text, at.0))).find_map(
            |(text, point)| {
                let commit = text[point + 1..].strip_prefix('g').unwrap_or(&text[point + 1..]);
                let digits = commit.bytes().take_while(u8::is_ascii_hexdigit).count();
                let is_number = |c: char| c.is_ascii_digit() || c == '_';
                let date = text[..point].rsplit(|c| !is_number(c)).next()?.replace('_', "");
                UplinkVersion::of_date(&date).filter(|_| digits >= 7)
            },
        )
    }

    /// Parses a date of eight digits.
    fn of_date(digits: &str) -> Option<Self> {
        let number: u64 = digits.parse().ok().filter(|_| digits.len() == 8)?;
        let numbers = [number / 10_000, number / 100 % 100, number % 100];
        let is_date = (2020..2200).contains(&numbers[0])
            && (1..=12).contains(&numbers[1])
            && (1..=31).contains(&numbers[2]);
        is_date.then_some(UplinkVersion { numbers })
    }

    /// Parses the output of slirp4netns: `slirp4netns version 1.2.0`.
    pub(super) fn of_slirp4netns(output: &str) -> Option<Self> {
        let version = output.lines().find_map(|line| line.split_once("version "))?.1;
        let version = parse(version)?;
        Some(UplinkVersion { numbers: [version.major, version.minor, version.patch] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pasta_version_is_a_date() {
        for (output, expected) in [
            ("pasta 0.0~git20250503.587980c-2+deb13u1\nCopyright Red Hat\n", Some("2025-05-03")),
            ("pasta 0^20250217.ga1e48a0-2.fc41.x86_64-pasta\n", Some("2025-02-17")),
            ("pasta 2026_01_20.386b5f5\n", Some("2026-01-20")),
            ("pasta 2025_09_19.623dbf6-58-g2c6590d\n", Some("2025-09-19")),
            ("pasta unknown version\nCopyright 20250503\n", None),
            ("pasta 99999999\n", None),
            ("", None),
        ] {
            let version = UplinkVersion::of_pasta(output).map(|version| version.to_string());
            assert_eq!(version.as_deref(), expected, "{output:?}");
        }
        assert!(UplinkVersion::of_pasta("pasta 20261001").unwrap() < FIRST_WITHOUT_LOSS);
        assert!(UplinkVersion::of_pasta("pasta 20261002").unwrap() >= FIRST_WITHOUT_LOSS);
    }

    #[test]
    fn pasta_version_is_found_in_the_program() {
        for (text, expected) in [
            ("0.0~git20250503.587980c-2+deb13u1", Some("2025-05-03")),
            ("x 0^20250217.ga1e48a0-2.fc41.x86_64-pasta", Some("2025-02-17")),
            ("2026_01_20.386b5f5", Some("2026-01-20")),
            ("unknown version", None),
            ("20250503.58", None),
            ("20259903.587980c", None),
        ] {
            let program = [b"\x7fELF\0\xff", text.as_bytes(), b"\0%s: \xc3"].concat();
            let version = UplinkVersion::in_pasta(&program).map(|version| version.to_string());
            assert_eq!(version.as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn slirp4netns_version_has_three_numbers() {
        let output = "slirp4netns version 1.2.0\ncommit: 656041d\nlibslirp: 4.7.0\n";
        assert_eq!(UplinkVersion::of_slirp4netns(output).unwrap().to_string(), "1.2.0");
        let beta = UplinkVersion::of_slirp4netns("slirp4netns version 1.10-beta.1+dev\n").unwrap();
        assert_eq!(beta.to_string(), "1.10.0");
        assert_eq!(UplinkVersion::of_slirp4netns("slirp4netns version x\n"), None);
        assert_eq!(UplinkVersion::of_slirp4netns(""), None);
    }
}
