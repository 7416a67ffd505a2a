//! Containers that several delete.

use std::fs;
use std::process::Command;
use std::thread;

use crate::setup::{spec, with_each_engine};
use crate::support::program::DEADLINE;

/// As it is after the caller of a runtime was killed: the runtime that it called is still at work.
#[test]
fn a_container_that_two_delete_at_once_is_deleted_by_both() {
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

/// As it is after the hook was killed before it had noted the process, the container has ended, and the
/// process id has been given again.
#[test]
fn a_process_that_got_the_id_of_a_container_that_ended_is_left_alone() {
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
fn a_container_whose_process_nobody_noted_is_killed() {
    with_each_engine(|engine, image| {
        let mut record = engine.prepare(spec(image, "sleep 1000")).unwrap().start().unwrap();
        let process = record.process.take().expect("it runs");
        engine.remove(&record).unwrap();
        assert!(!process.is_running());
    });
}
