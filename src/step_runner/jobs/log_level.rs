//! The log level of steps.

use std::collections::BTreeMap;

/// The variable with the log level, for this program and for steps.
pub(super) const VARIABLE: &str = "CI_STEPS_LOG_LEVEL";

const LEVELS: [&str; 4] = ["debug", "info", "warn", "error"];

/// Returns the log level of the first source that sets it, by default `info`. The error is the unknown level.
pub fn log_level(sources: &[&BTreeMap<String, String>]) -> Result<&'static str, String> {
    let level = sources
        .iter()
        .filter_map(|source| source.get(VARIABLE))
        .map(|level| level.trim().to_lowercase())
        .find(|level| !level.is_empty());
    let Some(level) = level else { return Ok("info") };
    LEVELS.into_iter().find(|known| *known == level).ok_or(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_says_a_level_counts() {
        let says = |level: &str| BTreeMap::from([(VARIABLE.to_owned(), level.to_owned())]);
        let none = BTreeMap::new();
        assert_eq!(log_level(&[]), Ok("info"));
        assert_eq!(log_level(&[&says(""), &none, &says(" WARN ")]), Ok("warn"));
        assert_eq!(log_level(&[&says("debug"), &says("error")]), Ok("debug"));
        assert_eq!(log_level(&[&says("loud")]), Err("loud".to_owned()));
    }
}
