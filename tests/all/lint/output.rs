//! Output formats and exit codes.

use std::fs;
use std::path::Path;

use oci_hooks::hooks::lint::{self, LintOptions, Severity, rules};
use oci_hooks::hooks::trust::TrustOptions;
use serde_json::{Value, json};

use crate::lint::env::{data, golden, lint, lint_in};

/// Files that produce all kinds of output: hints, related locations, fixes, findings without a location.
const FILES: [&str; 5] = [
    "cases/comments.json",
    "cases/empty.json",
    "cases/keys.json",
    "cases/look-ahead.json",
    "cases/unescaped-dots.json",
];

fn output(format: &str) -> String {
    let mut args = vec!["--content-only", "--format", format];
    args.extend(FILES);
    let ran = lint(&args);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""));
    ran.stdout
}

/// The program of one example is in `bin`, and is meant to be installed elsewhere.
#[test]
fn examples_pass_lint_in_a_clone() {
    // A copy, because the files of the checkout may belong to another user.
    let clone = tempfile::tempdir().unwrap();
    for directory in ["hooks.d-examples", "hooks.d-examples/bin"] {
        fs::create_dir(clone.path().join(directory)).unwrap();
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                let to = clone.path().join(directory).join(entry.file_name());
                fs::copy(entry.path(), to).unwrap();
            }
        }
    }
    let ran = lint_in(clone.path(), &["hooks.d-examples"], "");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert!(ran.stdout.contains("install hooks.d-examples/bin/egress-firewall to /usr/libexec/"));
}

#[test]
fn program_beside_an_installed_hook_file_does_not_count() {
    let place = tempfile::tempdir().unwrap();
    for directory in ["bin", "drafts", "other/drafts"] {
        fs::create_dir_all(place.path().join(directory)).unwrap();
    }
    fs::write(place.path().join("bin/program"), "").unwrap();
    let text = r#"{"version": "1.0.0", "hook": {"path": "/nonexistent/program", "env": ["A=b"], "timeout": 1},
        "when": {"always": true}, "stages": ["poststop"]}"#;
    for directory in ["drafts", "other/drafts"] {
        fs::write(place.path().join(directory).join("a.json"), text).unwrap();
    }
    let code = |args: &[&str]| lint_in(place.path(), args, "").code;
    for (path, expected) in [("drafts", 0), ("drafts/a.json", 0), ("other/drafts", 1)] {
        assert_eq!(code(&[path]), Some(expected), "{path}");
    }
    assert_eq!(code(&["--deny", "missing-program", "drafts"]), Some(1));
    let mut options = LintOptions::default();
    options.files = Some(TrustOptions::of_process());
    options.dirs = vec![place.path().join("drafts")];
    let severities = |options: &LintOptions| {
        lint::lint_dirs(options).findings().map(|finding| finding.severity).collect::<Vec<_>>()
    };
    assert_eq!(severities(&options), [Severity::Error]);
    options.drafts = true;
    assert_eq!(severities(&options), [Severity::Note]);
}

#[test]
fn span_within_a_character_shows_the_character() {
    let ran = lint_in(Path::new("/"), &["-"], "{“a”:1}");
    let expected = "error[OH002]: expected a key in double quotes or `}`, found a typographic or single quotation mark\n --> <stdin>:1:2\n  |\n1 | {“a”:1}\n  |  ^\n";
    assert!(ran.stdout.starts_with(expected), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("hint: strings are in straight double quotes: \""),
        "{}",
        ran.stdout
    );
}

#[test]
fn long_lines_have_no_line_for_another_file() {
    let hook = json!({"version": "1.0.0", "hook": {"path": "/bin/true", "args": ["x".repeat(200)]}, "stages": [5]});
    for color in ["always", "never"] {
        let ran = lint_in(Path::new("/"), &["--color", color, "-"], &hook.to_string());
        assert!(ran.stdout.contains('…') && !ran.stdout.contains(":::"), "{}", ran.stdout);
    }
}

#[test]
fn paths_without_hook_files_are_an_error() {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("empty")).unwrap();
    let ran = lint_in(place.path(), &["--content-only", "empty"], "");
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("no hook files in empty"), "{}", ran.stderr);
}

#[test]
fn files_that_are_not_read_are_noted() {
    let place = tempfile::tempdir().unwrap();
    for path in ["hooks/a.json", "hooks/10-hook.conf", "hooks/sub/b.json", "hooks/.git/c.json"] {
        let path = place.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::copy(data("cases/good.json"), path).unwrap();
    }
    let ran = lint_in(place.path(), &["--content-only", "hooks"], "");
    for said in [
        "the file is not read: its name does not end in .json\n--> hooks/10-hook.conf\n",
        "this subdirectory is not read: its hook file is not used\n--> hooks/sub\n",
        "1 hook file: 2 notes\n",
    ] {
        assert!(ran.stdout.contains(said), "{}", ran.stdout);
    }
    for args in [["--recursive", "hooks"].as_slice(), &["hooks", "hooks/sub"]] {
        let ran = lint_in(place.path(), &[&["--content-only"], args].concat(), "");
        assert!(!ran.stdout.contains("subdirectories"), "{}", ran.stdout);
    }
    fs::rename(place.path().join("hooks/a.json"), place.path().join("hooks/a.JSON")).unwrap();
    let ran = lint_in(place.path(), &["--content-only", "hooks"], "");
    assert_eq!(ran.code, Some(1), "findings are reported: {}", ran.stderr);
}

#[test]
fn human_findings_show_the_line() {
    golden(&data("output/findings.txt"), &output("human"));
}

#[test]
fn json_findings_are_an_array() {
    let found = output("json");
    golden(&data("output/findings.json"), &found);
    assert!(serde_json::from_str::<Vec<Value>>(&found).unwrap().len() > 5);
}

#[test]
fn github_findings_are_workflow_commands() {
    golden(&data("output/findings.github"), &output("github"));
}

#[test]
fn gitlab_findings_are_a_code_quality_report() {
    let found = output("gitlab");
    golden(&data("output/findings.gitlab"), &found);
    let report: Vec<Value> = serde_json::from_str(&found).unwrap();
    assert!(report.len() > 5);
    let mut fingerprints = std::collections::BTreeSet::new();
    for finding in &report {
        let text = |pointer| finding.pointer(pointer).and_then(Value::as_str).unwrap();
        assert!(!text("/description").is_empty());
        assert!(rules::ALL.iter().any(|rule| rule.code == text("/check_name")));
        assert!(["info", "minor", "major", "critical", "blocker"].contains(&text("/severity")));
        assert!(text("/location/path").starts_with("cases/"));
        assert!(finding.pointer("/location/lines/begin").unwrap().as_u64().unwrap() >= 1);
        assert!(fingerprints.insert(text("/fingerprint")), "{finding}");
    }
}

#[test]
fn gitlab_fingerprints_survive_moved_lines_and_absolute_paths() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().canonicalize().unwrap();
    let wrong = r#"{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"alway": true}, "stages": ["poststop", "poststop", "poststop"]}"#;
    let report = |path: &str| -> Vec<Value> {
        let ran = lint_in(&dir, &["--content-only", "--format", "gitlab", path], "");
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    };
    fs::write(dir.join("a.json"), wrong).unwrap();
    let before = report("a.json");
    fs::write(dir.join("a.json"), format!("\n\n{wrong}")).unwrap();
    let absolute = dir.join("a.json");
    for after in [report("./a.json"), report("."), report(absolute.to_str().unwrap())] {
        for (finding, old) in after.iter().zip(&before) {
            assert_eq!(finding["fingerprint"], old["fingerprint"]);
            assert_eq!(finding["location"]["path"], "a.json");
        }
        assert_eq!(after.len(), before.len());
    }
    assert_ne!(report("a.json")[0]["location"], before[0]["location"]);
}

#[test]
fn code_scanning_findings_are_sarif() {
    let mut sarif: Value = serde_json::from_str(&output("sarif")).unwrap();
    let run = &mut sarif["runs"][0];
    let rules = run["tool"]["driver"]["rules"].take();
    run["tool"]["driver"]["semanticVersion"].take();
    golden(&data("output/findings.sarif"), &format!("{sarif:#}\n"));

    let rules = rules.as_array().unwrap();
    assert_eq!(rules.len(), rules::ALL.len());
    for rule in rules {
        for field in
            ["/id", "/name", "/shortDescription/text", "/fullDescription/text", "/help/text"]
        {
            assert!(rule.pointer(field).is_some_and(Value::is_string), "{field} of {rule}");
        }
        let level = rule.pointer("/defaultConfiguration/level").unwrap();
        assert!(["error", "warning", "note"].iter().any(|known| level == known));
    }
    for result in sarif["runs"][0]["results"].as_array().unwrap() {
        assert!(result["message"]["text"].is_string());
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        let place = &result["locations"][0]["physicalLocation"];
        assert!(place["artifactLocation"]["uri"].as_str().unwrap().starts_with("cases/"));
        if let Some(region) = place.get("region") {
            assert!(region["startLine"].as_u64().unwrap() >= 1);
            assert!(region["startColumn"].as_u64().unwrap() >= 1);
            assert!(region["endLine"].as_u64() >= region["startLine"].as_u64());
        }
    }
}

#[test]
fn exit_code_counts_errors_and_warnings_and_with_strict_notes() {
    let note = "cases/precreate.json";
    for (args, code) in [
        (vec!["cases/good.json"], 0),
        (vec![note], 0),
        (vec!["--strict", note], 1),
        (vec!["--strict", "cases/good.json"], 0),
        (vec!["--warn", "stage-not-portable", note], 1),
        (vec!["--deny", "OH501", note], 1),
        (vec!["--strict", "--allow", "oh501", note], 0),
        (vec!["cases/unescaped-dots.json"], 1),
        (vec!["--as", "crio", note], 1),
        (vec!["--also", "nri", "--strict", "--allow", "OH501", note], 0),
        (vec!["cases/nothing.json"], 2),
        (vec!["--allow", "OH999", note], 2),
    ] {
        let ran = lint(&[&["--content-only"], args.as_slice()].concat());
        assert_eq!(ran.code, Some(code), "{args:?}\n{}{}", ran.stdout, ran.stderr);
    }
}

#[test]
fn standard_input_is_linted_under_the_given_name() {
    let ran = lint_in(&data(""), &["--content-only", "-"], "{");
    assert_eq!(ran.code, Some(1));
    assert!(ran.stdout.contains("--> <stdin>:1:2"), "{}", ran.stdout);
}

#[test]
fn long_lines_are_cut_around_the_position() {
    let text =
        format!("{{\"é{}\": 1, \"hook\": {{\"x\": \"{}\"", "é".repeat(5000), "ü".repeat(5000));
    let ran = lint_in(&data(""), &["--content-only", "-"], &text);
    assert!(ran.stdout.lines().all(|line| line.chars().count() < 200), "{}", ran.stdout);
    let place = format!("<stdin>:1:{}", text.chars().count() + 1);
    assert!(ran.stdout.contains(&place), "{place}\n{}", ran.stdout);
}

#[test]
fn arbitrary_bytes_are_displayed() {
    let temp = tempfile::tempdir().unwrap();
    let texts: [&[u8]; 5] = [
        b"\xff\xfe{\x00}",
        b"{\"\xc3\": \"\xff\xff\", \xe2\x82}",
        b"\r\n\r\n",
        b"\t{\t\"a\":\t@",
        b"{}\xf0\x9f",
    ];
    for (at, text) in texts.iter().enumerate() {
        let path = temp.path().join(format!("{at}.json"));
        fs::write(&path, text).unwrap();
        for format in ["human", "json", "sarif", "github", "gitlab"] {
            let ran = lint(&["--content-only", "--format", format, path.to_str().unwrap()]);
            assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""), "{at} {format}");
        }
    }
}

#[test]
fn rules_are_listed_and_explained() {
    golden(&data("output/rules.txt"), &lint(&["--rules"]).stdout);
    golden(&data("output/explain.txt"), &lint(&["--explain", "unescaped-dot"]).stdout);
    golden(&data("output/explain.json"), &lint(&["--explain", "oh208", "--format", "json"]).stdout);
    for rule in rules::ALL {
        assert_eq!(lint(&["--explain", rule.code]).code, Some(0));
    }
}

#[test]
fn finding_formats_are_rejected_by_other_commands() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
    let output = command.args(["list", "--format", "sarif"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Two files: one with only a note, the other with a note, a warning and an error.
const MIXED: [(&str, &str); 2] = [
    (
        "a.json",
        "{\"version\": \"1.0.0\", \"hook\": {\"path\": \"/bin/true\", \"env\": [\"A=b\"], \"timeout\": 1},\n\"when\": {\"always\": true},\n\"stages\": [\"prestart\"]}",
    ),
    (
        "b.json",
        "{\"version\": \"1.0.0\", \"hook\": {\"path\": \"/bin/true\", \"env\": [\"A=b\"]},\n\"when\": {\"alway\": true},\n\"stages\": [\"prestrat\"]}",
    ),
];

/// Lints some of the files, and returns the rule codes in the output, and the rest of the output.
fn lint_files(files: &[(&str, &str)], options: &[&str]) -> (Vec<String>, String) {
    let temp = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(temp.path().join(name), text).unwrap();
    }
    let stdout = lint_in(temp.path(), &[&["--content-only", "."], options].concat(), "").stdout;
    let codes = stdout.lines().filter_map(|line| {
        let (before, _) = line.split_once("]: ")?;
        Some(before.split_once('[')?.1.to_owned())
    });
    (codes.collect(), stdout.clone())
}

#[test]
fn notes_are_shown_alone_or_on_request() {
    let (codes, stdout) = lint_files(&MIXED, &[]);
    assert_eq!(codes, ["OH015", "OH201", "OH101"], "{stdout}");
    assert!(stdout.contains("\n--verbose shows the notes\n"), "{stdout}");
    for option in ["--verbose", "--strict"] {
        let (codes, stdout) = lint_files(&MIXED, &[option]);
        assert_eq!(codes, ["OH301", "OH015", "OH201", "OH101", "OH309"], "{option}: {stdout}");
        assert!(!stdout.contains("shows the notes"), "{stdout}");
    }
    let (codes, stdout) = lint_files(&MIXED[..1], &[]);
    assert_eq!(codes, ["OH301"], "{stdout}");
}

#[test]
fn repeated_help_is_shown_once() {
    let twice = [MIXED[1], ("c.json", MIXED[1].1)];
    let (codes, stdout) = lint_files(&twice, &[]);
    assert_eq!(codes.len(), 6, "{stdout}");
    assert_eq!(stdout.matches("did you mean `always`?").count(), 1, "{stdout}");
}
