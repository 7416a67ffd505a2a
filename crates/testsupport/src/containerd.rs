//! A private containerd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::cgroup::CgroupParent;
use super::dockerd::follow;
use super::program::{self, DEADLINE, FinishedCommand};

/// A containerd separate from the machine's, stopped on drop.
pub struct PrivateContainerd {
    daemon: Option<Child>,
    cgroup_parent: CgroupParent,
    directory: TempDir,
}

impl PrivateContainerd {
    /// Starts containerd without the plugins for Kubernetes.
    #[track_caller]
    pub fn start() -> Self {
        program::require_root();
        let directory = program::temporary_directory();
        let at = |name: &str| directory.path().join(name);
        let settings = format!(
            "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n\
             [grpc]\naddress = {:?}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {:?}\n",
            at("root"),
            at("state"),
            at("containerd.sock"),
            at("opt"),
        );
        fs::write(at("config.toml"), settings).expect("the directory is ours");
        let mut daemon = Command::new(program::find("containerd"))
            .arg("--config")
            .arg(at("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start containerd: {error}"));
        let stderr = daemon.stderr.take().expect("it is piped");
        let log = std::sync::Arc::default();
        let ready = follow(stderr, "containerd successfully booted", std::sync::Arc::clone(&log));
        let containerd =
            Self { daemon: Some(daemon), cgroup_parent: CgroupParent::new(), directory };
        if ready.recv_timeout(DEADLINE).is_err() {
            panic!("containerd does not start\n{}", log.lock().expect("no holder panics"));
        }
        containerd
    }

    /// Runs `ctr ARGUMENTS…`.
    #[track_caller]
    pub fn ctr(&self, arguments: &[&str]) -> FinishedCommand {
        program::run(
            Command::new(program::find("ctr"))
                .arg("--address")
                .arg(self.path("containerd.sock"))
                .args(arguments),
        )
    }

    /// Writes a program `containerd` that reads this containerd's settings, and returns its directory.
    pub fn bin(&self) -> PathBuf {
        let script = format!(
            "#!/bin/sh\nexec {} --config '{}' \"$@\"\n",
            program::find("containerd").display(),
            self.path("config.toml").display()
        );
        fs::create_dir_all(self.path("bin")).expect("the directory is ours");
        program::write_program(&self.path("bin/containerd"), &script);
        self.path("bin")
    }

    /// Runs `ctr run OPTIONS… ROOTFS ID COMMAND…` with this runtime.
    #[track_caller]
    pub fn run(
        &self,
        runtime: &Path,
        options: &[&str],
        rootfs: &Path,
        id: &str,
        command: &[&str],
    ) -> FinishedCommand {
        let cgroup = format!("{}/{id}", self.cgroup_parent.name());
        let runtime = runtime.to_str().expect("a plain name");
        let [runc_root, fifos] = ["runc", "fifo"].map(|name| self.path(name));
        let mut arguments = vec!["run", "--runc-binary", runtime, "--cgroup", &cgroup];
        arguments.extend(["--runc-root", runc_root.to_str().expect("a plain name")]);
        arguments.extend(["--fifo-dir", fifos.to_str().expect("a plain name")]);
        arguments.extend(options);
        arguments.extend(["--rootfs", rootfs.to_str().expect("a plain name"), id]);
        arguments.extend(command);
        self.ctr(&arguments)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for PrivateContainerd {
    fn drop(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        for container in self.ctr(&["containers", "list", "--quiet"]).stdout.lines() {
            self.ctr(&["tasks", "delete", "--force", container]);
            self.ctr(&["containers", "delete", container]);
        }
        let _ = rustix::process::kill_process(Pid::from_child(&daemon), Signal::TERM);
        program::wait(daemon, DEADLINE);
    }
}
