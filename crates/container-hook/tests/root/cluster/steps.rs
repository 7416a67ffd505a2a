//! Steps: their exit status, input and output.

use std::fmt::Write as _;

use oci_hooks_testsupport::github_runner::merge;
use serde_json::json;

use crate::cluster::setup::{NamespaceHook, cluster};

#[test]
fn failed_steps_keep_their_exit_code_and_files() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("codes");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    for code in [1, 7, 137, 255] {
        runner.run(&format!("exit {code}")).code(code);
    }
    runner.run("kill -TERM $$").code(143);
    runner.run("/no/such/program").code(127);
    let (ended, outputs) =
        runner.run_step("echo why=disk >>$GITHUB_OUTPUT; echo partial >report; exit 3", &[]);
    ended.code(3);
    assert_eq!(outputs["why"], "disk");
    assert_eq!(std::fs::read_to_string(runner.workspace().join("report")).unwrap(), "partial\n");
    runner.cleanup();
}

#[test]
fn environments_arrive_unchanged_and_secrets_appear_in_no_pod() {
    let cluster = cluster();
    let mut pods = NamespaceHook::new(&cluster);
    pods.use_proxy();
    let mut runner = pods.runner("environment");
    let secret = "canary-of-the-job";
    let job = merge(
        runner.job_container("alpine:3.20"),
        json!({"environmentVariables": {"HOME": "/github/home", "TOKEN": secret, "EMPTY": "",
            "DOLLAR": "$(HOME) ${HOME} $$"}}),
    );
    runner.prepare(job, &[]);
    let ended = runner.run("echo \"$TOKEN|$DOLLAR|${EMPTY-unset}|$HOME\"").success();
    assert_eq!(ended.stdout(), format!("{secret}|$(HOME) ${{HOME}} $$||/github/home\n"));
    // Two values close to the kernel's limit.
    let large = "0123456789abcdef".repeat(100 * 1024 / 16);
    let values = [
        ("LINES", "one\ntwo\n\n  four"),
        ("QUOTES", "a'b\"c`d$(e)\\f ü\u{1f600}"),
        ("LARGE", large.as_str()),
        ("LARGER", large.as_str()),
        ("STEP_SECRET", "canary-of-the-step"),
    ];
    let script = "printf '<%s>' \"$LINES\" \"$QUOTES\"; printf %s \"$LARGE$LARGER\" | wc -c";
    let ended = runner.run_step(script, &values).0.success();
    let mut expected = String::new();
    writeln!(expected, "<{}><{}>{}", values[0].1, values[1].1, 2 * large.len()).unwrap();
    assert_eq!(ended.stdout(), expected);
    // Exceeds the kernel's limit for one value.
    let ended = runner.run_step("true", &[("TOO_LARGE", &large.repeat(2))]).0.code(126);
    assert!(
        ended.log().contains("\"TOO_LARGE\" is longer than the kernel's limit"),
        "{}",
        ended.log()
    );
    for asked in pods.proxy().seen_requests() {
        assert!(!asked.path.contains("canary"), "{}", asked.path);
        let is_pod = asked.path.split('?').next().is_some_and(|path| path.ends_with("/pods"));
        let body = String::from_utf8_lossy(&asked.body);
        assert!(!(is_pod && body.contains("canary")), "{body}");
    }
    runner.cleanup();
    pods.check_gone("environment");
}

#[test]
fn a_container_step_gets_cpus_beside_a_job_that_may_use_all_of_the_node() {
    let cluster = cluster();
    // The step waits no longer than this for CPUs.
    let pods = NamespaceHook::with(&cluster, "[kubernetes]\nprepare-timeout = \"60s\"\n");
    let mut runner = pods.runner("cpus");
    let all = std::thread::available_parallelism().unwrap();
    let options = format!("--cpus {all} --memory 256m");
    let job = merge(runner.job_container("alpine:3.20"), json!({"createOptions": options}));
    runner.prepare(job, &[]);
    let (ended, _) = runner.container_step(json!({"image": "alpine:3.20", "entryPoint": "true",
        "createOptions": "--cpus 1 --memory 64m"}));
    ended.success();
    runner.cleanup();
}

#[test]
fn directories_with_blanks_are_passed_unchanged() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("paths");
    let directory = runner.workspace().join("a b'c");
    std::fs::create_dir_all(directory.join("bin $x")).unwrap();
    oci_hooks_testsupport::program::write_program(
        &directory.join("bin $x/found"),
        "#!/bin/sh\necho found by \"$1\"\n",
    );
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let mut args =
        runner.script_args("sh", &["-c".into(), "'pwd; found path'".into()], &[], "none");
    args["workingDirectory"] = json!("/__w/repo/repo/a b'c");
    args["prependPath"] = json!(["/__w/repo/repo/a b'c/bin $x"]);
    let ended = runner.call("run_script_step", args.clone()).success();
    assert_eq!(ended.stdout(), "/__w/repo/repo/a b'c\nfound by path\n");
    args["workingDirectory"] = json!("/__w/repo/none");
    let said = runner.call("run_script_step", args).failure();
    assert!(said.contains("/__w/repo/none"), "{said}");
    runner.cleanup();
}

#[test]
fn container_steps_run_their_image_and_return_files() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("actions");
    std::fs::write(runner.workspace().join("given"), "by the runner\n").unwrap();
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    runner.run("echo by the job >from-job").success();
    let (ended, _) = runner.container_step(json!({"image": "test/entrypoint:1"}));
    // Events of the pod are not part of the action's output.
    assert_eq!(ended.success().stdout(), "<a b>\n<c>\n");
    let script =
        "cat given from-job; echo out=it >>$GITHUB_OUTPUT; echo made >made; rm given; exit 5";
    let words = json!(["-c", format!("'{script}'")]);
    let (ended, outputs) = runner.container_step(
        json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": words}),
    );
    let ended = ended.code(5);
    assert_eq!(ended.stdout(), "by the runner\nby the job\n");
    assert_eq!(outputs["out"], "it");
    assert!(runner.workspace().join("made").exists());
    assert!(!runner.workspace().join("given").exists());
    assert_eq!(runner.run("ls").success().stdout(), "from-job\nmade\n");
    // The pods of container actions are removed after their step.
    assert_eq!(pods.pods_of("actions").len(), 1);
    runner.cleanup();
    pods.check_gone("actions");
}
