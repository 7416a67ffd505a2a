//! Servers and launchers killed at random moments, while a client runs, follows, cancels and closes jobs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use oci_hooks_testsupport::kills::{RandomMoments, number_of_kills};
use oci_hooks_testsupport::program::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use step_runner::wire::proto::step_result::Status as JobStatus;
use step_runner::wire::proto::step_runner_client::StepRunnerClient;
use step_runner::wire::proto::{CancelRequest, CloseRequest, RunRequest};
use tonic::Status;
use tonic::transport::Channel;

use crate::service::launcher::launcher;
use crate::service::setup::{ServerFixture, block_on, close, log, output, status};

/// Default number of kills of each process.
const USUAL: u32 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KilledProcess {
    Server,
    Launcher,
}

/// Returns three jobs: one of several commands, one that leaves a process, and one that has to be cancelled.
fn jobs(server: &ServerFixture) -> [RunRequest; 3] {
    let commands = "  - {name: a, script: echo a}\n  - {name: b, script: 'echo b; /bin/true'}\n";
    [
        server.request("commands", commands),
        server.script("background", "setsid --fork sleep 1000; echo left"),
        server.script("endless", "sleep 1000"),
    ]
}

/// Runs jobs to their end.
async fn run(mut client: StepRunnerClient<Channel>, jobs: [RunRequest; 3]) -> Result<(), Status> {
    for job in &jobs {
        client.run(job.clone()).await?;
    }
    log(&mut client, "commands", 0).await?;
    client.cancel(CancelRequest { id: "endless".to_owned() }).await?;
    for job in jobs {
        log(&mut client, &job.id, 0).await?;
        client.close(CloseRequest { id: job.id }).await?;
    }
    Ok(())
}

/// Returns the processes of jobs, by their working directory.
fn processes(directory: &Path) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == directory))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns the recorded cgroups of jobs.
fn cgroups(server: &ServerFixture) -> Vec<PathBuf> {
    let records = server.files().into_iter().filter(|path| path.ends_with("scratch/groups"));
    let texts: Vec<_> = records.filter_map(|path| fs::read_to_string(path).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    lines.filter_map(|line| line.strip_prefix("cgroup ")).map(PathBuf::from).collect()
}

/// Kills a process of the server while jobs run. Checks that each accepted job has ended, and nothing is left.
async fn kill(server: &mut ServerFixture, killed: KilledProcess, after: Duration, what: &str) {
    let calls = tokio::spawn(run(server.gitlab(), jobs(server)));
    tokio::time::sleep(after).await;
    let cgroups = match killed {
        KilledProcess::Server => {
            server.signal(Signal::KILL);
            server.wait_for_exit();
            // Fails unless all calls were made before the kill.
            let _ = calls.await.unwrap();
            let cgroups = cgroups(server);
            server.restart();
            cgroups
        }
        KilledProcess::Launcher => {
            let cgroups = cgroups(server);
            if let Some(pid) = launcher(server).and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                // It may have ended.
                let _ = kill_process(pid, Signal::KILL);
            }
            let result = calls.await.unwrap();
            assert!(result.is_ok(), "{what}: {result:?}");
            cgroups
        }
    };
    let mut client = server.gitlab();
    for job in jobs(server) {
        if let Ok(found) = status(&mut client, &job.id).await {
            let is_over = !matches!(found.status(), JobStatus::Unspecified | JobStatus::Running);
            assert!(is_over, "{what}: {found:?}");
            close(&mut client, &job.id).await;
        }
    }
    let work_dir = server.work_dir();
    wait_until(&format!("nothing is left ({what})"), || {
        let own = [Some(server.pid()), launcher(server)];
        let is_left = |pid: &u32| !own.contains(&Some(*pid));
        !processes(&work_dir).iter().any(is_left)
            && server.files().is_empty()
            && !cgroups.iter().any(|path| path.exists())
    });
    client.run(server.script("again", "echo again")).await.unwrap();
    assert_eq!(output(&mut client, "again").await.0, "Running step name=a\nagain\n", "{what}");
    close(&mut client, "again").await;
}

#[test]
fn nothing_is_left_after_a_kill_at_any_moment() {
    let mut moments = RandomMoments::new();
    eprintln!("{moments}");
    let count = number_of_kills(USUAL);
    let mut server = ServerFixture::start();
    let begun = Instant::now();
    block_on(async { run(server.gitlab(), jobs(&server)).await }).unwrap();
    let took = begun.elapsed();
    for killed in [KilledProcess::Server, KilledProcess::Launcher] {
        for round in 0..count {
            let after = moments.next(took, round, count);
            let what = format!("{killed:?} after {after:?} of {took:?}; {moments}");
            block_on(kill(&mut server, killed, after, &what));
        }
    }
}
