//! The JSON parser: never panics, agrees with `serde_json`, and locates every value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::json::{JsonDocument, JsonKind, JsonValue};

fuzz_target!(|text: &[u8]| {
    let serde = serde_json::from_slice::<serde_json::Value>(text);
    let document = match JsonDocument::parse(text) {
        Ok(document) => document,
        Err(error) => {
            assert!(serde.is_err(), "serde_json accepts what we refuse: {error}");
            assert!(error.offset <= text.len());
            return;
        }
    };
    match serde {
        Ok(serde) => assert_same(document.root(), &serde),
        Err(error) => assert!(is_limit(&error.to_string()), "serde_json refuses: {error}"),
    }

    let pretty = document.to_pretty("  ");
    let again = JsonDocument::parse(&pretty).expect("what is laid out is still JSON");
    assert!(document.values().map(shape).eq(again.values().map(shape)));

    // Each location costs time in proportion to the text.
    for value in document.values().take(64) {
        let location = value.location();
        assert_eq!(location.span, value.span());
        assert!(location.line >= 1 && location.column >= 1);
        assert_eq!(location.pointer, value.pointer());
        let _ = (value.as_str(), value.as_bool(), value.as_i64(), value.get("a"));
    }
});

/// Returns the parts of a value that do not depend on the layout of the text.
fn shape(value: JsonValue<'_>) -> (JsonKind, Option<&[u8]>) {
    let is_container = matches!(value.kind(), JsonKind::Array | JsonKind::Object);
    (value.kind(), (!is_container).then(|| value.raw()))
}

/// Returns whether `serde_json` rejects a text because of a limit that Go does not have.
fn is_limit(error: &str) -> bool {
    ["recursion limit", "out of range", "surrogate", "hex escape", "invalid unicode"]
        .iter()
        .any(|reason| error.contains(reason))
}

fn assert_same(ours: JsonValue<'_>, theirs: &serde_json::Value) {
    use serde_json::Value as Serde;

    match theirs {
        Serde::Null => assert!(ours.is_null()),
        Serde::Bool(theirs) => assert_eq!(ours.as_bool(), Some(*theirs)),
        Serde::String(theirs) => assert_eq!(ours.as_str().as_deref(), Some(theirs.as_str())),
        Serde::Number(theirs) => {
            assert_eq!(ours.kind(), JsonKind::Number);
            // `-0` is an integer for Go and a fraction for serde_json.
            if let Some(theirs) = theirs.as_i64() {
                assert_eq!(ours.as_i64(), Some(theirs));
            }
        }
        Serde::Array(theirs) => {
            assert_eq!(ours.elements().count(), theirs.len());
            ours.elements().zip(theirs).for_each(|(ours, theirs)| assert_same(ours, theirs));
        }
        Serde::Object(theirs) => {
            assert_eq!(ours.kind(), JsonKind::Object);
            for member in ours.members() {
                assert!(theirs.contains_key(&*member.key.as_str().expect("a key is a string")));
            }
            for (key, theirs) in theirs {
                assert_same(ours.get(key).expect("serde_json has this key"), theirs);
            }
        }
    }
}
