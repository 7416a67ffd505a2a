//! Schema 1.0.0.

use super::Version;
use super::decode::{Decoder, Text, TextList, TextMap};
use crate::hooks::{Combine, Fault};
use crate::json::Value;

/// A definition before its values are checked; the form both schemas are read into.
pub(super) struct Raw<'d> {
    pub(super) version: Version,
    pub(super) path: Text<'d>,
    pub(super) args: Vec<Text<'d>>,
    pub(super) env: Vec<Text<'d>>,
    pub(super) timeout: Option<i64>,
    pub(super) combine: Combine,
    pub(super) always: Option<bool>,
    pub(super) has_bind_mounts: Option<bool>,
    pub(super) annotations: Vec<(Text<'d>, Text<'d>)>,
    pub(super) commands: Vec<Text<'d>>,
    pub(super) stages: Option<Vec<Text<'d>>>,
}

/// Reads the fields of a 1.0.0 file.
pub(super) fn decode(root: Value<'_>) -> Result<Raw<'_>, Fault> {
    let mut decoder = Decoder::default();
    let mut hook = HookFields::default();
    let mut when = WhenFields::default();
    let mut stages = TextList::default();
    decoder.object(root, &["hook", "when", "stages"], |decoder, name, value| match name {
        "hook" => hook.decode(decoder, value),
        "when" => when.decode(decoder, value),
        _ => decoder.strings(value, &mut stages),
    });
    decoder.finish(Raw {
        version: Version::V1_0_0,
        path: hook.path,
        args: hook.args.into_texts().unwrap_or_default(),
        env: hook.env.into_texts().unwrap_or_default(),
        timeout: hook.timeout,
        combine: Combine::All,
        always: when.always,
        has_bind_mounts: when.has_bind_mounts,
        annotations: when
            .annotations
            .into_iter()
            .map(|(key, (at, value))| (Text { text: key, at: Some(at) }, value))
            .collect(),
        commands: when.commands.into_texts().unwrap_or_default(),
        stages: stages.into_texts(),
    })
}

#[derive(Default)]
struct HookFields<'d> {
    path: Text<'d>,
    args: TextList<'d>,
    env: TextList<'d>,
    timeout: Option<i64>,
}

impl<'d> HookFields<'d> {
    fn decode(&mut self, decoder: &mut Decoder, value: Value<'d>) {
        decoder.object(
            value,
            &["path", "args", "env", "timeout"],
            |decoder, name, value| match name {
                "path" => decoder.string(value, &mut self.path),
                "args" => decoder.strings(value, &mut self.args),
                "env" => decoder.strings(value, &mut self.env),
                _ => decoder.optional_integer(value, &mut self.timeout),
            },
        );
    }
}

#[derive(Default)]
struct WhenFields<'d> {
    always: Option<bool>,
    annotations: TextMap<'d>,
    commands: TextList<'d>,
    has_bind_mounts: Option<bool>,
}

impl<'d> WhenFields<'d> {
    fn decode(&mut self, decoder: &mut Decoder, value: Value<'d>) {
        let names = &["always", "annotations", "commands", "hasBindMounts"];
        decoder.object(value, names, |decoder, name, value| match name {
            "always" => decoder.optional_bool(value, &mut self.always),
            "annotations" => decoder.string_map(value, &mut self.annotations),
            "commands" => decoder.strings(value, &mut self.commands),
            _ => decoder.optional_bool(value, &mut self.has_bind_mounts),
        });
    }
}
