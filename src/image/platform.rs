//! Platforms, and the choice of an image for one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What an image runs on, in Go's words: `linux/arm64/v8`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Platform {
    /// The operating system; always `linux` for what can run here.
    #[serde(default)]
    pub os: String,
    /// The processor, as `GOARCH`: `amd64`, `arm64`.
    #[serde(default)]
    pub architecture: String,
    /// The version of the processor: `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// A text that is not a platform.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a platform: OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT, as linux/arm64")]
pub struct PlatformError {
    /// The text.
    pub text: String,
}

impl Platform {
    /// Returns the platform that this program was built for.
    pub fn host() -> Self {
        Platform {
            os: "linux".to_owned(),
            architecture: go_architecture(std::env::consts::ARCH).to_owned(),
            variant: None,
        }
    }

    /// Returns how well something for another platform runs on this one; none if it does not.
    ///
    /// Processors of a higher variant run what was made for a lower one, so the highest that
    /// runs is the best. An empty operating system or architecture fits all.
    pub(crate) fn suitability(&self, other: &Platform) -> Option<u32> {
        let fits = |wanted: &str, found: &str| found.is_empty() || wanted == found;
        if !fits(&self.os, &other.os) || !fits(&self.architecture, &other.architecture) {
            return None;
        }
        let (limit, level) = (self.level(), other.level());
        match (limit, level) {
            (Some(limit), Some(level)) => (level <= limit).then_some(level + 1),
            _ => (self.variant == other.variant).then_some(1),
        }
    }

    /// Returns the variant as a number; what is left out means the usual one.
    fn level(&self) -> Option<u32> {
        let usual = match self.architecture.as_str() {
            "arm64" => "v8",
            "arm" => "v7",
            "amd64" => "v1",
            _ => "v0",
        };
        let variant = self.variant.as_deref().filter(|variant| !variant.is_empty());
        let variant = variant.unwrap_or(usual).strip_prefix('v')?;
        let (major, minor) = variant.split_once('.').unwrap_or((variant, "0"));
        let (major, minor) = (major.parse::<u8>().ok()?, minor.parse::<u8>().ok()?);
        Some(u32::from(major) << 8 | u32::from(minor))
    }
}

impl FromStr for Platform {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let parts: Vec<_> = text.split('/').collect();
        let is_word = |part: &&str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if !(2..=3).contains(&parts.len()) || !parts.iter().all(is_word) {
            return Err(PlatformError { text: text.to_owned() });
        }
        Ok(Platform {
            os: parts[0].to_lowercase(),
            architecture: go_architecture(&parts[1].to_lowercase()).to_owned(),
            variant: parts.get(2).map(|variant| variant.to_lowercase()),
        })
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match self.variant.as_deref() {
            Some(variant) if !variant.is_empty() => write!(f, "/{variant}"),
            _ => Ok(()),
        }
    }
}

/// Returns Go's name of a processor that has others too.
fn go_architecture(name: &str) -> &str {
    match name {
        "x86_64" | "x86-64" => "amd64",
        "aarch64" => "arm64",
        "x86" | "i386" => "386",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "loongarch64" => "loong64",
        name => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(text: &str) -> Platform {
        text.parse().unwrap()
    }

    #[test]
    fn platforms_are_parsed_and_shown() {
        assert_eq!(platform("linux/x86_64").to_string(), "linux/amd64");
        assert_eq!(platform("Linux/ARM64/v8").to_string(), "linux/arm64/v8");
        for bad in ["", "linux", "linux/", "/amd64", "linux/arm/v7/x", "linux/a b", "a/../b"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
        assert_eq!(Platform::host().os, "linux");
    }

    #[test]
    fn higher_variants_run_lower_ones() {
        let fits = |host: &str, image: &str| platform(host).suitability(&platform(image));
        assert!(fits("linux/arm", "linux/arm/v6").is_some());
        assert!(fits("linux/arm/v7", "linux/arm/v7") > fits("linux/arm/v7", "linux/arm/v6"));
        assert!(fits("linux/arm/v6", "linux/arm/v7").is_none());
        assert!(fits("linux/arm64", "linux/arm64/v8").is_some());
        assert!(fits("linux/amd64", "linux/amd64/v3").is_none());
        assert!(fits("linux/amd64/v3", "linux/amd64").is_some());
        assert!(fits("linux/amd64", "linux/arm64").is_none());
        assert!(fits("linux/amd64", "windows/amd64").is_none());
    }
}
