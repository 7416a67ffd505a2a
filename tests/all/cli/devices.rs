//! Devices of CDI specifications in `inject`, `list` and `show`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::cli::env::{CommandOutput, HookEnv};

const LAMP: &str = "cdiVersion: 0.5.0
kind: vendor.com/lamp
devices:
- name: red
  containerEdits:
    env: [LAMP=red]
    mounts:
    - {hostPath: /srv/lamp, containerPath: /lamp, options: [rbind]}
    hooks:
    - {hookName: createRuntime, path: /bin/true, args: [lamp]}
";

/// Returns an environment with a specification in `cdi`.
fn with_devices() -> HookEnv {
    let env = HookEnv::new();
    fs::create_dir(env.path("cdi")).unwrap();
    env.write("cdi/lamp.yaml", LAMP);
    env
}

fn run(env: &HookEnv, args: &[&str]) -> CommandOutput {
    let dir = env.path("cdi");
    env.run(&[args, &["--cdi-spec-dir", dir.to_str().unwrap()]].concat())
}

#[test]
fn inject_adds_a_device_before_the_hooks_of_hook_files() {
    let env = with_devices();
    env.hook("usr/a.json", r#""always": true"#, r#""createRuntime""#);
    // A device's mount is not a bind mount of the user.
    env.hook("usr/b.json", r#""hasBindMounts": true"#, r#""poststop""#);
    let ran = run(&env, &["inject", "--device", "vendor.com/lamp=red"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("\"x-vendor\": 1.50e400"), "{}", ran.stdout);
    let config: Value = serde_json::from_str(&ran.stdout.replace("1.50e400", "0")).unwrap();
    assert_eq!(config["process"]["env"], json!(["LAMP=red"]));
    assert_eq!(config["mounts"][0]["source"], "/srv/lamp");
    let hooks = json!([{"path": "/bin/true", "args": ["lamp"]}, {"path": "/bin/true"}]);
    assert_eq!(config["hooks"], json!({"createRuntime": hooks}));
}

#[test]
fn strict_gives_hooks_of_devices_an_empty_environment_and_rejects_files_of_others() {
    let env = with_devices();
    let ran = run(&env, &["inject", "--strict", "--device", "vendor.com/lamp=red"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("\"env\": []"), "{}", ran.stdout);
    let mode = fs::Permissions::from_mode(0o666);
    fs::set_permissions(env.path("cdi/lamp.yaml"), mode).unwrap();
    let ran = run(&env, &["inject", "--strict", "--device", "vendor.com/lamp=red"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("{ROOT}/cdi/lamp.yaml"), "{}", ran.stderr);
    assert!(ran.stderr.contains("writable"), "{}", ran.stderr);
}

#[test]
fn an_unknown_or_ambiguous_device_changes_nothing() {
    let env = with_devices();
    let before = env.read("config.json");
    let ran = run(&env, &["inject", "--in-place", "--device", "vendor.com/lamp=green"]);
    assert_eq!(ran.code, Some(2));
    assert!(
        ran.stderr.starts_with("error: unknown device \"vendor.com/lamp=green\""),
        "{}",
        ran.stderr
    );
    env.write("cdi/other.json", "{\"cdiVersion\": \"9\"}");
    env.write("cdi/twice.yaml", LAMP);
    let ran = run(&env, &["inject", "--in-place", "--device", "vendor.com/lamp=red"]);
    assert_eq!(ran.code, Some(2));
    let warning = "warning: {ROOT}/cdi/other.json:1:16 (/cdiVersion): unknown version \"9\": expected one of 0.3.0, ";
    assert!(ran.stderr.starts_with(warning), "{}", ran.stderr);
    let error = "error: several files define device \"vendor.com/lamp=red\": {ROOT}/cdi/lamp.yaml, {ROOT}/cdi/twice.yaml\n";
    assert!(ran.stderr.contains(error), "{}", ran.stderr);
    assert_eq!(env.read("config.json"), before);
}

#[test]
fn list_and_show_print_devices() {
    let env = with_devices();
    let ran = run(&env, &["list", "--cdi"]);
    let line = "vendor.com/lamp=red  {ROOT}/cdi/lamp.yaml\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), line));
    let ran = run(&env, &["show", "vendor.com/lamp=red", "--format", "json"]);
    let device: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(device["containerEdits"]["hooks"][0]["hookName"], "createRuntime");
    let ran = run(&env, &["show", "vendor.com/lamp=red"]);
    assert!(ran.stdout.contains("\nversion   0.5.0\n"), "{}", ran.stdout);
    fs::remove_file(env.path("cdi/lamp.yaml")).unwrap();
    assert_eq!(run(&env, &["list", "--cdi"]).code, Some(1));
}

#[test]
fn missing_directory_fails_lint() {
    let ran = HookEnv::new().run(&["lint", "--cdi", "--cdi-spec-dir", "typo"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert_eq!(ran.stderr, "error: typo: cannot list: No such file or directory (os error 2)\n");
}

#[test]
fn lint_reports_errors_conflicts_missing_programs_and_writable_files() {
    let env = with_devices();
    let ran = run(&env, &["lint", "--cdi"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "1 CDI specification, no findings\n"));

    env.write("cdi/twice.yaml", &LAMP.replace("/bin/true", "/nonexistent"));
    env.write("cdi/unknown.yaml", &LAMP.replace("path:", "pat:"));
    let mode = fs::Permissions::from_mode(0o666);
    fs::set_permissions(env.path("cdi/lamp.yaml"), mode).unwrap();
    let ran = run(&env, &["lint", "--cdi", "--format", "json"]);
    assert_eq!(ran.code, Some(1));
    for code in ["OH401", "OH601", "OH602", "OH603"] {
        assert!(ran.stdout.contains(code), "{code}: {}", ran.stdout);
    }
    let ran = run(&env, &["lint", "--cdi", "--content-only"]);
    let unknown = "error[OH601]: unknown key \"pat\": did you mean `path`?\n--> {ROOT}/cdi/unknown.yaml:10:38\n";
    assert!(ran.stdout.contains(unknown), "{}", ran.stdout);
    assert!(!ran.stdout.contains("OH401") && !ran.stdout.contains("OH603"), "{}", ran.stdout);
}

#[test]
fn capture_all_wraps_each_hook_of_a_configuration_once() {
    let env = with_devices();
    let hooks = r#"{"poststop": [{"path": "/usr/bin/old", "args": ["old", "1"], "timeout": 3}],
        "startContainer": [{"path": "/in/container"}]}"#;
    let config = env.read("config.json").replacen('{', &format!("{{\"hooks\": {hooks},"), 1);
    env.write("config.json", &config);
    env.hook("usr/a.json", r#""always": true"#, r#""createRuntime""#);
    let capture = env.path("records");
    let capture = ["--capture", capture.to_str().unwrap(), "--capture-all"];
    let ran =
        run(&env, &[["inject", "--device", "vendor.com/lamp=red"].as_slice(), &capture].concat());
    let note = "note: hook /in/container is not recorded at startContainer: it runs inside the container, \
                where oci-hooks is missing\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), note));
    let config: Value = serde_json::from_str(&ran.stdout.replace("1.50e400", "0")).unwrap();
    let hooks = &config["hooks"];
    let end = |hook: &Value, count: usize| {
        let args: Vec<_> =
            hook["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
        assert_eq!(args.iter().filter(|arg| **arg == "run-hook").count(), 1, "{args:?}");
        args[args.len() - count..].join(" ")
    };
    assert_eq!(end(&hooks["poststop"][0], 3), "-- /usr/bin/old 1");
    assert_eq!(end(&hooks["createRuntime"][0], 2), "-- /bin/true");
    assert!(hooks["createRuntime"][1]["args"].to_string().contains("--hook=a.json"), "{hooks}");
    assert_eq!(hooks["startContainer"], json!([{"path": "/in/container"}]));
}
