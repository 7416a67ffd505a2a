//! Files that a job creates in the server's directories never prevent their removal.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use oci_hooks_testsupport::program::{self, wait_until};
use rustix::process::Signal;

use crate::service::setup::{ServerFixture, block_on, close, output};

/// A command that creates 2000 nested directories: more than the server may open, and too long a path for system calls.
const DEEP: &str = "perl -e 'for (1..2000) { mkdir \"deep\" or die; chdir \"deep\" or die }'";

/// Returns a script that creates a deep tree and an inaccessible directory among the files of its job.
fn deep_tree_script(server: &ServerFixture) -> String {
    let tmp = server.tmp().display().to_string();
    format!(
        "cd {tmp}/*/state-*/jobs/*/scratch || exit 9; mkdir -p closed/below; chmod 000 closed\n\
         {DEEP}; echo made"
    )
}

/// Returns the directories of jobs.
fn jobs(server: &ServerFixture) -> Vec<PathBuf> {
    let below =
        |dir: PathBuf| fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().path());
    let states = below(server.tmp()).flat_map(below);
    states.flat_map(|state| below(state.join("jobs"))).collect()
}

/// The cleanup after a failed test must not crash the test program.
#[test]
fn files_of_a_failing_test_are_removed_at_any_depth() {
    let server = ServerFixture::limited();
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
fn deep_directories_do_not_prevent_removal_of_a_job() {
    block_on(async {
        let mut server = ServerFixture::limited();
        let mut client = server.gitlab();
        for round in 0..2 {
            client.run(server.script("1", &deep_tree_script(&server))).await.unwrap();
            assert!(output(&mut client, "1").await.0.ends_with("made\n"));
            assert_eq!(jobs(&server).len(), 1);
            if round == 0 {
                close(&mut client, "1").await;
                // On a busy machine, the thread of the job may still be removing it.
                wait_until("the job is removed", || jobs(&server).is_empty());
            }
        }
        // The next server removes the leftovers of a killed one, and its own at its end.
        server.signal(Signal::KILL);
        server.wait_for_exit();
        server.restart();
        assert!(jobs(&server).iter().all(|job| !job.join("scratch").exists()));
        let mut client = server.gitlab();
        client.run(server.script("2", &deep_tree_script(&server))).await.unwrap();
        assert!(output(&mut client, "2").await.0.ends_with("made\n"));
        server.signal(Signal::TERM);
        assert!(server.wait_for_exit().success());
        assert_eq!(jobs(&server).len(), 2);
        assert!(jobs(&server).iter().all(|job| !job.join("scratch").exists()));
    });
}
