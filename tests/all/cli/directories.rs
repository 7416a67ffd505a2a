//! Hook directories named in a consumer's configuration. `podman_dirs` of the crate `runtime-wrapper` compares
//! podman's own reading of the same configuration.

use std::fs;

use serde_json::{Value, json};

use crate::cli::env::HookEnv;

const PODMAN: [(&str, &str); 1] = [("CONTAINERS_CONF", "containers.conf")];
const CRIO: [(&str, &str); 2] =
    [("CONTAINER_CONFIG", "crio.conf"), ("CONTAINER_CONFIG_DIR", "crio.conf.d")];

/// Returns hooks in `usr` and `etc`, and a podman configuration with these directories.
fn reading(dirs: &[&str]) -> HookEnv {
    let env = HookEnv::with_hooks();
    env.containers_conf("containers.conf", dirs);
    env
}

#[test]
fn commands_read_podmans_directories_and_name_the_deciding_file() {
    let env = reading(&["usr"]);
    let decided = "hooks_dir in {ROOT}/containers.conf:2";
    let ran = env.run_configured(&PODMAN, &["explain"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains(&format!("\ndirectories from {decided}\n")), "{}", ran.stdout);
    // The file is not masked, because podman does not read the other directory.
    assert!(ran.stdout.contains("+ 20-gpu.json     injected"), "{}", ran.stdout);
    assert!(!ran.stdout.contains("{ROOT}/etc"), "{}", ran.stdout);

    for command in ["list", "lint"] {
        let ran = env.run_configured(&PODMAN, &[command]);
        let note = format!("note: podman reads {{ROOT}}/usr ({decided})\n");
        assert!(ran.stderr.contains(&note), "{command}: {}", ran.stderr);
        assert!(!ran.stdout.contains("{ROOT}/etc"), "{command}: {}", ran.stdout);
    }
    let ran = env.run_configured(&PODMAN, &["inject"]);
    assert!(ran.stdout.contains("createRuntime"), "{}", ran.stdout);
    let ran = env.run_configured(&PODMAN, &["show", "20-gpu"]);
    assert!(ran.stdout.contains("{ROOT}/usr/20-gpu.json"), "{}", ran.stdout);
}

#[test]
fn json_contains_file_and_line() {
    let env = reading(&["usr", "etc"]);
    let explain = |args: &[&str]| -> Value {
        let args = [&["explain", "--format", "json"], args].concat();
        serde_json::from_str(&env.run_configured(&PODMAN, &args).stdout).unwrap()
    };
    let expected = json!({
        "decided_by": "hooks_dir in {ROOT}/containers.conf:2",
        "file": "{ROOT}/containers.conf",
        "line": 2,
    });
    assert_eq!(explain(&[])["source"], expected);
    assert_eq!(explain(&["--hooks-dir", "usr"])["source"], Value::Null);
}

#[test]
fn crio_uses_its_own_configuration() {
    let env = HookEnv::with_hooks();
    env.containers_conf("containers.conf", &["nowhere"]);
    env.write("crio.conf", "[crio.runtime]\nhooks_dir = [\"/nonexistent\"]\n");
    fs::create_dir(env.path("crio.conf.d")).unwrap();
    let text = format!("[crio.runtime]\n\nhooks_dir = [{:?}]\n", env.path("etc"));
    env.write("crio.conf.d/10-hooks.conf", &text);
    let ran = env.run_configured(&[PODMAN.as_slice(), &CRIO].concat(), &["list", "--as", "crio"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let note = "note: crio reads {ROOT}/etc (hooks_dir in {ROOT}/crio.conf.d/10-hooks.conf:3)\n";
    assert!(ran.stderr.starts_with(note), "{}", ran.stderr);
    assert!(ran.stdout.contains("{ROOT}/etc/20-gpu.json"), "{}", ran.stdout);
}

#[test]
fn unreadable_podman_configuration_is_an_error_with_a_position() {
    let env = HookEnv::with_hooks();
    env.write("containers.conf", "[engine]\nhooks_dir = \"/a\"\n");
    for command in ["explain", "list", "lint", "inject", "monitor"] {
        let ran = env.run_configured(&PODMAN, &[command]);
        assert_eq!(ran.code, Some(2), "{command}: {}", ran.stdout);
        let said = "error: {ROOT}/containers.conf: cannot determine the hook directories of podman: \
                    {ROOT}/containers.conf:2:13: expected a list of directories";
        assert!(ran.stderr.starts_with(said), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains("hint: fix the file"), "{command}: {}", ran.stderr);
    }
    // Findings of a single file do not depend on the configuration.
    let ran = env.run_configured(&PODMAN, &["validate", "usr/20-gpu.json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = env.run_configured(&PODMAN, &["lint", "usr/20-gpu.json"]);
    assert_ne!(ran.code, Some(2), "{}", ran.stderr);
    let ran = env.run_configured(&PODMAN, &["explain", "--consumers"]);
    assert!(ran.stdout.contains("podman cannot start any container because of"), "{}", ran.stdout);
}

#[test]
fn changes_apply_to_the_last_read_directory() {
    let env = reading(&["etc", "usr"]);
    env.hook("mine.json", r#""always": true"#, r#""poststop""#);
    let run = |args: &[&str]| env.run_configured(&PODMAN, args);
    assert_eq!(run(&["install", "mine.json"]).stdout, "wrote {ROOT}/usr/mine.json\n");
    assert!(run(&["disable", "mine"]).stdout.contains("{ROOT}/usr/mine.json.disabled"));
    assert!(run(&["enable", "mine"]).stdout.contains("{ROOT}/usr/mine.json"));
    assert_eq!(run(&["remove", "mine"]).stdout, "removed {ROOT}/usr/mine.json\n");
}

#[test]
fn changes_without_a_read_directory_suggest_a_setting() {
    let env = reading(&[]);
    env.hook("mine.json", r#""always": true"#, r#""poststop""#);
    let args = ["install", "mine.json", "--as", "podman-4"];
    let ran = env.run_configured(&PODMAN, &args);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    let said = "error: podman-4 reads no hook directory (hooks_dir in {ROOT}/containers.conf:2)\n  \
                hint: in {ROOT}/containers.conf, line 2, write hooks_dir = [\"";
    assert!(ran.stderr.starts_with(said), "{}", ran.stderr);
    let ran = env.run_configured(&PODMAN, &["explain", "--as", "podman-4"]);
    assert!(ran.stdout.contains("podman-4 reads no hook directory\n"), "{}", ran.stdout);
}

#[test]
fn named_directory_that_podman_does_not_read_is_a_warning() {
    let env = reading(&["etc"]);
    env.hook("mine.json", r#""always": true"#, r#""poststop""#);
    let etc = "/etc/containers/oci/hooks.d";
    let args = ["install", "mine.json", "--dry-run", "--hooks-dir", etc];
    let ran = env.run_configured(&PODMAN, &args);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let warning = format!("warning: {etc}: podman does not read this directory\n  hint: in ");
    assert!(ran.stderr.contains(&warning), "{}", ran.stderr);
    assert!(ran.stderr.contains(&format!("\"{{ROOT}}/etc\", \"{etc}\"]")), "{}", ran.stderr);
}
