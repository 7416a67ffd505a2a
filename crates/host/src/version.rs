//! Parses the versions that programs and kernels print, for the `doctor` commands and for
//! features of newer kernels.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use semver::{Prerelease, Version};

use oci_hooks_files::process::{ChildProgram, OutputLimit, ProgramEnd};

/// Time limit for `--version`.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The version of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramVersion {
    /// Version as printed by the program.
    pub text: String,
    pub number: Version,
}

impl ProgramVersion {
    /// Runs a program with `--version`, and parses its output.
    pub fn of(program: &Path) -> Option<Self> {
        let mut call = ChildProgram::new(program, Path::new("/"));
        call.argv = vec![program.as_os_str(), OsStr::new("--version")];
        call.timeout = Some(TIMEOUT);
        call.stdout = OutputLimit::Truncate(4096);
        let finished = call.run().ok().filter(|finished| finished.end == ProgramEnd::Exited(0))?;
        ProgramVersion::find_in_output(&String::from_utf8_lossy(&finished.stdout))
    }

    fn find_in_output(output: &str) -> Option<Self> {
        let mut words = output.split_whitespace().skip_while(|word| !word.starts_with("version"));
        let text = words.nth(1)?.to_owned();
        Some(ProgramVersion { number: parse(&text)?, text })
    }
}

/// Parses the version at the start of a text, as programs and kernels print it; missing numbers are 0.
///
/// Suffixes of distributions are ignored: `1.1.5+ds1` is `1.1.5`, `6.1.0-13-amd64` is `6.1.0`. Release candidates
/// are kept: `1.4.0-rc2`, `1.4.0~rc2` and `1.4.0-rc.2` are the same.
pub fn parse(text: &str) -> Option<Version> {
    // gVisor's releases are named `release-20260101.0`.
    let text = text.trim_start_matches("release-").trim_start_matches('v');
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

/// First version of Linux with idmapped layers in overlayfs.
pub const IDMAPPED_LAYERS: Version = Version::new(5, 19, 0);

/// Returns whether overlayfs of this kernel supports idmapped layers.
pub fn supports_idmapped_layers() -> bool {
    let uname = rustix::system::uname();
    let version = parse(&uname.release().to_string_lossy());
    version.is_some_and(|version| version >= IDMAPPED_LAYERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_found_on_its_own_line() {
        for (output, expected) in [
            ("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1\nspec: 1.0.2-dev\n", "1.1.5+ds1"),
            ("crun version 1.8.1\ncommit: f8a0\n", "1.8.1"),
            ("youki version: 0.5.7\n", "0.5.7"),
            ("runsc version release-20260101.0\nspec: 1.1.0\n", "release-20260101.0"),
            ("buildah version 1.28.2 (image-spec 1.0.2-dev, runtime-spec 1.0.2-dev)\n", "1.28.2"),
        ] {
            assert_eq!(ProgramVersion::find_in_output(output).unwrap().text, expected);
        }
        assert_eq!(ProgramVersion::find_in_output("usage: program\n"), None);
    }

    #[test]
    fn versions_of_programs_and_distributions_are_parsed() {
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
}
