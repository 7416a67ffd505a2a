//! `oci-hooks explain`.

use crate::env::{TestEnv, golden};

#[test]
fn tells_what_becomes_of_each_file_and_why() {
    let ran = TestEnv::with_hooks().run(&["explain"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden("explain.txt", &ran.stdout);
}

#[test]
fn json_has_conditions_problems_and_order() {
    let ran = TestEnv::with_hooks().run(&["explain", "--format", "json"]);
    assert_eq!(ran.code, Some(0));
    golden("explain.json", &ran.stdout);
}

/// They are not read, and are no files whose names could end in `.json`.
#[test]
fn directories_in_a_hook_directory_are_left_out() {
    let env = TestEnv::with_hooks();
    std::fs::create_dir(env.path("usr/bin")).unwrap();
    golden("explain.txt", &env.run(&["explain"]).stdout);
    golden("explain.json", &env.run(&["explain", "--format", "json"]).stdout);
}

#[test]
fn consumers_are_compared_side_by_side() {
    let ran = TestEnv::with_hooks().run(&["explain", "--consumers"]);
    // The width of the columns depends on where the temporary directory is.
    let lines =
        ran.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    golden("explain-consumers.txt", &lines.map(|line| line + "\n").collect::<String>());
}

/// As docs/nri.md has it: the plugin skips a file that it rejects, and does not count the engine's mounts.
#[test]
fn the_plugin_for_nri_is_not_the_sample_plugin() {
    let env = TestEnv::new();
    env.hook("usr/10-all.json", r#""always": true"#, r#""prestart""#);
    env.hook("usr/20-mounts.json", r#""hasBindMounts": true"#, r#""createRuntime""#);
    env.hook("usr/30-filter.json", r#""always": true"#, r#""precreate""#);
    env.write(
        "config.json",
        r#"{"process": {"args": ["sh"]}, "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}]}"#,
    );
    let ran = env.run(&["explain", "--as", "nri"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stdout);
    for line in [
        "nri for a container that runs `sh`, has no annotations and no bind mounts",
        "10-all.json     injected at createRuntime",
        "30-filter.json  broken at 5:14 /stages/0: unknown stage \"precreate\"",
        "Injected in this order: 10-all.json\n",
    ] {
        assert!(ran.stdout.contains(line), "{}", ran.stdout);
    }
    let ran = env.run(&["explain", "--as", "hook-injector"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    for line in [
        "has no annotations and has bind mounts",
        "hook-injector does not start, and containers start without hooks, because of {ROOT}/usr/30-filter.json",
    ] {
        assert!(ran.stdout.contains(line), "{}", ran.stdout);
    }
    std::fs::remove_file(env.path("usr/30-filter.json")).unwrap();
    let ran = env.run(&["explain", "--as", "hook-injector"]);
    assert!(ran.stdout.ends_with("Injected in this order: 10-all.json, 20-mounts.json\n"));
}

#[test]
fn one_hook_can_be_asked_for_and_decides_the_exit_code() {
    let env = TestEnv::with_hooks();
    let ran = env.run(&["explain", "--hook", "20-gpu"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(!ran.stdout.contains("10-python"), "{}", ran.stdout);
    assert_eq!(env.run(&["explain", "--hook", "10-python.json"]).code, Some(0));
}

#[test]
fn a_file_that_stops_every_container_is_named() {
    let env = TestEnv::with_hooks();
    env.write("usr/05-comment.json", "{ // no\n}");
    let ran = env.run(&["explain"]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stdout
            .contains("podman cannot start any container because of {ROOT}/usr/05-comment.json"),
        "{}",
        ran.stdout
    );
}

#[test]
fn what_lint_finds_in_a_file_is_said_there() {
    let env = TestEnv::new();
    env.hook("etc/10-misspelt.json", r#""alway": true"#, r#""poststop""#);
    let ran = env.run(&["explain"]);
    assert!(ran.stdout.contains("not injected: when has no condition"), "{}", ran.stdout);
    let said = "OH101 at 4:12: `alway` is not read by anyone";
    assert!(ran.stdout.contains(said), "{}", ran.stdout);
    assert!(ran.stdout.contains("hint: did you mean `always`?"), "{}", ran.stdout);
    let json = env.run(&["explain", "--format", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let finding = &json["directories"][1]["files"][0]["findings"][1];
    assert_eq!((&finding["code"], &finding["line"]), (&"OH101".into(), &4.into()), "{json}");
}

#[test]
fn a_hint_that_goes_for_many_files_is_printed_once() {
    let env = TestEnv::with_hooks();
    let gone = env.read("usr/40-gone.json");
    env.write("usr/41-gone.json", &gone);
    for args in [&["explain"][..], &["list"]] {
        let ran = env.run(args);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(said.matches("does not exist").count(), 2, "{said}");
        assert_eq!(said.matches("hint: install the program").count(), 1, "{said}");
    }
}

#[test]
fn annotations_for_cdi_are_named() {
    let env = TestEnv::new();
    let config = crate::env::CONFIG.replace(
        "\"com.example.gpu\": \"all\"",
        "\"cdi.k8s.io/gpus\": \"nvidia.com/gpu=0, nvidia.com/gpu=1\", \"cdi\": \"x\"",
    );
    env.write("config.json", &config);
    let said = env.run(&["explain"]).stdout;
    let expected = "CDI adds nvidia.com/gpu=0, nvidia.com/gpu=1, by annotation cdi.k8s.io/gpus\n";
    assert!(said.contains(expected), "{said}");
    let json = env.run(&["explain", "--format", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let devices = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"];
    let request = serde_json::json!({"annotation": "cdi.k8s.io/gpus", "devices": devices});
    assert_eq!(json["cdi"], serde_json::json!([request]));
}

#[test]
fn colours_come_when_asked_for() {
    let env = TestEnv::with_hooks();
    assert!(!env.run(&["explain"]).stdout.contains('\u{1b}'));
    assert!(env.run(&["explain", "--color", "always"]).stdout.contains('\u{1b}'));
}
