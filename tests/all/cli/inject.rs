//! `oci-hooks inject`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use oci_hooks_testsupport::acl;
use serde_json::Value;

use crate::cli::env::{CONFIG, HookEnv, golden};

#[test]
fn inject_prints_the_new_configuration_and_keeps_the_rest() {
    let ran = HookEnv::with_hooks().run(&["inject"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    golden("inject.json", &ran.stdout);
    assert!(ran.stdout.starts_with(CONFIG.trim_end().trim_end_matches(['}', '\n'])));
}

#[test]
fn diff_shows_the_changes() {
    golden("inject.diff", &HookEnv::with_hooks().run(&["inject", "--diff"]).stdout);
}

#[test]
fn inject_reads_a_bundle_or_standard_input() {
    let env = HookEnv::with_hooks();
    let from_file = env.run(&["inject", "config.json"]).stdout;
    assert_eq!(env.run(&["inject", "."]).stdout, from_file);
    assert_eq!(env.run_with_input(&["inject", "-"], CONFIG).stdout, from_file);
}

#[test]
fn version_without_such_hooks_is_a_warning() {
    let env = HookEnv::with_hooks();
    let config = CONFIG.replace(r#""cwd": "/""#, r#""cwd": "/", "user": {"uid": 0, "gid": 0}"#);
    let ran = env.run_with_input(&["inject", "-"], &config.replace("1.0.2", "1.0.1"));
    assert_eq!(ran.code, Some(0));
    assert!(ran.stderr.contains("ociVersion 1.0.1 has no createRuntime"), "{}", ran.stderr);
    let ran = env.run_with_input(&["inject", "-"], &config);
    assert!(!ran.stderr.contains("ociVersion"), "{}", ran.stderr);
    let old = config.replace("/usr/bin/python3", "/bin/sh").replace("1.0.2", "1.0.1");
    let ran = env.run_with_input(&["inject", "-"], &old);
    assert!(!ran.stderr.contains("ociVersion"), "no hook matches: {}", ran.stderr);
}

#[test]
fn bad_hook_file_stops_injection_unless_lenient() {
    let env = HookEnv::with_hooks();
    env.write("usr/05-bad.json", "{\"version\": \"1.0.0\",}");
    let ran = env.run(&["inject"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(
        ran.stderr.contains("error: {ROOT}/usr/05-bad.json:1:20: trailing comma"),
        "{}",
        ran.stderr
    );
    let ran = env.run(&["inject", "--lenient"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stderr.contains("warning: {ROOT}/usr/05-bad.json:1:20"), "{}", ran.stderr);
    assert!(ran.stdout.contains("\"/bin/true\""));
}

#[test]
fn consumers_differ_in_prestart_and_precreate() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""always": true"#, r#""prestart""#);
    assert!(env.run(&["inject"]).stdout.contains("createRuntime"));
    for args in [["inject", "--as", "podman-4"], ["inject", "--prestart", "prestart"]] {
        let ran = env.run(&args);
        assert!(ran.stdout.contains("\"prestart\"") && !ran.stdout.contains("createRuntime"));
    }
    env.hook("usr/b.json", r#""always": true"#, r#""precreate""#);
    assert_eq!(env.run(&["inject"]).code, Some(0));
    let ran = env.run(&["inject", "--as", "crio"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("unknown stage \"precreate\""), "{}", ran.stderr);
}

#[test]
fn in_place_keeps_the_mode_and_follows_the_link() {
    let env = HookEnv::with_hooks();
    fs::rename(env.path("config.json"), env.path("real.json")).unwrap();
    symlink("real.json", env.path("config.json")).unwrap();
    fs::set_permissions(env.path("real.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let expected = env.run(&["inject"]).stdout;
    let ran = env.run(&["inject", "--in-place"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{}", ran.stderr);
    assert_eq!(env.read("real.json"), expected);
    assert!(env.path("config.json").is_symlink());
    assert_eq!(fs::metadata(env.path("real.json")).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(env.names("."), ["config.json", "etc", "real.json", "usr"], "nothing else is left");
}

#[test]
fn repeated_injection_is_noted() {
    let env = HookEnv::with_hooks();
    let inject = || env.run(&["inject", "--in-place", "config.json"]);
    assert!(!inject().stderr.contains("--once"));
    let said = inject();
    assert_eq!(said.code, Some(0));
    let note = "has the hooks of 10-python.json twice, because config.json has them already";
    assert!(said.stderr.contains(note) && said.stderr.contains("--once"), "{}", said.stderr);
}

#[test]
fn once_changes_nothing_the_second_time() {
    let env = HookEnv::with_hooks();
    let inject = || assert_eq!(env.run(&["inject", "--in-place", "--once"]).code, Some(0));
    inject();
    let first = env.read("config.json");
    assert!(first.contains("\"hooks\""), "{first}");
    inject();
    assert_eq!(env.read("config.json"), first);
}

#[test]
fn extension_hooks_are_written_to_their_file() {
    let env = HookEnv::with_hooks();
    env.run(&["inject", "--extension-out", "ext.json"]);
    assert_eq!(env.read("ext.json"), "{\"precreate\":[{\"path\":\"/bin/true\"}]}\n");
    env.run(&[
        "inject",
        "--extension-out",
        "ext.json",
        "--extension-stage",
        "poststop",
        "--lenient",
    ]);
    assert_eq!(env.read("ext.json"), "{\"poststop\":[{\"path\":\"/bin/true\"}]}\n");
    fs::remove_file(env.path("usr/30-filter.json")).unwrap();
    env.run(&["inject", "--extension-out", "ext.json"]);
    assert_eq!(env.read("ext.json"), "null\n");
}

#[test]
fn precreate_hooks_rewrite_the_configuration() {
    let env = HookEnv::new();
    env.write(
        "usr/rename.json",
        r#"{"version": "1.0.0", "hook": {"path": "/bin/sed", "args": ["sed", "s/http.server/http.client/"]},
            "when": {"always": true}, "stages": ["precreate"]}"#,
    );
    let ran = env.run(&["inject", "--run-precreate"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let expected: String = CONFIG.split_ascii_whitespace().collect();
    let expected = expected.replace("http.server", "http.client");
    assert_eq!(ran.stdout, expected.replace("e400", "e400,\"hooks\":{}"));
    let diff = env.run(&["inject", "--run-precreate", "--diff"]).stdout;
    let changed: Vec<_> =
        diff.lines().skip(2).filter(|line| line.starts_with(['+', '-'])).collect();
    let expected = [
        "-      \"http.server\"",
        "+      \"http.client\"",
        "-  \"x-vendor\": 1.50e400",
        "+  \"x-vendor\": 1.50e400,",
        "+  \"hooks\": {}",
    ];
    assert_eq!(changed, expected, "{diff}");
    let ran = env.run(&["inject"]);
    assert!(ran.stderr.contains("precreate"), "says that it was not run: {}", ran.stderr);
}

#[test]
fn precreate_hook_that_breaks_a_type_leaves_the_file_unchanged() {
    let env = HookEnv::new();
    env.write(
        "usr/break.json",
        r#"{"version": "1.0.0", "hook": {"path": "/bin/sed", "args": ["sed", "s,\"cwd\":\"/\",\"cwd\":[1],"]},
            "when": {"always": true}, "stages": ["precreate"]}"#,
    );
    let config = CONFIG.replace("\"args\"", "\"user\": {\"uid\": 0, \"gid\": 0}, \"args\"");
    env.write("config.json", &config);
    let ran = env.run(&["inject", "--run-precreate", "--in-place"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let expected = "precreate hook {ROOT}/usr/break.json (/bin/sed) failed: its output does not follow the runtime \
                    specification: invalid type: sequence, expected path string at line 1 column";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    assert_eq!(env.read("config.json"), config);
}

#[test]
fn annotations_come_from_options_files_and_the_configuration() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""annotations": {"^a$": "^1$"}"#, r#""poststop""#);
    env.hook("usr/gpu.json", r#""annotations": {"gpu": "all"}"#, r#""poststart""#);
    env.write("annotations.json", r#"{"a": "1"}"#);
    let injects = |args: &[&str]| {
        let out = env.run(&[&["inject"], args].concat()).stdout;
        (out.contains("poststop"), out.contains("poststart"))
    };
    assert_eq!(injects(&[]), (false, true));
    assert_eq!(injects(&["--annotation", "a=1"]), (true, true));
    assert_eq!(
        injects(&["--annotations-file", "annotations.json", "--no-config-annotations"]),
        (true, false)
    );
    assert_eq!(
        injects(&["--annotations-file", "annotations.json", "--annotation", "a=2"]),
        (false, true)
    );
    let ran = env.run(&["inject", "--annotations-file", "config.json"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

#[test]
fn bind_mounts_are_detected_or_given() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""hasBindMounts": true"#, r#""poststop""#);
    let injects =
        |args: &[&str]| env.run(&[&["inject"], args].concat()).stdout.contains("poststop");
    assert!(!injects(&[]));
    assert!(injects(&["--has-bind-mounts", "true"]));
    let mounts = r#"{"mounts": [{"destination": "/data", "type": "bind", "options": ["rbind"]}]}"#;
    env.write("config.json", mounts);
    assert!(injects(&[]));
    assert!(!injects(&["--has-bind-mounts", "false"]));
}

#[test]
fn strict_gives_hooks_without_env_an_empty_environment() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""always": true"#, r#""createContainer""#);
    let ran = env.run(&["inject", "--strict"]);
    assert!(
        ran.stdout.contains("\"env\": []"),
        "the image's environment would reach the hook: {} {}",
        ran.stdout,
        ran.stderr
    );
    assert!(!env.run(&["inject"]).stdout.contains("\"env\""));
}

#[test]
fn strict_rejects_a_program_writable_by_an_acl() {
    let env = HookEnv::new();
    env.write("program", "#!/bin/sh\n");
    let program = env.path("program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    env.write(
        "usr/a.json",
        r#"{"version": "1.0.0", "hook": {"path": "{ROOT}/program"}, "when": {"always": true}, "stages": ["poststop"]}"#
            .replace("{ROOT}/program", program.to_str().unwrap())
            .as_str(),
    );
    assert_eq!(env.run(&["inject", "--strict"]).code, Some(0));
    acl::set(&program, "access", "u::rwx,u:65534:rwx,g::r-x,m::rwx,o::r-x");
    let ran = env.run(&["inject", "--strict", "--in-place"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let expected = "{ROOT}/program: is writable by the user nobody (uid 65534) through an ACL";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    assert!(ran.stderr.contains("setfacl -x u:nobody {ROOT}/program"), "{}", ran.stderr);
    assert_eq!(env.read("config.json"), CONFIG);
}

#[test]
fn links_of_other_users_are_not_written_through() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""always": true"#, r#""poststop""#);
    env.write("secret", "precious");
    if !env.create_foreign_link("config.json", "shared", "config.json")
        || !env.create_foreign_link("secret", "shared", "out.json")
        || !env.create_foreign_link("", "shared", "bundle")
    {
        return;
    }
    let message = "is a symlink of user 54321, who can point it at any file: name the \
                   target file, or remove the symlink";
    for (args, link) in [
        (&["inject", "--in-place", "shared"][..], "config.json"),
        (&["inject", "--in-place", "shared/bundle/config.json"], "bundle"),
        (&["inject", "--output", "shared/out.json"], "out.json"),
        (&["inject", "--output", "shared/bundle/secret"], "bundle"),
        (&["inject", "--extension-out", "shared/out.json"], "out.json"),
        (&["lint", "--fix", "shared/out.json"], "out.json"),
    ] {
        let ran = env.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(message), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(&format!("shared/{link}")), "{args:?}: {}", ran.stderr);
    }
    assert_eq!((env.read("config.json"), env.read("secret")), (CONFIG.into(), "precious".into()));

    // The user's own symlink is followed in any directory.
    symlink(env.path("config.json"), env.path("shared/own.json")).unwrap();
    let ran = env.run(&["inject", "--in-place", "shared/own.json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(env.path("shared/own.json").is_symlink());
    assert!(env.read("config.json").contains("poststop"));
}

#[test]
fn missing_programs_are_counted_and_named_on_request() {
    let env = HookEnv::new();
    for number in 0..4 {
        env.write(
            &format!("usr/{number}.json"),
            r#"{"version": "1.0.0", "hook": {"path": "/nonexistent"}, "when": {"always": true}, "stages": []}"#,
        );
    }
    let ran = env.run(&["inject"]);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("4 hook files are skipped"), "{}", ran.stderr);
    assert_eq!(env.run(&["inject", "-v"]).stderr.matches("warning:").count(), 4);
    let json = env.run(&["inject", "--error-format", "json"]).stderr;
    assert_eq!(json.lines().count(), 4, "{json}");
}

#[test]
fn missing_program_of_a_required_hook_is_an_error() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""always": true"#, r#""poststop""#);
    env.write(
        "etc/guard.json",
        r#"{"version": "1.0.0", "hook": {"path": "/gone"}, "when": {"always": true}, "stages": ["poststop"]}"#,
    );
    for args in [&["inject"][..], &["inject", "--strict", "--missing-program", "drop"]] {
        let ran = env.run(args);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(ran.stderr.contains("warning: {ROOT}/etc/guard.json"), "{}", ran.stderr);
    }
    for args in [&["inject", "--strict"][..], &["inject", "--missing-program=fail", "--lenient"]] {
        let ran = env.run(args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{}", ran.stderr);
        let expected =
            "error: {ROOT}/etc/guard.json:1:39 (/hook/path): hook program \"/gone\" does not exist";
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    }
    for name in ["guard.json", "guard"] {
        let ran = env.run(&["inject", "--require-hook", name]);
        assert_eq!(ran.code, Some(2));
        let expected = format!(
            "error: required hook {name:?} is not in force: {{ROOT}}/etc/guard.json:1:39: "
        );
        assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    }
    let ran = env.run(&["inject", "--require-hook", "none.json"]);
    let expected =
        "required hook \"none.json\" is not among the hooks in force in {ROOT}/usr, {ROOT}/etc";
    assert!(ran.stderr.contains(expected), "{}", ran.stderr);
}

#[test]
fn podman_is_asked_for_its_version_only_if_that_matters() {
    let env = HookEnv::new();
    let var_tmp = r#"{"destination": "/var/tmp", "type": "tmpfs", "options": ["rw", "rprivate", "nosuid", "nodev", "tmpcopyup"]}"#;
    env.write("podman", "#!/bin/sh\necho asked >>\"${0}.log\"\necho podman version 4.3.1\n");
    fs::set_permissions(env.path("podman"), fs::Permissions::from_mode(0o755)).unwrap();
    for (condition, stage, mounts, injected, is_asked) in [
        (r#""always": true"#, "createRuntime", "", "createRuntime", false),
        (r#""always": true"#, "prestart", "", "prestart", true),
        (r#""commands": ["^b$"]"#, "prestart", "", "", false),
        (r#""hasBindMounts": true"#, "createRuntime", "", "", false),
        (r#""hasBindMounts": true"#, "createRuntime", var_tmp, "createRuntime", true),
    ] {
        env.write(
            "config.json",
            &format!(r#"{{"process": {{"args": ["a"]}}, "mounts": [{mounts}]}}"#),
        );
        env.hook("usr/a.json", condition, &format!("{stage:?}"));
        env.write("podman.log", "");
        let mut command = env.command(&["inject"]);
        let output = command.env("PATH", env.path("")).output().unwrap();
        let config: Value = serde_json::from_slice(&output.stdout).unwrap();
        let stages: Vec<_> =
            config["hooks"].as_object().into_iter().flat_map(|it| it.keys().cloned()).collect();
        assert_eq!(stages.concat(), injected, "{condition} {stage}");
        assert_eq!(!env.read("podman.log").is_empty(), is_asked, "{condition} {stage}");
    }
}
