use std::error::Error as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use crate::hooks::consumer::PODMAN;
use crate::hooks::{OciStage, PathCheck};

const CONFIG: &[u8] = br#"{"process":{"args":["/bin/sh"]},"vendor":1.0}"#;

struct Dir {
    temp: tempfile::TempDir,
}

impl Dir {
    fn new() -> Self {
        Dir { temp: tempfile::tempdir().unwrap() }
    }

    fn hook(&self, name: &str, script: &str, rest: &str) {
        let args = serde_json::to_string(&["sh", "-c", script]).unwrap();
        let text =
            format!(r#"{{"version":"1.0.0","hook":{{"path":"/bin/sh","args":{args}}},{rest}}}"#);
        fs::write(self.temp.path().join(name), text).unwrap();
    }

    fn pipeline(&self) -> Pipeline {
        let mut pipeline = Pipeline::for_consumer(&PODMAN);
        pipeline.load.dirs = vec![self.temp.path().to_owned()];
        pipeline.load.path_check = PathCheck::Skip;
        pipeline
    }
}

const ALWAYS: &str = r#""when":{"always":true},"stages":"#;

fn always(stages: &str) -> String {
    format!("{ALWAYS}{stages}")
}

#[test]
fn a_report_has_what_matched_and_why() {
    let dir = Dir::new();
    dir.hook("a.json", "", &always(r#"["prestart","poststop"]"#));
    dir.hook("b.json", "", r#""when":{"commands":["/sh$"]},"stages":["precreate"]"#);
    dir.hook("c.json", "", r#""when":{"commands":["/zsh$"]},"stages":["poststop"]"#);
    let Injected { config, report } = dir.pipeline().run(CONFIG).unwrap();
    let config = String::from_utf8(config).unwrap();
    assert!(config.starts_with(r#"{"process":{"args":["/bin/sh"]},"vendor":1.0,"hooks""#));
    assert!(config.contains("poststop"), "the runtime runs them: {config}");
    let [a, b] = report.hooks.as_slice() else { panic!("{:?}", report.hooks) };
    assert_eq!(a.stages, [OciStage::CreateRuntime, OciStage::Poststop].map(Stage::Oci));
    assert!(a.reason.contains("always") && b.reason.contains("/sh$"), "{} {}", a.reason, b.reason);
    assert!(report.precreate_skipped && report.precreate.is_empty());
    assert_eq!(report.extension_hooks["precreate"].len(), 1);
}

#[test]
fn nothing_that_matches_changes_nothing() {
    let injected = Dir::new().pipeline().run(CONFIG).unwrap();
    assert_eq!(injected.config, CONFIG);
    assert!(injected.report.hooks.is_empty() && !injected.report.precreate_skipped);
}

#[test]
fn bad_files_stop_it_unless_they_are_skipped() {
    let dir = Dir::new();
    dir.hook("a.json", "", &always(r#"["poststop"]"#));
    fs::write(dir.temp.path().join("b.json"), "{").unwrap();
    let mut pipeline = dir.pipeline();
    pipeline.load.dirs.push(dir.temp.path().join("missing"));
    let error = pipeline.run(CONFIG).unwrap_err();
    assert!(matches!(error.failure, PipelineFailure::HookFile(_)), "{error:?}");
    assert_eq!(error.report.missing_dirs.len(), 1);
    pipeline.skip_bad_files = true;
    let report = pipeline.run(CONFIG).unwrap().report;
    assert_eq!((report.hooks.len(), report.problems.len()), (1, 1));
}

#[test]
fn strict_names_each_hook_that_others_can_change() {
    let dir = Dir::new();
    for name in ["a.json", "b.json", "c.json"] {
        dir.hook(name, "", &always(r#"["poststop"]"#));
    }
    for name in ["b.json", "c.json"] {
        let mode = fs::Permissions::from_mode(0o666);
        fs::set_permissions(dir.temp.path().join(name), mode).unwrap();
    }
    let mut pipeline = dir.pipeline();
    pipeline.strict = Some(TrustOptions::of_process());
    let error = pipeline.run(CONFIG).unwrap_err();
    let source = error.source().unwrap().to_string();
    assert!(source.starts_with("a hook is writable by non-root users"), "{source}");
    let rejected = error.report.hooks.iter().map(|hook| hook.rejected.is_some());
    assert_eq!(rejected.collect::<Vec<_>>(), [false, true, true]);
}

#[test]
fn strict_gives_an_empty_environment() {
    let dir = Dir::new();
    dir.hook("a.json", "", &always(r#"["poststop"]"#));
    let mut pipeline = dir.pipeline();
    pipeline.strict = Some(TrustOptions::of_process());
    let config = String::from_utf8(pipeline.run(CONFIG).unwrap().config).unwrap();
    assert!(config.contains(r#""env":[]"#), "{config}");
}

#[test]
fn precreate_hooks_are_run_and_what_they_say_is_one_line_each() {
    let dir = Dir::new();
    let say = "/bin/sed s/1.0/2.0/; printf '\\033[1ma\\n\\n b\\n' >&2";
    dir.hook("a.json", say, &always(r#"["precreate"]"#));
    dir.hook("b.json", "/bin/cat", &always(r#"["precreate"]"#));
    let mut pipeline = dir.pipeline();
    pipeline.precreate = Some(FilterOptions::new("/"));
    let Injected { config, report } = pipeline.run(CONFIG).unwrap();
    assert!(String::from_utf8(config).unwrap().contains(r#""vendor":2.0"#));
    let changed: Vec<_> = report.precreate.iter().map(|run| run.run.changed).collect();
    assert_eq!(changed, [true, false]);
    assert_eq!(report.precreate_lines(), ["/bin/sh: \u{fffd}[1ma", "/bin/sh:  b"]);
    assert!(!report.precreate_skipped);

    dir.hook("b.json", "exit 3", &always(r#"["precreate"]"#));
    let error = pipeline.run(CONFIG).unwrap_err();
    assert!(matches!(error.failure, PipelineFailure::Filter(_)), "{error:?}");
    assert_eq!(error.report.precreate_lines().len(), 2, "of those before it");
}

#[test]
fn what_is_known_better_than_the_configuration_counts() {
    let dir = Dir::new();
    let when = r#""when":{"hasBindMounts":true,"annotations":{"^a$":"^1$"}},"stages":["poststop"]"#;
    dir.hook("a.json", "", when);
    let mut pipeline = dir.pipeline();
    assert!(pipeline.run(CONFIG).unwrap().report.hooks.is_empty());
    pipeline.target.has_bind_mounts = Some(true);
    pipeline.target.annotations.insert("a".to_owned(), "1".to_owned());
    assert_eq!(pipeline.run(CONFIG).unwrap().report.hooks.len(), 1);
}

#[test]
fn a_selection_can_be_changed_before_it_is_injected() {
    let dir = Dir::new();
    dir.hook("a.json", "", &always(r#"["poststop"]"#));
    let injected = dir.pipeline().run_with(CONFIG, |selection| {
        for injection in &mut selection.injections {
            injection.hook.to_mut().path = "/wrapped".to_owned();
        }
    });
    let config = String::from_utf8(injected.unwrap().config).unwrap();
    assert!(config.contains(r#""path":"/wrapped""#), "{config}");
}

#[test]
fn a_hook_without_its_program_is_dropped_or_an_error() {
    let dir = Dir::new();
    dir.hook("a.json", "", &always(r#"["poststop"]"#));
    let path = dir.temp.path().join("guard.json");
    let text =
        format!(r#"{{"version":"1.0.0","hook":{{"path":"/gone"}},{}}}"#, always(r#"["poststop"]"#));
    fs::write(&path, text).unwrap();
    let mut pipeline = dir.pipeline();
    pipeline.load.path_check = PathCheck::Exists;
    let report = pipeline.run(CONFIG).unwrap().report;
    assert_eq!((report.hooks.len(), report.problems.len()), (1, 1));

    pipeline.missing_program = MissingProgram::Fail;
    pipeline.skip_bad_files = true;
    let error = pipeline.run(CONFIG).unwrap_err();
    let PipelineFailure::HookFile(problem) = error.failure else { panic!("{error:?}") };
    assert_eq!(problem.path, path);
}

#[test]
fn a_required_hook_must_be_in_force() {
    let (low, high) = (Dir::new(), Dir::new());
    low.hook("guard.json", "", r#""when":{"commands":["/zsh$"]},"stages":["poststop"]"#);
    let mut pipeline = low.pipeline();
    pipeline.load.dirs.push(high.temp.path().to_owned());
    pipeline.skip_bad_files = true;
    let failure = |pipeline: &Pipeline| {
        let error = pipeline.run(CONFIG).unwrap_err();
        let PipelineFailure::RequiredHook(error) = error.failure else { panic!("{error:?}") };
        crate::sys::error::chain(&error)
    };
    pipeline.required_hooks = vec!["guard.json".into()];
    assert!(pipeline.run(CONFIG).is_ok(), "whether it matches does not matter");

    let path = high.temp.path().join("guard.json");
    pipeline.required_hooks = vec![path.clone()];
    let expected = format!("{path:?} not found in {}", low.temp.path().display());
    assert!(failure(&pipeline).contains(&expected), "{}", failure(&pipeline));
    fs::write(&path, "{").unwrap();
    let expected = format!("{path:?} is not in force: {}:1:2: ", path.display());
    assert!(failure(&pipeline).contains(&expected), "{}", failure(&pipeline));
    high.hook("guard.json", "", &always(r#"["poststop"]"#));
    assert!(pipeline.run(CONFIG).is_ok());
    // The other one is masked.
    pipeline.required_hooks = vec![low.temp.path().join("guard.json")];
    assert!(failure(&pipeline).contains("not found in"), "{}", failure(&pipeline));
}
