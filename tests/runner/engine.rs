//! The engine as other programs use it, without a runner.

use std::fs;
use std::time::{Duration, Instant};

use oci_hooks::bundle::{ExecOptions, Init};
use oci_hooks::container::{Engine, MonitorProgram, Output, Role, Spec, Wait};
use oci_hooks::image::{Image, Store, StoreOptions};
use oci_hooks::runtime::Runtime;
use oci_hooks::sys::privilege::Privilege;
use rustix::process::{Pid, Signal, kill_process};

use crate::busybox;
use crate::support::program::{self, DEADLINE};
use crate::support::runtime;

/// Calls a test with an engine for each runtime.
fn with_each_engine(test: impl Fn(&Engine, &Image)) {
    program::require_root();
    for runtime in runtime::Runtime::ALL {
        let dir = program::temporary_directory();
        let (root, run) = (dir.path().join("lib"), dir.path().join("run"));
        let options = StoreOptions::new(&root, &run);
        let store = Store::open(options).unwrap();
        let image = busybox::image(&store);
        let engine = Engine {
            store,
            runtime: Runtime::new(runtime.command().get_program().into(), run.join("runtime")),
            run,
            disk: root,
            monitor: MonitorProgram {
                path: env!("CARGO_BIN_EXE_container-hook").into(),
                arguments: vec!["monitor".to_owned()],
            },
            privilege: Privilege::Root,
        };
        test(&engine, &image);
        assert!(engine.containers().unwrap().is_empty());
        assert_eq!(fs::read_dir(dir.path().join("lib/containers")).unwrap().count(), 0);
    }
}

fn spec<'a>(image: &'a Image, script: &str) -> Spec<'a> {
    let mut spec = Spec::new(Role::Service, "test", image);
    spec.options.args = ["sh", "-c", script].map(str::to_owned).into();
    spec.output = Output::Log { bytes: 1 << 20 };
    spec
}

#[test]
fn a_container_is_waited_for_and_told_to_end() {
    with_each_engine(|engine, image| {
        let script = "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done";
        let record = engine.prepare(spec(image, script)).unwrap().start().unwrap();
        let deadline = Instant::now() + DEADLINE;
        while engine.logs(&record, 1).unwrap().is_empty() {
            assert!(Instant::now() < deadline, "it does not start");
            std::thread::yield_now();
        }
        assert_eq!(engine.wait(&record, Duration::ZERO).unwrap(), Wait::Running);
        engine.kill(&record, "TERM").unwrap();
        assert_eq!(engine.wait(&record, DEADLINE).unwrap(), Wait::Ended { code: Some(7) });
        // It stays so.
        assert_eq!(engine.wait(&record, DEADLINE).unwrap(), Wait::Ended { code: Some(7) });
        engine.remove(&record).unwrap();
    });
}

#[test]
fn an_init_of_its_own_collects_what_steps_leave_and_ends_when_told() {
    with_each_engine(|engine, image| {
        let program = engine.init_program().unwrap();
        let mut spec = spec(image, "");
        spec.options.init = Some(Init { program, args: Vec::new(), idle_only: true });
        let record = engine.prepare(spec).unwrap().start().unwrap();
        let pid = record.process.unwrap().pid;
        let children = || {
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
                .unwrap()
                .trim()
                .to_owned()
        };
        let args = ["sh", "-c", "sleep 1000 >/dev/null 2>&1 & exit 3"].map(str::to_owned).into();
        let mut exec = ExecOptions::default();
        exec.args = args;
        assert_eq!(engine.exec(&record, &exec).unwrap().status().unwrap().code(), Some(3));
        // The one that is left behind is the first process's now.
        let orphan = children().parse().unwrap();
        kill_process(Pid::from_raw(orphan).unwrap(), Signal::KILL).unwrap();
        let deadline = Instant::now() + DEADLINE;
        while !children().is_empty() {
            assert!(Instant::now() < deadline, "{} is not collected", children());
            std::thread::yield_now();
        }
        engine.kill(&record, "TERM").unwrap();
        assert_eq!(engine.wait(&record, DEADLINE).unwrap(), Wait::Ended { code: Some(0) });
        engine.remove(&record).unwrap();
    });
}
