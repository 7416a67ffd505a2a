//! The JSON decoder: no input panics, what `serde_json` accepts is accepted with the same meaning, and
//! laying a text out changes no value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::hooks::json::Document;
use serde_json::Value;

fuzz_target!(|text: &[u8]| {
    let ours = Document::parse(text);
    if let Ok(theirs) = serde_json::from_slice::<Value>(text) {
        let document = ours.as_ref().expect("serde_json accepts it");
        let again: Value = serde_json::from_slice(&document.pretty("  ")).expect("it is JSON still");
        assert_eq!(again, theirs);
    }
    let Ok(document) = ours else { return };
    for value in document.values() {
        let location = value.location();
        assert!(location.line > 0 && location.column > 0);
        assert!(text.get(location.span).is_some());
        value.as_str();
        value.as_i64();
    }
    let pretty = document.pretty("\t");
    let again = Document::parse(&pretty).expect("it is JSON still");
    let scalars = |document: &Document<'_>| -> Vec<Vec<u8>> {
        let values = document.values().filter(|v| v.members().next().is_none() && v.elements().next().is_none());
        values.map(|value| value.raw().iter().filter(|b| !b.is_ascii_whitespace()).copied().collect()).collect()
    };
    assert_eq!(scalars(&again), scalars(&document));
});
