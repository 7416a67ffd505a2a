//! The functions as run by `step-runner`.

use std::process::Command;

use oci_hooks_testsupport::program::{self, FinishedCommand};
use oci_hooks_testsupport::registry::{RegistryAuth, TestRegistry};
use serde_json::json;

use crate::functions::setup::{ARCHIVE, FUNCTION, FunctionJob};

const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

const PASSWORD: &str = "s3cr3t-of-the-job";

/// Runs `step-runner run` in the directory of a job.
fn run(job: &FunctionJob, arguments: &[&str]) -> FinishedCommand {
    let mut command = Command::new(PROGRAM);
    command.args(["run", "-C"]).arg(job.path()).args(arguments);
    for (name, value) in &job.vars {
        command.arg("--var").arg(format!("{name}={value}"));
    }
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", job.path().join("home"));
    program::run(&mut command)
}

#[test]
fn function_is_built_published_and_used_in_one_job() {
    let registry = TestRegistry::start(RegistryAuth::Password("job", PASSWORD));
    let repository = format!("{}/group/function", registry.address());
    let mut job = FunctionJob::new();
    let export =
        "#!/bin/sh\nprintf '{\"name\":\"DOCKER_AUTH_CONFIG\",\"value\":%s}' \"$1\" >>\"$2\"\n";
    job.write("auth/export", export, 0o755);
    let command = "['${{ func_dir }}/export', '${{ inputs.logins }}', '${{ export_file }}']";
    let spec = "spec: {inputs: {logins: {type: string}}}";
    job.write("auth/func.yml", format!("{spec}\n---\nexec: {{command: {command}}}\n"), 0o644);
    // Like `docker-auth`: an earlier step exports the logins.
    let auth = base64::Engine::encode(
        &base64::engine::general_purpose::STANDARD,
        format!("job:{PASSWORD}"),
    );
    let config = json!({"auths": {registry.address(): {"auth": auth}}}).to_string();
    let config = json!(config).to_string();
    job.vars.insert("LOGINS".to_owned(), config);
    let steps = json!([
        {"name": "auth", "func": "./auth", "inputs": {"logins": "${{ vars.LOGINS }}"}},
        {"name": "build", "func": "builtin://function/oci/build", "inputs": crate::functions::setup::inputs("1.4.2")},
        {"name": "publish", "func": "builtin://function/oci/publish", "inputs": {
            "archive": "${{ steps.build.outputs.archive }}",
            "to_repository": repository,
        }},
        {"name": "use", "func": format!("{repository}:1")},
        {"name": "say", "script": "echo ref=${{ steps.publish.outputs.ref }} \
            same=${{ steps.publish.outputs.digest.value == steps.build.outputs.digest.value }}"},
    ]);
    job.write("steps.yml", format!("spec: {{}}\n---\n{}", json!({"run": steps})), 0o644);
    let out = run(&job, &["./steps.yml"]).success();
    for expected in [
        "Built function-image.tar with version 1.4.2: sha256:",
        &format!("Tagged {repository}:latest\n"),
        "\non amd64\n",
        &format!("ref={repository}:1.4.2 same=true\n"),
    ] {
        let expected = expected.replace("amd64", crate::functions::setup::HOST);
        assert!(out.contains(&expected), "{expected} in {out}");
    }
    assert!(!out.contains(PASSWORD) && !out.contains(&auth), "{out}");
}

#[test]
fn functions_can_be_called_manually() {
    let registry = TestRegistry::start(RegistryAuth::None);
    let job = FunctionJob::new();
    let common = r#"common={"files": {"func.yml": "func.yml", "bin": "bin/amd64"}}"#;
    let build = ["builtin://function/oci/build", "--input", "version=1.0.0", "--input", common];
    run(&job, &build).success();
    assert!(job.path().join(ARCHIVE).is_file());
    let repository = format!("to_repository={}/a/b", registry.address());
    run(&job, &["builtin://function/oci/publish", "--input", &repository]).success();

    job.write("func.yml", FUNCTION.replace("exec", "exce"), 0o644);
    let error = run(&job, &build).failure();
    assert!(error.contains("func.yml:3:1: error: "), "{error}");
    assert!(error.contains("func.yml has 1 error"), "{error}");
    let error = run(&job, &["builtin://function/oci/build"]).failure();
    assert!(error.contains("input \"version\" required"), "{error}");
}
