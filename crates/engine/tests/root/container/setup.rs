//! An engine in a temporary directory.

use std::fs;
use std::path::Path;

use oci_hooks_engine::container::{ContainerRole, ContainerSpec, Engine, MonitorProgram};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{Image, ImageStore, StoreOptions};
use oci_hooks_testsupport::{busybox, program, runtime};

/// Calls a test with an engine for each runtime, and checks that nothing is left.
pub(crate) fn with_each_engine(test: impl Fn(&Engine, &Image)) {
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
            // The output of these containers is not kept.
            monitor: MonitorProgram { path: "/nonexistent".into(), arguments: Vec::new() },
            privilege: Privilege::Root,
        };
        test(&engine, &image);
        assert!(engine.containers().unwrap().is_empty());
        assert_eq!(fs::read_dir(engine.disk.join("containers")).unwrap().count(), 0);
        assert_eq!(mounts_below(dir.path()), "");
    }
}

/// Returns a container that runs a script.
pub(crate) fn spec<'a>(image: &'a Image, script: &str) -> ContainerSpec<'a> {
    let mut spec = ContainerSpec::new(ContainerRole::Instance, "test", image);
    spec.options.args = ["sh", "-c", script].map(str::to_owned).into();
    spec
}

/// Returns the lines of mounts below a directory.
pub(crate) fn mounts_below(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = dir.to_str().unwrap();
    mounts.lines().filter(|line| line.contains(dir)).map(|line| format!("{line}\n")).collect()
}
