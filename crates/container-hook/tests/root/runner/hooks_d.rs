//! hooks.d hooks for the containers of jobs.

use std::fs;
use std::path::Path;

use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::runner::setup::{redis, runner, shell_step};

/// Calls a test with an installation whose settings name a directory of hook files.
fn with_hooks_directory(runtime: TestRuntime, test: impl FnOnce(&HookInstallation<'_>, &Path)) {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    let directory = host.path().join("hooks.d");
    fs::create_dir(&directory).unwrap();
    let further = format!("[hooks]\ndirs = [{directory:?}]\n");
    test(&HookInstallation::new(&host, runtime, &further), &directory);
}

#[test]
fn hook_runs_for_containers_with_matching_annotations() {
    for &runtime in TestRuntime::selected(0) {
        with_hooks_directory(runtime, |installation, directory| {
            let host = installation.host();
            // Each hook records its container, from the annotations of the bundle.
            let script = host.path().join("note");
            let seen = host.path().join("seen");
            program::write_program(
                &script,
                &format!(
                    "#!/bin/sh\nbundle=$(sed 's/.*\"bundle\": *\"\\([^\"]*\\)\".*/\\1/')\n\
                 echo \"$1 $(grep -o 'com.github.actions.role\": *\"[a-z]*' $bundle/config.json | \
                 sed 's/.*\"//')\" >>{}\n",
                    seen.display()
                ),
            );
            for (name, annotations) in [
                ("job", json!({"^com\\.github\\.actions\\.role$": "^job$"})),
                ("repository", json!({"^com\\.github\\.actions\\.repository$": "^octo/repo$"})),
                ("other", json!({"^com\\.github\\.actions\\.repository$": "^octo/other$"})),
            ] {
                let hook = hook(&script, name, annotations);
                fs::write(directory.join(format!("{name}.json")), hook.to_string()).unwrap();
            }
            let mut runner = runner(installation, "runner-1");
            runner.prepare(runner.job_container("node:22"), &[redis()]);
            runner.container_step(shell_step("true")).0.success();
            runner.cleanup();
            let text = fs::read_to_string(&seen).unwrap();
            let mut lines: Vec<_> = text.lines().collect();
            lines.sort_unstable();
            let expected = ["job job", "repository job", "repository service", "repository step"];
            assert_eq!(lines, expected, "{runtime}");
        });
    }
}

#[test]
fn broken_hook_file_fails_the_job_by_name() {
    with_hooks_directory(TestRuntime::Runc, |installation, directory| {
        fs::write(directory.join("broken.json"), "{\"version\": \"1.0.0\",}").unwrap();
        let mut runner = runner(installation, "runner-1");
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        let said = runner.call("prepare_job", args).failure();
        assert!(said.contains("broken.json"), "{said}");
        runner.cleanup();
    });
}

#[test]
fn failed_hook_is_named_by_its_file() {
    for &runtime in TestRuntime::selected(0) {
        with_hooks_directory(runtime, |installation, directory| {
            let host = installation.host();
            let script = host.path().join("fail");
            program::write_program(&script, "#!/bin/sh\necho license missing >&2; exit 5\n");
            let role = json!({"^com\\.github\\.actions\\.role$": "^(job|step)$"});
            let file = directory.join("10-license.json");
            fs::write(&file, hook(&script, "license", role).to_string()).unwrap();
            let mut runner = runner(installation, "runner-1");
            let args = json!({"container": runner.job_container("node:22"), "services": []});
            let said = runner.call("prepare_job", args).failure();
            let named = format!("; the container's hooks are {} (createRuntime)", file.display());
            assert!(said.contains(&named), "{runtime}: {said}");
            let said = runner.container_step(shell_step("true")).0.failure();
            assert!(said.contains(&named), "{runtime}: {said}");
            runner.cleanup();
        });
    }
}

fn hook(script: &Path, name: &str, annotations: Value) -> Value {
    json!({
        "version": "1.0.0",
        "hook": {"path": script, "args": ["hook", name], "env": ["PATH=/usr/bin:/bin"]},
        "when": {"annotations": annotations},
        "stages": ["createRuntime"],
    })
}
