//! A container with a server in it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks::bundle::{Init, Mount, MountSource, Propagation};
use oci_hooks::container::{Engine, MonitorProgram, Output, Record, Role, Spec};
use oci_hooks::image::{Store, StoreOptions};
use oci_hooks::step_runner::client::{Address, Client};
use oci_hooks::sys::privilege::Privilege;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::busybox;
use crate::support::images;
use crate::support::program;
use crate::support::runtime::Runtime;

const PROGRAM: &str = env!("CARGO_BIN_EXE_step-runner");

/// Where the program is in the container.
const DIR: &str = "/opt/step-runner";

/// A container whose init runs a server.
pub(crate) struct Container {
    engine: Engine,
    record: Option<Record>,
    runtime: Runtime,
    dir: TempDir,
}

impl Container {
    /// Starts a container of busybox; a file of the host is `/block` in it.
    pub(crate) fn start(runtime: Runtime, block: &[u8]) -> Self {
        program::require_root();
        let dir = program::temporary_directory();
        let (root, run) = (dir.path().join("lib"), dir.path().join("run"));
        let options = StoreOptions::new(&root, &run);
        let store = Store::open(options).unwrap();
        let image = busybox::image(&store);
        let kind = oci_hooks::runtime::Runtime::new(
            runtime.command().get_program().into(),
            run.join("runtime"),
        );
        let monitor = MonitorProgram {
            path: env!("CARGO_BIN_EXE_container-hook").into(),
            arguments: vec!["monitor".to_owned()],
        };
        let engine =
            Engine { store, runtime: kind, run, disk: root, monitor, privilege: Privilege::Root };

        let bin = dir.path().join("bin");
        let mut install = Command::new("install");
        program::run(install.args(["-D", PROGRAM]).arg(bin.join("step-runner"))).success();
        let file = dir.path().join("block");
        fs::write(&file, block).unwrap();
        let mut mounts = vec![mount(&bin, DIR), mount(&file, "/block")];
        mounts.extend(images::libraries(Path::new(PROGRAM)).iter().map(|path| mount(path, path)));
        let program = engine.init_program().unwrap();
        let mut spec = Spec::new(Role::Service, "test", &image);
        spec.options.args = [&format!("{DIR}/step-runner"), "serve"].map(str::to_owned).into();
        spec.options.env = vec!["STEP_RUNNER_SOCKET=/run/steps.sock".to_owned()];
        spec.options.init = Some(Init { program, args: Vec::new(), idle_only: false });
        spec.options.mounts = mounts;
        spec.output = Output::Log { bytes: 1 << 20 };
        let record = engine.prepare(spec).unwrap().start().unwrap();
        Container { engine, record: Some(record), runtime, dir }
    }

    fn record(&self) -> &Record {
        self.record.as_ref().expect("it is there until it is removed")
    }

    /// Returns a client that talks to the server by way of the runtime.
    pub(crate) fn client(&self) -> Client {
        let mut words = vec![self.runtime.command().get_program().to_owned()];
        words.extend(["--root".into(), self.engine.run.join("runtime").into_os_string()]);
        words
            .extend(["exec", &self.record().id, &format!("{DIR}/step-runner")].map(OsString::from));
        // The server may just be starting.
        words.extend(["proxy", "--wait", "180s"].map(OsString::from));
        Client::new(Address::Command(words))
    }

    /// Kills the proxies in the container, and returns how many there were.
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

    /// Returns the processes in the container.
    fn processes(&self) -> Vec<i32> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.record().process.unwrap().pid.try_into().unwrap());
        all_processes().filter(|&pid| namespace(pid) == own).collect()
    }

    /// Removes the container, and checks that nothing of it is left.
    pub(crate) fn remove(mut self) {
        let processes = self.processes();
        assert!(!processes.is_empty());
        let record = self.record.take().unwrap();
        self.engine.remove(&record).unwrap();
        for pid in processes {
            assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} still runs");
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
        // Those that carried bytes end when they find that there is nothing to carry.
        let names_it = |pid: i32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&record.id)
        };
        program::wait_until("nobody has to do with the container", || {
            !all_processes().any(names_it)
        });
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Some(record) = self.record.take() {
            // A test that fails has its own message.
            let _ = self.engine.remove(&record);
        }
    }
}

fn all_processes() -> impl Iterator<Item = i32> {
    let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter_map(|name| name.to_str()?.parse().ok())
}

/// Returns the cgroups that are called after a container.
fn cgroups(top: &Path, id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![top.to_owned()];
    while let Some(dir) = dirs.pop() {
        // One of somebody else may go meanwhile.
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

fn mount(from: &Path, to: impl Into<PathBuf>) -> Mount {
    let path = fs::canonicalize(from).unwrap();
    Mount {
        target: to.into(),
        source: MountSource::Trusted { path, propagation: Propagation::Private, recursive: false },
        subpath: None,
        read_only: true,
        id_mapping: None,
    }
}
