//! Parsing and formatting of human-readable sizes, ages and CPU counts.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes, as `512MiB` or `20GB`. The unit is required: `8` could be meant as gigabytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSize(pub u64);

/// A duration, as `90s`, `12h`, `7d` or `2w`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age(pub Duration);

/// Binary units, then decimal units, each from the largest to the smallest.
const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

const AGES: [(&str, u64); 5] = [("w", 604_800), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Error of parsing a [`ByteSize`] or an [`Age`].
#[derive(Debug, thiserror::Error)]
#[error("invalid {what} {text:?}: expected {example}")]
pub struct QuantityError {
    text: String,
    what: &'static str,
    example: &'static str,
}

/// Splits a text into a number and a unit, and returns the number times the unit's factor.
pub fn parse_whole(text: &str, factor: impl FnOnce(&str) -> Option<u64>) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    number.parse::<u64>().ok()?.checked_mul(factor(unit)?)
}

/// Returns the factor of a unit; case and surrounding spaces are ignored.
fn find(units: &[(&str, u64)], unit: &str) -> Option<u64> {
    let unit = unit.trim();
    units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, factor)| *factor)
}

impl FromStr for ByteSize {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let example = "a number and its unit, as 20GB or 512MiB";
        let error = || QuantityError { text: text.to_owned(), what: "size", example };
        parse_whole(text, |unit| find(&SIZES, unit)).map(ByteSize).ok_or_else(error)
    }
}

impl FromStr for Age {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let example = "7d, 12h or 30m";
        let error = || QuantityError { text: text.to_owned(), what: "age", example };
        let seconds = parse_whole(text, |unit| find(&AGES, unit)).ok_or_else(error)?;
        Ok(Age(Duration::from_secs(seconds)))
    }
}

/// Writes a quantity in the largest unit that divides it evenly.
fn write(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let whole = units.iter().filter(|(_, factor)| value != 0 && value.is_multiple_of(*factor));
    let (unit, factor) = whole.max_by_key(|(_, factor)| factor).unwrap_or(&units[units.len() - 1]);
    write!(f, "{}{unit}", value / factor)
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0, &SIZES)
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write(f, self.0.as_secs(), &AGES)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Age {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text of a size in a settings file. The enum is untagged for the error message in
/// `expecting`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number and its unit, as \"20GB\" or \"512MiB\"")]
enum SizeValue {
    Text(String),
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SizeValue::Text(text) = SizeValue::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Age {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Formats a size for people, with three significant digits.
pub fn format_size(bytes: u64) -> String {
    let units = SIZES.iter().filter(|(unit, _)| !unit.contains('i'));
    for (unit, factor) in units {
        if bytes >= *factor {
            let decimals = match bytes / factor {
                _ if *factor == 1 => 0,
                0..10 => 2,
                10..100 => 1,
                _ => 0,
            };
            #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
            let value = bytes as f64 / *factor as f64;
            return format!("{value:.decimals$} {unit}");
        }
    }
    "0 B".to_owned()
}

/// Returns a count with its noun in the singular or plural: `1 layer`, `2 layers`.
pub fn format_count(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// A number of CPUs, which may be a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus {
    nanos: u64,
}

/// An invalid CPU count.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("invalid CPU count {0}: expected 0.01–65536, for example 2 or 0.5")]
pub struct CpusError(f64);

impl Cpus {
    /// Returns this number of CPUs if it is from 0.01 to 65536.
    pub fn new(count: f64) -> Result<Self, CpusError> {
        // The kernel's minimum quota is 1 ms per period of 100 ms.
        if !(0.01..=65_536.0).contains(&count) {
            return Err(CpusError(count));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is in range"
        )]
        Ok(Cpus { nanos: (count * 1e9).round() as u64 })
    }

    /// Returns the number of CPUs in billionths.
    pub fn nanos(self) -> u64 {
        self.nanos
    }

    /// Returns the number of CPUs.
    pub fn count(self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "it was made of such a number")]
        let nanos = self.nanos as f64;
        nanos / 1e9
    }
}

impl Serialize for Cpus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.count())
    }
}

impl<'de> Deserialize<'de> for Cpus {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cpus::new(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_are_parsed_in_human_notation() {
        for (text, bytes) in
            [("20GB", 20_000_000_000), ("512MiB", 512 << 20), ("4096B", 4096), ("1 kb", 1000)]
        {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
        for (text, seconds) in [("7d", 604_800), ("12h", 43_200), ("90s", 90), ("0d", 0)] {
            assert_eq!(text.parse::<Age>().unwrap().0.as_secs(), seconds, "{text}");
        }
        for text in ["", "GB", "-1", "4096", "1.5GB", "20XB", "99999999999TB"] {
            text.parse::<ByteSize>().unwrap_err();
        }
        let error = "7".parse::<Age>().unwrap_err().to_string();
        assert_eq!(error, "invalid age \"7\": expected 7d, 12h or 30m");
    }

    #[test]
    fn formatted_size_parses_to_the_same_value() {
        for text in ["20GB", "512MiB", "1025B", "16MiB", "0B"] {
            assert_eq!(text.parse::<ByteSize>().unwrap().to_string(), text);
        }
        for text in ["1w", "30d", "90s", "0s"] {
            assert_eq!(text.parse::<Age>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn noun_of_one_is_singular() {
        let shown = [0, 1, 2].map(|count| format_count(count, "layer"));
        assert_eq!(shown, ["0 layers", "1 layer", "2 layers"]);
    }

    #[test]
    fn sizes_are_shown_with_three_digits() {
        let shown = [0, 999, 1000, 12_345_678, 149_000_000, 2_500_000_000].map(format_size);
        assert_eq!(shown, ["0 B", "999 B", "1.00 kB", "12.3 MB", "149 MB", "2.50 GB"]);
    }
}
