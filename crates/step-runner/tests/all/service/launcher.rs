//! The launcher process, which creates the processes of steps.

use std::fs;

use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::processes::ProcessSnapshot;
use oci_hooks_testsupport::program::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use step_runner::wire::proto::{self, step_result::Status};

use crate::service::setup::{ServerFixture, block_on, output, status};

/// Waits for the launcher of a server: the kernel's list of children may lack a child while a thread ends.
fn wait_for_launcher(server: &ServerFixture) -> u32 {
    let mut found = None;
    wait_until("the launcher runs", || {
        found = launcher(server);
        found.is_some()
    });
    found.expect("the wait has ended")
}

/// Returns the launcher of a server.
pub(crate) fn launcher(server: &ServerFixture) -> Option<u32> {
    let is_launcher = |pid: &u32| {
        fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.starts_with(b"launcher\0"))
    };
    ProcessSnapshot::children_of(server.pid()).into_iter().find(is_launcher)
}

#[test]
fn the_launcher_is_the_parent_of_steps_and_reaps_their_orphans() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        let launcher = wait_for_launcher(&server);
        let wait = "while [ ! -e go ]; do sleep 0.02; done";
        let script = format!("echo $PPID; setsid --fork sh -c '{wait}'; {wait}");
        client.run(server.script("1", &script)).await.unwrap();
        wait_until("the orphan is adopted", || ProcessSnapshot::children_of(launcher).len() == 2);
        fs::write(server.work_dir().join("go"), "").unwrap();
        let expected = format!("Running step name=a\n{launcher}\n");
        assert_eq!(output(&mut client, "1").await.0, expected);
        wait_until("the orphan is reaped", || ProcessSnapshot::children_of(launcher).is_empty());
    });
}

#[test]
fn a_job_has_one_thread_while_a_command_runs() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        let wait = "echo > ready-$STEP; while [ ! -e go ]; do sleep 0.02; done";
        for number in 0..4 {
            let mut request = server.script(&number.to_string(), wait);
            request.env.insert("STEP".to_owned(), number.to_string());
            client.run(request).await.unwrap();
            let ready = server.work_dir().join(format!("ready-{number}"));
            wait_until("the command runs", || ready.exists());
            let threads = || {
                let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
                let names = tasks
                    .filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
                names.filter(|name| ["job", "work"].contains(&name.trim())).count()
            };
            // A thread whose work is done has its old name for a moment.
            wait_until("a job has one thread", || threads() == number + 1);
        }
        fs::write(server.work_dir().join("go"), "").unwrap();
        for number in 0..4 {
            output(&mut client, &number.to_string()).await;
        }
    });
}

#[test]
fn the_launcher_ends_with_the_server() {
    block_on(async {
        let mut server = ServerFixture::start();
        let launcher = ProcessIdentity::of(wait_for_launcher(&server)).unwrap();
        server.signal(Signal::KILL);
        server.wait_for_exit();
        wait_until("the launcher ends", || !launcher.is_running());
        server.restart();
    });
}

#[test]
fn a_killed_launcher_fails_its_jobs_and_is_replaced_for_the_next() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "echo $$ > pid; sleep 1000")).await.unwrap();
        let path = server.work_dir().join("pid");
        let pid = || fs::read_to_string(&path).ok()?.trim().parse().ok();
        wait_until("the job runs", || pid().is_some());
        let process = ProcessIdentity::of(pid().unwrap()).unwrap();
        let killed = Pid::from_raw(wait_for_launcher(&server).cast_signed()).unwrap();
        kill_process(killed, Signal::KILL).unwrap();
        output(&mut client, "1").await;
        let job = status(&mut client, "1").await.unwrap();
        assert_eq!(job.status(), Status::Failure);
        let expected = "step \"a\": exec: cannot monitor the command: the launcher process of step-runner has ended";
        assert_eq!(job.message, expected);
        wait_until("the process of the job ends", || !process.is_running());
        client.run(server.script("2", "echo again")).await.unwrap();
        assert_eq!(output(&mut client, "2").await.0, "Running step name=a\nagain\n");
    });
}

#[test]
fn a_step_that_stops_the_launcher_can_be_cancelled() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        let launcher = wait_for_launcher(&server);
        client.run(server.script("1", "kill -STOP $PPID; sleep 1000")).await.unwrap();
        let is_stopped = || {
            let stat = fs::read_to_string(format!("/proc/{launcher}/stat")).unwrap();
            stat.rsplit_once(") ").unwrap().1.starts_with('T')
        };
        wait_until("the launcher is stopped", is_stopped);
        client.cancel(proto::CancelRequest { id: "1".to_owned() }).await.unwrap();
        output(&mut client, "1").await;
        assert_eq!(status(&mut client, "1").await.unwrap().status(), Status::Cancelled);
        client.run(server.script("2", "echo again")).await.unwrap();
        assert_eq!(output(&mut client, "2").await.0, "Running step name=a\nagain\n");
    });
}
