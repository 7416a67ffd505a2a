//! Limits of jobs, and warnings when a limit was reached.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge};
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program::{self, compile_attack};
use serde_json::{Value, json};

use crate::runner::setup::{runner, shell_step, with_both_runtimes, with_each_runtime, write};

const SETTINGS: &str = "[limits]\ndisk = \"64MiB\"\nopen-files = 300\n[log]\nsize = \"64KiB\"\n";

const VOLUMES: &str = "[limits]\nvolumes = \"32MiB\"\n";

fn with_options(container: Value, options: &str) -> Value {
    merge(container, json!({"createOptions": options}))
}

/// Returns the counts of inotify instances and pending signals that the attack program prints.
fn taken(output: &str) -> Vec<u32> {
    let lines = output.lines().filter_map(|line| line.strip_prefix("@ ")?.split_once(' '));
    // Message queues of root are limited for the whole machine, so other tests may use them up.
    lines.filter(|(name, _)| *name != "queue").map(|(_, count)| count.parse().unwrap()).collect()
}

#[test]
fn job_that_exhausts_its_users_limits_does_not_affect_others() {
    with_each_runtime("", |installation| {
        let [mut greedy, mut modest] = ["greedy", "modest"].map(|name| runner(installation, name));
        for runner in [&mut greedy, &mut modest] {
            compile_attack(&runner.workspace().join("attack"));
            runner.prepare(runner.job_container("node:22"), &[]);
        }
        let all = "./attack all >log & until grep -q taken log; do sleep 0.1; done; cat log";
        let output = greedy.run(all).success().stdout();
        let counts = taken(&output);
        assert!(counts.len() == 2 && counts.iter().all(|count| *count > 1), "{output}");
        assert_eq!(taken(&modest.run("./attack one").success().stdout()), [1, 1]);
        let attack = modest.workspace().join("attack").display().to_string();
        let of_host = installation.host().shell(&format!("{attack} one"));
        assert_eq!(taken(&of_host), [1, 1]);
        for runner in [&mut greedy, &mut modest] {
            runner.cleanup();
        }
    });
}

/// The removal of a job compares command lines of processes.
#[test]
fn endless_command_line_of_a_job_does_not_affect_others() {
    with_each_runtime("", |installation| {
        let [mut hostile, mut other] = ["hostile", "other"].map(|name| runner(installation, name));
        compile_attack(&hostile.workspace().join("attack"));
        hostile.prepare(hostile.job_container("node:22"), &[]);
        other.prepare(other.job_container("node:22"), &[]);
        let mut attack = hostile.start_run("exec ./attack endless");
        attack.wait_for_line("endless");
        let mut step = other.start_container_step(shell_step("echo started; sleep 1000"));
        step.wait_for_line("started");
        step.kill_after(Duration::ZERO);
        let response = other.temp().join("response.json");
        write(&response, "");
        let request = json!({
            "command": "cleanup_job", "responseFile": response, "args": {}, "state": other.state,
        });
        let (hook, trace) = (other.command(), other.temp().join("trace"));
        let mut traced = Command::new(program::find("strace"));
        traced.args(["-f", "-y", "-e", "trace=read", "-o"]).arg(&trace);
        // Without a memory limit, the hook could use up the machine's memory.
        traced.args(["prlimit", "--as=4294967296"]).arg(hook.get_program()).args(hook.get_args());
        traced.envs(hook.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let request = format!("{request}\n").into_bytes();
        RunningCall::start(installation.host(), traced, request, None).wait().success();
        let calls = fs::read_to_string(trace).unwrap();
        let lengths = calls.lines().filter(|call| call.contains("/cmdline>"));
        let lengths = lengths.filter_map(|call| call.rsplit_once(" = ")?.1.parse::<usize>().ok());
        let read: usize = lengths.sum();
        assert!((1..1 << 24).contains(&read), "{read} bytes of command lines");
        assert!(!attack.interrupt().status.success());
        hostile.cleanup();
    });
}

#[test]
fn job_that_fills_its_disk_does_not_affect_others() {
    with_each_runtime(SETTINGS, |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.container_step(shell_step("true")).0.success();
        runner.cleanup();
        let before = LeftoverSnapshot::take(installation);
        runner.prepare(with_options(runner.job_container("node:22"), "-v /volume"), &[]);
        for place in ["/volume", "/root"] {
            let script = format!(
                "! head -c 100000000 /dev/zero >{place}/zeros && test $(stat -c %s {place}/zeros) \
                 -gt 1000000 && rm {place}/zeros"
            );
            runner.run(&script).success();
        }
        // The runner's directories do not count toward the limit.
        runner.run("! cat /dev/zero >/root/zeros; echo fits >/__w/file").success();
        let fills = shell_step("cat /dev/zero >/zeros || test $(stat -c %s /zeros) -gt 1000000");
        runner.container_step(fills).0.success();
        let said = runner.cleanup().log();
        assert!(said.contains("::warning::job node filled its disk"), "{said}");
        before.check(installation, "full disks");
    });
}

#[test]
fn jobs_share_the_process_limit_of_the_host() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let read = "m=/sys/fs/cgroup; cat $m/pids.max $m/pids/pids.max 2>/dev/null || true";
        let one: u64 = runner.run(read).stdout().trim().parse().unwrap();
        let read = "m=/sys/fs/cgroup; cat $m/oci-hooks/pids.max $m/pids/oci-hooks/pids.max \
                    2>/dev/null || true";
        let all: u64 = installation.host().shell(read).trim().parse().unwrap();
        // PID namespaces have their own `pid_max` since Linux 6.14.
        let read = "sort -n /proc/sys/kernel/pid_max /proc/sys/kernel/threads-max | head -n 1";
        let host: u64 = installation.host().shell(read).trim().parse().unwrap();
        assert!(one <= host / 2 && all < host, "{one} of {all} of {host}");
        runner.cleanup();
    });
}

#[test]
fn reached_limits_are_in_the_job_log() {
    with_both_runtimes(SETTINGS, |installation| {
        let mut runner = runner(installation, "runner-1");
        let job = with_options(runner.job_container("node:22"), "--pids-limit 20 --memory 64m");
        let talker = shell_step("echo first; yes | head -c 300000; sleep 1000");
        let talks = json!({
            "contextName": "talker",
            "entryPoint": talker["entryPoint"],
            "entryPointArgs": talker["entryPointArgs"],
        });
        runner.prepare(job, &[merge(container("alpine:3.20"), talks)]);
        assert_eq!(runner.run("ulimit -n; ulimit -Hn").success().stdout(), "300\n300\n");
        runner.run("sh -c 'x=12345678; while :; do x=$x$x; done' || true").success();
        runner.run("for i in $(seq 30); do sleep 100 >/dev/null 2>&1 & done; true");
        let id = runner.state["services"][0].as_str().unwrap().to_owned();
        let has_lost = || {
            let kept = installation.admin(&["logs", &id]).success();
            !kept.is_empty() && !kept.starts_with("first")
        };
        // A reader may miss the first file once, during its rotation.
        program::wait_until("some output is no longer kept", || has_lost() && has_lost());
        let said = runner.cleanup().log();
        for warning in [
            "::warning::job node reached its limit of processes and threads ",
            "::warning::job node ran out of memory: ",
            "::warning::service talker exceeded its log limit",
        ] {
            assert!(said.contains(warning), "{warning} is not in {said}");
        }
    });
}

#[test]
fn container_step_reports_the_limits_it_reached() {
    // With cgroup v1 the events of a removed cgroup are lost.
    let is_remembered = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    with_both_runtimes(SETTINGS, |installation| {
        let mut runner = runner(installation, "runner-1");
        let grows = "x=12345678; while :; do x=$x$x; done";
        let forks = "for i in $(seq 30); do sleep 100 & done; true";
        let fills = "cat /dev/zero >/zeros; true";
        let warnings = [
            ("--memory 64m", grows, "ran out of memory: 1 of its processes were killed"),
            ("--pids-limit 20", forks, "reached its limit of processes and threads "),
            ("", fills, "filled its disk"),
        ];
        let is_said = |warning: &str| is_remembered || warning == "filled its disk";
        for has_job in [true, false] {
            if has_job {
                runner.prepare(runner.job_container("node:22"), &[]);
            }
            for (options, script, warning) in warnings {
                let step = with_options(shell_step(script), options);
                let said = runner.container_step(step).0.log();
                let line = format!("::warning::container step {warning}");
                assert_eq!(said.contains(&line), is_said(warning), "{line}: {said}");
            }
            // A step that reached no limit prints no warning, and returns its own exit code.
            let ended = runner.container_step(shell_step("exit 7")).0.code(7);
            assert!(!ended.log().contains("::warning::"), "{}", ended.log());
            if has_job {
                runner.cleanup();
            }
        }
    });
}

#[test]
fn container_step_can_open_its_streams_by_name() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let script = "echo out >/dev/stdout; echo err >/dev/stderr";
        for options in ["", "--user 1000"] {
            let step = with_options(shell_step(script), options);
            let said = runner.container_step(step).0.success().log();
            assert!(said.contains("out\n") && said.contains("err\n"), "{said}");
        }
    });
}

#[test]
fn service_that_ran_out_of_memory_is_reported_at_start() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let script = shell_step("x=12345678; while :; do x=$x$x; done");
        let options = "--memory 64m --health-cmd \"exit 1\" --health-retries 100000";
        let service = json!({
            "contextName": "grows",
            "entryPoint": script["entryPoint"],
            "entryPointArgs": script["entryPointArgs"],
            "createOptions": options,
        });
        let args = json!({
            "container": Value::Null,
            "services": [merge(container("alpine:3.20"), service)],
        });
        let said = runner.call("prepare_job", args).failure();
        assert!(said.contains("::warning::service grows ran out of memory: "), "{said}");
        runner.cleanup();
    });
}

#[test]
fn named_volumes_share_one_limit() {
    with_each_runtime(VOLUMES, |installation| {
        let mut first = runner(installation, "runner-1");
        let mut second = runner(installation, "runner-2");
        let job = |runner: &GithubRunner<'_>| {
            with_options(runner.job_container("node:22"), "-v one:/one -v two:/two")
        };
        first.prepare(job(&first), &[]);
        first.run("touch /one/warm").success();
        first.cleanup();
        let before = LeftoverSnapshot::take(installation);
        first.prepare(job(&first), &[]);
        second.prepare(job(&second), &[]);
        first.run("echo kept >/one/kept").success();
        first
            .run("! head -c 100000000 /dev/zero >/two/zeros && test $(stat -c %s /two/zeros) -gt 1000000")
            .success();
        first
            .run("! head -c 100000 /dev/zero >/one/zeros; head -c 100000 /dev/zero >/root/z")
            .success();
        // A step of the job has the same volumes; another runner has its own.
        let step = with_options(shell_step("test -s /two/zeros"), "-v two:/two");
        first.container_step(step).0.success();
        second.run("test ! -e /one/kept; head -c 10000000 /dev/zero >/two/zeros").success();
        let said = first.cleanup().log();
        assert!(said.contains("::warning::the named volumes of this runner are full"), "{said}");
        let said = second.cleanup().log();
        assert!(!said.contains("::warning::"), "{said}");
        before.check_live(installation, "limited volumes");
        // Volumes are kept, even if only a step uses them.
        let step = with_options(shell_step("cat /one/kept"), "-v one:/one");
        assert!(first.container_step(step).0.success().log().contains("kept"));
        before.check_live(installation, "limited volumes of a step");
    });
}

#[test]
fn limited_volumes_in_use_are_mounted_unchanged() {
    with_each_runtime(VOLUMES, |installation| {
        let mut runner = runner(installation, "runner-1");
        let job = with_options(runner.job_container("node:22"), "-v one:/one");
        let volumes = installation.store().join("volumes");
        runner.prepare(job.clone(), &[]);
        let held: Vec<File> = installation.host().enter(|| {
            let entries = fs::read_dir(&volumes).unwrap().flatten();
            entries.map(|entry| File::open(entry.path()).unwrap()).collect()
        });
        runner.run("echo first >/one/first").success();
        runner.cleanup();
        // A second loop device on the same file would corrupt it.
        runner.prepare(job, &[]);
        runner.run("cat /one/first; echo second >/one/second").success();
        let count = format!(
            "cd {}; for f in *.ext4; do cat /sys/block/loop*/loop/backing_file | grep -c $f; done",
            volumes.display()
        );
        assert_eq!(installation.host().shell(&count), "1\n");
        drop(held);
        runner.cleanup();
    });
}

#[test]
fn volumes_that_cannot_be_limited_are_rejected() {
    with_each_runtime(VOLUMES, |installation| {
        let mut runner = runner(installation, "runner-1");
        let job = with_options(runner.job_container("node:22"), "-v one:/one");
        runner.prepare(job.clone(), &[]);
        runner.cleanup();
        let volumes = installation.store().join("volumes");
        let volumes = volumes.display();
        let try_again = |runner: &mut GithubRunner<'_>| {
            runner.call("prepare_job", json!({"container": job.clone(), "services": []})).failure()
        };
        installation.host().shell(&format!("truncate -s 64M {volumes}/*.ext4"));
        let said = try_again(&mut runner);
        assert!(said.contains("named volumes are limited to 64MiB in "), "{said}");
        assert!(
            said.contains("`volumes` under [limits] is now 32MiB: run `e2fsck -f` and `resize2fs`"),
            "{said}"
        );
        let script = format!("rm {volumes}/*.ext4; for d in {volumes}/*/; do mkdir $d/old; done");
        installation.host().shell(&script);
        let said = try_again(&mut runner);
        assert!(
            said.contains("created without a limit, but `volumes` under [limits] is now 32MiB"),
            "{said}"
        );
        installation.host().shell(&format!("rmdir {volumes}/*/old"));
        runner.prepare(job.clone(), &[]);
        runner.run("touch /one/file").success();
        runner.cleanup();
    });
}

#[test]
fn ulimit_option_cannot_exceed_the_maximum_of_open_files() {
    with_both_runtimes(SETTINGS, |installation| {
        let mut runner = runner(installation, "runner-1");
        for (options, limits, lowered) in [
            ("--ulimit nofile=100:200", "100 200\n", None),
            ("--ulimit nofile=1000:2000", "300 300\n", Some("the maximum is 300 (`open-files`")),
        ] {
            let step = shell_step("echo $(ulimit -n) $(ulimit -Hn)");
            let (ended, _) = runner.container_step(with_options(step, options));
            let said = ended.success().stdout();
            assert!(said.ends_with(limits), "{said}");
            assert_eq!(said.contains("is lowered"), lowered.is_some(), "{said}");
            assert!(lowered.is_none_or(|lowered| said.contains(lowered)), "{said}");
        }
    });
}
