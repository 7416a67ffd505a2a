//! Adding hooks to the text of a configuration.

use std::ops::Range;

use serde::Serialize;

use super::ConfigError;
use super::read::{ConfigDocument, member};
use crate::hooks::{Hook, HookSelection, OciStage};
use crate::json::{JsonKind, JsonValue};

/// Options of [`ConfigDocument::inject`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InjectOptions {
    /// If set, hooks that the configuration already has at their stage are skipped, so that
    /// injecting twice changes nothing.
    pub once: bool,
}

impl InjectOptions {
    /// Returns options that skip hooks that the configuration already has at their stage.
    pub fn once() -> Self {
        InjectOptions { once: true }
    }
}

impl ConfigDocument<'_> {
    /// Returns whether the configuration already contains this hook at a stage.
    pub fn has_hook(&self, stage: OciStage, hook: &Hook) -> bool {
        let hooks = self.document.root().get("hooks");
        let list = hooks.and_then(|hooks| hooks.get(stage.name()));
        list.into_iter().flat_map(JsonValue::elements).any(|element| is_hook(element, hook))
    }

    /// Returns the text with the selected hooks appended to the existing ones.
    ///
    /// Hooks of extension stages are not added: the caller runs them. As in podman, `hooks`
    /// is created, if only as `{}`, when any hook matches.
    pub fn inject(
        &self,
        selection: &HookSelection<'_>,
        options: InjectOptions,
    ) -> Result<Vec<u8>, ConfigError> {
        let text = self.document.text();
        if selection.files.is_empty() {
            return Ok(text.to_vec());
        }
        let mut editor =
            TextEditor { text, layout: ConfigLayout::of(self.document.root()), edits: Vec::new() };
        let root = self.document.root();
        let hooks = member(root, "hooks", JsonKind::Object, "an object")?;
        let mut new_stages = Vec::new();
        for stage in OciStage::ALL {
            let present = match hooks {
                Some(hooks) => member(hooks, stage.name(), JsonKind::Array, "an array of hooks")?,
                None => None,
            };
            let existing: Vec<_> = present.into_iter().flat_map(JsonValue::elements).collect();
            let added: Vec<_> = selection
                .hooks_at(stage)
                .filter(|hook| !options.once || !existing.iter().any(|e| is_hook(*e, hook)))
                .collect();
            match present {
                _ if added.is_empty() => {}
                Some(list) => editor.append(list, &added),
                None => new_stages.push((stage, added)),
            }
        }
        match hooks {
            Some(hooks) => {
                let stages = new_stages.iter().map(|(stage, added)| (stage.name(), added));
                editor.set(hooks, stages, 2);
            }
            None => editor.set(root, [("hooks", &NewStages(&new_stages))], 1),
        }
        Ok(editor.finish())
    }
}

/// The hooks of stages that the configuration does not have yet.
struct NewStages<'a>(&'a [(OciStage, Vec<&'a Hook>)]);

impl Serialize for NewStages<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(stage, hooks)| (stage.name(), hooks)))
    }
}

/// Returns whether an element of a stage equals the hook to add.
fn is_hook(element: JsonValue<'_>, hook: &Hook) -> bool {
    let strings = |name| -> Vec<String> {
        let list = element.get(name).into_iter().flat_map(JsonValue::elements);
        list.map(|item| item.as_str().unwrap_or_default().into_owned()).collect()
    };
    element.get("path").and_then(JsonValue::as_str).as_deref() == Some(&hook.path)
        && strings("args") == hook.args
        && strings("env") == hook.env.as_deref().unwrap_or_default()
        && element.get("timeout").and_then(JsonValue::as_i64) == hook.timeout
}

/// The layout of the configuration.
pub struct ConfigLayout {
    /// One step of indentation; `None` if everything is on one line.
    indent: Option<Vec<u8>>,
}

/// Limit of the detected indentation, which is repeated on every added line.
const MAX_INDENT_BYTES: usize = 16;

impl ConfigLayout {
    /// Detects the layout of a document by its first member.
    pub fn of(root: JsonValue<'_>) -> Self {
        let Some(first) = root.members().next() else { return ConfigLayout { indent: None } };
        let before = &root.raw()[..first.key.span().start - root.span().start];
        let line = before.iter().rposition(|&b| b == b'\n');
        let indent = line.map(|at| &before[at + 1..]);
        ConfigLayout { indent: indent.filter(|i| i.len() <= MAX_INDENT_BYTES).map(<[u8]>::to_vec) }
    }

    /// Returns the line break and indentation before an item at `depth`; empty if everything is on
    /// one line.
    pub fn line(&self, depth: usize) -> Vec<u8> {
        match &self.indent {
            Some(indent) => [b"\n".as_slice(), &indent.repeat(depth)].concat(),
            None => Vec::new(),
        }
    }

    /// Returns the text of an object member; `value` is JSON.
    pub fn member(&self, key: &str, value: &[u8]) -> Vec<u8> {
        let colon: &[u8] = if self.indent.is_some() { b": " } else { b":" };
        let key = serde_json::to_vec(key).expect("a key is a string");
        [key.as_slice(), colon, value].concat()
    }

    /// Returns the JSON text of a value; `depth` is the indentation of its first line.
    pub fn value(&self, value: &impl Serialize, depth: usize) -> Vec<u8> {
        let written = match &self.indent {
            None => serde_json::to_vec(value),
            Some(indent) => {
                let mut text = Vec::new();
                let formatter = serde_json::ser::PrettyFormatter::with_indent(indent);
                let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
                value.serialize(&mut serializer).map(|()| text)
            }
        };
        let written = written.expect("hooks are strings, numbers and lists");
        // Line breaks in strings are escaped, so every line break here comes from the formatter.
        let lines: Vec<_> = written.split(|&b| b == b'\n').collect();
        lines.join(self.line(depth).as_slice())
    }
}

/// Collects replacements of parts of a text.
struct TextEditor<'t> {
    text: &'t [u8],
    layout: ConfigLayout,
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl TextEditor<'_> {
    /// Adds members to an object. Each key must be missing, or null, which the value replaces.
    fn set<'v, V: Serialize + 'v>(
        &mut self,
        object: JsonValue<'_>,
        members: impl IntoIterator<Item = (&'static str, &'v V)>,
        depth: usize,
    ) {
        let mut new = Vec::new();
        for (key, value) in members {
            let value = self.layout.value(value, depth);
            match object.get(key) {
                Some(null) => self.edits.push((null.span(), value)),
                None => new.push(self.layout.member(key, &value)),
            }
        }
        self.insert(object, object.members().last().map(|member| member.value), &new, depth);
    }

    /// Appends hooks to a list in `hooks`.
    fn append(&mut self, list: JsonValue<'_>, hooks: &[&Hook]) {
        let items: Vec<_> = hooks.iter().map(|hook| self.layout.value(hook, 3)).collect();
        self.insert(list, list.elements().last(), &items, 3);
    }

    /// Inserts items after the last one of an array or object.
    fn insert(
        &mut self,
        container: JsonValue<'_>,
        last: Option<JsonValue<'_>>,
        items: &[Vec<u8>],
        depth: usize,
    ) {
        if items.is_empty() {
            return;
        }
        let line = self.layout.line(depth);
        let separator = [b",".as_slice(), &line].concat();
        let items = items.join(separator.as_slice());
        let inside = container.span().start + 1..container.span().end - 1;
        match last {
            Some(last) => {
                let end = last.span().end;
                self.edits.push((end..end, [separator, items].concat()));
            }
            None => {
                self.edits.push((inside, [line, items, self.layout.line(depth - 1)].concat()));
            }
        }
    }

    fn finish(mut self) -> Vec<u8> {
        // Edits do not overlap: a null is replaced within its span, and new items after a null are inserted where
        // that span ends.
        self.edits.sort_by_key(|(span, _)| span.start);
        let mut out = Vec::with_capacity(self.text.len() + 1024);
        let mut at = 0;
        for (span, new) in &self.edits {
            out.extend_from_slice(&self.text[at..span.start]);
            out.extend_from_slice(new);
            at = span.end;
        }
        out.extend_from_slice(&self.text[at..]);
        out
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::hooks::consumer::PODMAN;
    use crate::hooks::{HookDefinition, HookFile, HookSet, MatchTarget, ParseOptions, PathCheck};

    fn inject(config: &str, stages: &str, options: InjectOptions) -> Result<String, ConfigError> {
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/h","args":["h","1"]}},"when":{{"always":true}},"stages":{stages}}}"#
        );
        let schema = ParseOptions { path_check: PathCheck::Skip, ..Default::default() };
        let definition = HookDefinition::parse(text.as_bytes(), schema).unwrap();
        let set: HookSet =
            [HookFile::new(PathBuf::from("h.json"), definition)].into_iter().collect();
        let target = MatchTarget::default();
        let selection = set.select(&target, &PODMAN).unwrap();
        let out = ConfigDocument::parse(config.as_bytes())?.inject(&selection, options)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn add_hooks(config: &str, stages: &str) -> String {
        inject(config, stages, InjectOptions::default()).unwrap()
    }

    const HOOK: &str = r#"{"path":"/h","args":["h","1"]}"#;

    #[test]
    fn injection_keeps_other_bytes_unchanged() {
        let config = r#"{"b":1.50e400,"a":null,"x":{"hooks":1},"hooks":{"poststop":[{"path":"/old"}],"vendor":[ 1 ]},"a":2}"#;
        assert_eq!(
            add_hooks(config, r#"["poststop","prestart"]"#),
            format!(
                r#"{{"b":1.50e400,"a":null,"x":{{"hooks":1}},"hooks":{{"poststop":[{{"path":"/old"}},{HOOK}],"vendor":[ 1 ],"createRuntime":[{HOOK}]}},"a":2}}"#
            )
        );
    }

    #[test]
    fn injection_creates_missing_null_or_empty_arrays() {
        for config in [
            "{}",
            r#"{"hooks":null}"#,
            r#"{"hooks":{}}"#,
            r#"{"hooks":{"poststop":null}}"#,
            r#"{"hooks":{"poststop":[]}}"#,
        ] {
            assert_eq!(
                add_hooks(config, r#"["poststop"]"#),
                format!(r#"{{"hooks":{{"poststop":[{HOOK}]}}}}"#),
                "{config}"
            );
        }
    }

    #[test]
    fn several_new_stages_fit_into_one_object() {
        let out = add_hooks(
            r#"{"hooks":{"poststart":null}}"#,
            r#"["poststop","createRuntime","poststart"]"#,
        );
        assert_eq!(
            out,
            format!(
                r#"{{"hooks":{{"poststart":[{HOOK}],"createRuntime":[{HOOK}],"poststop":[{HOOK}]}}}}"#
            )
        );
        let out = add_hooks(r#"{"hooks":{}}"#, r#"["poststop","createRuntime"]"#);
        assert_eq!(out, format!(r#"{{"hooks":{{"createRuntime":[{HOOK}],"poststop":[{HOOK}]}}}}"#));
    }

    #[test]
    fn injection_follows_the_layout_of_the_document() {
        let config = "{\n\t\"root\": {}\n}\n";
        let expected = "{\n\t\"root\": {},\n\t\"hooks\": {\n\t\t\"poststop\": [\n\t\t\t{\n\t\t\t\t\"path\": \"/h\",\n\t\t\t\t\"args\": [\n\t\t\t\t\t\"h\",\n\t\t\t\t\t\"1\"\n\t\t\t\t]\n\t\t\t}\n\t\t]\n\t}\n}\n";
        assert_eq!(add_hooks(config, r#"["poststop"]"#), expected);
    }

    #[test]
    fn excessive_indentation_is_not_followed() {
        let config = format!("{{\n{}\"root\": {{}}}}", " ".repeat(1 << 20));
        let out = add_hooks(&config, r#"["poststop"]"#);
        assert!(out.len() < config.len() + 1000);
    }

    #[test]
    fn match_without_stages_creates_an_empty_hooks_object() {
        assert_eq!(add_hooks(r#"{"a":1}"#, "[]"), r#"{"a":1,"hooks":{}}"#);
    }

    #[test]
    fn once_skips_existing_hooks() {
        let once = InjectOptions { once: true };
        let first = inject("{}", r#"["poststop"]"#, once).unwrap();
        assert_eq!(inject(&first, r#"["poststop"]"#, once).unwrap(), first);
        assert_ne!(add_hooks(&first, r#"["poststop"]"#), first);
    }

    #[test]
    fn ambiguous_configurations_are_rejected() {
        for config in
            [r#"{"hooks":{},"hooks":{}}"#, r#"{"Hooks":{}}"#, r#"{"hooks":{"postStop":[]}}"#]
        {
            let error = inject(config, r#"["poststop"]"#, InjectOptions::default()).unwrap_err();
            assert!(matches!(error, ConfigError::Ambiguous { .. }), "{config}: {error}");
        }
        let error =
            inject(r#"{"hooks":[]}"#, r#"["poststop"]"#, InjectOptions::default()).unwrap_err();
        assert_eq!(error.location().pointer, "/hooks");
    }
}
