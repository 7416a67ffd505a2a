//! Durations on the command line.

use std::time::Duration;

/// Parses a duration such as `90s`, `1h30m` or `0s`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let time: jiff::SignedDuration = text
        .parse()
        .map_err(|_| "expected a duration with a unit, for example 90s, 10m or 1h30m".to_owned())?;
    time.try_into().map_err(|_| "expected a duration that is not negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(parse("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse("100ms"), Ok(Duration::from_millis(100)));
        for bad in ["", "5", "-5s", "5 apples"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
