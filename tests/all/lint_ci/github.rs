//! The GitHub Action.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::lint_ci::action::{TOOLS, action, run_step};
use crate::lint_ci::env::{CheckoutEnv, GOOD, VERSION, error, repository};
use crate::lint_ci::{note, warning};

#[test]
fn action_annotates_findings_and_fails() {
    let files = [("a.json", GOOD), ("b.json", &error()), ("c.json", &warning())];
    let played = run_step(&CheckoutEnv::new(&files, &TOOLS).install(), &[]);
    assert_eq!(played.code, Some(1), "{}", played.log);
    assert_eq!(played.lines(), ["error 3", "warning 2"], "{}", played.log);
    let (_, with, message) = &played.annotations[0];
    assert_eq!(with["file"], "hooks.d/b.json");
    assert!(with["title"].starts_with("OH015") && message.contains("prestrat"), "{played:?}");
    assert_eq!(played.outputs["errors"], "1");
    assert_eq!(played.outputs["warnings"], "1");
    assert_eq!(played.outputs["notes"], "0");
    assert_eq!((played.outputs["sarif"].as_str(), played.path.as_str()), ("", ""));
}

#[test]
fn action_passes_without_findings() {
    let played = run_step(&CheckoutEnv::new(&[("a.json", GOOD)], &TOOLS).install(), &[]);
    assert_eq!((played.code, played.lines().len()), (Some(0), 0), "{}", played.log);
    assert_eq!(played.outputs["errors"], "0");
}

#[test]
fn fail_on_sets_the_lowest_failing_severity() {
    let (error, warning, note) = (error(), warning(), note());
    for (file, fail_on, code) in [
        (&error, "error", 1),
        (&error, "never", 0),
        (&warning, "error", 0),
        (&warning, "warning", 1),
        (&note, "warning", 0),
        (&note, "note", 1),
        (&note, "notes", 2),
    ] {
        let world = CheckoutEnv::new(&[("a.json", file)], &TOOLS).install();
        let played = run_step(&world, &[("fail-on", fail_on)]);
        assert_eq!(played.code, Some(code), "{fail_on}: {}", played.log);
        assert_eq!(played.annotations.len(), 1, "{fail_on}: {}", played.log);
    }
}

#[test]
fn paths_and_arguments_are_one_per_line() {
    let world = CheckoutEnv::new(&[("a b.json", &warning())], &TOOLS).install();
    let with = [("paths", "\nhooks.d/a b.json\r\n\n"), ("args", "--allow=OH101\n--deny=OH309\n")];
    let played = run_step(&world, &with);
    assert_eq!((played.code, played.annotations.len()), (Some(0), 0), "{}", played.log);
    let played = run_step(&world, &[("paths", " \n")]);
    assert_eq!(played.lines(), ["error "], "{}", played.log);
}

#[test]
fn sarif_is_an_output() {
    let world = CheckoutEnv::new(&[("a.json", &error())], &TOOLS).install();
    let played = run_step(&world, &[("sarif", "out.sarif"), ("fail-on", "never")]);
    assert_eq!((played.code, played.outputs["sarif"].as_str()), (Some(0), "out.sarif"));
    let sarif: Value =
        serde_json::from_str(&fs::read_to_string(world.path("checkout/out.sarif")).unwrap())
            .unwrap();
    assert_eq!(sarif["runs"][0]["results"][0]["ruleId"], "OH015");
}

#[test]
fn sarif_output_replaces_a_link_of_the_repository() {
    let world = CheckoutEnv::new(&[("a.json", &error())], &TOOLS).install();
    let [sarif, elsewhere] = ["checkout/out.sarif", "elsewhere"].map(|path| world.path(path));
    fs::write(&elsewhere, "somebody's").unwrap();
    symlink(&elsewhere, &sarif).unwrap();
    let played = run_step(&world, &[("sarif", "out.sarif"), ("fail-on", "never")]);
    assert_eq!(played.code, Some(0), "{}", played.log);
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "somebody's");
    assert!(fs::symlink_metadata(&sarif).unwrap().is_file());

    let played = run_step(&world, &[("sarif", "missing/out.sarif")]);
    assert_eq!(played.code, Some(2), "{}", played.log);
    assert!(played.annotations[0].2.contains("cannot write sarif"), "{}", played.log);
}

#[test]
fn inputs_and_file_names_are_never_commands() {
    let hostile = "x\n::error::y.json";
    let world = CheckoutEnv::new(&[(hostile, &error())], &TOOLS).install();
    let played = run_step(&world, &[]);
    assert_eq!((played.code, played.lines()), (Some(1), vec!["error 3".into()]), "{}", played.log);
    assert_eq!(played.annotations[0].1["file"], format!("hooks.d/{hostile}"));

    for input in ["paths", "consumer", "fail-on", "args", "sarif", "version"] {
        let value = "$(touch pwned)`touch pwned`\"; touch pwned; '\n::error::y\n--version";
        let played = run_step(&world, &[(input, value)]);
        assert_eq!(played.code, Some(2), "{input}: {}", played.log);
        assert!(!world.path("checkout/pwned").exists(), "{input}");
        assert_eq!(played.annotations.len(), 1, "{input}: {}", played.log);
        assert!(played.outputs.is_empty());
    }
}

#[test]
fn releases_come_from_the_repository_without_a_mirror() {
    let world = CheckoutEnv::new(&[("a.json", GOOD)], &TOOLS);
    let played = run_step(&world, &[]);
    let url = format!("{}/releases/download/v{VERSION}/", env!("CARGO_PKG_REPOSITORY"));
    let message = &played.annotations[0].2;
    assert!(message.starts_with(&format!("cannot download {url}")), "{}", played.log);
}

#[test]
fn action_version_matches_this_release() {
    let script = fs::read_to_string(repository("contrib/ci/lint-action")).unwrap();
    assert!(script.contains(&format!("\ndefault_version={VERSION}\n")));
    let page = fs::read_to_string(repository("docs/install.md")).unwrap();
    assert!(page.contains(&format!("uses: oci-hooks/oci-hooks@v{VERSION}\n")));
    for input in action()["inputs"].as_object().unwrap().keys() {
        assert!(page.contains(&format!("\n| `{input}` |")), "docs/install.md: {input}");
    }
}
