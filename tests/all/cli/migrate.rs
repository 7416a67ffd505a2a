//! `oci-hooks migrate`.

use serde_json::Value;

use crate::cli::env::{HookEnv, golden};

const SIMPLE: &str = r#"{
    "cmd": [".*/init$", ".*/systemd$"],
    "hook": "/nonexistent/register-machine",
    "stage": ["prestart", "poststop"]
}
"#;
const ANY_OF: &str = r#"{"hook": "/bin/true", "arguments": ["-q"], "stages": ["prestart"],
 "hasbindmounts": true, "annotations": ["a", "b"], "comment": "hello"}"#;

#[test]
fn one_file_is_migrated_to_standard_output() {
    let env = HookEnv::new();
    env.write("init.json", SIMPLE);
    let ran = env.run(&["migrate", "init.json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden("migrate.json", &ran.stdout);
    let again = env.run_with_input(&["migrate", "-"], &ran.stdout);
    assert_eq!((again.code, again.stdout), (Some(0), ran.stdout.clone()));
    assert_eq!(again.stderr, "note: -: already follows schema 1.0.0\n");
    env.write("new.json", &ran.stdout);
    assert_eq!(env.run(&["migrate", "--diff", "new.json"]).stdout, "");
}

#[test]
fn several_conditions_cause_a_warning() {
    let env = HookEnv::new();
    env.write("any.json", ANY_OF);
    let ran = env.run(&["migrate", "any.json"]);
    golden("migrate-any.txt", &format!("{}{}", ran.stdout, ran.stderr));
    let ran = env.run(&["migrate", "any.json", "--format", "json"]);
    golden("migrate-any.json", &ran.stdout);
}

#[test]
fn diff_shows_the_changes() {
    let env = HookEnv::new();
    env.write("init.json", SIMPLE);
    golden("migrate.diff", &env.run(&["migrate", "--diff", "init.json"]).stdout);
}

#[test]
fn in_place_writes_valid_files() {
    let env = HookEnv::new();
    env.write("etc/any.json", ANY_OF);
    env.write("etc/init.json", SIMPLE);
    let plan = env.run(&["migrate", "--in-place", "--dry-run", "etc/any.json"]);
    assert_eq!(plan.stdout, "would write etc/any.1.json\nwould replace etc/any.json\n");
    assert_eq!(env.names("etc"), ["any.json", "init.json"]);

    let ran = env.run(&["migrate", "--in-place", "etc/any.json", "etc/init.json"]);
    assert_eq!(ran.stdout, "wrote etc/any.1.json\nreplaced etc/any.json\nreplaced etc/init.json\n");
    assert_eq!(env.names("etc"), ["any.1.json", "any.json", "init.json"]);
    for name in ["any.json", "any.1.json", "init.json"] {
        let path = format!("etc/{name}");
        let ran = env.run(&["validate", "--no-path-check", &path]);
        assert_eq!(ran.stdout, format!("{path}: valid, schema 1.0.0\n"));
    }
    assert_eq!(env.run(&["migrate", "--in-place", "etc/any.json"]).stdout, "");
}

#[test]
fn output_directory_is_created_and_existing_files_kept() {
    let env = HookEnv::new();
    env.write("init.json", SIMPLE);
    let ran = env.run(&["migrate", "-o", "new", "init.json", "--prestart", "createRuntime"]);
    assert_eq!(ran.stdout, "created directory new\nwrote new/init.json\n");
    let new: Value = serde_json::from_str(&env.read("new/init.json")).unwrap();
    assert_eq!(new["stages"], serde_json::json!(["createRuntime", "poststop"]));
    let ran = env.run(&["migrate", "-o", "new", "init.json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.starts_with("error: new/init.json: already exists"), "{}", ran.stderr);
}

#[test]
fn bad_file_does_not_prevent_migration_of_others() {
    let env = HookEnv::new();
    env.write("bad.json", r#"{"hook": "/bin/x"}"#);
    env.write("worse.json", "{");
    env.write("init.json", SIMPLE);
    let ran = env.run(&["migrate", "bad.json", "worse.json", "init.json", "gone.json"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stdout.contains("/systemd$"));
    for name in ["bad.json:1:1", "worse.json:1:2", "gone.json: "] {
        assert!(ran.stderr.contains(name), "{name}: {}", ran.stderr);
    }
}
