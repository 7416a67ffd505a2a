//! Whole jobs, from the first call to the last.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::call::CallStream;
use oci_hooks_testsupport::github_runner::{container, merge};
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, UsersRunner, redis, shell_step, with_each};

/// Sends PING to a host port, as a step on the host does.
const PING: &str = "printf 'PING\\r\\nQUIT\\r\\n' | busybox nc 127.0.0.1";

#[test]
fn job_with_services_and_all_kinds_of_steps_runs() {
    with_each(&UserKind::ALL, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        for (image, is_alpine) in [("node:22", false), ("alpine:3.20", true)] {
            let mut runner = installation.runner(&format!("runner-{is_alpine}"));
            let nginx = merge(
                container("nginx:alpine"),
                json!({"createOptions": "--network-alias web", "portMappings": ["8080:80"]}),
            );
            let response = runner.prepare(runner.job_container(image), &[redis(), nginx]);
            assert_eq!(response["isAlpine"], is_alpine);
            check_published_ports(installation, &response);
            script_steps(&mut runner);
            services_are_reached_by_name(&mut runner);
            javascript(&mut runner);
            container_actions(&mut runner);
            failures(&mut runner);
            runner.cleanup();
            check_work_directory_owner(installation, &runner);
        }
        // Only images remain.
        before.check_live(installation, "a job");
    });
}

fn check_published_ports(installation: &UserInstallation<'_>, response: &Value) {
    let services = &response["context"]["services"];
    let port = services[0]["ports"]["6379"].as_str().expect("the port has a number");
    assert_eq!(services[1]["ports"], json!({"80": "8080"}));
    let host = installation.world.host();
    assert_eq!(host.shell(&format!("{PING} {port}")), "+PONG\r\n");
    // Without a health check the job does not wait for the service.
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
    // Without a shell, which would drop a variable with a dash in its name.
    let args = runner.script_args("env", &[], &[("INPUT_FETCH-DEPTH", "7")], "x");
    let ended = runner.call("run_script_step", args).success();
    assert!(ended.stdout().contains("INPUT_FETCH-DEPTH=7\n"));
    // Lines are forwarded as they are written, not at the end.
    runner.run("mkfifo go").success();
    let mut call = runner.start_run("echo first; read -r _ <go; echo second");
    call.wait_for_line("first");
    fs::write(runner.workspace().join("go"), "\n").unwrap();
    assert_eq!(call.wait().success().stdout(), "first\nsecond\n");
    // Replaces directories of the image, which is where rootless overlays differ from root's.
    let script = "ls /usr/local; rm -r /usr/local; test ! -e /usr/local; mkdir /usr/local; ls -A /usr/local\n\
                  mv /home /house; mkdir /home; ls -A /home";
    assert_eq!(runner.run(script).success().stdout(), "bin\n");
}

fn services_are_reached_by_name(runner: &mut UsersRunner<'_>) {
    for name in ["nginx", "web"] {
        let ended = runner.run(&format!("wget -q -O- http://{name}/"));
        assert_eq!(ended.success().stdout(), "hello from nginx\n", "{name}");
    }
    let ended = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc redis 6379");
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
    // Exit code as in a shell: 128 plus the signal.
    runner.run("kill -KILL $$").code(137);
    let ended = runner.call("run_script_step", runner.script_args("no-such", &[], &[], "x"));
    assert!(ended.failure().contains("no-such"));
    let step = json!({"image": "no/such:image", "entryPoint": "sh"});
    assert!(runner.container_step(step).0.failure().contains("no/such"));
    // `if: failure()`
    runner.run("echo the job goes on").success();
}

/// Checks that the runner's user owns all files of a job and can delete them.
#[track_caller]
fn check_work_directory_owner(installation: &UserInstallation<'_>, runner: &UsersRunner<'_>) {
    let Some(user) = installation.user else { return };
    assert_eq!(user.find_foreign_files(installation.world, &runner.work()), "");
    let work = runner.work().display().to_string();
    installation.world.shell_as(user, &format!("rm -r {work}"));
}

/// Dockerfile instructions that change owners, for users with several ids.
const OWNERS: &str = "COPY --chown=33:33 hello.sh /of-33\n\
                      RUN chown 33:33 /etc/passwd; chown 65534:65534 /etc/group\n";

#[test]
fn dockerfile_actions_are_built_and_cached_by_content() {
    with_each(&UserKind::ALL, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let action = runner.work().join("_actions/octo/docker-action/v1");
        let (owners, seen) = match installation.has_ids() {
            true => (OWNERS, "33:33 33:33 65534:65534"),
            false => ("RUN touch /of-33\n", "0:0 0:0 0:0"),
        };
        installation.write(
            action.join("Dockerfile"),
            &format!(
                "FROM alpine:3.20\nCOPY hello.sh /hello.sh\n{owners}\
                 RUN mkdir -p /opt/a /opt/b; touch /opt/a/1 /opt/b/2\n\
                 RUN rm -r /opt; mkdir -p /opt/a; touch /opt/a/3\n\
                 RUN test \"$(find /opt -type f)\" = /opt/a/3\n\
                 ENV FROM_DOCKERFILE=yes\nENTRYPOINT [\"sh\", \"/hello.sh\"]\n"
            ),
        );
        let hello = action.join("hello.sh");
        let files = "$(find /opt -type f) $(stat -c %u:%g /of-33 /etc/passwd /etc/group)";
        installation.write(&hello, &format!("echo hello $1, $FROM_DOCKERFILE, {files}\n"));
        let expected = format!("hello Mona L, yes, /opt/a/3 {seen}\n");
        let step = json!({
            "image": null, "dockerfile": action.join("Dockerfile"),
            "entryPointArgs": ["\"Mona", "L\""],
        });
        let (first, _) = runner.container_step(step.clone());
        let first = first.success();
        assert!(first.stdout().ends_with(&expected), "{}", first.log());
        let second = runner.container_step(step.clone()).0.success();
        assert!(second.stdout().ends_with(&expected), "{}", second.log());
        assert!(!second.log().contains("STEP "), "it is not built again\n{}", second.log());
        assert!(second.log().contains("has not changed since"), "{}", second.log());
        // The cache key is the content.
        installation.write(&hello, "echo changed\n");
        let (third, _) = runner.container_step(step);
        assert!(third.success().stdout().ends_with("changed\n"));
        runner.cleanup();
        check_work_directory_owner(installation, &runner);
        before.check_live(installation, "a job");
    });
}

#[test]
fn actions_that_the_runner_links_from_its_cache_run() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let cache = runner.home().join("action-cache");
        let unpacked = cache.join("octo_hello/0123/octo-hello-0123");
        installation.write(unpacked.join("index.js"), "console.log('hello')\n");
        installation.write(
            unpacked.join("Dockerfile"),
            "FROM alpine:3.20\nCOPY index.js /index.js\nENTRYPOINT [\"cat\", \"/index.js\"]\n",
        );
        let hidden = runner.home().join("hidden");
        installation.write(hidden.join("Dockerfile"), "FROM alpine:3.20\n");
        let action = runner.work().join("_actions/octo/hello/v1");
        installation.write(action.with_file_name("v0/action.yml"), "");
        symlink(&unpacked, &action).unwrap();
        let docker = json!({"image": null, "dockerfile": action.join("Dockerfile")});
        let read = "cat /__w/_actions/octo/hello/v1/index.js";
        let links = ("ACTIONS_RUNNER_SYMLINK_CACHED_ACTIONS".to_owned(), "true".to_owned());
        let directory = cache.display().to_string();
        let place = ("ACTIONS_RUNNER_ACTION_ARCHIVE_CACHE".to_owned(), directory.clone());
        // Without `ACTIONS_RUNNER_SYMLINK_CACHED_ACTIONS`, the runner links nothing.
        runner.variables = vec![place.clone()];
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run(read).failure();
        runner.container_step(docker.clone()).0.failure();
        runner.cleanup();

        runner.variables = vec![links, place];
        runner.prepare(runner.job_container("node:22"), &[]);
        assert_eq!(runner.run(read).success().stdout(), "console.log('hello')\n");
        let ended = runner.container_step(docker.clone()).0.success();
        assert!(ended.stdout().ends_with("console.log('hello')\n"), "{}", ended.log());
        let log = runner.run(&format!("touch {directory}/octo_hello/file")).failure();
        assert!(log.contains("Read-only file system"), "{log}");
        // A job makes the link point elsewhere.
        let link = format!("cd /__w/_actions/octo/hello; rm v1; ln -s {} v1", hidden.display());
        runner.run(&link).success();
        runner.run("cat /__w/_actions/octo/hello/v1/Dockerfile").failure();
        runner.container_step(docker).0.failure();
        runner.cleanup();
        assert!(unpacked.join("index.js").exists());
    });
}

#[test]
fn job_of_services_alone_runs_on_the_host() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let postgres = merge(
            container("postgres:16"),
            json!({
                "portMappings": ["5432:5432"], "environmentVariables": {"POSTGRES_PASSWORD": "x"},
                // On a busy machine a check may take long.
                "createOptions": "--health-cmd pg_isready --health-interval 10s --health-timeout 60s",
            }),
        );
        runner.prepare(Value::Null, &[postgres]);
        assert_eq!(installation.world.host().shell(&format!("{PING} 5432")), "+PONG\r\n");
        let step = shell_step("printf \"PING\\r\\nQUIT\\r\\n\" | nc postgres 5432");
        assert!(runner.container_step(step).0.success().stdout().ends_with("+PONG\r\n"));
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_container_action_without_a_job_ends_with_the_code_of_a_shell_and_leaves_nothing() {
    with_each(&UserKind::ALL, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let (ended, _) = runner.container_step(json!({"image": "test/entrypoint:1"}));
        assert!(ended.success().stdout().ends_with("<a b>\n<c>\n"));
        let codes = [
            ("/no/such/program", 127),
            ("no-such-program", 127),
            ("/etc/passwd", 126),
            ("/etc", 126),
        ];
        for (program, code) in codes {
            let step = json!({"image": "test/entrypoint:1", "entryPoint": program});
            let log = runner.container_step(step).0.code(code).log();
            let said = log.lines().find(|line| line.starts_with("::error::")).unwrap();
            // crun does not name a program that may not be executed.
            assert!(code == 126 || said.contains(program), "{said}");
            assert!(said.ends_with("check the entry point and the image)"), "{said}");
        }
        // The runner calls no cleanup for such a job, so no process may be left.
        before.check_live(installation, "a job");
    });
}

#[test]
fn the_names_in_the_options_of_a_job_container_are_resolved() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let options = "--name build --hostname builder --network-alias redis --network-alias ci";
        let job = merge(runner.job_container("node:22"), json!({"createOptions": options}));
        runner.prepare(job, &[redis()]);
        let answer = |name: &str| format!("nc {name} 8099 </dev/null");
        let listens = "nc -ll -p 8099 -e echo reached >/dev/null 2>&1 </dev/null &";
        let own = format!("{listens}\nuntil [ \"$({})\" = reached ]; do :; done", answer("build"));
        runner.run(&own).success();
        let script = ["build", "builder", "ci"].map(answer).join("; ");
        let ended = runner.container_step(shell_step(&script)).0.success();
        assert!(ended.stdout().ends_with("reached\nreached\nreached\n"), "{}", ended.log());
        // A service keeps its name.
        let ended = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc redis 6379");
        assert_eq!(ended.success().stdout(), "+PONG\r\n");
        runner.cleanup();
    });
}

#[test]
fn no_file_of_a_job_stays_in_the_run_directory() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let jobs = installation.jobs_directory();
        let list = format!("ls -A {} 2>/dev/null || true", jobs.display());
        let files = || installation.host().shell(&list).lines().count();
        for number in 0..3 {
            let mut runner = installation.runner(&format!("ephemeral-{number}"));
            runner.prepare(runner.job_container("node:22"), &[]);
            assert_eq!(files(), 2, "the record of a job and its lock");
            runner.cleanup();
            assert_eq!(files(), 0);
            runner.container_step(json!({"image": "test/entrypoint:1"})).0.success();
            assert_eq!(files(), 0);
        }
    });
}

#[test]
fn steps_use_the_mapped_users_and_their_files_belong_to_the_runner() {
    with_each(&UserKind::ALL, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let mut owner = installation.ids();
        if !installation.is_rootless() {
            // Root also runs jobs in the directories of another user.
            owner = (1000, 1000);
            let home = runner.home().display().to_string();
            installation.host().shell(&format!("chown -R 1000:1000 {home}"));
        }
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("id -u; mkdir -p made/deep; echo x >made/deep/file").success();
        runner.container_step(shell_step("echo y >made/by-action")).0.success();
        for path in ["made", "made/deep/file", "made/by-action"] {
            let seen = fs::metadata(runner.workspace().join(path)).unwrap();
            assert_eq!((seen.uid(), seen.gid()), owner, "{path}");
        }
        let tool = fs::metadata(runner.work().join("_tool")).expect("missing sources are made");
        assert_eq!(tool.uid(), owner.0);
        let ended = runner.run("touch /file; chown app:app /file; su app -s /bin/sh -c 'id -u'");
        match installation.has_ids() {
            true => assert_eq!(ended.success().stdout(), "1001\n"),
            false => assert!(ended.failure().contains("chown")),
        }
        runner.cleanup();
    });
}

#[test]
fn cancelled_step_is_signalled_and_ends() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.container_step(shell_step("true")).0.success();
        let before = LeftoverSnapshot::take(installation);
        let polite =
            "trap 'echo told; exit 5' INT TERM\necho started\nwhile :; do sleep 0.1 & wait; done";
        let mut call = runner.start_run(polite);
        call.wait_for_line("started");
        let ended = call.interrupt();
        assert_eq!(ended.stdout(), "started\ntold\n");
        assert_eq!(ended.lines.iter().filter(|line| line.stream == CallStream::Err).count(), 0);
        before.check(installation, "a cancelled step");
        let call = runner.start_container_step(shell_step("exec sleep 1000"));
        // As the first process of its container, `sleep` ignores SIGINT, unlike the shell.
        let sleeps =
            || installation.host().processes().iter().any(|p| p.line.starts_with("sleep 1000"));
        program::wait_until("the shell has become `sleep`", sleeps);
        assert!(!call.interrupt().status.success());
        before.check(installation, "a cancelled container action");
        runner.run("echo the container is still there").success();
        runner.cleanup();
    });
}

/// Background steps of a workflow.
#[test]
fn cancelling_one_of_ten_concurrent_steps_does_not_affect_the_others() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("true").success();
        let before = LeftoverSnapshot::take(installation);
        let script = |number| {
            format!("echo started\nuntil [ -e go ]; do sleep 0.1; done\necho {number} $(cat go)")
        };
        let mut calls: Vec<_> = (0..10).map(|number| runner.start_run(&script(number))).collect();
        for call in &mut calls {
            call.wait_for_line("started");
        }
        let (ended, signals) = calls.remove(3).cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        runner.run("echo on >new; mv new go").success();
        let numbers = (0..10).filter(|number| *number != 3);
        for (number, call) in numbers.zip(calls) {
            assert_eq!(call.wait().success().stdout(), format!("started\n{number} on\n"));
        }
        before.check(installation, "ten concurrent steps");
        runner.cleanup();
    });
}

#[test]
fn cancelled_prepare_job_leaves_nothing() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let never = merge(
            container("redis:7"),
            json!({"createOptions": "--health-cmd false --health-retries 1000 --health-interval 50ms"}),
        );
        let args = json!({"container": runner.job_container("node:22"), "services": [never]});
        let call = runner.start("prepare_job", args);
        let runs = || installation.host().processes().iter().any(|p| p.line.starts_with("nc -ll"));
        program::wait_until("a service listens", runs);
        let (ended, signals) = call.cancel();
        assert!(!ended.status.success() && signals < 3, "{signals} signals: {}", ended.log());
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}

#[test]
fn a_privileged_container_runs_and_has_the_devices_of_every_container() {
    with_each(&UserKind::ROOTLESS, "[policy]\nprivileged = true\n", |installation| {
        let mut runner = installation.runner("runner-1");
        let privileged = json!({"createOptions": "--privileged"});
        runner.prepare(merge(runner.job_container("alpine:3.20"), privileged), &[]);
        let script = "for name in null zero full random urandom tty; do test -c /dev/$name || exit 9; done; \
                      echo >/dev/null; echo there";
        assert_eq!(runner.run(script).success().stdout(), "there\n");
        runner.cleanup();
    });
}
