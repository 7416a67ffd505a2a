//! The form of the log of a job.

use std::collections::BTreeMap;

use super::super::log::LogFormat;

/// The variable with the form of the log.
const VARIABLE: &str = "CI_STEPS_LOG_FORMAT";

/// Returns the form that the first source names which names one. The error is a form that does not exist.
pub(super) fn log_format(
    sources: &[&BTreeMap<String, String>],
) -> Result<Option<LogFormat>, String> {
    let format = sources
        .iter()
        .filter_map(|source| source.get(VARIABLE))
        .map(|format| format.trim().to_lowercase())
        .find(|format| !format.is_empty());
    match format.as_deref() {
        None => Ok(None),
        Some("stamped") => Ok(Some(LogFormat::Stamped)),
        Some("plain") => Ok(Some(LogFormat::Plain)),
        Some(_) => Err(format.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_names_a_form_counts() {
        let says = |format: &str| BTreeMap::from([(VARIABLE.to_owned(), format.to_owned())]);
        let none = BTreeMap::new();
        assert_eq!(log_format(&[]), Ok(None));
        assert_eq!(log_format(&[&says(""), &none, &says(" Plain ")]), Ok(Some(LogFormat::Plain)));
        let both = [&says("stamped"), &says("plain")];
        assert_eq!(log_format(&both), Ok(Some(LogFormat::Stamped)));
        assert_eq!(log_format(&[&says("json")]), Err("json".to_owned()));
    }
}
