//! Adding hooks to the text of a configuration.

use std::ops::Range;

use serde::Serialize;

use super::ConfigError;
use super::read::{Config, member};
use crate::hooks::{Hook, OciStage, Selection};
use crate::json::{Kind, Value};

/// Options of [`Config::inject`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct InjectOptions {
    /// Leaves out a hook that already stands at its stage, so that injecting twice changes nothing.
    pub once: bool,
}

impl InjectOptions {
    /// Returns options that leave out hooks that already stand at their stage.
    pub fn once() -> Self {
        InjectOptions { once: true }
    }
}

impl Config<'_> {
    /// Returns the text with the selected hooks added after those it has.
    ///
    /// Hooks at extension stages are not added: they are for the caller to run. As in the reference
    /// `hooks` is made, if only as `{}`, when any hook matches.
    pub fn inject(
        &self,
        selection: &Selection<'_>,
        options: InjectOptions,
    ) -> Result<Vec<u8>, ConfigError> {
        let text = self.document.text();
        if selection.files.is_empty() {
            return Ok(text.to_vec());
        }
        let mut editor =
            Editor { text, layout: Layout::of(self.document.root()), edits: Vec::new() };
        let root = self.document.root();
        let hooks = member(root, "hooks", Kind::Object, "an object")?;
        let mut new_stages = Vec::new();
        for stage in OciStage::ALL {
            let present = match hooks {
                Some(hooks) => member(hooks, stage.name(), Kind::Array, "an array of hooks")?,
                None => None,
            };
            let existing: Vec<_> = present.into_iter().flat_map(Value::elements).collect();
            let added: Vec<_> = selection
                .at(stage)
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
            None => editor.set(root, [("hooks", &Stages(&new_stages))], 1),
        }
        Ok(editor.finish())
    }
}

/// The hooks of stages that the configuration does not have yet.
struct Stages<'a>(&'a [(OciStage, Vec<&'a Hook>)]);

impl Serialize for Stages<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(stage, hooks)| (stage.name(), hooks)))
    }
}

/// Returns whether an element of a stage is the very hook that would be added.
fn is_hook(element: Value<'_>, hook: &Hook) -> bool {
    let strings = |name| -> Vec<String> {
        let list = element.get(name).into_iter().flat_map(Value::elements);
        list.map(|item| item.as_str().unwrap_or_default().into_owned()).collect()
    };
    element.get("path").and_then(Value::as_str).as_deref() == Some(&hook.path)
        && strings("args") == hook.args
        && strings("env") == hook.env.as_deref().unwrap_or_default()
        && element.get("timeout").and_then(Value::as_i64) == hook.timeout
}

/// How the configuration is laid out.
struct Layout {
    /// One step of indentation; `None` if everything stands on one line.
    indent: Option<Vec<u8>>,
}

/// The widest indentation that is followed: it is repeated on every line that is added.
const MAX_INDENT_BYTES: usize = 16;

impl Layout {
    fn of(root: Value<'_>) -> Self {
        let Some(first) = root.members().next() else { return Layout { indent: None } };
        let before = &root.raw()[..first.key.span().start - root.span().start];
        let line = before.iter().rposition(|&b| b == b'\n');
        let indent = line.map(|at| &before[at + 1..]);
        Layout { indent: indent.filter(|i| i.len() <= MAX_INDENT_BYTES).map(<[u8]>::to_vec) }
    }

    /// Returns what stands before an item at some depth.
    fn line(&self, depth: usize) -> Vec<u8> {
        match &self.indent {
            Some(indent) => [b"\n".as_slice(), &indent.repeat(depth)].concat(),
            None => Vec::new(),
        }
    }

    /// Writes a value whose first line stands at some depth.
    fn value(&self, value: &impl Serialize, depth: usize) -> Vec<u8> {
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
        // Line breaks in strings are escaped: those that are there are the formatter's.
        let lines: Vec<_> = written.split(|&b| b == b'\n').collect();
        lines.join(self.line(depth).as_slice())
    }
}

/// Collects replacements of parts of a text.
struct Editor<'t> {
    text: &'t [u8],
    layout: Layout,
    edits: Vec<(Range<usize>, Vec<u8>)>,
}

impl Editor<'_> {
    /// Gives an object keys, each of which it does not have or is null.
    fn set<'v, V: Serialize + 'v>(
        &mut self,
        object: Value<'_>,
        members: impl IntoIterator<Item = (&'static str, &'v V)>,
        depth: usize,
    ) {
        let colon: &[u8] = if self.layout.indent.is_some() { b": " } else { b":" };
        let mut new = Vec::new();
        for (key, value) in members {
            let value = self.layout.value(value, depth);
            match object.get(key) {
                Some(null) => self.edits.push((null.span(), value)),
                None => new.push([format!("{key:?}").as_bytes(), colon, &value].concat()),
            }
        }
        self.insert(object, object.members().last().map(|member| member.value), &new, depth);
    }

    /// Appends hooks to a list in `hooks`.
    fn append(&mut self, list: Value<'_>, hooks: &[&Hook]) {
        let items: Vec<_> = hooks.iter().map(|hook| self.layout.value(hook, 3)).collect();
        self.insert(list, list.elements().last(), &items, 3);
    }

    /// Puts items after the last one of an array or object.
    fn insert(
        &mut self,
        container: Value<'_>,
        last: Option<Value<'_>>,
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
        // Stable: a null that is replaced comes before what is added at the same place.
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
    use crate::hooks::{Definition, HookFile, HookSet, PathCheck, SchemaOptions, Target};

    fn inject(config: &str, stages: &str, options: InjectOptions) -> Result<String, ConfigError> {
        let text = format!(
            r#"{{"version":"1.0.0","hook":{{"path":"/h","args":["h","1"]}},"when":{{"always":true}},"stages":{stages}}}"#
        );
        let schema = SchemaOptions { path_check: PathCheck::Skip, ..Default::default() };
        let definition = Definition::parse(text.as_bytes(), schema).unwrap();
        let set: HookSet =
            [HookFile::new(PathBuf::from("h.json"), definition)].into_iter().collect();
        let target = Target::default();
        let selection = set.select(&target, &PODMAN).unwrap();
        let out = Config::parse(config.as_bytes())?.inject(&selection, options)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn added(config: &str, stages: &str) -> String {
        inject(config, stages, InjectOptions::default()).unwrap()
    }

    const HOOK: &str = r#"{"path":"/h","args":["h","1"]}"#;

    #[test]
    fn keeps_all_else_byte_for_byte() {
        let config = r#"{"b":1.50e400,"a":null,"x":{"hooks":1},"hooks":{"poststop":[{"path":"/old"}],"vendor":[ 1 ]},"a":2}"#;
        assert_eq!(
            added(config, r#"["poststop","prestart"]"#),
            format!(
                r#"{{"b":1.50e400,"a":null,"x":{{"hooks":1}},"hooks":{{"poststop":[{{"path":"/old"}},{HOOK}],"vendor":[ 1 ],"createRuntime":[{HOOK}]}},"a":2}}"#
            )
        );
    }

    #[test]
    fn fills_what_is_missing_null_or_empty() {
        for config in [
            "{}",
            r#"{"hooks":null}"#,
            r#"{"hooks":{}}"#,
            r#"{"hooks":{"poststop":null}}"#,
            r#"{"hooks":{"poststop":[]}}"#,
        ] {
            assert_eq!(
                added(config, r#"["poststop"]"#),
                format!(r#"{{"hooks":{{"poststop":[{HOOK}]}}}}"#),
                "{config}"
            );
        }
    }

    #[test]
    fn two_new_stages_and_a_null_one_fit_into_one_object() {
        let out =
            added(r#"{"hooks":{"poststart":null}}"#, r#"["poststop","createRuntime","poststart"]"#);
        assert_eq!(
            out,
            format!(
                r#"{{"hooks":{{"poststart":[{HOOK}],"createRuntime":[{HOOK}],"poststop":[{HOOK}]}}}}"#
            )
        );
        let out = added(r#"{"hooks":{}}"#, r#"["poststop","createRuntime"]"#);
        assert_eq!(out, format!(r#"{{"hooks":{{"createRuntime":[{HOOK}],"poststop":[{HOOK}]}}}}"#));
    }

    #[test]
    fn follows_the_layout_of_the_document() {
        let config = "{\n\t\"root\": {}\n}\n";
        let expected = "{\n\t\"root\": {},\n\t\"hooks\": {\n\t\t\"poststop\": [\n\t\t\t{\n\t\t\t\t\"path\": \"/h\",\n\t\t\t\t\"args\": [\n\t\t\t\t\t\"h\",\n\t\t\t\t\t\"1\"\n\t\t\t\t]\n\t\t\t}\n\t\t]\n\t}\n}\n";
        assert_eq!(added(config, r#"["poststop"]"#), expected);
    }

    #[test]
    fn does_not_follow_an_endless_indentation() {
        let config = format!("{{\n{}\"root\": {{}}}}", " ".repeat(1 << 20));
        let out = added(&config, r#"["poststop"]"#);
        assert!(out.len() < config.len() + 1000);
    }

    #[test]
    fn a_match_without_stages_makes_an_empty_hooks_object() {
        assert_eq!(added(r#"{"a":1}"#, "[]"), r#"{"a":1,"hooks":{}}"#);
    }

    #[test]
    fn once_adds_nothing_that_is_there() {
        let once = InjectOptions { once: true };
        let first = inject("{}", r#"["poststop"]"#, once).unwrap();
        assert_eq!(inject(&first, r#"["poststop"]"#, once).unwrap(), first);
        assert_ne!(added(&first, r#"["poststop"]"#), first);
    }

    #[test]
    fn refuses_what_runtimes_read_differently() {
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
