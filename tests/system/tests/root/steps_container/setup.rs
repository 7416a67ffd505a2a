//! A container with a server in it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_engine::bundle::{ContainerInit, MountPropagation, MountRequest, MountSource};
use oci_hooks_engine::container::{
    ContainerRecord, ContainerRole, ContainerSpec, Engine, MonitorProgram, OutputMode,
};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{ImageStore, StoreOptions};
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::{busybox, images, program};
use rustix::process::{Pid, Signal, kill_process};
use step_runner::client::{ServerAddress, StepClient};
use tempfile::TempDir;

/// Directory of the program in the container.
const DIR: &str = "/opt/step-runner";

/// A container whose init starts a server.
pub(crate) struct ServerContainer {
    engine: Engine,
    record: Option<ContainerRecord>,
    runtime: TestRuntime,
    dir: TempDir,
}

impl ServerContainer {
    /// Starts a busybox container with a file of the host mounted at `/block`.
    pub(crate) fn start(runtime: TestRuntime, block: &[u8]) -> Self {
        program::require_root();
        let dir = program::temporary_directory();
        let (root, run) = (dir.path().join("lib"), dir.path().join("run"));
        let options = StoreOptions::new(&root, &run);
        let store = ImageStore::open(options).unwrap();
        let image = busybox::image(&store);
        let kind = oci_hooks_engine::runtime::OciRuntime::new(
            runtime.command().get_program().into(),
            run.join("runtime"),
        );
        let monitor = MonitorProgram {
            path: program::built_program("container-hook"),
            arguments: vec!["monitor".to_owned()],
        };
        let engine =
            Engine { store, runtime: kind, run, disk: root, monitor, privilege: Privilege::Root };

        let bin = dir.path().join("bin");
        let mut install = Command::new("install");
        let step_runner = program::built_program("step-runner");
        install.arg("-D").arg(&step_runner).arg(bin.join("step-runner"));
        program::run(&mut install).success();
        let file = dir.path().join("block");
        fs::write(&file, block).unwrap();
        let mut mounts = vec![mount(&bin, DIR), mount(&file, "/block")];
        mounts.extend(images::libraries(&step_runner).iter().map(|path| mount(path, path)));
        let program = engine.init_program().unwrap();
        let mut spec = ContainerSpec::new(ContainerRole::Service, "test", &image);
        spec.options.args = [&format!("{DIR}/step-runner"), "serve"].map(str::to_owned).into();
        spec.options.env = vec!["STEP_RUNNER_SOCKET=/run/steps.sock".to_owned()];
        spec.options.init = Some(ContainerInit { program, args: Vec::new(), idle_only: false });
        spec.options.mounts = mounts;
        spec.output = OutputMode::Log { bytes: 1 << 20 };
        let record = engine.prepare(spec).unwrap().start().unwrap();
        ServerContainer { engine, record: Some(record), runtime, dir }
    }

    fn record(&self) -> &ContainerRecord {
        self.record.as_ref().expect("it is there until it is removed")
    }

    /// Returns a client that connects through the runtime.
    pub(crate) fn client(&self) -> StepClient {
        let mut words = vec![self.runtime.command().get_program().to_owned()];
        words.extend([
            "--root".into(),
            self.record().runtime.root_of(&self.record().id).into_os_string(),
        ]);
        words
            .extend(["exec", &self.record().id, &format!("{DIR}/step-runner")].map(OsString::from));
        // The server may still be starting.
        words.extend(["proxy", "--wait", "180s"].map(OsString::from));
        StepClient::new(ServerAddress::Command(words))
    }

    /// Kills the proxies in the container, and returns their number.
    pub(crate) fn kill_proxies(&self) -> usize {
        let proxies: Vec<_> = self
            .processes()
            .into_iter()
            .filter(|pid| {
                let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                words.split(|&byte| byte == 0).nth(1) == Some(b"proxy")
            })
            .collect();
        for &pid in &proxies {
            kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
        }
        proxies.len()
    }

    /// Returns the ids of the processes in the container.
    fn processes(&self) -> Vec<i32> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.record().process.unwrap().pid.try_into().unwrap());
        all_processes().filter(|&pid| namespace(pid) == own).collect()
    }

    /// Removes the container, and checks that no part of it is left.
    pub(crate) fn remove(mut self) {
        let processes = self.processes();
        assert!(!processes.is_empty());
        let record = self.record.take().unwrap();
        self.engine.remove(&record).unwrap();
        for pid in processes {
            // The runtime outside of the container waits for its dead proxy.
            program::wait_until(&format!("the end of {pid}"), || {
                !Path::new(&format!("/proc/{pid}")).exists()
            });
        }
        assert!(self.engine.containers().unwrap().is_empty());
        for dir in ["run/containers", "run/runtime", "lib/containers"] {
            let dir = self.dir.path().join(dir);
            let left: Vec<_> = fs::read_dir(&dir).into_iter().flatten().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.path().to_str().unwrap()), "{mounts}");
        assert_eq!(cgroups(Path::new("/sys/fs/cgroup"), &record.id), <[PathBuf; 0]>::default());
        // Proxies exit once they find their connection closed.
        let names_it = |pid: i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&record.id)
        };
        program::wait_until("nobody has to do with the container", || {
            !all_processes().any(names_it)
        });
    }
}

impl Drop for ServerContainer {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            // A failing test has a message of its own.
            let _ = self.engine.remove(&record);
        }
    }
}

fn all_processes() -> impl Iterator<Item = i32> {
    let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.parse().ok())
}

/// Returns the cgroups named after a container.
fn cgroups(top: &Path, id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        // A cgroup of another process may disappear meanwhile.
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(id) {
                    found.push(entry.path());
                }
                dirs.push(entry.path());
            }
        }
    }
    found
}

fn mount(from: &Path, to: impl Into<PathBuf>) -> MountRequest {
    let path = fs::canonicalize(from).unwrap();
    MountRequest {
        target: to.into(),
        source: MountSource::Trusted {
            path,
            propagation: MountPropagation::Private,
            recursive: false,
        },
        subpath: None,
        read_only: true,
        id_mapping: None,
    }
}
