//! The settings of `oci-hooks-runtime`: each key of the file, each variable.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::hooks_dir::HooksDir;
use crate::setup::{CONFIG, WrapperSetup, text};

/// Runs `create` with these settings and returns the exit code and the messages.
fn create(setup: &WrapperSetup, settings: &str) -> (Option<i32>, String) {
    setup.write("config.json", CONFIG);
    let ran = setup.with_settings(settings, "create c").output().unwrap();
    (ran.status.code(), text(&ran.stderr))
}

fn stages(setup: &WrapperSetup) -> Vec<String> {
    let config: Value = serde_json::from_str(&setup.config().replace("1e400", "1")).unwrap();
    config["hooks"].as_object().map(|hooks| hooks.keys().cloned().collect()).unwrap_or_default()
}

#[test]
fn runtime_is_a_path_or_a_name() {
    let setup = WrapperSetup::new();
    let fake = setup.path("fake");
    let call = |settings: &str| {
        let _ = fs::remove_file(setup.path("argv"));
        let mut command = setup.with_settings(settings, "state c");
        command.env_remove("OCI_HOOKS_RUNTIME").env("PATH", setup.place.path());
        command.output().unwrap()
    };
    for settings in
        [format!("runtime = {:?}\n", fake.to_str().unwrap()), "runtime = \"fake\"".into()]
    {
        assert_eq!(call(&settings).status.code(), Some(7), "{settings}");
        assert!(setup.was_called(), "{settings}");
    }
    let ran = call("runtime = \"missing\"");
    assert_eq!(ran.status.code(), Some(1));
    let said = text(&ran.stderr);
    assert!(said.contains("no executable missing in"), "{said}");
    // The default: the first known runtime.
    fs::rename(&fake, setup.path("crun")).unwrap();
    assert_eq!(call("").status.code(), Some(7));
}

#[test]
fn variable_can_name_a_runtime_with_a_non_utf8_path() {
    let setup = WrapperSetup::new();
    let odd = setup.place.path().join(OsStr::from_bytes(b"runc-\xff"));
    fs::rename(setup.path("fake"), &odd).unwrap();
    let mut command = setup.command(&["state", "c"].map(OsStr::new));
    assert_eq!(command.env("OCI_HOOKS_RUNTIME", &odd).status().unwrap().code(), Some(7));
}

#[test]
fn later_hook_directories_mask_earlier_ones() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    let mask = HooksDir::new();
    mask.hook("a.json", "true", json!({}), &["createRuntime"]);
    let dirs = |dirs: [&HooksDir; 2]| {
        let [first, second] = dirs.map(|dir| dir.path().to_str().unwrap().to_owned());
        format!("hooks-dirs = [{first:?}, {second:?}]")
    };
    let create = |settings: &str, variable: Option<String>| {
        setup.write("config.json", CONFIG);
        let mut command = setup.with_settings(settings, "create c");
        command.env_remove("OCI_HOOKS_DIRS").envs(variable.map(|dirs| ("OCI_HOOKS_DIRS", dirs)));
        assert_eq!(command.output().unwrap().status.code(), Some(7));
        stages(&setup)
    };
    assert!(create(&dirs([&setup.hooks, &mask]), None).is_empty());
    assert_eq!(create(&dirs([&mask, &setup.hooks]), None), ["createRuntime"]);
    // Directories of the environment do not mask files of the settings' directories.
    let more = HooksDir::new();
    more.hook("a.json", "true", json!({}), &["poststop"]);
    more.hook("b.json", "true", json!({"always": true}), &["poststop"]);
    let more = more.path().to_str().unwrap().to_owned();
    let both = create(&dirs([&mask, &setup.hooks]), Some(more));
    assert_eq!(both, ["createRuntime", "poststop"]);
}

#[test]
fn directory_without_hook_files_fails_unless_allowed() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    let empty = HooksDir::new();
    fs::write(empty.path().join("README"), "").unwrap();
    let empty = empty.path().to_str().unwrap();
    let named = format!("hooks-dirs = [{empty:?}]");
    for (settings, variable) in
        [("", ""), ("", "/missing"), ("", empty), (&*named, ""), (&named, "/missing")]
    {
        let run = |settings: &str| {
            setup.write("config.json", CONFIG);
            let mut command = setup.with_settings(settings, "create c");
            command.env("OCI_HOOKS_DIRS", variable).output().unwrap()
        };
        let ran = run(settings);
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{settings} {variable}: {said}");
        assert!(said.contains("is missing or has no .json files"), "{settings} {variable}: {said}");
        let allowed = run(&format!("allow-empty-dirs = true\n{settings}"));
        assert_eq!(allowed.status.code(), Some(7), "{settings} {variable}");
    }
}

#[test]
fn consumer_and_prestart_stage_are_configurable() {
    let setup = WrapperSetup::new();
    setup.hooks.hook("a.json", "true", json!({"always": true}), &["prestart", "poststop"]);
    for (settings, expected) in [
        ("", "createRuntime"),
        ("as = \"podman-4\"", "prestart"),
        ("prestart = \"prestart\"", "prestart"),
        ("as = \"podman-4\"\nprestart = \"createRuntime\"", "createRuntime"),
    ] {
        assert_eq!(create(&setup, settings).0, Some(7), "{settings}");
        // podman itself runs poststop hooks; other engines need them in the configuration.
        let found = stages(&setup);
        assert!(found.iter().any(|stage| stage == expected), "{settings}: {found:?}");
        assert!(found.iter().any(|stage| stage == "poststop"), "{settings}: {found:?}");
        assert_eq!(found.len(), 2, "{settings}: {found:?}");
    }
    setup.hooks.hook("b.json", "cat", json!({"always": true}), &["precreate"]);
    let (code, said) = create(&setup, "as = \"crio\"");
    assert_eq!(code, Some(1));
    assert!(said.contains("b.json") && said.contains("precreate"), "{said}");
}

#[test]
fn bad_files_are_skipped_with_a_warning_if_configured() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    fs::write(setup.hooks.path().join("bad.json"), "[]").unwrap();
    assert_eq!(create(&setup, "").0, Some(1));
    assert!(!setup.was_called());
    let (code, said) = create(&setup, "skip-bad-files = true");
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("level=warning") && said.contains("bad.json"), "{said}");
    assert_eq!(stages(&setup), ["createRuntime"]);
}

#[test]
fn hook_without_its_program_is_skipped_with_a_warning() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    let text = setup.hooks.read("a.json").replace("/bin/sh\"", "/nonexistent\"");
    fs::write(setup.hooks.output_path("b.json"), text).unwrap();
    let (code, said) = create(&setup, "");
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("level=warning") && said.contains("/nonexistent"), "{said}");
    assert_eq!(setup.config().matches("\"timeout\"").count(), 1);
}

#[test]
fn strict_can_be_turned_off() {
    let setup = WrapperSetup::new();
    setup.hooks.file(
        "a.json",
        &json!({"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true},
            "stages": ["createContainer"]}),
    );
    assert_eq!(create(&setup, "").0, Some(7));
    assert!(setup.config().contains(r#"{"path":"/bin/true","env":[]}"#), "{}", setup.config());
    assert_eq!(create(&setup, "strict = false").0, Some(7));
    assert!(setup.config().contains(r#"{"path":"/bin/true"}"#), "{}", setup.config());

    let writable = fs::Permissions::from_mode(0o777);
    fs::set_permissions(setup.hooks.path(), writable).unwrap();
    let (code, said) = create(&setup, "");
    assert_eq!(code, Some(1));
    assert!(said.contains("is writable by everyone (mode 0777)"), "{said}");

    fs::set_permissions(setup.hooks.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let set = std::process::Command::new("setfacl")
        .args(["-m", "u:nobody:rwx"])
        .arg(setup.hooks.path())
        .status();
    assert!(set.expect("setfacl is needed: install the package acl").success());
    let (code, said) = create(&setup, "");
    assert_eq!(code, Some(1));
    assert!(said.contains("by the user nobody (uid 65534) through an ACL"), "{said}");
    assert!(said.contains("(hint: setfacl -x u:nobody "), "{said}");
    assert_eq!(setup.config(), CONFIG);
    assert_eq!(create(&setup, "strict = false").0, Some(7));
}

#[test]
fn precreate_hooks_can_be_turned_off() {
    let setup = WrapperSetup::new();
    let script = "echo rewritten >&2; sed s,/bin/sh,/bin/ash,";
    setup.hooks.hook("a.json", script, json!({"always": true}), &["precreate"]);
    let (code, said) = create(&setup, "");
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("level=warning msg=\"/bin/sh: rewritten\""), "{said}");
    assert!(setup.config().contains("/bin/ash"));
    let (code, said) = create(&setup, "precreate = false");
    assert_eq!(code, Some(7), "{said}");
    assert!(
        said.contains("level=warning") && said.contains("the settings have precreate = false"),
        "{said}"
    );
    assert!(setup.config().contains("/bin/sh"));
}

#[test]
fn failing_precreate_hook_fails_the_create() {
    let setup = WrapperSetup::new();
    for (script, expected) in [
        ("echo no such image >&2; exit 4", "(stderr: no such image): exit status 4"),
        ("echo '{}'", "which would empty the configuration"),
        ("echo not JSON", "its output is not JSON"),
        ("cat; echo", ""),
    ] {
        setup.hooks.hook("a.json", script, json!({"always": true}), &["precreate"]);
        let (code, said) = create(&setup, "");
        if expected.is_empty() {
            assert_eq!(code, Some(7), "{said}");
        } else {
            assert_eq!(code, Some(1), "{script}");
            assert!(said.contains(expected), "{said}");
            assert_eq!(setup.config(), CONFIG);
        }
    }
}

#[test]
fn endless_output_of_a_precreate_hook_is_cut_in_the_log() {
    let setup = WrapperSetup::new();
    let endless = "yes x >&2";
    for (script, code, expected) in [
        (
            "cat; yes 'what I have to say' | head -c 5000000 >&2".to_owned(),
            7,
            "(more output was discarded)",
        ),
        (endless.to_owned(), 1, "(stderr: x): timed out after 5 s"),
        (format!("yes & {endless}"), 1, "its output exceeds 16777216 bytes"),
    ] {
        setup.hooks.hook("a.json", &script, json!({"always": true}), &["precreate"]);
        if script == endless {
            setup.hooks.set_timeout("a.json", 5);
        }
        let (found, said) = create(&setup, "");
        assert_eq!(found, Some(code), "{script}");
        assert!(said.contains(expected), "{script}: {}", &said[said.len().saturating_sub(300)..]);
        // Line ends are escaped as two characters in the log.
        assert!(said.len() < 2 * (64 << 10), "{script}: {} bytes", said.len());
    }
}

#[test]
fn settings_errors_fail_every_command() {
    let setup = WrapperSetup::new();
    for (settings, expected) in [
        ("strikt = true", "settings.toml:1:1: unknown field, expected one of `runtime`"),
        ("strict = 1", "settings.toml"),
        ("as = \"docker\"", "unknown value of `as`"),
        ("prestart = \"later\"", "prestart, createRuntime"),
        ("runtime =", "settings.toml"),
    ] {
        let ran = setup.with_settings(settings, "state c").output().unwrap();
        assert_eq!(ran.status.code(), Some(1), "{settings}");
        let said = text(&ran.stderr);
        assert!(said.contains(expected), "{settings}: {said}");
        assert_eq!(said.lines().count(), 1, "{settings}: {said}");
    }
    let mut command = setup.command(&["state", "c"].map(OsStr::new));
    let ran = command.env("OCI_HOOKS_RUNTIME_CONFIG", "/nonexistent.toml").output().unwrap();
    assert!(text(&ran.stderr).contains("cannot read /nonexistent.toml"), "{}", text(&ran.stderr));
    assert!(!setup.was_called());
}

#[test]
fn missing_program_or_required_hook_fails_if_configured() {
    let setup = WrapperSetup::new();
    setup.add_matching_hook();
    let text = r#"{"version": "1.0.0", "hook": {"path": "/gone"}, "when": {"always": true}, "stages": ["poststop"]}"#;
    let guard = setup.hooks.path().join("guard.json");
    fs::write(&guard, text).unwrap();
    for (settings, fault) in [
        ("", None),
        ("missing-program = \"drop\"\nrequired-hooks = [\"a.json\"]", None),
        ("missing-program = \"fail\"", Some("\"/gone\" does not exist")),
        ("missing-program = \"fail\"\nskip-bad-files = true", Some("does not exist")),
        ("required-hooks = [\"a.json\", \"guard.json\"]", Some("is not in force")),
        ("required-hooks = [\"other.json\"]", Some("is not among the hooks in force in")),
        ("required-hooks = [\"/etc/a.json\"]", Some("is not among the hooks in force in")),
    ] {
        let (code, said) = create(&setup, settings);
        assert_eq!(code, Some(if fault.is_some() { 1 } else { 7 }), "{settings}: {said}");
        let expected = fault.unwrap_or("level=warning");
        assert!(said.contains(expected), "{settings}: {said}");
        assert_eq!(setup.config() == CONFIG, fault.is_some(), "{settings}");
    }
}
