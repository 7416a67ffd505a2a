//! Containers deleted by several processes.

use std::fs;
use std::process::Command;
use std::thread;

use oci_hooks_testsupport::program::DEADLINE;

use crate::container::setup::{spec, with_each_engine};

/// As after the death of a runtime's caller: that runtime is still running.
#[test]
fn concurrent_deletions_of_one_container_both_succeed() {
    with_each_engine(|engine, image| {
        for _ in 0..10 {
            let record = engine.prepare(spec(image, "sleep 1000")).unwrap().start().unwrap();
            let delete = || record.runtime.delete(&record.id);
            let results = thread::scope(|scope| {
                [(); 3].map(|()| scope.spawn(delete)).map(|thread| thread.join().unwrap())
            });
            for result in results {
                result.unwrap();
            }
            engine.remove(&record).unwrap();
        }
    });
}

/// The creator was killed before it recorded the process, the container has ended, and its PID was reused.
#[test]
fn process_with_a_reused_id_is_not_killed() {
    with_each_engine(|engine, image| {
        let mut record = engine.prepare(spec(image, "sleep 1000")).unwrap().start().unwrap();
        record.process.expect("it runs").kill(DEADLINE).unwrap();
        record.process = None;
        let mut bystander = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid_file = engine.run.join("containers").join(&record.id).join("pid");
        fs::write(pid_file, bystander.id().to_string()).unwrap();
        engine.remove(&record).unwrap();
        assert!(bystander.try_wait().unwrap().is_none(), "it was killed");
        bystander.kill().unwrap();
        bystander.wait().unwrap();
    });
}

#[test]
fn container_without_a_recorded_process_is_killed() {
    with_each_engine(|engine, image| {
        let mut record = engine.prepare(spec(image, "sleep 1000")).unwrap().start().unwrap();
        let process = record.process.take().expect("it runs");
        engine.remove(&record).unwrap();
        assert!(!process.is_running());
    });
}
