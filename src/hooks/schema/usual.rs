//! The usual hook file: schema 1.0.0, each key once and spelled as in the manual page, each value
//! of the right type, no other keys.
//!
//! Nearly all files are usual, and are decoded in one pass. All others, invalid ones included, are
//! left to the decoder in `parse.rs`, which follows Go in every special case and knows the position
//! of each value.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{FoundPrograms, HookDefinition, ParseOptions, PathCheck, SchemaVersion};
use crate::hooks::{
    AnnotationPattern, CombineRule, Hook, HookConditions, HookStage, OciStage, Pattern,
};

/// Reads a usual hook file; returns `None` for unusual and invalid files.
pub fn decode(
    text: &[u8],
    options: ParseOptions<'_>,
    found: &FoundPrograms,
) -> Option<HookDefinition> {
    // Checks the whole text at once, which is faster than checking each string.
    let text = str::from_utf8(text).ok()?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let file: UsualFile<'_> = object(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    let HookFields { path, args, env, timeout } = file.hook;
    let WhenFields { always, has_bind_mounts, mut annotations, commands } = file.when;
    if file.version != "1.0.0" || path.is_empty() {
        return None;
    }
    if options.path_check == PathCheck::Exists {
        found.check(&path).ok()?;
    }
    annotations.sort_unstable_by(|a, b| a.key.as_str().cmp(b.key.as_str()));
    if annotations.windows(2).any(|pair| pair[0].key == pair[1].key) {
        return None;
    }
    let mut stages = file.stages;
    for stage in &mut stages {
        *stage = HookStage::from_name(stage.name(), options.extension_stages)?;
    }
    Some(HookDefinition {
        version: SchemaVersion::V1_0_0,
        stages,
        hook: Hook { path, args, env: Some(env).filter(|env| !env.is_empty()), timeout },
        when: HookConditions {
            combine: CombineRule::All,
            always,
            has_bind_mounts,
            annotations,
            commands,
        },
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsualFile<'t> {
    version: &'t str,
    #[serde(deserialize_with = "object")]
    hook: HookFields,
    #[serde(default, deserialize_with = "object")]
    when: WhenFields,
    /// A name that is no OCI stage becomes an extension stage; `decode` then checks all stages against
    /// `ParseOptions::extension_stages`.
    #[serde(deserialize_with = "list")]
    stages: Vec<HookStage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HookFields {
    path: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
    timeout: Option<i64>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WhenFields {
    always: Option<bool>,
    has_bind_mounts: Option<bool>,
    #[serde(default, deserialize_with = "annotations")]
    annotations: Vec<AnnotationPattern>,
    #[serde(default, deserialize_with = "list")]
    commands: Vec<Pattern>,
}

/// Reads an object. Code derived by serde would accept an array of the values as well.
fn object<'t, D: Deserializer<'t>, T: Deserialize<'t>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_map(MembersVisitor(PhantomData))
}

struct MembersVisitor<T>(PhantomData<T>);

impl<'t, T: Deserialize<'t>> Visitor<'t> for MembersVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, members: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(members))
    }
}

/// Conversion from a string of the file, without copying the string first.
trait FromText: Sized {
    fn from_text(text: &str) -> Option<Self>;
}

impl FromText for Pattern {
    fn from_text(text: &str) -> Option<Self> {
        Pattern::parse(text).ok()
    }
}

impl FromText for HookStage {
    fn from_text(text: &str) -> Option<Self> {
        let known = OciStage::from_name(text).map(HookStage::Oci);
        Some(known.unwrap_or_else(|| HookStage::Extension(text.to_owned())))
    }
}

struct FromTextValue<T>(T);

impl<'t, T: FromText> Deserialize<'t> for FromTextValue<T> {
    fn deserialize<D: Deserializer<'t>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor(PhantomData))
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromText> Visitor<'_> for TextVisitor<T> {
    type Value = FromTextValue<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<FromTextValue<T>, E> {
        T::from_text(text).map(FromTextValue).ok_or_else(|| E::custom("not valid"))
    }
}

fn list<'t, D: Deserializer<'t>, T: FromText>(deserializer: D) -> Result<Vec<T>, D::Error> {
    deserializer.deserialize_seq(ListVisitor(PhantomData))
}

struct ListVisitor<T>(PhantomData<T>);

impl<'t, T: FromText> Visitor<'t> for ListVisitor<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut elements: A) -> Result<Vec<T>, A::Error> {
        let mut list = Vec::new();
        while let Some(FromTextValue(element)) = elements.next_element()? {
            list.push(element);
        }
        Ok(list)
    }
}

fn annotations<'t, D: Deserializer<'t>>(
    deserializer: D,
) -> Result<Vec<AnnotationPattern>, D::Error> {
    deserializer.deserialize_map(AnnotationsVisitor)
}

struct AnnotationsVisitor;

impl<'t> Visitor<'t> for AnnotationsVisitor {
    type Value = Vec<AnnotationPattern>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut patterns = Vec::new();
        while let Some((FromTextValue(key), FromTextValue(value))) = members.next_entry()? {
            patterns.push(AnnotationPattern { key, value });
        }
        Ok(patterns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::json::JsonDocument;

    const USUAL: &str = r#"{"version": "1.0.0",
        "hook": {"path": "/bin/true", "args": ["a\"b", "\u00e9é"], "env": ["A=B"], "timeout": 5},
        "when": {"always": true, "hasBindMounts": false, "annotations": {"z\\.": "^a$", "b": ".*"},
                 "commands": ["/sh$"]},
        "stages": ["prestart", "precreate"]}"#;

    /// Returns the results of both decoders.
    fn decode_both(text: &str) -> (Option<serde_json::Value>, Option<serde_json::Value>) {
        let stages = ["precreate".to_owned(), "prestart".to_owned()];
        let options = ParseOptions { extension_stages: &stages, path_check: PathCheck::Skip };
        let json = |definition: HookDefinition| serde_json::to_value(definition).unwrap();
        let exact = JsonDocument::parse(text.as_bytes()).ok();
        let exact = exact.and_then(|text| HookDefinition::from_document(&text, options).ok());
        let usual = decode(text.as_bytes(), options, &FoundPrograms::default());
        (usual.map(json), exact.map(json))
    }

    #[test]
    fn usual_files_decode_the_same_with_both_decoders() {
        let least = r#"{"version":"1.0.0","hook":{"path":"/h"},"stages":[]}"#;
        for text in [USUAL, least] {
            let (usual, exact) = decode_both(text);
            assert!(exact.is_some());
            assert_eq!(usual, exact, "{text}");
        }
    }

    #[test]
    fn unusual_files_are_left_to_the_exact_decoder() {
        for (usual, unusual) in [
            (r#""version": "1.0.0""#, r#""version": "0.1.0""#),
            (r#""version": "1.0.0","#, ""),
            (r#""version""#, r#""Version""#),
            (r#""timeout": 5"#, r#""timeout": 5, "timeout": 6"#),
            (r#""timeout": 5"#, r#""timeout": 5.0"#),
            (r#""timeout": 5"#, r#""timeout": 9223372036854775808"#),
            (r#""timeout": 5"#, r#""x": 5"#),
            (r#"["A=B"]"#, "null"),
            (r#"["A=B"]"#, "[null]"),
            (r#""b": ".*""#, r#""b": ".*", "b": "x""#),
            (r#""b": ".*""#, r#""b": null"#),
            (r#""b": ".*""#, r#""b": "(""#),
            ("/sh$", "\\ud800"),
            ("/bin/true", ""),
            ("precreate", "preCreate"),
            (r#"{"path": "/bin/true","#, r#"["/bin/true", [], [], 1], "x": {"#),
        ] {
            let text = USUAL.replace(usual, unusual);
            assert_ne!(text, USUAL);
            assert_eq!(decode_both(&text).0, None, "{text}");
        }
        for text in [r#"["1.0.0", {"path": "/h"}, {}, []]"#, &format!("{USUAL} x"), ""] {
            assert_eq!(decode_both(text).0, None, "{text}");
        }
        let hook_as_array = r#"{"version":"1.0.0","hook":["/h",[],[],1],"stages":[]}"#;
        assert_eq!(decode_both(hook_as_array).0, None);
    }

    /// Returns objects of some members in some order.
    fn objects(members: &[&'static str]) -> impl Strategy<Value = String> + use<> {
        let members = prop::collection::vec(prop::sample::select(members.to_vec()), 0..6);
        members.prop_map(|members| format!("{{{}}}", members.join(",")))
    }

    fn files() -> impl Strategy<Value = String> {
        let hook = objects(&[
            r#""path":"/h""#,
            r#""path":"/h""#,
            r#""args":["a","\n"]"#,
            r#""args":[null]"#,
            r#""env":[]"#,
            r#""env":["A=B"]"#,
            r#""Timeout":3"#,
            r#""timeout":3"#,
            r#""timeout":null"#,
            r#""timeout":-0"#,
        ]);
        let when = objects(&[
            r#""always":true"#,
            r#""always":null"#,
            r#""annotations":{"b":"x","a":""}"#,
            r#""annotations":{"b":"x","\u0062":"y"}"#,
            r#""commands":["^/bin/(a|b)$"]"#,
            r#""commands":[]"#,
            r#""hasBindMounts":false"#,
            r#""hasbindmounts":true"#,
        ]);
        let stages = prop::sample::select(vec![
            r#"["prestart"]"#,
            r#"["poststop","precreate"]"#,
            "[]",
            r#"["nope"]"#,
            "null",
        ]);
        let version = prop::sample::select(vec![r#""1.0.0""#, r#""1\u002e0.0""#, r#""""#]);
        (hook, when, stages, version).prop_map(|(hook, when, stages, version)| {
            format!(r#"{{"version":{version},"hook":{hook},"when":{when},"stages":{stages}}}"#)
        })
    }

    proptest! {
        #[test]
        fn both_decoders_agree(text in files()) {
            let (usual, exact) = decode_both(&text);
            if usual.is_some() {
                prop_assert_eq!(usual, exact);
            }
        }
    }
}
