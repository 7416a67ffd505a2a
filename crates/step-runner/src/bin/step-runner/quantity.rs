//! Sizes and durations on the command line.

use std::time::Duration;

use oci_hooks_files::quantity::parse_whole;

/// Parses a size in bytes such as `4096`, `512K`, `64M` or `4G`.
pub fn size(text: &str) -> Result<u64, String> {
    let factor = |unit: &str| match unit {
        "" => Some(1),
        "K" => Some(1 << 10),
        "M" => Some(1 << 20),
        "G" => Some(1 << 30),
        "T" => Some(1 << 40),
        _ => None,
    };
    parse_whole(text.strip_prefix('+').unwrap_or(text), factor)
        .ok_or_else(|| "expected a size in bytes, for example 4096, 512K, 64M or 4G".to_owned())
}

/// Parses a duration such as `90s`, `1h30m` or `0s`.
pub fn time(text: &str) -> Result<Duration, String> {
    let parsed: jiff::SignedDuration = text
        .parse()
        .map_err(|_| "expected a duration with a unit, for example 90s, 10m or 1h30m".to_owned())?;
    parsed.try_into().map_err(|_| "expected a duration that is not negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_units_are_powers_of_1024() {
        assert_eq!(size("12"), Ok(12));
        assert_eq!(size("2K"), Ok(2048));
        assert_eq!(size("4G"), Ok(4 << 30));
        for bad in ["", "K", "-1", "1X", "99999999999999T", "1.5G"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units() {
        assert_eq!(time("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(time("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(time("100ms"), Ok(Duration::from_millis(100)));
        for bad in ["", "5", "-5s", "5 apples"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }
}
