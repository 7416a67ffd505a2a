//! Shutdown and crash of servers, and the cleanup by the next server.

use std::fs;

use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_testsupport::program::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use step_runner::wire::proto;
use tonic::Code;

use crate::service::setup::{ServerFixture, block_on, close, output, status};

fn pid(server: &ServerFixture, name: &str) -> u32 {
    let path = server.work_dir().join(name);
    let read = || fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'));
    wait_until("the job runs", || read().is_some());
    read().unwrap().trim().parse().unwrap()
}

#[test]
fn killed_server_is_replaced_and_its_leftovers_ended() {
    block_on(async {
        let mut server = ServerFixture::start();
        let file =
            proto::Variable { key: "F".to_owned(), file: true, ..proto::Variable::default() };
        let job = proto::Job { variables: vec![file], ..proto::Job::default() };
        // Also a background process whose parent exits.
        let script = "sh -c 'sleep 1000 & echo $! > orphan'; echo $$ > shell; sleep 1000";
        let request = proto::RunRequest { job: Some(job), ..server.script("1", script) };
        server.gitlab().run(request).await.unwrap();
        let processes =
            ["orphan", "shell"].map(|name| ProcessIdentity::of(pid(&server, name)).unwrap());
        assert!(!server.files().is_empty());
        server.signal(Signal::KILL);
        assert!(!server.wait_for_exit().success());
        assert!(server.socket().exists());

        server.restart();
        wait_until("what it left has ended", || !processes.iter().any(ProcessIdentity::is_running));
        assert_eq!(server.secret_files(), <[std::path::PathBuf; 0]>::default());
        let mut client = server.gitlab();
        close(&mut client, "1").await;
        client.run(server.script("1", "echo again")).await.unwrap();
        assert_eq!(output(&mut client, "1").await.0, "Running step name=a\nagain\n");
    });
}

#[test]
fn signal_stops_jobs_and_ends_streams_properly() {
    block_on(async {
        for signal in [Signal::TERM, Signal::INT] {
            // The command has as long as it needs on a busy machine.
            let mut server = ServerFixture::with(&["--grace", "1h"], &[]);
            let mut client = server.gitlab();
            let script =
                "trap 'echo bye; exit 4' TERM; echo $$ > pid; while :; do sleep 0.05; done";
            client.run(server.script("1", script)).await.unwrap();
            pid(&server, "pid");
            let request = proto::FollowLogsRequest { id: "1".to_owned(), offset: 0 };
            let mut stream = client.follow_logs(request).await.unwrap().into_inner();
            server.signal(signal);
            if signal == Signal::TERM {
                // timeout(1) sends SIGTERM twice.
                server.signal(signal);
            }
            let mut log = Vec::new();
            while let Some(answer) = stream.message().await.unwrap() {
                log.extend(answer.data);
            }
            assert!(String::from_utf8_lossy(&log).ends_with("bye\n"));
            assert!(server.wait_for_exit().success());
            assert!(!server.socket().exists());
            assert_eq!(server.secret_files(), <[std::path::PathBuf; 0]>::default());
        }
    });
}

#[test]
fn running_jobs_may_finish_while_new_ones_are_rejected() {
    block_on(async {
        let mut server = ServerFixture::with(&["--drain", "1h"], &[]);
        let mut client = server.gitlab();
        client
            .run(server.script("1", "while [ ! -e gate ]; do sleep 0.02; done; echo done"))
            .await
            .unwrap();
        server.signal(Signal::TERM);
        let error = loop {
            match client.run(server.script("2", "true")).await {
                Err(error) => break error,
                Ok(_) => {
                    let request = proto::CloseRequest { id: "2".to_owned() };
                    client.close(request).await.unwrap();
                }
            }
        };
        assert_eq!(
            (error.code(), error.message()),
            (Code::Unavailable, "the server is shutting down")
        );
        // New connections are still accepted, because each call of a proxy opens one.
        assert!(status(&mut server.gitlab(), "1").await.is_ok());
        let follow = tokio::spawn({
            let mut client = client.clone();
            async move { output(&mut client, "1").await }
        });
        fs::write(server.work_dir().join("gate"), "").unwrap();
        assert_eq!(follow.await.unwrap().0, "Running step name=a\ndone\n");
        drop(client);
        assert!(server.wait_for_exit().success());
    });
}

#[test]
fn sigint_after_a_signal_ends_the_server_at_once() {
    block_on(async {
        let mut server = ServerFixture::with(&["--drain", "1h"], &[]);
        let mut client = server.gitlab();
        client.run(server.script("1", "echo $$ > pid; sleep 1000")).await.unwrap();
        pid(&server, "pid");
        server.signal(Signal::TERM);
        while client.run(server.script("2", "sleep 1000")).await.is_ok() {
            let request = proto::CloseRequest { id: "2".to_owned() };
            client.close(request).await.unwrap();
        }
        server.signal(Signal::INT);
        assert!(!server.wait_for_exit().success());
        // The next server cleans up the leftovers.
        server.restart();
    });
}

#[test]
fn server_ends_despite_a_client_that_does_not_read() {
    block_on(async {
        let mut server = ServerFixture::start();
        let mut client = server.gitlab();
        client.run(server.script("1", "head -c 3000000 /dev/zero | tr '\\0' x")).await.unwrap();
        output(&mut client, "1").await;
        let request = proto::FollowLogsRequest { id: "1".to_owned(), offset: 0 };
        let stream = client.follow_logs(request).await.unwrap();
        server.signal(Signal::TERM);
        assert!(server.wait_for_exit().success());
        drop(stream);
    });
}

#[test]
fn first_process_reaps_orphans_of_steps() {
    block_on(async {
        let server = ServerFixture::start_as_first();
        let mut client = server.gitlab();
        // The `sleep` outlives its parent, and would outlive the job.
        let script = "sh -c 'sleep 1000 &'";
        client.run(server.script("1", script)).await.unwrap();
        assert_eq!(output(&mut client, "1").await.0, "Running step name=a\n");

        let children = |pid: u32| -> Vec<u32> {
            let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
        };
        let [first] = children(server.pid())[..] else { panic!("unshare has one child") };
        let name = fs::read_to_string(format!("/proc/{first}/cmdline")).unwrap();
        assert!(name.starts_with("init\0"), "{name:?}");
        wait_until("the orphan is collected", || children(first).len() == 1);
        // The init forwards signals and exits with the server; unshare forwards none.
        let first = Pid::from_raw(first.cast_signed()).unwrap();
        kill_process(first, Signal::TERM).unwrap();
    });
}
