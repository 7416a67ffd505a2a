//! GARM's calls, as far as they work without an instance.

use std::process::Command;

use oci_hooks_testsupport::cli::{ProgramRun, TestEnv};
use serde_json::Value;

use crate::PROGRAM;

/// Runs the program with only these environment variables; `{CONFIG}` is replaced by the path of the settings.
fn call(env: &TestEnv, variables: &[(&str, &str)], stdin: &[u8]) -> ProgramRun {
    let mut command = Command::new(PROGRAM);
    command.env_clear().current_dir("/");
    for (name, value) in variables {
        let settings = env.path("settings.toml");
        command.env(name, value.replace("{CONFIG}", settings.to_str().unwrap()));
    }
    env.run_with_input(command, stdin)
}

const USUAL: [(&str, &str); 2] =
    [("GARM_CONTROLLER_ID", "c"), ("GARM_PROVIDER_CONFIG_FILE", "{CONFIG}")];

fn usual_variables<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&USUAL[..], more].concat()
}

#[test]
fn missing_parameters_are_reported_on_one_line() {
    let env = TestEnv::new(PROGRAM);
    let create = ("GARM_COMMAND", "CreateInstance");
    for (variables, stdin, expected) in [
        (vec![("GARM_COMMAND", "")], "", "missing GARM_COMMAND"),
        (
            vec![("GARM_COMMAND", "x"), ("GARM_PROVIDER_CONFIG_FILE", "/no/such")],
            "",
            "error accessing config file: cannot look up /no/such: No such file or directory (os \
             error 2)",
        ),
        (
            usual_variables(&[create]),
            "{\"instance-token\":",
            "standard input is not JSON: EOF while parsing a value at line 1 column 18",
        ),
        (
            usual_variables(&[create, ("GARM_POOL_ID", "p")]),
            "{\"name\": \"a/b\\n\"}",
            "invalid instance name \"a/b\\n\": expected up to 128 letters, digits, \".\", \"_\" \
             and \"-\", a letter or a digit first",
        ),
        (
            usual_variables(&[("GARM_COMMAND", "ListInstances")]),
            "",
            "missing pool ID: GARM_POOL_ID is not set or empty",
        ),
    ] {
        let ran = call(&env, &variables, stdin.as_bytes());
        assert_eq!(ran.stderr, format!("{expected}\n"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{expected}");
    }
}

#[test]
fn invalid_document_is_rejected() {
    let env = TestEnv::new(PROGRAM);
    let create = usual_variables(&[("GARM_COMMAND", "CreateInstance"), ("GARM_POOL_ID", "p")]);
    let deep = "[".repeat(100_000);
    for text in ["null", "[]", "{\"name\": 5}", "{\"name\": \"a\"} {}", "\u{0}\u{1}", &deep] {
        let ran = call(&env, &create, text.as_bytes());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.stderr);
        assert!(ran.stderr.len() > 20 && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    }
}

#[test]
fn version_and_capabilities_need_no_settings() {
    let env = TestEnv::new(PROGRAM);
    env.write("settings.toml", "wrong = 1\n");
    let ask = |name| {
        let ran = call(&env, &usual_variables(&[("GARM_COMMAND", name)]), b"");
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{name}");
        ran.stdout
    };
    assert_eq!(ask("GetVersion"), concat!("v", env!("CARGO_PKG_VERSION"), "\n"));
    assert_eq!(ask("GetSupportedInterfaceVersions"), "[\"v0.1.0\",\"v0.1.1\"]\n");
    for (name, key) in [("GetConfigJSONSchema", "flavors"), ("GetExtraSpecsJSONSchema", "mounts")] {
        let schema: Value = serde_json::from_str(&ask(name)).unwrap();
        assert!(schema["properties"][key].is_object(), "{name}");
    }
}

#[test]
fn calls_on_missing_instances_are_answered() {
    let env = TestEnv::new(PROGRAM);
    let list = usual_variables(&[("GARM_COMMAND", "ListInstances"), ("GARM_POOL_ID", "p")]);
    let ran = call(&env, &list, b"");
    assert_eq!((ran.stdout.as_str(), ran.code), ("[]\n", Some(0)), "{}", ran.stderr);

    let none = usual_variables(&[("GARM_COMMAND", "GetInstance"), ("GARM_INSTANCE_ID", "a")]);
    let ran = call(&env, &none, b"");
    assert_eq!((ran.stdout.as_str(), ran.code), ("", Some(30)));
    assert_eq!(ran.stderr, "unknown instance \"a\"\n");

    for id in ["a", "../../a"] {
        let delete =
            usual_variables(&[("GARM_COMMAND", "DeleteInstance"), ("GARM_INSTANCE_ID", id)]);
        let ran = call(&env, &delete, b"");
        assert_eq!((ran.stdout.as_str(), ran.code), ("", Some(0)), "{}", ran.stderr);
    }
}

#[test]
fn invalid_settings_fail_a_call_with_one_line() {
    let env = TestEnv::new(PROGRAM);
    env.write("settings.toml", "[flavors.a]\ncpus = 0\n");
    let list = usual_variables(&[("GARM_COMMAND", "ListInstances"), ("GARM_POOL_ID", "p")]);
    let ran = call(&env, &list, b"");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(
        ran.stderr.starts_with("{ROOT}/settings.toml:2:8: invalid CPU count: "),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.stderr.lines().count(), 1);
}

#[test]
fn pool_is_validated_like_its_instances() {
    let env = TestEnv::new(PROGRAM);
    let settings = std::fs::read_to_string(env.path("settings.toml")).unwrap();
    env.write("settings.toml", &(settings + "[flavors.small]\nmemory = \"1GiB\"\n"));
    let validate = |specs: &'static str, stdin: &str| {
        let variables = usual_variables(&[
            ("GARM_COMMAND", "ValidatePoolInfo"),
            ("GARM_INTERFACE_VERSION", "v0.1.1"),
            ("GARM_POOL_EXTRASPECS", specs),
        ]);
        call(&env, &variables, stdin.as_bytes())
    };
    // null, {"memory":"1GiB"}, {"memory":"2GiB"}
    for specs in ["bnVsbA==", "eyJtZW1vcnkiOiIxR2lCIn0="] {
        let ran = validate(specs, "");
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (Some(0), "", ""));
    }
    let ran = validate("eyJtZW1vcnkiOiIyR2lCIn0=", "");
    let expected = "extra specs: \"/memory\" is 2GiB, over the limit of 1GiB in flavor \
                    \"small\"\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), expected));
    let ran = validate("bnVsbA==", "{\"flavor\": \"huge\"}");
    assert_eq!(ran.stderr, "unknown flavor \"huge\": expected one of small\n");
    for (document, expected) in [
        ("{\"image\": \"A B\"}", "unknown image \"A B\": not an alias in the settings"),
        ("{\"os_type\": \"windows\"}", "unsupported os_type \"windows\": expected linux"),
        ("{\"arch\": \"mips\"}", "unknown arch \"mips\": expected amd64"),
        ("{\"arch\": \"s390x\"}", "unknown arch \"s390x\": expected amd64"),
    ] {
        let ran = validate("bnVsbA==", document);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{document}");
        assert!(ran.stderr.starts_with(expected), "{}", ran.stderr);
    }
}
