//! Whole jobs, from the first call to the last.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::setup::{redis, runner, shell_step, with_each_runtime, write};
use crate::support::call::Stream;
use crate::support::github_runner::{Runner, container, merge};
use crate::support::installation::Installation;
use crate::support::leftovers::Snapshot;
use crate::support::program;

#[test]
fn a_job_with_services_and_all_kinds_of_steps_runs() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        for (image, is_alpine) in [("node:22", false), ("alpine:3.20", true)] {
            let mut runner = runner(installation, &format!("runner-{is_alpine}"));
            let nginx = merge(
                container("nginx:alpine"),
                json!({"createOptions": "--network-alias web", "portMappings": ["8080:80"]}),
            );
            let response = runner.prepare(runner.job_container(image), &[redis(), nginx]);
            assert_eq!(response["isAlpine"], is_alpine);
            published_ports_are_reached_from_the_host(&runner, &response);
            script_steps(&mut runner);
            services_are_reached_by_name(&mut runner);
            javascript(&mut runner);
            container_actions(&mut runner);
            failures(&mut runner);
            runner.cleanup();
        }
        // Images stay, nothing else does.
        before.check_live(installation, "a job");
    });
}

fn published_ports_are_reached_from_the_host(runner: &Runner<'_>, response: &Value) {
    let services = &response["context"]["services"];
    let port = services[0]["ports"]["6379"].as_str().expect("the port has a number");
    assert_eq!(services[1]["ports"], json!({"80": "8080"}));
    let host = runner.host();
    let ping = format!("printf 'PING\\r\\nQUIT\\r\\n' | busybox nc -w 5 127.0.0.1 {port}");
    assert_eq!(host.shell(&ping), "+PONG\r\n");
    let page = host.shell("busybox wget -q -O- http://127.0.0.1:8080/");
    assert_eq!(page, "hello from nginx\n");
}

fn script_steps(runner: &mut Runner<'_>) {
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
    // Not through a shell, which drops what it cannot name.
    let args = runner.script_args("env", &[], &[("INPUT_FETCH-DEPTH", "7")], "x");
    let ended = runner.call("run_script_step", args).success();
    assert!(ended.stdout().contains("INPUT_FETCH-DEPTH=7\n"));
    // Each line comes when it is written, not at the end.
    let mut call = runner.start_run("echo first; read -r _ <go; echo second");
    program::run(Command::new("mkfifo").arg(runner.workspace().join("go"))).success();
    call.wait_for_line("first");
    fs::write(runner.workspace().join("go"), "\n").unwrap();
    assert_eq!(call.wait().success().stdout(), "first\nsecond\n");
}

fn services_are_reached_by_name(runner: &mut Runner<'_>) {
    for name in ["nginx", "web"] {
        let ended = runner.run(&format!("wget -q -O- http://{name}/"));
        assert_eq!(ended.success().stdout(), "hello from nginx\n", "{name}");
    }
    let ended = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379");
    assert_eq!(ended.success().stdout(), "+PONG\r\n");
}

fn javascript(runner: &mut Runner<'_>) {
    let source = "const fs = require('fs');\n\
                  fs.appendFileSync(process.env.GITHUB_STATE, 'isPost=true\\n');\n\
                  console.log(`node says ${process.env['INPUT_WHO-TO-GREET']} in ${process.cwd()}`);\n\
                  require('http').get('http://nginx/', r => r.on('data', d => process.stdout.write(d)));";
    let ended = runner.javascript(source, &[("INPUT_WHO-TO-GREET", "Mona the Octocat")]).success();
    assert_eq!(ended.stdout(), "node says Mona the Octocat in /__w/repo/repo\nhello from nginx\n");
    assert_eq!(runner.javascript("process.exit(9)", &[]).code(9).stdout(), "");
}

fn container_actions(runner: &mut Runner<'_>) {
    let (ended, _) = runner.container_step(json!({"image": "test/entrypoint:1"}));
    assert!(ended.success().stdout().ends_with("<a b>\n<c>\n"));
    let script = "wget -q -O page http://nginx/ && echo got=$(cat page) >>$GITHUB_OUTPUT; pwd";
    let step = merge(shell_step(script), json!({"environmentVariables": {"INPUT_X": "y"}}));
    let (ended, outputs) = runner.container_step(step);
    assert!(ended.success().stdout().ends_with("/github/workspace\n"));
    assert_eq!(outputs["got"], "hello from nginx");
    assert_eq!(runner.run("cat page").success().stdout(), "hello from nginx\n");

    let action = runner.work().join("_actions/octo/docker-action/v1");
    write(
        action.join("Dockerfile"),
        "FROM alpine:3.20\nCOPY hello.sh /hello.sh\nRUN echo built >/built\n\
         ENV FROM_DOCKERFILE=yes\nENTRYPOINT [\"sh\", \"/hello.sh\"]\n",
    );
    write(action.join("hello.sh"), "echo hello $1, $FROM_DOCKERFILE, $(cat /built)\n");
    let step = json!({
        "image": null, "dockerfile": action.join("Dockerfile"), "entryPointArgs": ["\"Mona", "L\""],
    });
    let (first, _) = runner.container_step(step.clone());
    assert!(first.success().stdout().ends_with("hello Mona L, yes, built\n"));
    let (second, _) = runner.container_step(step.clone());
    let second = second.success();
    assert!(second.stdout().ends_with("hello Mona L, yes, built\n"), "{}", second.log());
    assert!(!second.log().contains("STEP "), "it is not built again\n{}", second.log());
    // The content is what counts.
    write(action.join("hello.sh"), "echo changed\n");
    let (third, _) = runner.container_step(step);
    assert!(third.success().stdout().ends_with("changed\n"));
}

fn failures(runner: &mut Runner<'_>) {
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

#[test]
fn a_job_of_services_alone_runs_on_the_host() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        let postgres = merge(
            container("postgres:16"),
            json!({
                "portMappings": ["5432:5432"], "environmentVariables": {"POSTGRES_PASSWORD": "x"},
                "createOptions": "--health-cmd pg_isready --health-interval 10s --health-timeout 5s",
            }),
        );
        runner.prepare(Value::Null, &[postgres]);
        let ping = "printf 'PING\\r\\nQUIT\\r\\n' | busybox nc -w 5 127.0.0.1 5432";
        assert_eq!(installation.host().shell(ping), "+PONG\r\n");
        let step = shell_step("printf \"PING\\r\\nQUIT\\r\\n\" | nc -w 5 postgres 5432");
        assert!(runner.container_step(step).0.success().stdout().ends_with("+PONG\r\n"));
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_container_action_needs_no_prepared_job() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        let (ended, _) = runner.container_step(json!({"image": "test/entrypoint:1"}));
        assert!(ended.success().stdout().ends_with("<a b>\n<c>\n"));
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_container_action_that_cannot_start_says_what_to_do() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let step = json!({"image": "test/entrypoint:1", "entryPoint": "/no/such/program"});
        let log = runner.container_step(step).0.failure();
        let said = log.lines().find(|line| line.starts_with("::error::")).unwrap();
        assert!(said.contains("/no/such/program"), "{said}");
        assert!(said.ends_with("check the entry point and the image)"), "{said}");
    });
}

#[test]
fn where_there_is_no_overlay_a_line_says_so() {
    with_each_runtime("", |installation| {
        let (host, disk) = (installation.host(), installation.store().join("containers"));
        // Nothing can be laid over what is an overlay itself.
        host.shell(&format!(
            "mkdir -p {0} /run/over/u /run/over/w; mount -t overlay overlay \
             -o lowerdir=/run/over,upperdir=/run/over/u,workdir=/run/over/w {0}",
            disk.display()
        ));
        let mut runner = runner(installation, "runner-1");
        let (ended, _) = runner.container_step(shell_step("echo it runs"));
        let log = ended.success().log();
        let warning = "::warning::container step: overlayfs unavailable (";
        assert!(log.contains(warning) && log.contains("it runs\n"), "{log}");
    });
}

#[test]
fn an_image_without_a_shell_is_a_job_container() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let response = runner.prepare(runner.job_container("test/scratch:1"), &[]);
        assert_eq!(response["isAlpine"], false);
        let args = runner.script_args("/echo", &["still".into(), "there".into()], &[], "x");
        assert_eq!(runner.call("run_script_step", args).success().stdout(), "still there\n");
        runner.cleanup();
    });
}

#[test]
fn user_workdir_and_volumes_of_an_image_count() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let step = shell_step("id; cat /data/kept; touch /data/new; pwd");
        let step = merge(step, json!({"image": "test/user:1", "workingDirectory": null}));
        let log = runner.container_step(step).0.success().stdout();
        assert!(
            log.contains("uid=1001(app) gid=1001(app) groups=1001(app),1234(extra)\n"),
            "{log}"
        );
        assert!(log.contains("from the image\n") && log.contains("/srv/made\n"), "{log}");
    });
}

#[test]
fn files_made_by_root_in_a_container_belong_to_the_runner() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        program::run(Command::new("chown").args(["-R", "1000:1000"]).arg(runner.home())).success();
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("id -u; mkdir -p made/deep; echo x >made/deep/file").success();
        runner.container_step(shell_step("echo y >made/by-action")).0.success();
        for path in ["made", "made/deep/file", "made/by-action"] {
            let seen = fs::metadata(runner.workspace().join(path)).unwrap();
            assert_eq!((seen.uid(), seen.gid()), (1000, 1000), "{path}");
        }
        let tool = fs::metadata(runner.work().join("_tool")).expect("missing sources are made");
        assert_eq!(tool.uid(), 1000);
        runner.cleanup();
    });
}

#[test]
fn a_service_that_is_not_healthy_fails_the_job_with_its_log() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        for (image, said) in [
            ("test/unhealthy:1", &["the probe says no", "nginx: started", "unhealthy"][..]),
            ("test/exits:1", &["oh no", "3"]),
        ] {
            let health = json!({"createOptions": "--health-interval 100ms"});
            let service = match image {
                "test/exits:1" => {
                    merge(container(image), json!({"createOptions": "--health-cmd true"}))
                }
                _ => merge(container(image), health),
            };
            let args = json!({"container": runner.job_container("node:22"), "services": [service]});
            let log = runner.call("prepare_job", args).failure();
            for text in said {
                assert!(log.contains(text), "{text} is not in\n{log}");
            }
            runner.cleanup();
        }
        for image in ["test/healthy:1", "test/healthy:exec"] {
            runner.prepare(Value::Null, &[container(image)]);
            runner.cleanup();
        }
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_cancelled_step_is_told_and_ends_in_time() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
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
fn a_step_that_listens_to_no_signal_ends_with_the_job() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let mut call =
            runner.start_run("trap '' INT TERM\necho started\nwhile :; do sleep 0.1 & wait; done");
        call.wait_for_line("started");
        let (ended, _) = call.cancel();
        assert!(!ended.status.success());
        assert!(ended.took < Duration::from_secs(14), "{:?}", ended.took);
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_cancelled_prepare_job_leaves_nothing() {
    with_each_runtime("", |installation| {
        let before = Snapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        let never = merge(
            container("redis:7"),
            json!({"createOptions": "--health-cmd false --health-retries 1000 --health-interval 50ms"}),
        );
        let args = json!({"container": runner.job_container("node:22"), "services": [never]});
        let call = runner.start("prepare_job", args);
        wait_for_service(installation);
        let (ended, signals) = call.cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

/// Waits until the service of a job listens.
fn wait_for_service(installation: &Installation<'_>) {
    let deadline = std::time::Instant::now() + program::DEADLINE;
    let runs = || installation.host().processes().iter().any(|p| p.line.starts_with("nc -ll"));
    while !runs() {
        assert!(std::time::Instant::now() < deadline, "no service is started");
        std::thread::yield_now();
    }
}

/// The rules that keep jobs apart from the host are taken away while a job is: not before it is dead.
#[test]
fn nothing_that_a_job_sends_at_its_end_reaches_the_host() {
    const FLOOD: &str = "gateway=$(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p')\n\
        for sender in 1 2 3 4; do\n\
        (while :; do nc $gateway PORT; done) </dev/null >/dev/null 2>&1 &\n\
        done";
    for (settings, is_fenced) in [("", true), ("[network]\nhost-access = true\n", false)] {
        with_each_runtime(settings, |installation| {
            let bind = || TcpListener::bind("0.0.0.0:0");
            let socket = installation.host().enter(bind).expect("the host has ports");
            socket.set_nonblocking(true).expect("it is a socket");
            let port = socket.local_addr().expect("it is bound").port();
            let flood = FLOOD.replace("PORT", &port.to_string());
            let mut runner = runner(installation, "runner-1");
            for _ in 0..if is_fenced { 10 } else { 1 } {
                runner.prepare(runner.job_container("alpine:3.20"), &[]);
                runner.run(&flood).success();
                if !is_fenced {
                    program::wait_until("the host hears it", || socket.accept().is_ok());
                }
                runner.cleanup();
                let heard = socket.accept().map(drop).map_err(|error| error.kind());
                assert!(!is_fenced || heard == Err(ErrorKind::WouldBlock), "{heard:?}");
            }
        });
    }
}
