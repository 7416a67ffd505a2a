//! Expressions of jobs: every text has a value or an error, and plain text is unchanged.

#![no_main]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use step_runner::ExprValue;
use step_runner::expression::{
    ExpandedValue, ExprContext, StepState, condition, expand, expand_text, find_mentions,
    is_dynamic,
};

static CONTEXT: LazyLock<ExprContext> = LazyLock::new(|| {
    let texts = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect()
    };
    let values = |json| -> BTreeMap<String, ExpandedValue> {
        let ExprValue::Object(members) = ExprValue::from(json) else { unreachable!("an object") };
        members.into_iter().map(|(name, value)| (name, value.into())).collect()
    };
    let mut inputs = values(serde_json::json!({
        "s": "str", "i": 7, "b": true, "arr": [1, "x", {"k": "v"}], "st": {"sp ace": 2, "a": {}},
    }));
    inputs.get_mut("s").unwrap().secrets.insert("inputs.s".to_owned());
    let one = StepState {
        outputs: values(serde_json::json!({"st": {"p": [1, 2]}})),
        ..StepState::default()
    };
    ExprContext {
        env: texts(&[("HOME", "/h"), ("A", "")]).into(),
        vars: texts(&[("DASH-K", "d")]).into(),
        inputs,
        steps: BTreeMap::from([("one".to_owned(), one)]),
        work_dir: "/w".to_owned(),
        ..ExprContext::default()
    }
});

fuzz_target!(|text: &str| {
    let errors =
        [expand(text, &CONTEXT).err(), condition(text, &CONTEXT).err(), find_mentions(text).err()];
    for error in errors.into_iter().flatten() {
        assert!(text.is_char_boundary(error.offset), "{error:?}");
        assert!(!error.to_string().is_empty());
    }
    if !is_dynamic(text) {
        assert_eq!(expand(text, &CONTEXT).unwrap().value, ExprValue::String(text.to_owned()));
    }
    if let Ok(expanded) = expand(text, &CONTEXT) {
        let (string, secrets) = expand_text(text, &CONTEXT).unwrap();
        assert_eq!(secrets, expanded.secrets);
        assert_eq!(string.trim_end_matches('\n'), expanded.value.to_text().trim_end_matches('\n'));
        // Two texts expand to their two results.
        let twice = expand_text(&format!("{text}|{text}"), &CONTEXT).unwrap().0;
        assert_eq!(twice, format!("{string}|{string}"));
    }
    // A quoted text is itself.
    let quoted = text.replace('\\', "\\\\").replace('\'', "\\'");
    let value = expand(&format!("${{{{ '{quoted}' }}}}"), &CONTEXT).unwrap().value;
    assert_eq!(value, ExprValue::String(text.to_owned()));
});
