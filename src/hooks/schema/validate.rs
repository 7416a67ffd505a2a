//! The checks on a decoded file, in the order of the reference: the first to fail is reported.

use std::fs;
use std::io;

use super::decode::Text;
use super::v1_0_0::Raw;
use super::{Definition, FoundPrograms, PathCheck, SchemaOptions};
use crate::hooks::{AnnotationPattern, Fault, Hook, HookError, Pattern, PatternPlace, Stage, When};
use crate::json::Value;

/// Checks a decoded file and compiles its patterns.
pub(super) fn validate(
    raw: Raw<'_>,
    root: Value<'_>,
    options: SchemaOptions<'_>,
    found: &FoundPrograms,
) -> Result<Definition, Fault> {
    if raw.path.text.is_empty() {
        return Err(fault(HookError::MissingPath, raw.path.at.or(Some(root))));
    }
    if options.path_check == PathCheck::Exists {
        check_path(&raw.path.text, found).map_err(|error| fault(error, raw.path.at))?;
    }
    let annotations = raw
        .annotations
        .into_iter()
        .map(|(key, value)| {
            Ok(AnnotationPattern {
                key: pattern(key, PatternPlace::AnnotationKey)?,
                value: pattern(value, PatternPlace::AnnotationValue)?,
            })
        })
        .collect::<Result<_, _>>()?;
    let commands = raw
        .commands
        .into_iter()
        .map(|command| pattern(command, PatternPlace::Command))
        .collect::<Result<_, _>>()?;
    let Some(stages) = raw.stages else {
        return Err(fault(HookError::MissingStages, Some(root)));
    };
    let stages = stages
        .into_iter()
        .map(|stage| {
            Stage::from_name(&stage.text, options.extension_stages)
                .ok_or_else(|| fault(HookError::UnknownStage { stage: stage.text }, stage.at))
        })
        .collect::<Result<_, _>>()?;
    Ok(Definition {
        version: raw.version,
        hook: Hook {
            path: raw.path.text,
            args: strings(raw.args),
            // The reference drops an empty list on output, and so it means none.
            env: Some(strings(raw.env)).filter(|env| !env.is_empty()),
            timeout: raw.timeout,
        },
        when: When {
            combine: raw.combine,
            always: raw.always,
            has_bind_mounts: raw.has_bind_mounts,
            annotations,
            commands,
        },
        stages,
    })
}

/// Looks a program up, unless it was found before.
pub(super) fn check_path(path: &str, found: &FoundPrograms) -> Result<(), HookError> {
    if found.0.borrow().contains(path) {
        return Ok(());
    }
    match fs::metadata(path) {
        Ok(_) => {
            found.0.borrow_mut().insert(path.to_owned());
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(HookError::PathMissing { path: path.to_owned() })
        }
        Err(source) => Err(HookError::PathLookup { path: path.to_owned(), source }),
    }
}

fn pattern(text: Text<'_>, place: PatternPlace) -> Result<Pattern, Fault> {
    Pattern::new(text.text).map_err(|source| fault(HookError::Pattern { place, source }, text.at))
}

fn strings(texts: Vec<Text<'_>>) -> Vec<String> {
    texts.into_iter().map(|text| text.text).collect()
}

fn fault(error: HookError, at: Option<Value<'_>>) -> Fault {
    Fault { error, location: at.map(Value::location) }
}
