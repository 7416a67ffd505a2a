//! What a job makes where a server has its files keeps nobody from removing them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use crate::setup::{Server, block_on, close, output};
use crate::support::program;

/// Makes 100 000 directories in each other.
const DEEP: &str = "perl -e 'for (1..100000) { mkdir \"d\" or die; chdir \"d\" or die }'";

/// Makes such, and what permits nothing, among the files of its job.
fn deep(server: &Server) -> String {
    let tmp = server.tmp().display().to_string();
    format!(
        "cd {tmp}/*/state-*/jobs/*/scratch || exit 9; mkdir -p closed/below; chmod 000 closed\n\
         {DEEP}; echo made"
    )
}

/// Returns the directories of jobs.
fn jobs(server: &Server) -> Vec<PathBuf> {
    let below =
        |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let states = below(server.tmp()).flat_map(below);
    states.flat_map(|state| below(state.join("jobs"))).collect()
}

/// What a test does when it fails must not end the test program.
#[test]
fn what_a_failing_test_leaves_is_removed_however_deep_it_is() {
    let server = Server::limited();
    let dirs = server.dirs.path().to_owned();
    let script = format!("cd {}; {DEEP}", server.work_dir().display());
    program::run(Command::new("sh").args(["-ec", &script])).success();
    let failing = std::thread::spawn(move || {
        let _server = server;
        panic!("as an assertion");
    });
    failing.join().unwrap_err();
    assert!(!dirs.exists());
}

#[test]
fn depth_keeps_no_job_from_being_removed() {
    block_on(async {
        let mut server = Server::limited();
        let mut client = server.gitlab();
        for round in 0..2 {
            client.run(server.script("1", &deep(&server))).await.unwrap();
            assert!(output(&mut client, "1").await.0.ends_with("made\n"));
            assert_eq!(jobs(&server).len(), 1);
            if round == 0 {
                close(&mut client, "1").await;
                assert_eq!(jobs(&server), <[PathBuf; 0]>::default());
            }
        }
        // What a killed server left goes with the next, and what that has, when it ends.
        server.signal(Signal::KILL);
        server.ended();
        server.restart();
        assert_eq!(jobs(&server), <[PathBuf; 0]>::default());
        let mut client = server.gitlab();
        client.run(server.script("2", &deep(&server))).await.unwrap();
        assert!(output(&mut client, "2").await.0.ends_with("made\n"));
        server.signal(Signal::TERM);
        assert!(server.ended().success());
        assert_eq!(jobs(&server), <[PathBuf; 0]>::default());
    });
}
