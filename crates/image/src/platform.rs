//! Platforms of images and hosts: operating system, CPU architecture and variant.

use std::fmt;
use std::str::FromStr;

use oci_spec::image::{Arch, Os, Platform as SpecPlatform};
use serde::{Deserialize, Serialize};

/// OS, CPU architecture and variant by Go's names: `linux/arm64/v8`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// Always `linux` for images that can run here.
    #[serde(default = "any_os")]
    pub os: Os,
    /// `GOARCH` name: `amd64`, `arm64`.
    #[serde(default = "any_architecture")]
    pub architecture: Arch,
    /// CPU variant: `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

/// Returns the OS of old image configurations that name none; it matches every OS.
fn any_os() -> Os {
    Os::Other(String::new())
}

/// Returns the architecture of old image configurations that name none; it matches every one.
fn any_architecture() -> Arch {
    Arch::Other(String::new())
}

/// Error of parsing a platform.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid platform {text:?}: expected OS/ARCHITECTURE[/VARIANT], for example linux/arm64")]
pub struct PlatformError {
    pub text: String,
}

impl Platform {
    /// Returns the platform that this program was built for.
    pub fn host() -> Self {
        Platform { os: Os::default(), architecture: Arch::default(), variant: None }
    }

    /// Returns how well images for another platform run on this one, or `None` if they do not.
    ///
    /// CPUs of a higher variant run code for lower ones, so the highest variant that runs is the
    /// best. An empty OS or architecture matches all.
    pub(crate) fn suitability(&self, other: &Platform) -> Option<u32> {
        let fits_os = other.os == any_os() || self.os == other.os;
        let fits_architecture =
            other.architecture == any_architecture() || self.architecture == other.architecture;
        if !fits_os || !fits_architecture {
            return None;
        }
        let (limit, level) = (self.level(), other.level());
        match (limit, level) {
            (Some(limit), Some(level)) => (level <= limit).then_some(level + 1),
            _ => (self.variant == other.variant).then_some(1),
        }
    }

    /// Returns the variant as a number, by default that of the architecture's usual variant.
    fn level(&self) -> Option<u32> {
        let usual = match self.architecture {
            Arch::ARM64 => "v8",
            Arch::ARM => "v7",
            Arch::Amd64 => "v1",
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
            os: parts[0].to_lowercase().as_str().into(),
            architecture: go_architecture(&parts[1].to_lowercase()).into(),
            variant: parts.get(2).map(|variant| variant.to_lowercase()),
        })
    }
}

impl From<&SpecPlatform> for Platform {
    fn from(platform: &SpecPlatform) -> Self {
        Platform {
            os: platform.os().clone(),
            architecture: platform.architecture().clone(),
            variant: platform.variant().clone(),
        }
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

/// Returns Go's name for a CPU architecture that has several names.
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
        assert_eq!(Platform::host().os, Os::Linux);
    }

    #[test]
    fn unnamed_platform_matches_all() {
        let old: Platform = serde_json::from_str("{}").unwrap();
        assert!(platform("linux/riscv64").suitability(&old).is_some());
        assert_eq!(serde_json::to_string(&old).unwrap(), r#"{"os":"","architecture":""}"#);
        let unknown = r#"{"os":"linux","architecture":"z80"}"#;
        let read: Platform = serde_json::from_str(unknown).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), unknown);
        assert!(Platform::host().suitability(&read).is_none());
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
