//! Decisions for containers as runtimes describe them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use oci_hooks::hooks::{LoadOptions, load};

use super::*;
use crate::wire::nri::Mount;

/// Loads hook files; each has a name and its `hook`, `when` and `stages`.
fn load_files(dir: &Path, files: &[(&str, &str)]) -> LoadedHooks {
    for (name, rest) in files {
        fs::write(dir.join(name), format!(r#"{{"version": "1.0.0", {rest}}}"#)).unwrap();
    }
    let mut options = LoadOptions::for_consumer(&NRI);
    options.dirs = vec![dir.to_owned()];
    load(&options)
}

fn lenient_decider() -> Decider {
    Decider { trust: None, ..Decider::default() }
}

fn container() -> Container {
    Container {
        id: "0123".to_owned(),
        name: "main".to_owned(),
        args: vec!["/bin/sh".to_owned(), "-c".to_owned()],
        ..Container::default()
    }
}

fn names(decision: &Decision) -> Vec<&str> {
    let names = decision.matched.iter().map(|matched| matched.file.file_name().unwrap());
    names.map(|name| name.to_str().unwrap()).collect()
}

#[test]
fn prestart_hooks_become_create_runtime_hooks() {
    let dir = tempfile::tempdir().unwrap();
    let stages = OciStage::ALL.map(OciStage::name);
    let rest = format!(
        r#""hook": {{"path": "/bin/true", "args": ["true", "x"], "env": ["A=1"], "timeout": 3}},
        "when": {{"always": true}}, "stages": {stages:?}"#
    );
    let loaded = load_files(dir.path(), &[("a.json", &rest)]);
    let decision = lenient_decider().decide(&loaded, None, &container()).unwrap();
    let Hooks { prestart, create_runtime, create_container, start_container, poststart, poststop } =
        decision.hooks;
    assert!(prestart.is_empty());
    assert_eq!(create_runtime.len(), 2);
    for list in [create_runtime, create_container, start_container, poststart, poststop] {
        assert_eq!(
            list[0],
            WireHook {
                path: "/bin/true".to_owned(),
                args: vec!["true".to_owned(), "x".to_owned()],
                env: vec!["A=1".to_owned()],
                timeout: Some(OptionalInt { value: 3 }),
            }
        );
    }
    assert_eq!(decision.matched[0].reason, "always is true");
    assert_eq!(decision.matched[0].stages.len(), 6);
}

#[test]
fn pod_annotations_override_container_annotations() {
    let dir = tempfile::tempdir().unwrap();
    let rest = |value| {
        format!(
            r#""hook": {{"path": "/bin/true"}}, "when": {{"annotations": {{"^key$": "^{value}$"}}}},
            "stages": ["poststop"]"#
        )
    };
    let loaded = load_files(
        dir.path(),
        &[("pod.json", &rest("pod")), ("container.json", &rest("container"))],
    );
    let annotations = |value: &str| BTreeMap::from([("key".to_owned(), value.to_owned())]);
    let container = Container { annotations: annotations("container"), ..container() };
    let pod = PodSandbox { annotations: annotations("pod"), ..PodSandbox::default() };
    let decide = |pod| lenient_decider().decide(&loaded, pod, &container).unwrap();
    assert_eq!(names(&decide(None)), ["container.json"]);
    assert_eq!(names(&decide(Some(&pod))), ["pod.json"]);
}

#[test]
fn commands_and_user_mounts_are_matched() {
    let dir = tempfile::tempdir().unwrap();
    let rest = |when: &str| {
        format!(r#""hook": {{"path": "/bin/true"}}, "when": {{{when}}}, "stages": ["poststop"]"#)
    };
    let loaded = load_files(
        dir.path(),
        &[
            ("command.json", &rest(r#""commands": ["/sh$"]"#)),
            ("mounts.json", &rest(r#""hasBindMounts": true"#)),
        ],
    );
    let mount = |destination: &str, kind: &str| Mount {
        destination: destination.to_owned(),
        r#type: kind.to_owned(),
        options: vec!["rbind".to_owned()],
    };
    let decide = |mounts| {
        let container = Container { mounts, ..container() };
        lenient_decider().decide(&loaded, None, &container).unwrap()
    };
    let own = vec![mount("/proc", "proc"), mount("/etc/hosts", "bind"), mount("/dev/shm", "bind")];
    assert_eq!(names(&decide(own)), ["command.json"]);
    assert_eq!(names(&decide(vec![mount("/data", "bind")])), ["command.json", "mounts.json"]);

    let idle = Container { args: Vec::new(), ..container() };
    let error = lenient_decider().decide(&loaded, None, &idle).unwrap_err();
    assert!(chain(&error).contains("process.args must have at least one entry"), "{error}");
}

#[test]
fn hooks_without_env_do_not_inherit_the_runtimes_environment() {
    let dir = tempfile::tempdir().unwrap();
    let rest = r#""hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["poststop"]"#;
    let loaded = load_files(dir.path(), &[("a.json", rest)]);
    let env = |decider: &Decider| {
        decider.decide(&loaded, None, &container()).unwrap().hooks.poststop[0].env.clone()
    };
    assert!(env(&lenient_decider()).is_empty());
    assert_eq!(env(&Decider::default()), [EMPTY_ENV]);
}

#[test]
fn hook_writable_by_others_rejects_matching_containers() {
    use std::os::unix::fs::PermissionsExt as _;

    let dir = tempfile::tempdir().unwrap();
    let rest =
        r#""hook": {"path": "/bin/true"}, "when": {"commands": ["/sh$"]}, "stages": ["poststop"]"#;
    let loaded = load_files(dir.path(), &[("a.json", rest)]);
    let file = dir.path().join("a.json");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let error = chain(&Decider::default().decide(&loaded, None, &container()).unwrap_err());
    let expected = format!(
        "cannot trust a hook, which non-root users must not be able to change (hint: chmod go-w {})",
        file.display()
    );
    assert!(error.starts_with(&expected), "{error}");
    let other = Container { args: vec!["/bin/true".to_owned()], ..container() };
    Decider::default().decide(&loaded, None, &other).unwrap();
}

#[test]
fn broken_files_are_skipped_or_reject_all_containers_if_strict() {
    let dir = tempfile::tempdir().unwrap();
    let always = r#""when": {"always": true}, "stages": ["poststop"]"#;
    let good = format!(r#""hook": {{"path": "/bin/true"}}, {always}"#);
    let missing = format!(r#""hook": {{"path": "/nonexistent"}}, {always}"#);
    let strict = Decider { strict: true, ..lenient_decider() };
    let set = load_files(dir.path(), &[("good.json", &good), ("missing.json", &missing)]);
    strict.decide(&set, None, &container()).unwrap();
    let fail = Decider { missing_program: MissingProgramPolicy::Fail, ..lenient_decider() };
    let error = fail.decide(&set, None, &container()).unwrap_err().to_string();
    assert!(error.contains("missing.json") && error.contains("/nonexistent"), "{error}");

    let precreate = good.replace("poststop", "precreate");
    let set = load_files(dir.path(), &[("filter.json", &precreate), ("x.json", "]")]);
    assert_eq!(names(&lenient_decider().decide(&set, None, &container()).unwrap()), ["good.json"]);
    let error = strict.decide(&set, None, &container()).unwrap_err().to_string();
    assert!(error.contains("filter.json:1:"), "{error}");
    assert!(error.contains("unknown stage \"precreate\" (hint: "), "{error}");
    assert!(error.ends_with("(and 1 more hook file)"), "{error}");
}

#[test]
fn missing_or_broken_required_hook_rejects_all_containers() {
    let dir = tempfile::tempdir().unwrap();
    let good = r#""hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["poststop"]"#;
    let set = load_files(dir.path(), &[("good.json", good), ("broken.json", "]")]);
    let requires = |hook: &str| {
        let decider = Decider { required_hooks: vec![hook.into()], ..lenient_decider() };
        decider.decide(&set, None, &container()).map_err(|error| error.to_string())
    };
    requires("good.json").unwrap();
    requires(dir.path().join("good.json").to_str().unwrap()).unwrap();
    let error = requires("none.json").unwrap_err();
    let expected = format!(
        "required hook \"none.json\" is not among the hooks in force in {}",
        dir.path().display()
    );
    assert_eq!(error, expected);
    let error = requires("broken.json").unwrap_err();
    assert!(error.starts_with("required hook \"broken.json\" is not in force: "), "{error}");
    assert!(error.contains("broken.json:1:"), "{error}");
}

#[test]
fn containers_without_their_hooks_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let rest = r#""hook": {"path": "/bin/true"}, "when": {"commands": ["/sh$"]},
        "stages": ["poststart", "poststop"]"#;
    let loaded = load_files(dir.path(), &[("a.json", rest)]);
    let decider = Decider::default();
    let file = dir.path().join("a.json");
    assert_eq!(decider.missing(&loaded, None, &container()), [file]);
    let hooks = decider.decide(&loaded, None, &container()).unwrap().hooks;
    let with_hooks = Container { hooks: Some(hooks), ..container() };
    assert!(decider.missing(&loaded, None, &with_hooks).is_empty());
}

#[test]
fn containers_are_named_with_their_pod() {
    let pod = PodSandbox {
        name: "web-0".to_owned(),
        namespace: "shop".to_owned(),
        ..PodSandbox::default()
    };
    assert_eq!(container_name(Some(&pod), &container()), "shop/web-0/main");
    let nameless = Container { name: String::new(), ..container() };
    assert_eq!(container_name(None, &nameless), "0123");
}
