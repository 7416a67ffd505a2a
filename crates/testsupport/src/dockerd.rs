//! A private Docker daemon, and one image made from busybox.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cgroup::CgroupParent;
use super::podman::IMAGE;
use super::program::{self, DEADLINE, FinishedCommand};
use super::rootfs;

/// A daemon of a test, stopped on drop.
pub struct Dockerd {
    daemon: Option<Child>,
    log: Arc<Mutex<String>>,
    directory: TempDir,
    _cgroup_parent: CgroupParent,
}

impl Dockerd {
    /// Starts a daemon without networks whose `daemon.json` names these runtimes, such as `{"hooked":
    /// {"path": "/usr/bin/oci-hooks-runtime", "runtimeArgs": []}}`, and imports the image.
    #[track_caller]
    pub fn start(runtimes: &Value) -> Self {
        Self::start_with(json!({
            "runtimes": runtimes,
            "bridge": "none",
            "iptables": false,
            "ip6tables": false,
            "ip-forward": false,
            "ip-masq": false,
        }))
    }

    /// Starts a daemon with IPv4 and IPv6 networks in the network namespace of the calling thread, and
    /// imports the image.
    #[track_caller]
    pub fn start_with_networks() -> Self {
        Self::start_with(json!({
            "experimental": true,
            "ipv6": true,
            "ip6tables": true,
            "fixed-cidr-v6": "fd00:d0c::/64",
        }))
    }

    #[track_caller]
    fn start_with(mut settings: Value) -> Self {
        program::require_root();
        let directory = program::temporary_directory();
        let cgroup_parent = CgroupParent::new();
        let at = |name: &str| directory.path().join(name);
        let places = json!({
            "hosts": [format!("unix://{}", at("docker.sock").display())],
            "data-root": at("data"),
            "exec-root": at("exec"),
            "pidfile": at("pid"),
            "deprecated-key-path": at("key.json"),
            "storage-driver": "vfs",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": cgroup_parent.name(),
        });
        let [Value::Object(all), Value::Object(places)] = [&mut settings, &mut { places }] else {
            panic!("both are objects")
        };
        all.append(places);
        fs::write(at("daemon.json"), settings.to_string()).expect("the directory is ours");
        let mut daemon = Command::new(program::find("dockerd"))
            .arg("--config-file")
            .arg(at("daemon.json"))
            // The machine's Docker daemon may share its containerd with this one.
            .args(["--containerd-namespace", &program::unique_name()])
            .args(["--containerd-plugins-namespace", &program::unique_name()])
            // Only Debian's runc and containerd may be found.
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start dockerd: {error}"));
        let stderr = daemon.stderr.take().expect("it is piped");
        let log = Arc::new(Mutex::new(String::new()));
        let ready = follow(stderr, "API listen on", Arc::clone(&log));
        let dockerd = Self { daemon: Some(daemon), log, directory, _cgroup_parent: cgroup_parent };
        if ready.recv_timeout(DEADLINE).is_err() {
            panic!("dockerd does not listen\n{}", dockerd.log());
        }
        let image = dockerd.path("image.tar");
        rootfs::write_tar(&image);
        dockerd.docker(&["import", image.to_str().expect("a plain name"), IMAGE]).success();
        dockerd
    }

    /// Runs `docker ARGUMENTS…`.
    #[track_caller]
    pub fn docker(&self, arguments: &[&str]) -> FinishedCommand {
        program::run(
            Command::new(program::find("docker"))
                .arg("--config")
                .arg(self.path("client"))
                .arg("--host")
                .arg(self.host())
                .args(arguments),
        )
    }

    /// Returns the value of `DOCKER_HOST` for this daemon.
    pub fn host(&self) -> String {
        format!("unix://{}", self.path("docker.sock").display())
    }

    /// Runs `docker run --runtime RUNTIME OPTIONS… IMAGE COMMAND…` without a network.
    #[track_caller]
    pub fn run(&self, runtime: &str, options: &[&str], command: &[&str]) -> FinishedCommand {
        let mut arguments = vec!["run", "--runtime", runtime, "--network", "none"];
        arguments.extend(options);
        arguments.push(IMAGE);
        arguments.extend(command);
        self.docker(&arguments)
    }

    /// Starts an idle container with a network, and returns the process id of its init.
    #[track_caller]
    pub fn run_idle(&self, name: &str, options: &[&str]) -> u32 {
        let mut arguments = vec!["run", "--detach", "--name", name];
        arguments.extend(options);
        arguments.extend([IMAGE, "sleep", "1000"]);
        self.docker(&arguments).success();
        let pid = self.docker(&["inspect", "--format", "{{.State.Pid}}", name]).success();
        pid.trim().parse().expect("it is a number")
    }

    /// Returns the daemon's log so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("no holder panics").clone()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            // On SIGTERM alone the daemon gives each container ten seconds to stop.
            let containers = self.docker(&["ps", "--all", "--quiet"]).stdout;
            for container in containers.lines() {
                self.docker(&["rm", "--force", container]);
            }
            let _ = rustix::process::kill_process(Pid::from_child(&daemon), Signal::TERM);
            program::wait(daemon, DEADLINE);
        }
        // The daemon leaves the namespace of `--network none` mounted.
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(self.path("exec/netns/default"))
            .stderr(Stdio::null())
            .status();
    }
}

/// Collects a daemon's log. The receiver gets a message when the daemon logs that it is `ready`, and is
/// disconnected if the daemon exits before that.
pub fn follow(
    stderr: ChildStderr,
    ready: &'static str,
    log: Arc<Mutex<String>>,
) -> mpsc::Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if line.contains(ready) {
                // The receiver may have timed out.
                let _ = sender.send(());
            }
            let mut log = log.lock().expect("no holder panics");
            log.push_str(&line);
            log.push('\n');
        }
    });
    receiver
}
