//! `oci-hooks explain`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::cli::env::{CONFIG, HookEnv, golden};

#[test]
fn explain_reports_the_result_of_each_file_with_a_reason() {
    let ran = HookEnv::with_hooks().run(&["explain"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden("explain.txt", &ran.stdout);
}

#[test]
fn json_contains_conditions_problems_and_order() {
    let ran = HookEnv::with_hooks().run(&["explain", "--format", "json"]);
    assert_eq!(ran.code, Some(0));
    golden("explain.json", &ran.stdout);
}

/// Directories are not read, and not listed as files whose names do not end with `.json`.
#[test]
fn subdirectories_of_a_hook_directory_are_ignored() {
    let env = HookEnv::with_hooks();
    fs::create_dir(env.path("usr/bin")).unwrap();
    golden("explain.txt", &env.run(&["explain"]).stdout);
    golden("explain.json", &env.run(&["explain", "--format", "json"]).stdout);
}

#[test]
fn consumers_are_compared_side_by_side() {
    let ran = HookEnv::with_hooks().run(&["explain", "--consumers"]);
    // The column widths depend on the path of the temporary directory.
    let lines =
        ran.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    golden("explain-consumers.txt", &lines.map(|line| line + "\n").collect::<String>());
}

/// As documented in docs/nri.md: the plugin skips rejected files, and does not count the engine's mounts.
#[test]
fn nri_plugin_is_not_confused_with_the_sample_plugin() {
    let env = HookEnv::new();
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
    fs::remove_file(env.path("usr/30-filter.json")).unwrap();
    let ran = env.run(&["explain", "--as", "hook-injector"]);
    assert!(ran.stdout.ends_with("Injected in this order: 10-all.json, 20-mounts.json\n"));
}

#[test]
fn selected_hook_decides_the_exit_code() {
    let env = HookEnv::with_hooks();
    let ran = env.run(&["explain", "--hook", "20-gpu"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(!ran.stdout.contains("10-python"), "{}", ran.stdout);
    assert_eq!(env.run(&["explain", "--hook", "10-python.json"]).code, Some(0));
    let ran = env.run(&["explain", "--hook", "10-python", "--hook", "typo"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("typo"), "{}", ran.stderr);
    let ran = env.run(&["explain", "--consumers", "--hook", "typo"]);
    assert_eq!((ran.code, ran.stderr.contains("typo")), (Some(2), true), "{}", ran.stdout);
    assert_eq!(env.run(&["explain", "--consumers", "--hook", "10-python"]).code, Some(0));
}

#[test]
fn hooks_of_the_configuration_are_listed_if_none_is_injected() {
    let env = HookEnv::new();
    let hooks = r#""hooks": {"createRuntime": [{"path": "/bin/true"}, {"path": "/no/such"}], "startContainer": [{"path": "/x"}]}}"#;
    let ran = env.run_with_input(
        &["explain", "-"],
        &CONFIG.trim_end().replacen("{", &format!("{{{},", &hooks[..hooks.len() - 1]), 1),
    );
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let said = "No hook is injected in addition to those of config.json.\n\nHooks in config.json\n  \
                createRuntime  /bin/true: origin unknown\n  createRuntime  /no/such, which does not exist: \
                origin unknown\n  startContainer  /x: origin unknown\n";
    assert!(ran.stdout.ends_with(said), "{}", ran.stdout);
}

#[test]
fn file_that_stops_every_container_is_named() {
    let env = HookEnv::with_hooks();
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
fn directory_that_stops_every_container_is_named_with_the_reason() {
    let env = HookEnv::new();
    let ran = env.run(&["explain", "--hooks-dir", "config.json"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let said = ran.stdout.lines().last().unwrap_or_default();
    assert!(
        said.contains("podman cannot start any container because of config.json: ")
            && said.contains("Not a directory"),
        "{said}"
    );
}

#[test]
fn explain_shows_lint_findings() {
    let env = HookEnv::new();
    env.hook("etc/10-misspelt.json", r#""alway": true"#, r#""poststop""#);
    let ran = env.run(&["explain"]);
    assert!(ran.stdout.contains("not injected: when has no condition"), "{}", ran.stdout);
    let said = "OH101 at 4:12: unknown key `alway`, which is ignored";
    assert!(ran.stdout.contains(said), "{}", ran.stdout);
    assert!(ran.stdout.contains("hint: did you mean `always`?"), "{}", ran.stdout);
    let json = env.run(&["explain", "--format", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let finding = &json["directories"][1]["files"][0]["findings"][1];
    assert_eq!((&finding["code"], &finding["line"]), (&"OH101".into(), &4.into()), "{json}");
}

#[test]
fn common_hint_is_printed_once() {
    let env = HookEnv::with_hooks();
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
fn cdi_annotations_are_named() {
    let env = HookEnv::new();
    let config = CONFIG.replace(
        "\"com.example.gpu\": \"all\"",
        "\"cdi.k8s.io/gpus\": \"nvidia.com/gpu=0, nvidia.com/gpu=1\", \"cdi\": \"x\"",
    );
    env.write("config.json", &config);
    let said = env.run(&["explain"]).stdout;
    let expected = "CDI adds nvidia.com/gpu=0, nvidia.com/gpu=1, requested by the annotation cdi.k8s.io/gpus\n";
    assert!(said.contains(expected), "{said}");
    let json = env.run(&["explain", "--format", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let devices = ["nvidia.com/gpu=0", "nvidia.com/gpu=1"];
    let request = serde_json::json!({"annotation": "cdi.k8s.io/gpus", "devices": devices});
    assert_eq!(json["cdi"], serde_json::json!([request]));
}

#[test]
fn colors_are_used_on_request() {
    let env = HookEnv::with_hooks();
    assert!(!env.run(&["explain"]).stdout.contains('\u{1b}'));
    assert!(env.run(&["explain", "--color", "always"]).stdout.contains('\u{1b}'));
}

/// A container of CRI-O: the pod's annotation, what CRI-O adds, and the kubelet's label.
fn crio_config(kind: &str) -> String {
    format!(
        r#"{{"process": {{"args": ["sh"]}}, "annotations": {{"com.example.gpu": "all",
            "io.kubernetes.cri-o.ContainerType": "{kind}", "io.kubernetes.pod.name": "web"}}}}"#
    )
}

#[test]
fn crio_injects_nothing_into_sandboxes() {
    let env = HookEnv::new();
    env.hook("usr/10-all.json", r#""always": true"#, r#""createRuntime""#);
    env.hook("usr/20-all.json", r#""always": true"#, r#""poststop""#);
    env.write("config.json", &crio_config("sandbox"));
    let reason = "crio injects no hooks into the sandbox of a pod (annotation io.kubernetes.cri-o.ContainerType=sandbox)";
    let ran = env.run(&["explain", "--as", "crio"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    assert!(ran.stdout.ends_with(&format!("No hook is injected: {reason}\n")), "{}", ran.stdout);
    assert_eq!(ran.stdout.matches(reason).count(), 1, "{}", ran.stdout);
    let json = env.run(&["explain", "--as", "crio", "--format", "json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["exempt"], reason);
    assert_eq!(json["directories"][0]["files"][1]["state"], "not-matched");

    let ran = env.run(&["inject", "--as", "crio"]);
    assert_eq!((ran.code, ran.stdout), (Some(0), crio_config("sandbox")));
    assert_eq!(ran.stderr, format!("note: {reason}\n"));

    for (consumer, kind) in [("nri", "sandbox"), ("crio", "container")] {
        env.write("config.json", &crio_config(kind));
        let ran = env.run(&["explain", "--as", consumer]);
        assert_eq!(ran.code, Some(0), "{consumer} {kind}: {}", ran.stdout);
    }
}

#[test]
fn crio_matches_annotations_of_kubernetes_only() {
    let env = HookEnv::new();
    for (name, key) in [
        ("10-crio.json", r"^io\\.kubernetes\\.cri-o\\."),
        ("20-label.json", r"^io\\.kubernetes\\.pod\\.name$"),
        ("30-pod.json", r"^com\\.example\\.gpu$"),
    ] {
        let when = format!(r#""annotations": {{"{key}": "."}}"#);
        env.hook(&format!("usr/{name}"), &when, r#""poststop""#);
    }
    env.write("config.json", &crio_config("container"));
    let injected = |args: &[&str]| {
        let ran = env.run(&[&["explain", "--as"], args].concat());
        ran.stdout.lines().last().unwrap_or_default().to_owned()
    };
    let order = "Injected in this order: ";
    assert_eq!(injected(&["crio"]), format!("{order}30-pod.json"));
    let all = format!("{order}10-crio.json, 20-label.json, 30-pod.json");
    assert_eq!(injected(&["nri"]), all);
    assert_eq!(injected(&["podman"]), all);
    let given = ["crio", "--annotation", "io.kubernetes.cri-o.Volumes=x"];
    assert_eq!(injected(&given), format!("{order}10-crio.json, 30-pod.json"));
    let ran = env.run(&["inject", "--as", "crio", "--diff"]);
    assert_eq!(ran.stdout.matches("/bin/true").count(), 1, "{}", ran.stdout);
}

/// Mounts as podman 5.8 writes them for `--read-only`, with and without `--tmpfs /tmp`.
#[test]
fn user_tmpfs_is_distinguished_from_podmans_or_unclear() {
    let env = HookEnv::new();
    env.hook("usr/10-mounts.json", r#""hasBindMounts": true"#, r#""poststop""#);
    let explain = |options: &str, args: &[&str]| {
        let own = r#""rw", "rprivate", "nosuid", "nodev", "tmpcopyup""#;
        let config = format!(
            r#"{{"process": {{"args": ["sh"]}}, "mounts": [
                {{"destination": "/run", "type": "tmpfs", "source": "tmpfs", "options": [{own}]}},
                {{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": [{options}]}}]}}"#
        );
        env.write("config.json", &config);
        let ran = env.run(&[&["explain"], args].concat());
        (ran.code, ran.stdout)
    };
    let (code, text) = explain(r#""rprivate", "nosuid", "nodev", "tmpcopyup""#, &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("has bind mounts") && !text.contains("uncertain"), "{text}");

    let own = r#""rw", "rprivate", "nosuid", "nodev", "tmpcopyup""#;
    let (code, text) = explain(own, &[]);
    assert_eq!(code, Some(1), "{text}");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said = "uncertain: config.json does not tell who requested the mount at /run, /tmp; if the user did, pass --has-bind-mounts true";
    assert!(text.contains(said), "{text}");
    for args in [&["--has-bind-mounts", "false"][..], &["--as", "crio"]] {
        let (_, text) = explain(own, args);
        assert!(!text.contains("uncertain"), "{text}");
    }
}

#[test]
fn rules_are_those_of_the_podman_in_path() {
    let env = HookEnv::new();
    env.hook("usr/10-all.json", r#""always": true"#, r#""prestart""#);
    let explain = |version: &str, words: &[&str]| {
        env.write("podman", &format!("#!/bin/sh\necho podman version {version}\n"));
        fs::set_permissions(env.path("podman"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = env.command(&[&["explain"], words].concat());
        let output = command.env("PATH", env.path("")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    for (version, words, name, stage) in [
        ("4.3.1", &[][..], "podman-4", "prestart"),
        ("5.4.2", &[], "podman-5", "createRuntime"),
        ("6.0.0", &[], "podman", "createRuntime"),
        ("4.3.1", &["--as", "podman"], "podman", "createRuntime"),
        ("unknown", &[], "podman", "createRuntime"),
    ] {
        let said = explain(version, words);
        assert!(said.starts_with(&format!("{name} for a container")), "{said}");
        assert!(said.contains(&format!("injected at {stage}:")), "{said}");
    }
    // Other podmans are not run.
    assert!(env.run(&["explain"]).stdout.starts_with("podman for a container"));
}

#[test]
fn podman_without_a_version_causes_a_warning() {
    let env = HookEnv::new();
    env.hook("usr/a.json", r#""always": true"#, r#""poststop""#);
    for (script, reason) in [
        ("echo podman version unknown", "its output has none"),
        ("echo no space >&2; exit 1", "no space"),
        ("exit 1", "it failed without an error message"),
        ("kill -9 $$", "it cannot be run, or takes longer than 10 s"),
    ] {
        env.write("podman", &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(env.path("podman"), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = env.command(&["validate", "usr/a.json"]);
        let output = command.env("PATH", env.path("")).output().unwrap();
        let said = format!(
            "warning: `podman --version` gives no version: {reason}; the newest podman is assumed\n  \
             hint: name the version with --as\n"
        );
        assert_eq!(String::from_utf8(output.stderr).unwrap(), said);
    }
}

#[test]
fn output_of_inspect_is_not_a_configuration() {
    let env = HookEnv::new();
    for text in [
        r#"[{"Id": "f00", "Mounts": [], "HostConfig": {}}]"#,
        r#"{"Id": "f00", "Mounts": [], "HostConfig": {}}"#,
        r#"{"status": {"id": "f00"}, "info": {"runtimeSpec": {}}}"#,
    ] {
        env.write("config.json", text);
        let ran = env.run(&["explain"]);
        let said = "config.json is the output of an engine's `inspect`, not a config.json\n  \
                    hint: pass the container by its name or ID: `oci-hooks explain f00`";
        assert_eq!(ran.code, Some(2), "{text}");
        assert!(ran.stderr.contains(said), "{text}: {}", ran.stderr);
    }
}

#[test]
fn hook_file_is_not_a_configuration() {
    let env = HookEnv::with_hooks();
    let text = env.read("usr/20-gpu.json");
    for line in [
        &["explain", "usr/20-gpu.json"][..],
        &["explain", "--consumers", "usr/20-gpu.json"],
        &["inject", "usr/20-gpu.json"],
        &["inject", "--in-place", "usr/20-gpu.json"],
    ] {
        let ran = env.run(line);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{line:?}");
        let said = "error: usr/20-gpu.json is a hook file, not a config.json\n  hint: ";
        assert!(ran.stderr.contains(said), "{line:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("--hook NAME"), "{line:?}: {}", ran.stderr);
    }
    assert_eq!(env.read("usr/20-gpu.json"), text);
    let ran = env.run_with_input(&["inject", "-"], &text);
    assert!(ran.stderr.contains("standard input is a hook file"), "{}", ran.stderr);
}

#[test]
fn dangling_link_stops_no_container() {
    let env = HookEnv::with_hooks();
    std::os::unix::fs::symlink("/nonexistent/hook", env.path("usr/50-link.json")).unwrap();
    let said = env.run(&["explain"]).stdout;
    let line = "- 50-link.json    not read: it links to /nonexistent/hook, which does not exist\n";
    assert!(said.contains(line), "{said}");
    assert!(said.contains("Injected in this order: "), "{said}");
}
