//! The files in `tests/data/lint/cases` with their findings, in `CASES.tsv`.
//!
//! `UPDATE_GOLDEN=1` rewrites the findings. It keeps the consumers, and adds new files with podman as their consumer.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use oci_hooks::hooks::Consumer;
use oci_hooks::hooks::lint::{self, LintOptions, Severity, fix_text, rules};

use crate::lint::env::{data, golden};

fn options(consumers: &str) -> LintOptions {
    let (consumer, also) = consumers.split_once('+').unwrap_or((consumers, ""));
    let mut options = LintOptions::for_consumer(&Consumer::from_name(consumer).unwrap());
    options.others.extend(Consumer::from_name(also));
    options
}

/// Returns the files with their consumers.
fn cases() -> BTreeMap<String, String> {
    let table = fs::read_to_string(data("CASES.tsv")).unwrap_or_default();
    let consumers: BTreeMap<_, _> = table
        .lines()
        .filter_map(|line| {
            let mut columns = line.split('\t');
            Some((columns.next()?.to_owned(), columns.next()?.to_owned()))
        })
        .collect();
    let names = fs::read_dir(data("cases")).unwrap();
    names
        .map(|entry| {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let consumer = consumers.get(&name).cloned().unwrap_or_else(|| "podman".to_owned());
            (name, consumer)
        })
        .collect()
}

#[test]
fn each_file_has_the_expected_findings() {
    let mut table = "file\tas\tfindings\n".to_owned();
    for (name, consumers) in cases() {
        let text = fs::read(data("cases").join(&name)).unwrap();
        let findings = lint::lint_text(Path::new(&name), &text, &options(&consumers));
        let findings: Vec<_> = findings
            .iter()
            .map(|finding| {
                let severity = match finding.severity {
                    Severity::Error => 'E',
                    Severity::Warning => 'W',
                    Severity::Note => 'N',
                };
                let line = finding.location.as_ref().map_or(0, |at| at.line);
                format!("{severity}:{}@{line}", finding.rule.code)
            })
            .collect();
        table += &format!("{name}\t{consumers}\t{}\n", findings.join(" "));
    }
    golden(&data("CASES.tsv"), &table);
}

#[test]
fn valid_files_have_no_findings() {
    for (name, consumers) in cases().into_iter().filter(|(name, _)| name.starts_with("good")) {
        let text = fs::read(data("cases").join(&name)).unwrap();
        let findings = lint::lint_text(Path::new(&name), &text, &options(&consumers));
        assert!(findings.is_empty(), "{name}: {findings:?}");
    }
}

#[test]
fn examples_of_this_repository_have_no_warnings() {
    let mut seen = BTreeSet::new();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("hooks.d-examples");
    let entries = [".", "more", "podman"].map(|dir| fs::read_dir(examples.join(dir)).unwrap());
    for entry in entries.into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = fs::read(&path).unwrap();
            for finding in lint::lint_text(&path, &text, &LintOptions::default()) {
                assert_eq!(finding.severity, Severity::Note, "{}: {finding:?}", path.display());
            }
            seen.insert(path);
        }
    }
    assert!(seen.len() >= 10, "{seen:?}");
}

#[test]
fn fixed_files_match_the_golden_ones() {
    for (name, consumers) in cases() {
        let text = fs::read(data("cases").join(&name)).unwrap();
        let fixed = fix_text(Path::new(&name), &text, &options(&consumers));
        let path = data("fixed").join(&name);
        if fixed.text != text {
            golden(&path, &String::from_utf8(fixed.text).unwrap());
        } else {
            assert!(!path.exists(), "{name} has nothing to fix any more");
        }
    }
}

#[test]
fn rule_table_of_the_documentation_matches_the_catalogue() {
    let mut table = "\
# Rules of `oci-hooks lint`

`oci-hooks lint --explain CODE` explains each with examples. Codes are stable. `yes`: `--fix` fixes unambiguous findings.

| Code | Name | Severity | Fix | What it finds |
| --- | --- | --- | --- | --- |
"
    .to_owned();
    for rule in rules::ALL {
        let fix = match rule.fix {
            lint::FixPolicy::Automatic(_) => "yes",
            lint::FixPolicy::Manual(_) => "",
        };
        let summary = rule.summary.replace('|', "\\|");
        table +=
            &format!("| {} | {} | {} | {fix} | {summary} |\n", rule.code, rule.name, rule.severity);
    }
    golden(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/lints.md")), &table);
}
