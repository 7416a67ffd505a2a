//! Schema 0.1.0, read into the form of 1.0.0.

use super::Version;
use super::decode::{Decoder, Text, TextList};
use super::v1_0_0::Raw;
use crate::hooks::{Combine, Fault, HookError};
use crate::json::Value;

/// Reads the fields of a 0.1.0 file.
pub(super) fn decode(root: Value<'_>) -> Result<Raw<'_>, Fault> {
    let mut decoder = Decoder::default();
    let mut fields = Fields::default();
    decoder.object(root, &KEYS, |decoder, name, value| fields.decode(decoder, name, value));
    let fields = decoder.finish(fields)?;

    // The checks stand in the order of the reference: the first to fail is reported.
    let fault = |error| Fault { error, location: Some(root.location()) };
    let Some(path) = fields.hook else {
        return Err(fault(HookError::MissingHook));
    };
    let stages = one_of("stage", fields.stage, "stages", fields.stages).map_err(fault)?;
    if !stages.is_set() {
        return Err(fault(HookError::MissingStages));
    }
    let commands = one_of("cmd", fields.cmd, "cmds", fields.cmds).map_err(fault)?;
    let annotations = one_of("annotation", fields.annotation, "annotations", fields.annotations)
        .map_err(fault)?;

    let args = fields.arguments.into_texts().map(|mut arguments| {
        arguments.insert(0, path.clone());
        arguments
    });
    Ok(Raw {
        version: Version::V0_1_0,
        path,
        args: args.unwrap_or_default(),
        env: Vec::new(),
        timeout: None,
        combine: Combine::Any,
        always: None,
        has_bind_mounts: fields.has_bind_mounts,
        annotations: annotations.into_texts().map(any_value).into_iter().collect(),
        commands: commands.into_texts().unwrap_or_default(),
        stages: stages.into_texts(),
    })
}

/// The keys, without the version.
pub(in crate::hooks) const KEYS: [&str; 9] = [
    "hook",
    "arguments",
    "stages",
    "stage",
    "cmds",
    "cmd",
    "annotations",
    "annotation",
    "hasbindmounts",
];

#[derive(Default)]
struct Fields<'d> {
    hook: Option<Text<'d>>,
    arguments: TextList<'d>,
    stages: TextList<'d>,
    stage: TextList<'d>,
    cmds: TextList<'d>,
    cmd: TextList<'d>,
    annotations: TextList<'d>,
    annotation: TextList<'d>,
    has_bind_mounts: Option<bool>,
}

impl<'d> Fields<'d> {
    fn decode(&mut self, decoder: &mut Decoder, name: &str, value: Value<'d>) {
        let list = match name {
            "hook" => return decoder.optional_string(value, &mut self.hook),
            "hasbindmounts" => return decoder.optional_bool(value, &mut self.has_bind_mounts),
            "arguments" => &mut self.arguments,
            "stages" => &mut self.stages,
            "stage" => &mut self.stage,
            "cmds" => &mut self.cmds,
            "cmd" => &mut self.cmd,
            "annotations" => &mut self.annotations,
            _ => &mut self.annotation,
        };
        decoder.strings(value, list);
    }
}

/// Returns the spelling that is set; an empty list counts as set.
fn one_of<'d>(
    short_name: &'static str,
    short: TextList<'d>,
    long_name: &'static str,
    long: TextList<'d>,
) -> Result<TextList<'d>, HookError> {
    match (short.is_set(), long.is_set()) {
        (true, true) => Err(HookError::BothSet(short_name, long_name)),
        (true, false) => Ok(short),
        (false, _) => Ok(long),
    }
}

/// Joins the patterns for annotation values as the reference does: as text, before they are parsed.
///
/// So flags and quotes of one pattern reach into the next, and an empty list matches any annotation.
fn any_value<'d>(values: Vec<Text<'d>>) -> (Text<'d>, Text<'d>) {
    let at = values.first().and_then(|value| value.at);
    let texts: Vec<_> = values.into_iter().map(|value| value.text).collect();
    (Text { text: ".*".to_owned(), at }, Text { text: texts.join("|"), at })
}
