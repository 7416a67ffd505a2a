//! An engine in a directory of its own.

use std::fs;
use std::path::Path;

use oci_hooks::container::{Engine, MonitorProgram, Role, Spec};
use oci_hooks::image::{Image, Store, StoreOptions};
use oci_hooks::runtime::Runtime;
use oci_hooks::sys::privilege::Privilege;

use crate::busybox;
use crate::support::program;
use crate::support::runtime;

/// Calls a test with an engine for each runtime, and sees to it that nothing is left.
pub(crate) fn with_each_engine(test: impl Fn(&Engine, &Image)) {
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
            // No output of these containers is kept.
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
pub(crate) fn spec<'a>(image: &'a Image, script: &str) -> Spec<'a> {
    let mut spec = Spec::new(Role::Instance, "test", image);
    spec.options.args = ["sh", "-c", script].map(str::to_owned).into();
    spec
}

/// Returns the lines of what is mounted below a directory.
pub(crate) fn mounts_below(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let dir = dir.to_str().unwrap();
    mounts.lines().filter(|line| line.contains(dir)).map(|line| format!("{line}\n")).collect()
}
