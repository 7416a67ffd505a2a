//! hooks.d hooks for the containers of jobs.

use std::fs;

use serde_json::{Value, json};

use crate::setup::{redis, runner, shell_step};
use crate::support::host::Host;
use crate::support::hub::{Name, Registry};
use crate::support::installation::Installation;
use crate::support::program;
use crate::support::runtime::Runtime;

#[test]
fn a_hook_fires_for_the_containers_that_its_annotations_mean() {
    for runtime in Runtime::ALL {
        let host = Host::new();
        let _hub = Registry::start(&host, Name::Hub, None);
        let directory = host.path().join("hooks.d");
        fs::create_dir(&directory).unwrap();
        let further = format!("[hooks]\ndirs = [{directory:?}]\n");
        let installation = Installation::new(&host, runtime, &further);
        // Each says of which container it was called, by what the annotations of the bundle say.
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
        let mut runner = runner(&installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        runner.container_step(shell_step("true")).0.success();
        runner.cleanup();
        let text = fs::read_to_string(&seen).unwrap();
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        let expected = ["job job", "repository job", "repository service", "repository step"];
        assert_eq!(lines, expected, "{runtime}");
    }
}

#[test]
fn a_broken_hook_file_fails_the_job_with_its_name() {
    let host = Host::new();
    let _hub = Registry::start(&host, Name::Hub, None);
    let directory = host.path().join("hooks.d");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("broken.json"), "{\"version\": \"1.0.0\",}").unwrap();
    let further = format!("[hooks]\ndirs = [{directory:?}]\n");
    let installation = Installation::new(&host, Runtime::Runc, &further);
    let mut runner = runner(&installation, "runner-1");
    let args = json!({"container": runner.job_container("node:22"), "services": []});
    let said = runner.call("prepare_job", args).failure();
    assert!(said.contains("broken.json"), "{said}");
    runner.cleanup();
}

fn hook(script: &std::path::Path, name: &str, annotations: Value) -> Value {
    json!({
        "version": "1.0.0",
        "hook": {"path": script, "args": ["hook", name], "env": ["PATH=/usr/bin:/bin"]},
        "when": {"annotations": annotations},
        "stages": ["createRuntime"],
    })
}
