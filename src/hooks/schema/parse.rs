//! Reads the text of a hook file and the fields of either schema, and checks their values in
//! podman's order. The first error is reported.

use super::decode::{DecodedText, FieldDecoder, TextList, TextMap};
use super::{FoundPrograms, HookDefinition, ParseOptions, PathCheck, SchemaVersion, usual};
use crate::hooks::{
    AnnotationPattern, CombineRule, Hook, HookConditions, HookError, HookFault, HookStage, Pattern,
    PatternPlace,
};
use crate::json::{JsonDocument, JsonValue, TextLocation};

impl HookDefinition {
    /// Reads the text of a hook file.
    ///
    /// ```
    /// use oci_hooks::hooks::{HookDefinition, PathCheck, ParseOptions};
    ///
    /// let text = br#"{"version": "1.0.0", "hook": {"path": "/bin/true"},
    ///                 "when": {"commands": ["/bash$"]}, "stages": ["poststop"]}"#;
    /// let options = ParseOptions::default().with_path_check(PathCheck::Skip);
    /// let definition = HookDefinition::parse(text, options).unwrap();
    /// assert_eq!(definition.hook.path, "/bin/true");
    /// ```
    pub fn parse(text: &[u8], options: ParseOptions<'_>) -> Result<Self, HookFault> {
        Self::parse_one_of_many(text, options, &FoundPrograms::default())
    }

    /// Reads one of many hook files; each program is looked up once.
    pub(crate) fn parse_one_of_many(
        text: &[u8],
        options: ParseOptions<'_>,
        found: &FoundPrograms,
    ) -> Result<Self, HookFault> {
        if let Some(definition) = usual::decode(text, options, found) {
            return Ok(definition);
        }
        let document = JsonDocument::parse(text).map_err(|error| HookFault {
            location: Some(TextLocation::of_span(text, error.offset..error.offset + 1)),
            error: HookError::Syntax(error),
        })?;
        Self::from_parsed(&document, options, found)
    }

    /// Reads a parsed hook file.
    pub fn from_document(
        document: &JsonDocument<'_>,
        options: ParseOptions<'_>,
    ) -> Result<Self, HookFault> {
        Self::from_parsed(document, options, &FoundPrograms::default())
    }

    fn from_parsed(
        document: &JsonDocument<'_>,
        options: ParseOptions<'_>,
        found: &FoundPrograms,
    ) -> Result<Self, HookFault> {
        let root = document.root();
        let raw = match version(root)? {
            SchemaVersion::V1_0_0 => decode_1_0_0(root)?,
            SchemaVersion::V0_1_0 => decode_0_1_0(root)?,
        };
        validate(raw, root, options, found)
    }
}

/// Reads the version, which determines the schema of the rest.
fn version(root: JsonValue<'_>) -> Result<SchemaVersion, HookFault> {
    let mut decoder = FieldDecoder::default();
    let mut version = DecodedText::default();
    decoder.object(root, &["version"], |decoder, _, value| decoder.string(value, &mut version));
    let version = decoder.finish(version)?;
    match version.text.as_str() {
        "1.0.0" => Ok(SchemaVersion::V1_0_0),
        "0.1.0" | "" => Ok(SchemaVersion::V0_1_0),
        _ => Err(HookFault {
            error: HookError::UnknownVersion {
                version: version.text,
                meant: match root.get("hook").and_then(JsonValue::as_str) {
                    Some(_) => SchemaVersion::V0_1_0,
                    None => SchemaVersion::V1_0_0,
                },
            },
            location: version.at.map(JsonValue::location),
        }),
    }
}

/// A definition before its values are checked, common to both schemas.
struct RawDefinition<'d> {
    version: SchemaVersion,
    path: DecodedText<'d>,
    args: Vec<DecodedText<'d>>,
    env: Vec<DecodedText<'d>>,
    timeout: Option<i64>,
    combine: CombineRule,
    always: Option<bool>,
    has_bind_mounts: Option<bool>,
    annotations: Vec<(DecodedText<'d>, DecodedText<'d>)>,
    commands: Vec<DecodedText<'d>>,
    stages: Option<Vec<DecodedText<'d>>>,
}

/// Reads the fields of a 1.0.0 file.
fn decode_1_0_0(root: JsonValue<'_>) -> Result<RawDefinition<'_>, HookFault> {
    let mut decoder = FieldDecoder::default();
    let mut hook = HookFields::default();
    let mut when = WhenFields::default();
    let mut stages = TextList::default();
    decoder.object(root, &["hook", "when", "stages"], |decoder, name, value| match name {
        "hook" => hook.decode(decoder, value),
        "when" => when.decode(decoder, value),
        _ => decoder.strings(value, &mut stages),
    });
    decoder.finish(RawDefinition {
        version: SchemaVersion::V1_0_0,
        path: hook.path,
        args: hook.args.into_texts().unwrap_or_default(),
        env: hook.env.into_texts().unwrap_or_default(),
        timeout: hook.timeout,
        combine: CombineRule::All,
        always: when.always,
        has_bind_mounts: when.has_bind_mounts,
        annotations: when
            .annotations
            .into_iter()
            .map(|(key, (at, value))| (DecodedText { text: key, at: Some(at) }, value))
            .collect(),
        commands: when.commands.into_texts().unwrap_or_default(),
        stages: stages.into_texts(),
    })
}

#[derive(Default)]
struct HookFields<'d> {
    path: DecodedText<'d>,
    args: TextList<'d>,
    env: TextList<'d>,
    timeout: Option<i64>,
}

impl<'d> HookFields<'d> {
    fn decode(&mut self, decoder: &mut FieldDecoder, value: JsonValue<'d>) {
        decoder.object(
            value,
            &["path", "args", "env", "timeout"],
            |decoder, name, value| match name {
                "path" => decoder.string(value, &mut self.path),
                "args" => decoder.strings(value, &mut self.args),
                "env" => decoder.strings(value, &mut self.env),
                _ => decoder.read_optional_integer(value, &mut self.timeout),
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
    fn decode(&mut self, decoder: &mut FieldDecoder, value: JsonValue<'d>) {
        let names = &["always", "annotations", "commands", "hasBindMounts"];
        decoder.object(value, names, |decoder, name, value| match name {
            "always" => decoder.read_optional_bool(value, &mut self.always),
            "annotations" => decoder.string_map(value, &mut self.annotations),
            "commands" => decoder.strings(value, &mut self.commands),
            _ => decoder.read_optional_bool(value, &mut self.has_bind_mounts),
        });
    }
}

/// Reads the fields of a 0.1.0 file.
fn decode_0_1_0(root: JsonValue<'_>) -> Result<RawDefinition<'_>, HookFault> {
    let mut decoder = FieldDecoder::default();
    let mut fields = OldFields::default();
    decoder.object(root, &KEYS_0_1_0, |decoder, name, value| fields.decode(decoder, name, value));
    let fields = decoder.finish(fields)?;

    // The checks are in podman's order: the first to fail is reported.
    let fault = |error| HookFault { error, location: Some(root.location()) };
    let Some(path) = fields.hook else {
        return Err(fault(HookError::MissingHook));
    };
    let stages = choose_spelling("stage", fields.stage, "stages", fields.stages).map_err(fault)?;
    if !stages.is_set() {
        return Err(fault(HookError::MissingStages));
    }
    let commands = choose_spelling("cmd", fields.cmd, "cmds", fields.cmds).map_err(fault)?;
    let annotations =
        choose_spelling("annotation", fields.annotation, "annotations", fields.annotations)
            .map_err(fault)?;

    let args = fields.arguments.into_texts().map(|mut arguments| {
        arguments.insert(0, path.clone());
        arguments
    });
    Ok(RawDefinition {
        version: SchemaVersion::V0_1_0,
        path,
        args: args.unwrap_or_default(),
        env: Vec::new(),
        timeout: None,
        combine: CombineRule::Any,
        always: None,
        has_bind_mounts: fields.has_bind_mounts,
        annotations: annotations.into_texts().map(join_values).into_iter().collect(),
        commands: commands.into_texts().unwrap_or_default(),
        stages: stages.into_texts(),
    })
}

/// The keys of a 0.1.0 file, except `version`.
pub const KEYS_0_1_0: [&str; 9] = [
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
struct OldFields<'d> {
    hook: Option<DecodedText<'d>>,
    arguments: TextList<'d>,
    stages: TextList<'d>,
    stage: TextList<'d>,
    cmds: TextList<'d>,
    cmd: TextList<'d>,
    annotations: TextList<'d>,
    annotation: TextList<'d>,
    has_bind_mounts: Option<bool>,
}

impl<'d> OldFields<'d> {
    fn decode(&mut self, decoder: &mut FieldDecoder, name: &str, value: JsonValue<'d>) {
        let list = match name {
            "hook" => return decoder.read_optional_string(value, &mut self.hook),
            "hasbindmounts" => return decoder.read_optional_bool(value, &mut self.has_bind_mounts),
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

/// Returns the list of a property that has two names. Fails if the file sets both, even to an empty
/// list.
fn choose_spelling<'d>(
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

/// Joins the patterns for annotation values as podman does: as text, before they are parsed.
///
/// So flags and quotes of one pattern affect the next, and an empty list matches any annotation.
fn join_values<'d>(values: Vec<DecodedText<'d>>) -> (DecodedText<'d>, DecodedText<'d>) {
    let at = values.first().and_then(|value| value.at);
    let texts: Vec<_> = values.into_iter().map(|value| value.text).collect();
    (DecodedText { text: ".*".to_owned(), at }, DecodedText { text: texts.join("|"), at })
}

/// Checks a decoded file and compiles its patterns.
fn validate(
    raw: RawDefinition<'_>,
    root: JsonValue<'_>,
    options: ParseOptions<'_>,
    found: &FoundPrograms,
) -> Result<HookDefinition, HookFault> {
    if raw.path.text.is_empty() {
        return Err(fault(HookError::MissingPath, raw.path.at.or(Some(root))));
    }
    if options.path_check == PathCheck::Exists {
        found.check(&raw.path.text).map_err(|error| fault(error, raw.path.at))?;
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
            HookStage::from_name(&stage.text, options.extension_stages)
                .ok_or_else(|| fault(HookError::UnknownStage { stage: stage.text }, stage.at))
        })
        .collect::<Result<_, _>>()?;
    Ok(HookDefinition {
        version: raw.version,
        hook: Hook {
            path: raw.path.text,
            args: strings(raw.args),
            // Podman omits an empty `env` from config.json, so an empty list equals a missing one.
            env: Some(strings(raw.env)).filter(|env| !env.is_empty()),
            timeout: raw.timeout,
        },
        when: HookConditions {
            combine: raw.combine,
            always: raw.always,
            has_bind_mounts: raw.has_bind_mounts,
            annotations,
            commands,
        },
        stages,
    })
}

fn pattern(text: DecodedText<'_>, place: PatternPlace) -> Result<Pattern, HookFault> {
    Pattern::new(text.text).map_err(|source| fault(HookError::Pattern { place, source }, text.at))
}

fn strings(texts: Vec<DecodedText<'_>>) -> Vec<String> {
    texts.into_iter().map(|text| text.text).collect()
}

fn fault(error: HookError, at: Option<JsonValue<'_>>) -> HookFault {
    HookFault { error, location: at.map(JsonValue::location) }
}
