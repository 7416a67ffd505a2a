//! Processes that leave their process group, session or parents end with their job.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_testsupport::program::{
    copy_program, require_root, run, temporary_directory, wait_until,
};
use rustix::process::Signal;

use crate::service::setup::{PROGRAM, ServerFixture, block_on, close, output};

/// Starts processes that leave the job in all known ways, each of which writes its id to a file. The first
/// thread of `headless` exits before the others. The last three remove the environment variable that marks
/// them.
const LEAVE: &str = r#"
leave() { name=$1; shift; "$@" sh -c "echo \$\$ > $name.half; mv $name.half $name; exec sleep 1000" > /dev/null 2>&1 < /dev/null & }
leave plain
leave nohup nohup
leave session setsid
leave forked setsid --fork
leave twice sh -c 'setsid --fork "$@" & exit 0' sh
(trap '' TERM HUP; leave deaf setsid)
leave clean env -i PATH="$PATH" setsid --fork
leave renamed env -i PATH="$PATH" sh -c 'setsid --fork sh -c "setsid --fork \"\$@\"" sh "$@"' sh
leave group env -i PATH="$PATH" bash -mc '"$@" & exit' bash
setsid python3 -c 'import ctypes, os, threading, time
threading.Thread(target=time.sleep, args=[1000]).start()
with open("headless.half", "w") as file: file.write(str(os.getpid()))
os.rename("headless.half", "headless")
ctypes.CDLL(None).pthread_exit(None)' headless sleep 1000 > /dev/null 2>&1 < /dev/null &
for name in plain nohup session forked twice deaf headless clean renamed group; do
    while [ ! -e $name ]; do sleep 0.02; done
done
echo left
"#;

const NAMES: [&str; 10] = [
    "plain", "nohup", "session", "forked", "twice", "deaf", "headless", "clean", "renamed", "group",
];

fn remaining_processes(dir: &Path, names: &[&str]) -> Vec<(String, ProcessIdentity)> {
    let process = |name: &&str| {
        let text = fs::read_to_string(dir.join(name)).unwrap();
        let process = ProcessIdentity::of(text.trim().parse().unwrap());
        ((*name).to_owned(), process.unwrap_or_else(|| panic!("{name} is gone already")))
    };
    names.iter().map(process).collect()
}

/// Checks that processes were killed. On a busy machine, the server does not wait for the end of each
/// killed process.
#[track_caller]
fn assert_gone(processes: &[(String, ProcessIdentity)]) {
    let alive = || processes.iter().filter(|(_, process)| process.is_running());
    let names: Vec<_> = alive().map(|(name, _)| name).collect();
    wait_until(&format!("the end of {names:?}"), || alive().next().is_none());
}

/// Runs a job while another job's process is left too.
async fn run_job_beside(server: &ServerFixture) {
    let mut client = server.gitlab();
    let other = "setsid sh -c 'echo $$ > other.half; mv other.half other; exec sleep 1000' &\n\
                 while [ ! -e end ]; do sleep 0.02; done";
    client.run(server.script("other", other)).await.unwrap();
    let other = server.work_dir().join("other");
    wait_until("the other job runs", || other.exists());

    let script = format!("{LEAVE}\nwhile [ ! -e go ]; do sleep 0.02; done");
    client.run(server.script("1", &script)).await.unwrap();
    wait_until("all have left", || NAMES.iter().all(|name| server.work_dir().join(name).exists()));
    let mine = remaining_processes(server.work_dir().as_path(), &NAMES);
    let others = remaining_processes(server.work_dir().as_path(), &["other"]);
    fs::write(server.work_dir().join("go"), "").unwrap();
    // The log ends after the job's processes.
    assert!(output(&mut client, "1").await.0.ends_with("left\n"));
    // Processes without a mark may belong to the other job.
    assert_gone(&mine[..7]);
    assert!(others[0].1.is_running(), "it is another job's");
    fs::write(server.work_dir().join("end"), "").unwrap();
    output(&mut client, "other").await;
    assert_gone(&others);
    // Without other jobs, unmarked processes are killed as well.
    assert_gone(&mine);
    close(&mut client, "1").await;
}

#[test]
fn detached_processes_end_with_their_job_only() {
    block_on(async { run_job_beside(&ServerFixture::start()).await });
}

#[test]
fn detached_processes_end_without_cgroups_too() {
    require_root();
    block_on(async { run_job_beside(&ServerFixture::without_cgroups()).await });
}

#[test]
fn next_server_ends_detached_processes_of_a_killed_one() {
    require_root();
    block_on(async {
        for (mut server, known) in
            [(ServerFixture::start(), NAMES.len()), (ServerFixture::without_cgroups(), 7)]
        {
            let script = format!("{LEAVE}\nsleep 1000");
            server.gitlab().run(server.script("1", &script)).await.unwrap();
            let dir = server.work_dir();
            wait_until("all have left", || NAMES.iter().all(|name| dir.join(name).exists()));
            let processes = remaining_processes(&dir, &NAMES);
            let cgroup = server.job_cgroup();
            server.signal(Signal::KILL);
            assert!(!server.wait_for_exit().success());
            assert!(processes.iter().all(|(_, process)| process.is_running()));
            server.restart();
            assert_gone(&processes[..known]);
            if let Some(cgroup) = cgroup {
                // On a busy machine, the server may give up removing it before its processes have
                // left.
                wait_until("the cgroup is gone or empty", || {
                    !cgroup.exists() || fs::remove_dir(&cgroup).is_ok()
                });
            }
            // As documented: without cgroups, processes with neither mark nor parent cannot be identified.
            for (_, process) in &processes[known..] {
                process.kill(oci_hooks_testsupport::program::DEADLINE).unwrap();
            }
        }
    });
}

#[test]
fn fast_forking_processes_are_ended() {
    require_root();
    block_on(async {
        for server in [ServerFixture::start(), ServerFixture::without_cgroups()] {
            // Two generations at any time, each in a session of its own, short-lived and ignoring SIGTERM.
            let script = r#"
echo 'trap "" TERM; [ -e stop ] || setsid --fork sh again; : >> alive' > again
setsid --fork sh again > /dev/null 2>&1
while [ ! -e alive ]; do sleep 0.02; done
"#;
            let mut client = server.gitlab();
            client.run(server.script("1", script)).await.unwrap();
            output(&mut client, "1").await;
            let alive = server.work_dir().join("alive");
            fs::remove_file(&alive).unwrap();
            // The file would be created many times while another job runs.
            client.run(server.script("2", "for i in 1 2 3 4 5; do sh -c :; done")).await.unwrap();
            output(&mut client, "2").await;
            let is_alive = alive.exists();
            fs::write(server.work_dir().join("stop"), "").unwrap();
            assert!(!is_alive);
        }
    });
}

#[test]
fn run_ends_detached_processes_as_root_and_others() {
    require_root();
    let dir = temporary_directory();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("step-runner");
    copy_program(PROGRAM.as_ref(), &program);
    for uid in ["0", "12345"] {
        let work = dir.path().join(uid);
        fs::create_dir(&work).unwrap();
        let steps = serde_json::json!({"run": [{"name": "a", "script": LEAVE}]});
        fs::write(work.join("step.yml"), format!("{{}}\n---\n{steps}\n")).unwrap();
        let owner = uid.parse().ok();
        std::os::unix::fs::chown(&work, owner, owner).unwrap();
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups");
        command.arg(&program).args(["run", ".", "--grace", "300ms"]).current_dir(&work);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("TMPDIR", &work).env("HOME", &work);
        let out = run(&mut command).success();
        assert!(out.ends_with("left\n"), "{out}");
        let real_work = fs::canonicalize(&work).unwrap();
        let is_alive = |name: &&str| {
            let pid = fs::read_to_string(work.join(name)).unwrap();
            // The process id may have been reused, but not by a process in this directory. The first
            // thread of the process may have ended.
            let tasks = fs::read_dir(format!("/proc/{}/task", pid.trim()));
            let cwds = tasks.into_iter().flatten().flatten().map(|task| task.path().join("cwd"));
            cwds.map(fs::read_link).any(|cwd| cwd.is_ok_and(|cwd| cwd == real_work))
        };
        // On a busy machine, a killed process may exist for a while.
        wait_until(&format!("all have ended, as user {uid}"), || !NAMES.iter().any(&is_alive));
    }
}
