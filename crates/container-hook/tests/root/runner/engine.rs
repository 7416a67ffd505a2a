//! The engine as used by other programs, without a runner.

use std::fs;
use std::time::Duration;

use oci_hooks_engine::bundle::{ContainerInit, ExecOptions};
use oci_hooks_engine::container::{
    ContainerRole, ContainerSpec, Engine, MonitorProgram, OutputMode, WaitOutcome,
};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{Image, ImageStore, StoreOptions};
use oci_hooks_testsupport::busybox;
use oci_hooks_testsupport::program::{self, DEADLINE};
use oci_hooks_testsupport::runtime;
use rustix::process::{Pid, Signal, kill_process};

/// Calls a test with an engine for each runtime.
fn with_each_engine(test: impl Fn(&Engine, &Image)) {
    program::require_root();
    for runtime in runtime::TestRuntime::ALL {
        let dir = program::temporary_directory();
        let (root, run) = (dir.path().join("lib"), dir.path().join("run"));
        let options = StoreOptions::new(&root, &run);
        let store = ImageStore::open(options).unwrap();
        let image = busybox::image(&store);
        let engine = Engine {
            store,
            runtime: OciRuntime::new(runtime.command().get_program().into(), run.join("runtime")),
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

fn spec<'a>(image: &'a Image, script: &str) -> ContainerSpec<'a> {
    let mut spec = ContainerSpec::new(ContainerRole::Service, "test", image);
    spec.options.args = ["sh", "-c", script].map(str::to_owned).into();
    spec.output = OutputMode::Log { bytes: 1 << 20 };
    spec
}

#[test]
fn container_is_waited_for_and_stopped() {
    with_each_engine(|engine, image| {
        let script = "trap 'exit 7' TERM; echo up; while :; do sleep 0.1; done";
        let record = engine.prepare(spec(image, script)).unwrap().start().unwrap();
        program::wait_until("it has started", || !engine.logs(&record, 1).unwrap().is_empty());
        assert_eq!(engine.wait(&record, Duration::ZERO).unwrap(), WaitOutcome::Running);
        engine.kill(&record, "TERM").unwrap();
        assert_eq!(engine.wait(&record, DEADLINE).unwrap(), WaitOutcome::Ended { code: Some(7) });
        // A second wait returns the same.
        assert_eq!(engine.wait(&record, DEADLINE).unwrap(), WaitOutcome::Ended { code: Some(7) });
        engine.remove(&record).unwrap();
    });
}

#[test]
fn init_reaps_orphans_of_steps_and_exits_when_signalled() {
    with_each_engine(|engine, image| {
        let program = engine.init_program().unwrap();
        let mut spec = spec(image, "");
        spec.options.init = Some(ContainerInit { program, args: Vec::new(), idle_only: true });
        let record = engine.prepare(spec).unwrap().start().unwrap();
        let pid = record.process.unwrap().pid;
        let children = || {
            fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
                .unwrap()
                .trim()
                .to_owned()
        };
        let args = ["sh", "-c", "sleep 1000 >/dev/null 2>&1 & exit 3"].map(str::to_owned).into();
        let exec = ExecOptions { args, ..ExecOptions::default() };
        assert_eq!(engine.exec(&record, &exec).unwrap().status().unwrap().code(), Some(3));
        // The leftover process is now a child of the container's init.
        let orphan = children().parse().unwrap();
        kill_process(Pid::from_raw(orphan).unwrap(), Signal::KILL).unwrap();
        program::wait_until("the orphan is collected", || children().is_empty());
        engine.kill(&record, "TERM").unwrap();
        assert_eq!(engine.wait(&record, DEADLINE).unwrap(), WaitOutcome::Ended { code: Some(0) });
        engine.remove(&record).unwrap();
    });
}
