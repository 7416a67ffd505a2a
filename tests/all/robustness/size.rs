//! Big and deep input.
//!
//! The input is so big that quadratic time or memory would exceed the limits.

use std::fmt::Write as _;
use std::fs;

use crate::robustness::limited::LimitedDir;

/// Returns a hook file with these conditions.
fn hook(when: &str) -> String {
    format!(
        r#"{{"version":"1.0.0","hook":{{"path":"/bin/true"}},"when":{{{when}}},"stages":["poststop"]}}"#
    )
}

fn nested_json(depth: usize) -> String {
    format!("{}{}", "[".repeat(depth), "]".repeat(depth))
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(",")
}

#[test]
fn huge_hook_file_is_rejected_without_reading() {
    let place = LimitedDir::new();
    let file = fs::File::create(place.path("hooks.d/a.json")).unwrap();
    file.set_len(100 << 20).unwrap();
    let ran = place.run(64, &["inject", "config.json"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("104857600 bytes, more than 16777216"), "{}", ran.stderr);
    // Podman has no limit.
    let said = String::from_utf8(place.run(64, &["explain", "config.json"]).stdout).unwrap();
    assert!(said.contains("a.json is too large for oci-hooks, though not for podman"), "{said}");
    place.write("hooks.d/b.json", "{");
    let said = String::from_utf8(place.run(64, &["explain", "config.json"]).stdout).unwrap();
    assert!(said.contains("cannot start any container because of"), "{said}");
    fs::remove_file(place.path("hooks.d/b.json")).unwrap();
    place.run_all(256);
}

#[test]
fn largest_allowed_hook_file_is_read() {
    let place = LimitedDir::new();
    let text = hook(r#""always":true"#);
    let text = format!("{}{text}", " ".repeat((16 << 20) - text.len()));
    place.write("hooks.d/a.json", text);
    let ran = place.run(128, &["inject", "config.json"]);
    assert!(String::from_utf8(ran.stdout).unwrap().contains("/bin/true"));
    place.run_all(256);
}

#[test]
fn hook_files_full_of_small_values_take_bounded_memory() {
    let place = LimitedDir::new();
    // A quarter of the maximum size of a hook file.
    let size = 4 << 20;
    for text in [
        hook(&format!(r#""always":true,"x":[{}0]"#, "0,".repeat(size / 2))),
        hook(&format!(r#""always":true,"x":{{{}"a":0}}"#, r#""":0,"#.repeat(size / 5))),
        hook(&format!(r#""commands":[{}""]"#, r#""","#.repeat(size / 40))),
        hook(r#""always":true"#).replace("poststop", &vec!["poststop"; size / 20].join("\",\"")),
        hook(r#""always":true"#).replace(
            "/bin/true\"",
            &format!("/bin/true\",\"args\":[{}\"\"]", r#""","#.repeat(size / 10)),
        ),
    ] {
        place.write("hooks.d/a.json", &text);
        place.run_all(1024);
    }
}

#[test]
fn nesting_is_limited_to_ten_thousand_levels() {
    let place = LimitedDir::new();
    // The enclosing object counts as a level.
    let with = |depth: usize| {
        hook(r#""always":true"#).replacen('{', &format!("{{\"x\":{},", nested_json(depth - 1)), 1)
    };
    place.write("hooks.d/a.json", with(10_000));
    assert_eq!(place.run(64, &["inject", "config.json"]).code, Some(0));
    place.run_all(128);
    place.write("hooks.d/a.json", with(10_001));
    let ran = place.run(64, &["inject", "config.json"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("nested deeper than 10000 levels"), "{}", ran.stderr);
    place.run_all(128);
    place.write("hooks.d/a.json", "[".repeat(16 << 20));
    place.run_all(128);
}

#[test]
fn deep_configurations_are_written_and_compared() {
    let place = LimitedDir::new();
    place.write("hooks.d/a.json", hook(r#""always":true"#));
    place.write("config.json", format!(r#"{{"x":{}}}"#, nested_json(9_999)));
    let ran = place.run(64, &["inject", "config.json"]);
    let expected = format!(
        r#"{{"x":{},"hooks":{{"poststop":[{{"path":"/bin/true"}}]}}}}"#,
        nested_json(9_999)
    );
    assert!(ran.stdout == expected.as_bytes(), "{}", ran.stderr);
    place.run_all_on_config(128);
    place.write("config.json", format!(r#"{{"x":{}}}"#, nested_json(10_000)));
    let ran = place.run(64, &["inject", "config.json"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("nested deeper than 10000 levels"), "{}", ran.stderr);
    place.run_all_on_config(128);
}

#[test]
fn ten_thousand_hook_files_are_loaded_and_injected() {
    let place = LimitedDir::new();
    for number in 0..10_000 {
        place.write(&format!("hooks.d/{number:05}.json"), hook(r#""commands":["^/bin/[s]h$"]"#));
    }
    fs::rename(place.path("hooks.d/00000.json"), place.path("hooks.d/a.json")).unwrap();
    place.run_all(256);
    let ran = place.run(128, &["inject", "config.json"]);
    let config: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(config["hooks"]["poststop"].as_array().unwrap().len(), 10_000);
}

#[test]
fn ten_thousand_broken_files_are_all_reported() {
    let place = LimitedDir::new();
    for number in 0..10_000 {
        place.write(&format!("hooks.d/{number:05}.json"), hook(r#""commands":["("]"#));
    }
    fs::rename(place.path("hooks.d/00000.json"), place.path("hooks.d/a.json")).unwrap();
    place.run_all(512);
    let ran = place.run(256, &["inject", "config.json", "--lenient"]);
    assert_eq!(ran.stderr.matches("missing closing )").count(), 10_000, "{:.1000}", ran.stderr);
}

#[test]
fn many_duplicate_keys_are_merged() {
    let place = LimitedDir::new();
    let whens = join((0..100_000).map(|i| format!(r#""when":{{"annotations":{{"{i}":"x"}}}}"#)));
    let text = hook(r#""always":true"#);
    place.write("hooks.d/a.json", text.replacen('{', &format!("{{{whens},"), 1));
    place.run_all(512);
    let stages = vec![r#""stages":["poststop"]"#; 100_000].join(",");
    place.write("hooks.d/a.json", text.replacen('{', &format!("{{{stages},"), 1));
    place.run_all(256);

    let members = join((0..100_000).map(|i| format!(r#""x":{i}"#)));
    place.write("config.json", format!(r#"{{{members},"process":{{"args":["sh"],{members}}}}}"#));
    place.run_all_on_config(256);
    let hooks = vec![r#""hooks":{}"#; 100_000].join(",");
    place.write("config.json", format!("{{{hooks}}}"));
    let ran = place.run(128, &["inject", "config.json"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("ambiguous"), "{}", ran.stderr);
}

#[test]
fn many_annotations_are_matched() {
    let place = LimitedDir::new();
    let map = |value: &str| join((0..100_000).map(|i| format!(r#""key.{i}":"{value}""#)));
    place.write("hooks.d/a.json", hook(&format!(r#""annotations":{{{}}}"#, map("^x[0-9]$"))));
    place.run_all(512);
    place.write("hooks.d/a.json", hook(r#""annotations":{"^key\\.[0-9]*9999$":"^x[0-9]+$"}"#));
    place.write("config.json", format!(r#"{{"annotations":{{{}}}}}"#, map("x123")));
    place.run_all(512);
    let ran = place.run(256, &["inject", "config.json"]);
    assert!(String::from_utf8(ran.stdout).unwrap().contains("/bin/true"));
}

#[test]
fn long_patterns_and_long_texts_are_matched() {
    let place = LimitedDir::new();
    let long = "a".repeat(1 << 20);
    for pattern in [
        format!("^{long}$"),
        format!("{long}b"),
        "[a-z]*".repeat(10_000),
        "(a|b)".repeat(10_000),
        "(".repeat(900) + "x" + &")*".repeat(900),
        "((a{0,10}){0,10}){0,10}$".to_owned(),
        "(x+x+)+y".to_owned(),
    ] {
        place.write("hooks.d/a.json", hook(&format!(r#""commands":["{pattern}"]"#)));
        place.write("config.json", r#"{"process":{"args":["/bin/sh"]}}"#);
        place.run_all(512);
    }
    place.write("config.json", format!(r#"{{"process":{{"args":["{long}"]}}}}"#));
    for pattern in ["(x+x+)+y", "(a*)*b", "(a|aa)+$", "a{0,100}c", "^(a?){50}b"] {
        place.write("hooks.d/a.json", hook(&format!(r#""commands":["{pattern}"]"#)));
        place.run_all_on_config(512);
    }
}

#[test]
fn oversized_patterns_are_rejected() {
    let place = LimitedDir::new();
    let mut nest = "x".to_owned();
    for _ in 0..1000 {
        nest = format!("({nest}){{1000}}");
    }
    for pattern in [nest, "(".repeat(1_000_000), "[".repeat(1_000_000), "x{1000}".repeat(100_000)] {
        place.write("hooks.d/a.json", hook(&format!(r#""commands":["{pattern}"]"#)));
        let ran = place.run(512, &["inject", "config.json"]);
        assert_eq!(ran.code, Some(2), "{:.100}: {:.200}", pattern, ran.stderr);
        place.run_all(512);
    }
}

#[test]
fn many_patterns_are_matched() {
    let place = LimitedDir::new();
    let commands =
        join((0..20_000).map(|i| format!(r#""^/usr/(s|local/)?bin/program-{i}[a-z]$""#)));
    place.write("hooks.d/a.json", hook(&format!(r#""commands":[{commands}]"#)));
    place.run_all(512);
}

#[test]
fn large_configuration_keeps_every_byte() {
    let place = LimitedDir::new();
    place.write("hooks.d/a.json", hook(r#""always":true"#));
    for filler in ["0,".repeat(30 << 20), r#"{"key":"a longer value"},"#.repeat(60 << 20 >> 5)] {
        let start = format!(r#"{{"x":[{filler}0]"#);
        place.write("config.json", format!("{start}}}"));
        let ran = place.run(1536, &["inject", "config.json"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let end = r#","hooks":{"poststop":[{"path":"/bin/true"}]}}"#;
        assert!(ran.stdout.starts_with(start.as_bytes()) && ran.stdout.ends_with(end.as_bytes()));
        assert_eq!(ran.stdout.len(), start.len() + end.len());
        place.run_all_on_config(1536);
    }
}

#[test]
fn oversized_configuration_is_rejected() {
    let place = LimitedDir::new();
    fs::File::create(place.path("config.json")).unwrap().set_len(1 << 40).unwrap();
    let ran = place.run(256, &["inject", "config.json"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("larger than 64 MiB"), "{}", ran.stderr);
    place.run_all_on_config(256);
}

#[test]
fn wide_indentation_is_not_repeated() {
    let place = LimitedDir::new();
    place.write("hooks.d/a.json", hook(r#""always":true"#));
    place.write("config.json", format!("{{\n{}\"x\": 1\n}}", " ".repeat(20 << 20)));
    place.run_all_on_config(256);
}

#[test]
fn many_mounts_and_messages_are_processed() {
    let place = LimitedDir::new();
    let mut mounts = String::new();
    for i in 0..100_000 {
        write!(mounts, r#"{{"destination":"/proc/{i}","options":["rbind","ro"]}},"#).unwrap();
    }
    place.write("hooks.d/a.json", hook(r#""hasBindMounts":true"#));
    place.write("config.json", format!(r#"{{"mounts":[{mounts}{{"destination":"/x"}}]}}"#));
    place.run_all_on_config(256);
}
