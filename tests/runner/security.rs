//! What hostile images and jobs try, by the rows of the list of threats.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::leftovers::Snapshot;
use crate::setup::{Canary, runner, shell_step, with_each_runtime};
use crate::support::call::Ended;
use crate::support::github_runner::{Runner, container, merge, volume};
use crate::support::hub::{Login, Name, Registry};
use crate::support::program;

#[test]
fn row_1_a_container_cannot_write_to_the_runtime() {
    let hashes = || {
        ["runc", "crun", "bash"].map(|name| {
            let content = fs::read(program::find(name)).unwrap();
            Sha256::digest(content).to_vec()
        })
    };
    let own = || {
        Sha256::digest(fs::read(option_env!("CARGO_BIN_EXE_container-hook").unwrap()).unwrap())
            .to_vec()
    };
    let before = (hashes(), own());
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        // It may not even start: what counts is what becomes of the files.
        runner.container_step(container("evil/self:exe"));
        runner.prepare(runner.job_container("node:22"), &[]);
        let attack = "while :; do for p in /proc/[0-9]*; do \
                      (echo '#!/bin/sh' >$p/exe) 2>/dev/null; done; done";
        let mut call = runner.start_run(&format!("echo started; {attack}"));
        call.wait_for_line("started");
        for _ in 0..5 {
            let args = runner.script_args("/proc/self/exe", &["--version".into()], &[], "x");
            runner.call("run_script_step", args);
        }
        call.kill_after(std::time::Duration::ZERO);
        runner.cleanup();
        assert_eq!((hashes(), own()), before, "a program of the host has changed");
    });
}

#[test]
fn row_2_no_directory_of_the_host_is_reached_by_a_descriptor() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        for fd in [3, 7, 8] {
            let step = container(&format!("evil/workdir:fd{fd}"));
            let step = merge(step, json!({"entryPoint": "/bin/ls", "entryPointArgs": ["/bin/.."]}));
            let ended = runner.container_step(merge(step, json!({"workingDirectory": null}))).0;
            assert!(!ended.failure().contains("boot"), "descriptor {fd}");
        }
        runner.prepare(runner.job_container("node:22"), &[]);
        for fd in 3..=64 {
            let words = ["-c".into(), "ls -d ../../../../boot; ls .".into()];
            let mut args = runner.script_args("sh", &words, &[], "x");
            args["workingDirectory"] = json!(format!("/proc/self/fd/{fd}"));
            let said = runner.call("run_script_step", args).failure();
            assert!(!said.contains("../boot\n"), "descriptor {fd}: {said}");
        }
        // 0 to 2, and the one with which `ls` reads the directory.
        let words = ["/proc/self/fd".into()];
        let seen = runner.call("run_script_step", runner.script_args("/bin/ls", &words, &[], "x"));
        assert_eq!(seen.success().stdout(), "0\n1\n2\n3\n");
        let seen = runner.run("for p in 1 $$; do ls /proc/$p/fd | tr '\\n' ' '; echo; done");
        for line in seen.success().stdout().lines() {
            let open: Vec<_> = line.split(' ').filter(|fd| !fd.is_empty()).collect();
            assert!(open.iter().all(|fd| ["0", "1", "2", "10"].contains(fd)), "{open:?}");
        }
        runner.cleanup();
    });
}

#[test]
fn row_3_links_in_an_image_do_not_lead_to_the_host() {
    with_each_runtime("", |installation| {
        let canary = Canary::new(installation.host());
        let mut runner = runner(installation, "runner-1");
        for link in ["dev", "dev-up", "proc", "sys", "dev-null", "dev-null-trigger", "dev-console"]
        {
            let image = format!("evil/link:{link}");
            // Whether it runs or is refused, nothing outside is touched.
            runner.container_step(merge(shell_step("echo x >/dev/null"), json!({"image": image})));
            canary.check(link);
            let args = json!({"container": runner.job_container(&image), "services": []});
            runner.call("prepare_job", args);
            canary.check(link);
            runner.cleanup();
        }
    });
}

#[test]
fn row_4_a_mount_target_that_becomes_a_link_stays_inside() {
    with_each_runtime("", |installation| {
        let canary = Canary::new(installation.host());
        let mut runner = runner(installation, "runner-1");
        let workspace = runner.workspace();
        fs::create_dir(workspace.join("source")).unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let place = workspace.join("place");
                while !stop.load(Ordering::Relaxed) {
                    let _ = fs::create_dir(&place);
                    let _ = fs::remove_dir(&place);
                    let _ = symlink("/run/canary", &place);
                    let _ = fs::remove_file(&place);
                }
            });
            let source = workspace.join("source").display().to_string();
            for _ in 0..10 {
                let target = "/github/workspace/place/made";
                let step = merge(
                    shell_step("true"),
                    json!({"userMountVolumes": [volume(&source, target, false)]}),
                );
                // Whether it comes to run depends on who is first.
                runner.container_step(step);
            }
            stop.store(true, Ordering::Relaxed);
        });
        canary.check("a target that changes");
    });
}

#[test]
fn row_5_a_working_directory_is_made_inside() {
    with_each_runtime("", |installation| {
        let canary = Canary::new(installation.host());
        let mut runner = runner(installation, "runner-1");
        for image in ["evil/workdir:link", "evil/workdir:link-up"] {
            let step = merge(shell_step("pwd"), json!({"image": image, "workingDirectory": null}));
            runner.container_step(step);
            canary.check(image);
        }
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("rm -rf /link; ln -s /run/canary /link").success();
        let mut args = runner.script_args("pwd", &[], &[], "x");
        args["workingDirectory"] = json!("/link/made");
        runner.call("run_script_step", args);
        canary.check("a script step");
        runner.cleanup();
    });
}

#[test]
fn row_7_a_step_has_few_rights() {
    with_each_runtime("", |installation| {
        let outside = installation.host().shell("readlink /proc/self/ns/*");
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let seen =
            runner.run("cat /proc/self/status; readlink /proc/self/ns/*; cat /proc/self/mounts");
        let seen = seen.success().stdout();
        // The 14 capabilities that Docker gives.
        for line in [
            "NoNewPrivs:\t1\n",
            "Seccomp:\t2\n",
            "CapInh:\t0000000000000000\n",
            "CapAmb:\t0000000000000000\n",
            "CapEff:\t00000000a80425fb\n",
            "CapBnd:\t00000000a80425fb\n",
        ] {
            assert!(seen.contains(line), "{line:?} is not in {seen}");
        }
        for kind in ["ipc", "uts", "pid", "mnt", "net", "cgroup"] {
            let namespace = outside.lines().find(|line| line.starts_with(kind)).unwrap();
            assert!(!seen.contains(namespace), "the container is in the host's {kind} namespace");
        }
        let denied = "! echo x >/proc/sysrq-trigger && ! echo x >/proc/sys/kernel/hostname && \
                      ! mkdir /sys/x && ! mount -t tmpfs x /tmp && ! head -c 1 /proc/kcore && \
                      ! unshare -m true && ! chroot /proc/1/root/no && echo denied";
        assert_eq!(runner.run(denied).success().stdout(), "denied\n");
        assert_eq!(runner.run("cat /proc/timer_list /proc/keys | wc -c").stdout(), "0\n");
        let limit = "m=/sys/fs/cgroup; cat $m/pids.max $m/pids/pids.max 2>/dev/null";
        let limit = runner.run(limit).stdout();
        assert!(limit.trim().parse::<u64>().is_ok(), "no limit of processes: {limit:?}");
        runner.cleanup();
    });
}

#[test]
fn row_8_dangerous_options_are_refused_by_name() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        for options in [
            "--privileged",
            "--pid=host",
            "--ipc host",
            "--network=host",
            "--uts=host",
            "--userns=host",
            "--cgroupns=host",
            "-v /:/host",
            "--volume=/etc:/etc-of-the-host:ro",
            "--mount type=bind,src=/,dst=/host",
            "--device /dev/kmsg",
            "--device-cgroup-rule 'c *:* rwm'",
            "--security-opt seccomp=unconfined",
            "--security-opt apparmor=unconfined",
            "--security-opt systempaths=unconfined",
            "--cap-add SYS_ADMIN",
            "--cap-add=ALL",
            "--gpus all",
            "--oom-kill-disable",
            "--runtime other",
            "--cgroup-parent /",
            "--volumes-from x",
            "--pid=container:x",
        ] {
            let container =
                merge(runner.job_container("node:22"), json!({"createOptions": options}));
            let args = json!({"container": container, "services": []});
            let said = runner.call("prepare_job", args).failure();
            let name = options.split([' ', '=']).next().unwrap();
            let long = if name == "-v" { "--volume" } else { name };
            assert!(said.contains(name) || said.contains(long), "{options}: {said}");
        }
        let volumes = json!([volume("/etc", "/etc-of-the-host", true)]);
        let container =
            merge(runner.job_container("node:22"), json!({"userMountVolumes": volumes}));
        let args = json!({"container": container, "services": []});
        assert!(runner.call("prepare_job", args).failure().contains("/etc"));
        runner.cleanup();
    });
}

#[test]
fn row_9_the_socket_of_docker_is_not_passed_on_and_a_line_says_so() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _socket = host.enter(|| UnixListener::bind("/run/docker.sock")).unwrap();
        let mut runner = runner(installation, "runner-1");
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        let ended = runner.call("prepare_job", args).success();
        assert!(ended.log().contains("docker.sock"), "{}", ended.log());
        runner.run("test ! -e /var/run/docker.sock && test ! -e /run/docker.sock").success();
        let (ended, _) = runner.container_step(shell_step("test ! -e /var/run/docker.sock"));
        assert!(ended.success().log().contains("docker.sock"));
        runner.cleanup();
    });
}

#[test]
fn row_10_users_that_cannot_be_are_errors() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        for tag in ["large", "negative", "unknown", "group"] {
            let step = merge(shell_step("id"), json!({"image": format!("evil/user:{tag}")}));
            let said = runner.container_step(step).0.failure();
            assert!(!said.contains("uid=0"), "{tag}: {said}");
        }
        for user in ["4294967296", "-1", "nobody-here", "0:no-such-group", "0:4294967296"] {
            let options = format!("--user={user}");
            let container =
                merge(runner.job_container("node:22"), json!({"createOptions": options}));
            let args = json!({"container": container, "services": []});
            let said = runner.call("prepare_job", args).failure();
            let word = user.trim_start_matches("0:");
            assert!(said.contains(word), "{user}: {said}");
        }
        runner.cleanup();
    });
}

#[test]
fn row_25_a_private_image_in_the_store_is_not_for_other_jobs() {
    with_each_runtime("", |installation| {
        let login = Login("octocat", "right");
        let _ghcr = Registry::start(installation.host(), Name::Ghcr, Some(login));
        let mut runner = runner(installation, "runner-1");
        let image = "ghcr.io/octo/ci-image:main";
        let prepare = |runner: &mut Runner<'_>, registry: Value| -> Ended {
            let container = merge(runner.job_container(image), json!({"registry": registry}));
            let args = json!({"container": container, "services": []});
            let ended = runner.call("prepare_job", args);
            runner.cleanup();
            ended
        };
        let with = |password: &str| json!({"username": "octocat", "password": password, "serverUrl": "ghcr.io"});
        prepare(&mut runner, with("right")).success();
        for registry in [Value::Null, with("wrong")] {
            let said = prepare(&mut runner, registry).failure();
            assert!(said.contains("ghcr.io"), "{said}");
            assert!(!said.contains("wrong"), "{said}");
        }
        prepare(&mut runner, with("right")).success();
    });
}

const CANARIES: [&str; 3] = ["cAnArY-password-7f3a", "cAnArY-step-91bd", "cAnArY-service-c0de"];

#[test]
fn row_32_secrets_are_in_no_command_line_log_or_file() {
    let [password, step, service] = CANARIES;
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _ghcr = Registry::start(host, Name::Ghcr, Some(Login("octocat", password)));
        let mut runner = runner(installation, "runner-1");
        let registry = json!({"username": "octocat", "password": password, "serverUrl": "ghcr.io"});
        let container = merge(
            runner.job_container("ghcr.io/octo/ci-image:main"),
            json!({"registry": registry}),
        );
        let redis = merge(
            container_of_service(),
            json!({"environmentVariables": {"REDIS_PASSWORD": service}}),
        );
        let done = AtomicBool::new(false);
        let (log, seen) = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut seen = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let all = host.processes().into_iter();
                    seen.extend(all.filter(|process| has_canary(process.line.as_bytes())));
                }
                seen
            });
            let args = json!({"container": container, "services": [redis]});
            let mut log = runner.call("prepare_job", args).success().log();
            let env = [("TOKEN", step)];
            let ended = runner.run_step("echo ${#TOKEN}; sleep 0.3", &env).0.success();
            log.push_str(&ended.log());
            let action = merge(
                shell_step("echo ${#TOKEN}; sleep 0.3"),
                json!({"environmentVariables": {"TOKEN": step}}),
            );
            log.push_str(&runner.container_step(action).0.success().log());
            files_are_private(installation.run_directory().as_path());
            files_are_private(installation.store().as_path());
            log.push_str(&runner.cleanup().log());
            done.store(true, Ordering::Relaxed);
            (log, watch.join().unwrap())
        });
        assert!(seen.is_empty(), "{seen:?}");
        assert!(!has_canary(log.as_bytes()), "{log}");
        assert!(log.contains(&format!("{}\n", step.len())), "{log}");
        let left = search(installation.run_directory().as_path());
        assert!(left.is_empty(), "{left:?}");
        let left = search(installation.store().as_path());
        assert!(left.is_empty(), "{left:?}");
        let left = search(&host.enter(|| fs::canonicalize("/tmp")).unwrap());
        assert!(left.is_empty(), "{left:?}");
    });
}

fn container_of_service() -> Value {
    crate::setup::redis()
}

fn has_canary(bytes: &[u8]) -> bool {
    CANARIES
        .iter()
        .any(|canary| bytes.windows(canary.len()).any(|window| window == canary.as_bytes()))
}

/// Checks that a file with a secret is for root alone while the job runs: a container's own
/// configuration has its environment.
fn files_are_private(directory: &Path) {
    for path in search(directory) {
        let reader = program::run(
            Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "test", "-r"])
                .arg(&path),
        );
        reader.failure();
    }
}

/// Returns the files below a directory that have a secret in them.
fn search(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut rest = vec![directory.to_owned()];
    while let Some(directory) = rest.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                rest.push(entry.path());
            } else if kind.is_file() && fs::read(entry.path()).is_ok_and(|text| has_canary(&text)) {
                found.push(entry.path());
            }
        }
    }
    found
}

#[test]
fn what_is_refused_leaves_nothing() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let before = Snapshot::take(installation);
        let step = merge(shell_step("id"), json!({"image": "evil/user:unknown"}));
        runner.container_step(step).0.failure();
        let container =
            merge(runner.job_container("node:22"), json!({"createOptions": "--privileged"}));
        let args = json!({"container": container, "services": [crate::setup::redis()]});
        runner.call("prepare_job", args).failure();
        before.check(installation, "what is refused");
    });
}
