//! Parses flags as Docker's command line does.

use oci_hooks_files::spelling::closest_name;

use super::flags::{FLAGS, Flag, FlagAction};
use super::{CreateOptions, IneffectiveOption};
use crate::words::{self, WordsError};

/// Reasons to reject `options:`.
#[derive(Debug, thiserror::Error)]
pub enum OptionError {
    #[error("cannot split the options of the container into words")]
    Words(#[from] WordsError),
    /// Docker has no such flag.
    #[error("unknown option {option}{}", suggestion.map(|name| format!(", did you mean --{name}?")).unwrap_or_default())]
    Unknown {
        option: String,
        /// Flag with a similar name.
        suggestion: Option<&'static str>,
    },
    /// A flag that needs a value is the last word.
    #[error("option {0} needs a value")]
    Missing(String),
    /// The value of a flag is invalid or not supported.
    #[error("option {option}: {value:?}: {problem}")]
    Value { option: String, value: String, problem: String },
    /// A flag of Docker is not supported.
    #[error("option {option} is not supported: {reason}")]
    Refused { option: String, reason: &'static str },
    /// A word is not a flag.
    #[error(
        "{word:?} in the options of the container is not an option, and Docker would read it as the image: \
         remove it, or put it and the value before it in quotation marks; --entrypoint takes only a program, \
         without arguments"
    )]
    Word { word: String },
    #[error("options {0} and {1} contradict each other: {2}")]
    Conflict(&'static str, &'static str, &'static str),
}

impl CreateOptions {
    /// Reads the `options:` of a container.
    ///
    /// # Errors
    ///
    /// Returns an error for the first option that Docker would reject or that is not supported here.
    pub fn parse(text: &str) -> Result<Self, OptionError> {
        let words = words::split(text)?;
        let mut options = CreateOptions::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if word == "--" {
                // Docker takes the next word as the image.
                match words.next() {
                    None => break,
                    Some(word) => return Err(OptionError::Word { word: word.to_owned() }),
                }
            } else if let Some(long) = word.strip_prefix("--") {
                options.parse_long(long, &mut words)?;
            } else if let Some(cluster) = word.strip_prefix('-').filter(|rest| !rest.is_empty()) {
                options.cluster(cluster, &mut words)?;
            } else {
                return Err(OptionError::Word { word: word.to_owned() });
            }
        }
        options.check_contradictions()?;
        Ok(options)
    }

    /// Reads `--name`, `--name=value` or `--name value`.
    fn parse_long<'a>(
        &mut self,
        long: &'a str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), OptionError> {
        let (name, value) = match long.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (long, None),
        };
        let option = format!("--{name}");
        let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
            return Err(OptionError::Unknown { option, suggestion: closest_flag(name) });
        };
        let value = match value {
            None if flag.takes_value() => Some(next(words, &option)?),
            value => value,
        };
        self.apply(flag, &option, value)
    }

    /// Reads `-x`, `-xvalue`, `-x=value`, `-x value` or several switches at once: `-it`.
    fn cluster<'a>(
        &mut self,
        cluster: &'a str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), OptionError> {
        let mut letters = cluster.chars();
        while let Some(letter) = letters.next() {
            let option = format!("-{letter}");
            let Some(flag) = FLAGS.iter().find(|flag| flag.short == Some(letter)) else {
                return Err(OptionError::Unknown { option, suggestion: closest_flag(cluster) });
            };
            let rest = letters.as_str();
            if let Some(value) = rest.strip_prefix('=').filter(|value| !value.is_empty()) {
                return self.apply(flag, &option, Some(value));
            }
            if flag.takes_value() {
                let value = if rest.is_empty() { next(words, &option)? } else { rest };
                return self.apply(flag, &option, Some(value));
            }
            self.apply(flag, &option, None)?;
        }
        Ok(())
    }

    fn apply(&mut self, flag: &Flag, option: &str, value: Option<&str>) -> Result<(), OptionError> {
        let text = value.unwrap_or("true");
        let invalid = |problem| OptionError::Value {
            option: option.to_owned(),
            value: text.to_owned(),
            problem,
        };
        match flag.action {
            FlagAction::Value(set) => set(self, text).map_err(invalid)?,
            FlagAction::Switch(set) => set(self, super::value::boolean(text).map_err(invalid)?),
            FlagAction::IdleValue(check, reason) => {
                check(text).map_err(invalid)?;
                self.idle(flag, reason);
            }
            FlagAction::IdleSwitch(reason) => {
                if super::value::boolean(text).map_err(invalid)? {
                    self.idle(flag, reason);
                }
            }
            FlagAction::RefusedValue(reason) | FlagAction::RefusedSwitch(reason) => {
                return Err(OptionError::Refused { option: option.to_owned(), reason });
            }
        }
        Ok(())
    }

    fn idle(&mut self, flag: &Flag, reason: &'static str) {
        let idle = IneffectiveOption { option: flag.name, reason };
        if !self.without_effect.contains(&idle) {
            self.without_effect.push(idle);
        }
    }

    fn check_contradictions(&self) -> Result<(), OptionError> {
        let (health, resources) = (&self.health, &self.resources);
        let checks = super::HealthOptions { disabled: true, ..Default::default() };
        if health.disabled && *health != checks {
            return Err(OptionError::Conflict(
                "--no-healthcheck",
                "--health-*",
                "the first turns the health check off",
            ));
        }
        if resources.nano_cpus.is_some()
            && (resources.cpu_period.is_some() || resources.cpu_quota.is_some())
        {
            return Err(OptionError::Conflict(
                "--cpus",
                "--cpu-period or --cpu-quota",
                "--cpus sets the period and the quota",
            ));
        }
        if let Some(super::SwapLimit::Bytes(both)) = resources.memory_swap
            && resources.memory_bytes.is_none_or(|memory| memory > both)
        {
            return Err(OptionError::Conflict(
                "--memory",
                "--memory-swap",
                "the second limits memory and swap together: it needs --memory, and must not be lower",
            ));
        }
        if let (Some(memory), Some(reserved)) =
            (resources.memory_bytes, resources.memory_reservation_bytes)
            && reserved > memory
        {
            return Err(OptionError::Conflict(
                "--memory",
                "--memory-reservation",
                "the reservation must not exceed the limit",
            ));
        }
        Ok(())
    }
}

impl Flag {
    fn takes_value(&self) -> bool {
        matches!(
            self.action,
            FlagAction::Value(_) | FlagAction::RefusedValue(_) | FlagAction::IdleValue(..)
        )
    }
}

fn next<'a>(
    words: &mut impl Iterator<Item = &'a str>,
    option: &str,
) -> Result<&'a str, OptionError> {
    words.next().ok_or_else(|| OptionError::Missing(option.to_owned()))
}

/// Returns the flag whose name is most similar, if it is similar enough.
fn closest_flag(name: &str) -> Option<&'static str> {
    closest_name(name, FLAGS.iter().map(|flag| flag.name))
}
