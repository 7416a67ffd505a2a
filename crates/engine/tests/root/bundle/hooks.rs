//! hooks.d hooks of containers.

use std::fs;
use std::path::PathBuf;

use oci_hooks_engine::bundle::{
    BundleError, HookOptions, HooksError, MountRequest, MountSource, TmpfsMount,
};
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::bundle::container::{TestBundle, config};

const KEY: &str = "com.github.actions.job";

/// Writes a hook file, and adds its directory to the container's hook directories.
fn add(parts: &mut TestBundle, name: &str, when: Value, stage: &str, script: &str) -> PathBuf {
    let dir = parts.host("hooks.d");
    fs::create_dir_all(&dir).unwrap();
    let path = dir.join(name);
    let hook = json!({
        "version": "1.0.0",
        "hook": {"path": "/bin/sh", "args": ["sh", "-c", script], "env": ["PATH=/usr/bin:/bin"]},
        "when": when,
        "stages": [stage],
    });
    fs::write(&path, hook.to_string()).unwrap();
    // Temporary directories are below a directory that every user can write to.
    let options = HookOptions { dirs: Some(vec![dir]), strict: false, ..HookOptions::default() };
    parts.options.hooks = Some(options);
    path
}

#[test]
fn hook_runs_only_for_containers_with_its_annotation() {
    for runtime in TestRuntime::ALL {
        for (job, fires) in [("build", true), ("other", false)] {
            let mut parts = TestBundle::new("true");
            parts.options.annotations.insert(KEY.to_owned(), job.to_owned());
            let log = parts.host("log");
            let script = format!("cat > {}", log.display());
            let when = json!({"annotations": {format!("^{KEY}$"): "^build$"}});
            let hook = add(&mut parts, "50-log.json", when, "createRuntime", &script);
            let bundle = parts.write().unwrap();
            let files: Vec<_> = bundle.hooks.iter().map(|hook| hook.file.clone()).collect();
            assert_eq!(files, if fires { vec![hook] } else { vec![] });
            parts.run_written(runtime, &bundle).success();
            assert_eq!(log.exists(), fires, "{runtime}, {job}");
        }
    }
}

#[test]
fn hook_sees_the_requested_mounts() {
    for is_asked in [false, true] {
        let mut parts = TestBundle::new("true");
        // The engine's own mounts do not count, wherever they are.
        parts.options.hosts = Some(Vec::new());
        if is_asked {
            parts.options.mounts.push(MountRequest {
                target: "/dev/shm".into(),
                source: MountSource::Tmpfs(TmpfsMount::default()),
                read_only: false,
                subpath: None,
                id_mapping: None,
            });
        }
        add(&mut parts, "a.json", json!({"hasBindMounts": true}), "createRuntime", "true");
        assert_eq!(parts.write().unwrap().hooks.len(), usize::from(is_asked));
    }
}

#[test]
fn a_precreate_hook_changes_the_configuration() {
    for runtime in TestRuntime::ALL {
        let mut parts = TestBundle::new("echo before");
        let script = "sed s/before/after/; echo changed >&2";
        add(&mut parts, "a.json", json!({"always": true}), "precreate", script);
        let bundle = parts.write().unwrap();
        assert_eq!(bundle.hook_stderr, ["/bin/sh: changed"]);
        assert_eq!(config(&bundle)["process"]["args"][2], "echo after");
        assert_eq!(parts.run_written(runtime, &bundle).success(), "after\n", "{runtime}");
    }
}

#[test]
fn hook_writable_by_others_is_rejected() {
    let mut parts = TestBundle::new("true");
    let hook = add(&mut parts, "a.json", json!({"always": true}), "createRuntime", "true");
    fs::set_permissions(hook, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    parts.options.hooks.as_mut().unwrap().strict = true;
    let error = parts.write().unwrap_err();
    assert!(matches!(error, BundleError::Hooks(HooksError::Trust(_))), "{error}");
}

#[test]
fn broken_hook_file_stops_the_container_unless_skipped() {
    let mut parts = TestBundle::new("true");
    let hook = add(&mut parts, "a.json", json!({"always": true}), "createRuntime", "true");
    fs::write(hook, "{").unwrap();
    assert!(matches!(parts.write(), Err(BundleError::Hooks(HooksError::HookFile(_)))));
    parts.clear();
    parts.options.hooks.as_mut().unwrap().skip_bad_files = true;
    let bundle = parts.write().unwrap();
    assert_eq!((bundle.problems.len(), bundle.hooks.len()), (1, 0));
}
