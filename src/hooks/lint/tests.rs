//! The catalogue is consistent, and fixes do no harm.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};

use super::*;
use crate::hooks::Consumer;
use crate::json::JsonDocument;

fn names(text: &[u8], options: &LintOptions) -> Vec<&'static str> {
    lint_text(Path::new("a.json"), text, options).iter().map(|f| f.rule.name).collect()
}

/// Returns the names of an example's findings; `None` for shell examples, which are not linted.
fn example(example: RuleExample) -> Option<Vec<&'static str>> {
    match example {
        RuleExample::Hook(text) => Some(names(text.as_bytes(), &LintOptions::default())),
        RuleExample::Shell(_) => None,
    }
}

#[test]
fn codes_and_names_are_unique_and_in_order() {
    let codes: Vec<_> = rules::ALL.iter().map(|rule| rule.code).collect();
    assert!(codes.windows(2).all(|pair| pair[0] < pair[1]), "{codes:?}");
    let names: BTreeSet<_> = rules::ALL.iter().map(|rule| rule.name).collect();
    assert_eq!(names.len(), rules::ALL.len());
    for rule in rules::ALL {
        assert!(rule.code.len() == 5 && rule.code.starts_with("OH"), "{}", rule.code);
        assert!(rule.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-' || b == b'0'));
        assert_eq!(LintRule::find(rule.name), Some(*rule));
        assert_eq!(LintRule::find(&rule.code.to_lowercase()), Some(*rule));
    }
}

#[test]
fn explanations_are_complete_and_fit_a_terminal() {
    for rule in rules::ALL {
        assert!(rule.explanation.ends_with('.') && rule.explanation.len() > 80, "{}", rule.code);
        assert!(!rule.summary.ends_with('.') && rule.summary.len() < 90, "{}", rule.code);
        let longest = rule.explanation.lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(115), "{}: {longest:?}", rule.code);
    }
}

#[test]
fn bad_examples_have_the_finding_and_good_ones_do_not() {
    for rule in rules::ALL {
        if let Some(found) = example(rule.bad) {
            assert!(found.contains(&rule.name), "bad example of {}: {found:?}", rule.code);
        }
        if let Some(found) = example(rule.good) {
            assert!(!found.contains(&rule.name), "good example of {}: {found:?}", rule.code);
        }
    }
}

#[test]
fn good_examples_have_no_errors_and_no_other_warnings() {
    for rule in rules::ALL {
        let RuleExample::Hook(text) = rule.good else { continue };
        let found = lint_text(Path::new("a.json"), text.as_bytes(), &LintOptions::default());
        for finding in found.iter().filter(|finding| finding.severity > Severity::Note) {
            // Files of version 0.1.0 always have this finding.
            assert_eq!(finding.rule.name, "old-schema", "good example of {}", rule.code);
        }
    }
}

#[test]
fn fixable_rules_fix_their_example() {
    for rule in rules::ALL {
        let RuleExample::Hook(text) = rule.bad else { continue };
        let found = lint_text(Path::new("a.json"), text.as_bytes(), &LintOptions::default());
        let fixes: Vec<_> = found
            .iter()
            .filter(|finding| finding.rule.code == rule.code)
            .filter_map(|finding| finding.fix.as_ref())
            .collect();
        assert_eq!(
            !fixes.is_empty(),
            matches!(rule.fix, FixPolicy::Automatic(_)),
            "{}: {found:?}",
            rule.code
        );
        if !fixes.is_empty() {
            let fixed = apply(text.as_bytes(), fixes);
            let left = names(&fixed, &LintOptions::default());
            assert!(
                !left.contains(&rule.name),
                "{}: {}",
                rule.code,
                String::from_utf8_lossy(&fixed)
            );
        }
    }
}

#[test]
fn rejected_files_have_an_error_and_valid_ones_none() {
    for rule in rules::ALL.iter().filter(|rule| rule.rejects) {
        assert_eq!(rule.severity, Severity::Error, "{}", rule.code);
    }
    for rule in rules::ALL {
        for text in [rule.bad.text(), rule.good.text()] {
            assert_agrees_with_loader(text.as_bytes(), &LintOptions::default());
        }
    }
}

/// Checks that the linter reports an error exactly for texts that the loader rejects.
fn assert_agrees_with_loader(text: &[u8], options: &LintOptions) {
    let loads = JsonDocument::parse(text)
        .is_ok_and(|document| text::load(&document, &options.consumer).is_ok());
    let found = lint_text(Path::new("a.json"), text, options);
    let refused: Vec<_> =
        found.iter().filter(|finding| finding.rule.rejects).map(|f| f.rule.name).collect();
    assert_eq!(loads, refused.is_empty(), "{refused:?}: {}", String::from_utf8_lossy(text));
}

fn finding(text: &str, name: &str) -> HookFinding {
    let found = lint_text(Path::new("a.json"), text.as_bytes(), &LintOptions::default());
    found.into_iter().find(|finding| finding.rule.name == name).unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn null_after_a_hook_does_not_remove_it() {
    let text = br#"{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true},
        "stages": ["prestart"], "hooks": {}, "hook": null}"#;
    assert_agrees_with_loader(text, &LintOptions::default());
}

#[test]
fn version_is_corrected_to_the_form_of_the_file() {
    let (old, new) = (r#""/bin/true""#, r#"{"path":"/bin/true"}"#);
    for (version, hook, fixed) in [
        ("1", old, "0.1.0"),
        (r#""2""#, old, "0.1.0"),
        ("1", new, "1.0.0"),
        (r#""2""#, new, "1.0.0"),
    ] {
        let text = format!(
            r#"{{"version":{version},"hook":{hook},"cmds":["^a$"],"stages":["poststop"]}}"#
        );
        assert_agrees_with_loader(text.as_bytes(), &LintOptions::default());
        let fixed_text = fix_text(Path::new("a.json"), text.as_bytes(), &LintOptions::default());
        let fixed_text = String::from_utf8(fixed_text.text).unwrap();
        assert!(fixed_text.starts_with(&format!(r#"{{"version":"{fixed}","#)), "{fixed_text}");
    }
    let mixed =
        r#"{"version":"2","hook":"/bin/true","when":{"always":true},"stages":["poststop"]}"#;
    assert!(finding(mixed, "unknown-version").fix.is_none());
    let hint = finding(r#"{"version":"2","hook":"/bin/true"}"#, "unknown-version").hint;
    assert_eq!(hint.as_deref(), Some(r#"write "version": "0.1.0""#));
    assert_eq!(finding(r#""x""#, "wrong-type").hint, None);
    let hook = finding(r#"{"version":"1.0.0","hook":"/bin/true"}"#, "wrong-type");
    assert!(hook.hint.is_some_and(|hint| hint.contains("`path`")));
}

#[test]
fn all_errors_are_found_at_once() {
    let text = br#"{"version": "1.0.0", // x
        "hook": {"path": "/bin/true", "timeout": "5"}, "when": {"commands": ["(", "[", 5]},
        "stages": ["prestrat", "poststpo"],}"#;
    let found = names(text, &LintOptions::default());
    let count = |name| found.iter().filter(|found| **found == name).count();
    assert_eq!(count("comment"), 1);
    assert_eq!(count("trailing-comma"), 1);
    assert_eq!(count("wrong-type"), 2);
    assert_eq!(count("invalid-pattern"), 2);
    assert_eq!(count("unknown-stage"), 2);
}

#[test]
fn findings_point_into_patterns() {
    let text = r#"{"version": "1.0.0", "hook": {"path": "/bin/true"},
 "when": {"annotations": {"^com\\.example.gpu$": "^a(?=b)$"}}, "stages": ["poststop"]}"#;
    let dot = finding(text, "unescaped-dot").location.unwrap();
    assert_eq!(&text[dot.span.clone()], ".");
    assert_eq!((dot.line, dot.column), (2, 42));
    assert_eq!(dot.pointer, "/when/annotations/^com\\.example.gpu$");
    let look = finding(text, "invalid-pattern").location.unwrap();
    assert_eq!(&text[look.span], "(?=");
}

#[test]
fn hook_that_inherits_the_images_environment_is_a_warning() {
    let hook = |env: &str, stage: &str| {
        format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "/bin/true", "timeout": 1{env}}},
                "when": {{"always": true}}, "stages": ["poststop", "{stage}"]}}"#
        )
    };
    let severity = |text: &str| finding(text, "missing-env").severity;
    assert_eq!(severity(&hook("", "createContainer")), Severity::Warning);
    assert_eq!(severity(&hook(", \"env\": []", "createContainer")), Severity::Warning);
    assert_eq!(severity(&hook("", "createRuntime")), Severity::Note);
    let good = hook(", \"env\": [\"PATH=/bin\"]", "createContainer");
    assert!(names(good.as_bytes(), &LintOptions::default()).is_empty());
}

#[test]
fn levels_of_single_rules_apply() {
    let text =
        br#"{"version": "1.0.0", "hook": {"path": "/bin/true", "timeout": 1, "env": ["A=b"]},
        "when": {"commands": ["true"]}, "stages": ["poststop"]}"#;
    let mut options = LintOptions::default();
    assert_eq!(names(text, &options), ["unanchored-pattern"]);
    options.levels.set(&rules::UNANCHORED_PATTERN, RuleLevel::Report(Severity::Error));
    assert_eq!(lint_text(Path::new("a"), text, &options)[0].severity, Severity::Error);
    options.levels.set(&rules::UNANCHORED_PATTERN, RuleLevel::Allow);
    assert!(names(text, &options).is_empty());
}

#[test]
fn number_of_findings_is_limited() {
    let keys: Vec<_> = (0..50_000).map(|n| format!("\"k{n}\": 1")).collect();
    let text = format!("{{\"hook\": {{}}, \"version\": \"1.0.0\", {}}}", keys.join(","));
    let found = names(text.as_bytes(), &LintOptions::default());
    assert!(found.len() < 250, "{}", found.len());
    assert!(found.contains(&"too-many-findings"));
}

#[test]
fn hostile_texts_are_linted_quickly() {
    let deep = "[".repeat(9_000) + &"]".repeat(9_000);
    let wide = format!("{{\"stages\": [{}\"\"]}}", "\"prestart\",".repeat(100_000));
    let dots = format!(
        "{{\"version\": \"1.0.0\", \"when\": {{\"commands\": [\"{}\"]}}}}",
        "a.b".repeat(200_000)
    );
    let comments = "/**/".repeat(200_000);
    let spent = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
    let before = spent();
    for text in [deep, wide, dots, comments] {
        lint_text(Path::new("a.json"), text.as_bytes(), &LintOptions::default());
    }
    let seconds = spent() - before;
    assert!(seconds < 60, "{seconds} s of CPU time");
}

/// Texts that are almost hook files.
fn near_hook_files() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        Just("\"1.0.0\""),
        Just("\"0.1.0\""),
        Just("\"1.0\""),
        Just("null"),
        Just("true"),
        Just("\"false\""),
        Just("5"),
        Just("\"5\""),
        Just("-1"),
        Just("\"/bin/true\""),
        Just("\"\""),
        Just("[]"),
        Just("{}"),
        Just("[\"prestart\"]"),
        Just("[\"prestart\", \"createRuntime\", \"prestart\"]"),
        Just("[\"PreStart\"]"),
        Just("[null, \"precreate\"]"),
        Just("[\"a.b\", \"com\\\\\\\\.x\", \"(\", \"\"]"),
        Just("[\"(?i)x\", \"\\\\Qy\"]"),
        Just("\"prestart\""),
        Just("[1, true]"),
        Just("{\"path\": \"/bin/true\", \"Args\": [\"true\"]}"),
        Just("{\"pth\": \"/bin/true\", \"timeout\": \"5\"}"),
        Just("{\"always\": \"true\", \"command\": [\"x\"]}"),
        Just("{\"annotations\": {\"a.b\": \"\\b\", \"a.b\": true}}"),
        Just("{\"comands\": [\"x\"], \"comand\": 5}"),
        Just("{\"hasBindMounts\": false}"),
        Just("{\"createRuntime\": [{\"path\": \"/bin/true\"}]}"),
    ];
    let key = prop_oneof![
        Just("version"),
        Just("hook"),
        Just("when"),
        Just("stages"),
        Just("Stages"),
        Just("stage"),
        Just("cmds"),
        Just("cmd"),
        Just("annotations"),
        Just("hasbindmounts"),
        Just("arguments"),
        Just("hooks"),
        Just("hok"),
        Just("x"),
        Just("_x"),
    ];
    let slip = prop_oneof![
        9 => Just(""), 1 => Just(","), 1 => Just(" // x\n"), 1 => Just("/* é */"), 1 => Just("\\"),
    ];
    // Most fields are valid, so that findings come from single mistakes.
    let field = |name: &'static str,
                 good: [&'static str; 2],
                 value: BoxedStrategy<&'static str>| {
        prop_oneof![
            6 => proptest::sample::select(good.to_vec()).prop_map(move |good| Some((name, good))),
            2 => value.prop_map(move |value| Some((name, value))),
            1 => Just(None),
        ]
    };
    let value = value.boxed();
    let stages = ["[\"poststop\"]", "[\"prestart\", \"precreate\"]"];
    let new = (
        field("version", ["\"1.0.0\""; 2], value.clone()),
        field("hook", ["{\"path\": \"/bin/true\"}"; 2], value.clone()),
        field("when", ["{\"always\": true}", "{\"commands\": [\"x\"]}"], value.clone()),
        field("stages", stages, value.clone()),
    );
    let old = (
        field("version", ["\"0.1.0\"", "null"], value.clone()),
        field("hook", ["\"/bin/true\""; 2], value.clone()),
        field("annotations", ["[\"a\"]", "[\"(a\", \"b)\"]"], value.clone()),
        field("stages", stages, value.clone()),
    );
    let base = prop_oneof![3 => new.prop_map(<[_; 4]>::from), 1 => old.prop_map(<[_; 4]>::from)];
    let extra = proptest::collection::vec((key, value, slip), 0..3);
    (base, prop_oneof![1 => Just(Vec::new()), 1 => extra]).prop_map(|(base, extra)| {
        let base = base.into_iter().flatten().map(|(key, value)| format!("\"{key}\": {value}"));
        let extra = extra.into_iter().map(|(key, value, slip)| format!("\"{key}\": {value}{slip}"));
        format!("{{{}}}", base.chain(extra).collect::<Vec<_>>().join(", "))
    })
}

proptest! {
    #[test]
    fn linter_rejects_what_the_loader_rejects(text in near_hook_files()) {
        for consumer in Consumer::ALL {
            assert_agrees_with_loader(text.as_bytes(), &LintOptions::for_consumer(&consumer));
        }
    }

    #[test]
    fn fixes_never_make_a_file_less_loadable(text in near_hook_files()) {
        let options = LintOptions::default();
        let mut text = text.into_bytes();
        for _ in 0..20 {
            let found = lint_text(Path::new("a.json"), &text, &options);
            let fixes: Vec<_> = found.iter().filter_map(|finding| finding.fix.as_ref()).collect();
            if fixes.is_empty() {
                return Ok(());
            }
            let loads = |text: &[u8]| {
                JsonDocument::parse(text).is_ok_and(|d| text::load(&d, &options.consumer).is_ok())
            };
            let fixed = apply(&text, fixes);
            prop_assert!(!loads(&text) || loads(&fixed), "{}", String::from_utf8_lossy(&fixed));
            let parses = |text: &[u8]| JsonDocument::parse(text).is_ok();
            prop_assert!(!parses(&text) || parses(&fixed), "{}", String::from_utf8_lossy(&fixed));
            prop_assert!(fixed != text);
            text = fixed;
        }
        prop_assert!(false, "fixes do not come to an end: {}", String::from_utf8_lossy(&text));
    }

    #[test]
    fn arbitrary_text_is_linted(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let text = [br#"{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"commands": [""#.as_slice(),
            &bytes, b"\"]}, \"stages\": [\"poststop\"]}"].concat();
        for text in [&bytes, &text] {
            assert_agrees_with_loader(text, &LintOptions::default());
        }
    }
}

#[test]
fn ambiguous_misspelled_keys_are_not_renamed() {
    for keys in [
        // Both spellings at once are an error; a repeated key loses a value.
        r#""annotatiods": ["a"], "annotatoin": ["b"]"#,
        r#""annotatiods": ["a"], "anotations": ["b"]"#,
        r#""annotatiods": ["a"], "annotation": ["b"]"#,
    ] {
        let text = format!(r#"{{"hook": "/bin/true", "stage": ["createRuntime"], {keys}}}"#);
        let fixed = fix_text(Path::new("a.json"), text.as_bytes(), &LintOptions::default());
        assert_eq!(String::from_utf8(fixed.text).unwrap(), text);
    }
}
