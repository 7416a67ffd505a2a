//! Whole jobs, from the first call to the last.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};

use crate::setup::{UsersRunner, Who, redis, shell_step, with_each};
use crate::support::by_user::ByUser;
use crate::support::call::Stream;
use crate::support::github_runner::{Hook as _, container, merge};
use crate::support::leftovers::{Installed as _, Snapshot};

/// Answers to PING on a port of the host, by what a step of the host would call.
const PING: &str = "printf 'PING\\r\\nQUIT\\r\\n' | busybox nc -w 5 127.0.0.1";

#[test]
fn a_job_with_services_and_all_kinds_of_steps_runs() {
    with_each(&Who::ALL, "", |installation| {
        let before = Snapshot::take(installation);
        for (image, is_alpine) in [("node:22", false), ("alpine:3.20", true)] {
            let mut runner = installation.runner(&format!("runner-{is_alpine}"));
            let nginx = merge(
                container("nginx:alpine"),
                json!({"createOptions": "--network-alias web", "portMappings": ["8080:80"]}),
            );
            let response = runner.prepare(runner.job_container(image), &[redis(), nginx]);
            assert_eq!(response["isAlpine"], is_alpine);
            published_ports_are_reached_from_the_host(installation, &response);
            script_steps(&mut runner);
            services_are_reached_by_name(&mut runner);
            javascript(&mut runner);
            container_actions(&mut runner);
            failures(&mut runner);
            runner.cleanup();
            nothing_of_others_is_in_the_work_directory(installation, &runner);
        }
        // Images stay, nothing else does.
        before.check_live(installation, "a job");
    });
}

fn published_ports_are_reached_from_the_host(installation: &ByUser<'_>, response: &Value) {
    let services = &response["context"]["services"];
    let port = services[0]["ports"]["6379"].as_str().expect("the port has a number");
    assert_eq!(services[1]["ports"], json!({"80": "8080"}));
    let host = installation.world.host();
    assert_eq!(host.shell(&format!("{PING} {port}")), "+PONG\r\n");
    // It has no health check that would have been waited for.
    let page = "until busybox wget -q -O- http://127.0.0.1:8080/; do sleep 0.05; done";
    assert_eq!(host.shell(page), "hello from nginx\n");
}

fn script_steps(runner: &mut UsersRunner<'_>) {
    let (ended, outputs) = runner.run_step(
        "echo \"in $(pwd) as $(id -u)\"\n\
         echo oops >&2\n\
         grep -q main /github/workflow/event.json\n\
         echo answer=42 >>$GITHUB_OUTPUT\n\
         printf 'text<<END\\na\\nb\\nEND\\n' >>$GITHUB_OUTPUT\n\
         echo LATER=set before >>$GITHUB_ENV\n\
         mkdir -p $HOME/tools && printf '#!/bin/sh\\necho my tool\\n' >$HOME/tools/mine\n\
         chmod +x $HOME/tools/mine && echo $HOME/tools >>$GITHUB_PATH\n\
         echo \"$GREETING\" >greeting; cat | wc -c",
        &[("GREETING", "it's \"me\" $HOME `id`"), ("INPUT_FETCH-DEPTH", "1")],
    );
    let ended = ended.success();
    assert_eq!(ended.stdout(), "in /__w/repo/repo as 0\n0\n");
    assert_eq!(ended.stderr(), "oops\n");
    assert_eq!((outputs["answer"].as_str(), outputs["text"].as_str()), ("42", "a\nb"));
    let greeting = fs::read_to_string(runner.workspace().join("greeting")).unwrap();
    assert_eq!(greeting, "it's \"me\" $HOME `id`\n");

    let ended = runner.run("mine; echo $LATER; echo ${PATH%%:*}; env | grep -c ^GITHUB_JOB=");
    assert_eq!(ended.success().stdout(), "my tool\nset before\n/github/home/tools\n1\n");
    // What an image has is replaced as a whole, which is where layers of users differ from those of root.
    let script = "ls /usr/local; rm -r /usr/local; test ! -e /usr/local; mkdir /usr/local; ls -A /usr/local\n\
                  mv /home /house; mkdir /home; ls -A /home";
    assert_eq!(runner.run(script).success().stdout(), "bin\n");
}

fn services_are_reached_by_name(runner: &mut UsersRunner<'_>) {
    // It answers: its port was reached.
    for name in ["nginx", "web"] {
        let ended = runner.run(&format!("wget -q -O- http://{name}/"));
        assert_eq!(ended.success().stdout(), "hello from nginx\n", "{name}");
    }
    let ended = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
    assert_eq!(ended.success().stdout(), "+PONG\r\n");
}

fn javascript(runner: &mut UsersRunner<'_>) {
    let source = "const fs = require('fs');\n\
                  fs.appendFileSync(process.env.GITHUB_STATE, 'isPost=true\\n');\n\
                  console.log(`node says ${process.env['INPUT_WHO-TO-GREET']} in ${process.cwd()}`);\n\
                  require('http').get('http://nginx/', r => r.on('data', d => process.stdout.write(d)));";
    let ended = runner.javascript(source, &[("INPUT_WHO-TO-GREET", "Mona the Octocat")]).success();
    assert_eq!(ended.stdout(), "node says Mona the Octocat in /__w/repo/repo\nhello from nginx\n");
    assert_eq!(runner.javascript("process.exit(9)", &[]).code(9).stdout(), "");
}

fn container_actions(runner: &mut UsersRunner<'_>) {
    let (ended, _) = runner.container_step(json!({"image": "test/entrypoint:1"}));
    assert!(ended.success().stdout().ends_with("<a b>\n<c>\n"));
    let script = "wget -q -O page http://nginx/ && echo got=$(cat page) >>$GITHUB_OUTPUT; pwd";
    let step = merge(shell_step(script), json!({"environmentVariables": {"INPUT_X": "y"}}));
    let (ended, outputs) = runner.container_step(step);
    assert!(ended.success().stdout().ends_with("/github/workspace\n"));
    assert_eq!(outputs["got"], "hello from nginx");
    assert_eq!(runner.run("cat page").success().stdout(), "hello from nginx\n");
}

fn failures(runner: &mut UsersRunner<'_>) {
    assert_eq!(runner.run("echo before; false; echo after").code(1).stdout(), "before\n");
    runner.run("exit 37").code(37);
    // As a shell says it of a signal.
    runner.run("kill -KILL $$").code(137);
    let ended = runner.call("run_script_step", runner.script_args("no-such", &[], &[], "x"));
    assert!(ended.failure().contains("no-such"));
    let step = json!({"image": "no/such:image", "entryPoint": "sh"});
    assert!(runner.container_step(step).0.failure().contains("no/such"));
    // `if: failure()`
    runner.run("echo the job goes on").success();
}

/// The runner deletes what a job has made, with no more than its user's rights.
#[track_caller]
fn nothing_of_others_is_in_the_work_directory(installation: &ByUser<'_>, runner: &UsersRunner<'_>) {
    let Some(user) = installation.user else { return };
    assert_eq!(user.foreign(installation.world, &runner.work()), "");
    let work = runner.work().display().to_string();
    installation.world.shell_as(user, &format!("rm -r {work}"));
}

#[test]
fn dockerfile_actions_are_built_and_kept_by_content() {
    with_each(&Who::ALL, "", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let action = runner.work().join("_actions/octo/docker-action/v1");
        installation.write(
            action.join("Dockerfile"),
            "FROM alpine:3.20\nCOPY hello.sh /hello.sh\nRUN echo built >/built\n\
             ENV FROM_DOCKERFILE=yes\nENTRYPOINT [\"sh\", \"/hello.sh\"]\n",
        );
        let hello = action.join("hello.sh");
        installation.write(&hello, "echo hello $1, $FROM_DOCKERFILE, $(cat /built)\n");
        let step = json!({
            "image": null, "dockerfile": action.join("Dockerfile"),
            "entryPointArgs": ["\"Mona", "L\""],
        });
        let (first, _) = runner.container_step(step.clone());
        let first = first.success();
        assert!(first.stdout().ends_with("hello Mona L, yes, built\n"), "{}", first.log());
        let second = runner.container_step(step.clone()).0.success();
        assert!(second.stdout().ends_with("hello Mona L, yes, built\n"), "{}", second.log());
        assert!(!second.log().contains("STEP "), "it is not built again\n{}", second.log());
        // The content is what counts.
        installation.write(&hello, "echo changed\n");
        let (third, _) = runner.container_step(step);
        assert!(third.success().stdout().ends_with("changed\n"));
        runner.cleanup();
        nothing_of_others_is_in_the_work_directory(installation, &runner);
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_job_of_services_alone_runs_on_the_host() {
    with_each(&Who::ALL, "", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let postgres = merge(
            container("postgres:16"),
            json!({
                "portMappings": ["5432:5432"], "environmentVariables": {"POSTGRES_PASSWORD": "x"},
                "createOptions": "--health-cmd pg_isready --health-interval 10s --health-timeout 5s",
            }),
        );
        runner.prepare(Value::Null, &[postgres]);
        assert_eq!(installation.world.host().shell(&format!("{PING} 5432")), "+PONG\r\n");
        let step = shell_step("printf \"PING\\r\\nQUIT\\r\\n\" | nc -w 5 postgres 5432");
        assert!(runner.container_step(step).0.success().stdout().ends_with("+PONG\r\n"));
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_container_action_needs_no_prepared_job() {
    with_each(&Who::ALL, "", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let (ended, _) = runner.container_step(json!({"image": "test/entrypoint:1"}));
        assert!(ended.success().stdout().ends_with("<a b>\n<c>\n"));
        // The runner has no cleanup for such a job: nothing may live on.
        before.check_live(installation, "a job");
    });
}

#[test]
fn files_that_steps_make_belong_to_the_runner() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("id -u; mkdir -p made/deep; echo x >made/deep/file").success();
        runner.container_step(shell_step("echo y >made/by-action")).0.success();
        for path in ["made", "made/deep/file", "made/by-action"] {
            let seen = fs::metadata(runner.workspace().join(path)).unwrap();
            assert_eq!((seen.uid(), seen.gid()), installation.ids(), "{path}");
        }
        let tool = fs::metadata(runner.work().join("_tool")).expect("missing sources are made");
        assert_eq!(tool.uid(), installation.ids().0);
        runner.cleanup();
    });
}

#[test]
fn a_step_has_the_users_that_there_are_ids_for() {
    with_each(&Who::ALL, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let ended = runner.run("touch /file; chown app:app /file; su app -s /bin/sh -c 'id -u'");
        match installation.has_ids() {
            true => assert_eq!(ended.success().stdout(), "1001\n"),
            false => assert!(ended.failure().contains("chown")),
        }
        runner.cleanup();
    });
}

#[test]
fn a_cancelled_step_is_told_and_ends_in_time() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.container_step(shell_step("true")).0.success();
        let before = Snapshot::take(installation);
        let polite =
            "trap 'echo told; exit 5' INT TERM\necho started\nwhile :; do sleep 0.1 & wait; done";
        let mut call = runner.start_run(polite);
        call.wait_for_line("started");
        let (ended, signals) = call.cancel();
        assert_eq!((ended.stdout().as_str(), signals), ("started\ntold\n", 1));
        assert_eq!(ended.lines.iter().filter(|line| line.stream == Stream::Err).count(), 0);
        before.check(installation, "a cancelled step");
        let mut call = runner.start_container_step(shell_step("echo started; exec sleep 1000"));
        call.wait_for_line("started");
        let (ended, signals) = call.cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        before.check(installation, "a cancelled container action");
        runner.run("echo the container is still there").success();
        runner.cleanup();
    });
}

#[test]
fn a_cancelled_prepare_job_leaves_nothing() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let never = merge(
            container("redis:7"),
            json!({"createOptions": "--health-cmd false --health-retries 1000 --health-interval 50ms"}),
        );
        let args = json!({"container": runner.job_container("node:22"), "services": [never]});
        let call = runner.start("prepare_job", args);
        let runs = || installation.host().processes().iter().any(|p| p.line.starts_with("nc -ll"));
        crate::support::program::wait_until("a service listens", runs);
        let (ended, signals) = call.cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

#[test]
fn the_hook_is_installed_where_the_user_says() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let seen = fs::metadata(installation.entry()).unwrap();
        assert_eq!((seen.uid(), seen.gid()), installation.ids());
        let script = fs::read_to_string(installation.entry()).unwrap();
        assert!(!script.contains("sudo"), "{script}");
    });
}
