//! A containerd 1.7 of our own, with its CRI and NRI.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cgroup::CgroupParent;
use crate::cri::{
    Client, ContainerConfig, ContainerMetadata, ContainerStatus, CreateContainer, Id, ImageSpec,
    ImageStatus, LinuxSandbox, Metadata, Mount, NamespaceOption, RunSandbox, SandboxConfig,
    SandboxSecurity, Status,
};
use crate::image::{self, IMAGE};
use crate::program::{self, DEADLINE, wait_until};

/// The host's network namespace: pods need no network plugins then.
const NODE: i32 = 2;

/// The state of a container that has ended.
const EXITED: i32 = 2;

/// A containerd apart from the machine's own, its directories and those of the plugin.
pub(crate) struct Containerd {
    daemon: Option<Child>,
    client: Client,
    cgroup_parent: CgroupParent,
    pods: Cell<usize>,
    directory: TempDir,
}

/// A pod to make containers in; its configuration is asked for again by each of them.
pub(crate) struct Pod {
    id: String,
    config: SandboxConfig,
}

/// What a container shall be.
#[derive(Default)]
pub(crate) struct Wanted<'w> {
    pub(crate) command: &'w [&'w str],
    pub(crate) annotations: &'w [(&'w str, &'w str)],
    pub(crate) mounts: &'w [&'w Path],
}

impl Containerd {
    /// Starts it without plugins of its own.
    #[track_caller]
    pub(crate) fn start() -> Self {
        let mut containerd = Self::prepare();
        containerd.start_daemon();
        containerd.import();
        containerd
    }

    /// Starts it with our plugin among those that it starts itself, and this configuration of it.
    #[track_caller]
    pub(crate) fn start_with_plugin(config: &str) -> Self {
        let mut containerd = Self::prepare_with_plugin(config);
        containerd.start_daemon();
        containerd.import();
        containerd
    }

    /// Writes what a containerd needs that starts our plugin.
    #[track_caller]
    pub(crate) fn prepare_with_plugin(config: &str) -> Self {
        let containerd = Self::prepare();
        let plugin = containerd.path("plugins/10-oci-hooks-nri");
        symlink(env!("CARGO_BIN_EXE_oci-hooks-nri"), plugin).unwrap();
        let config = config.replace("DIR", containerd.path("").to_str().unwrap());
        fs::write(containerd.path("conf.d/10-oci-hooks-nri.conf"), config).unwrap();
        containerd
    }

    #[track_caller]
    fn prepare() -> Self {
        program::require_root();
        let directory = program::temporary_directory();
        for name in ["plugins", "conf.d", "hooks.d", "out", "cni"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let client = Client::new(&directory.path().join("containerd.sock"));
        Containerd {
            daemon: None,
            client,
            cgroup_parent: CgroupParent::new(),
            pods: Cell::new(0),
            directory,
        }
    }

    fn config(&self) -> String {
        let at = |name: &str| self.path(name);
        let crun = program::repository("tests/support/crun-before-1.10.sh");
        let runtime = |name: &str, program: &Path| {
            format!(
                "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{name}]\n\
                 runtime_type = \"io.containerd.runc.v2\"\n\
                 [plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{name}.options]\n\
                 BinaryName = {program:?}\nRoot = {:?}\n",
                at(name)
            )
        };
        format!(
            "version = 2\nroot = {:?}\nstate = {:?}\n[grpc]\naddress = {:?}\n\
             [plugins.\"io.containerd.internal.v1.opt\"]\npath = {:?}\n\
             [plugins.\"io.containerd.nri.v1.nri\"]\ndisable = false\nplugin_path = {:?}\n\
             plugin_config_path = {:?}\nsocket_path = {:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = {IMAGE:?}\n\
             disable_apparmor = true\nrestrict_oom_score_adj = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {:?}\nconf_dir = {:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\".containerd]\nsnapshotter = \"native\"\n\
             default_runtime_name = \"runc\"\n{}{}",
            at("root"),
            at("state"),
            at("containerd.sock"),
            at("opt"),
            at("plugins"),
            at("conf.d"),
            at("nri.sock"),
            at("cni"),
            at("cni"),
            runtime("runc", &program::find("runc")),
            runtime("crun", &crun),
        )
    }

    /// Starts the daemon, and waits until it serves.
    #[track_caller]
    pub(crate) fn start_daemon(&mut self) {
        self.spawn_daemon();
        let version = || self.client.call::<_, Id>("RuntimeService/Version", Id::default());
        wait_until("containerd", || {
            let is_there = version().is_ok();
            assert!(is_there || !self.log().contains("level=fatal"), "{}", self.log());
            is_there
        });
    }

    /// Starts the daemon.
    #[track_caller]
    pub(crate) fn spawn_daemon(&mut self) {
        let bin = debian_13();
        fs::write(self.path("config.toml"), self.config()).unwrap();
        let log = File::options().create(true).append(true).open(self.path("log")).unwrap();
        let daemon = Command::new(bin.join("containerd"))
            .arg("--config")
            .arg(self.path("config.toml"))
            .env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.daemon = Some(daemon.unwrap());
    }

    /// Ends the daemon; containers go on.
    pub(crate) fn stop_daemon(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = kill_process(Pid::from_child(&daemon), Signal::TERM);
            program::wait(daemon, DEADLINE);
        }
    }

    #[track_caller]
    fn import(&self) {
        let archive = image::archive(self.directory.path());
        let archive = archive.to_str().unwrap();
        let options = ["--namespace", "k8s.io", "images", "import", "--snapshotter", "native"];
        self.ctr(&[&options[..], &[archive]].concat()).success();
        let image = Some(ImageSpec { image: IMAGE.to_owned() });
        wait_until("the image in the CRI", || {
            let request = ImageStatus { image: image.clone() };
            let found: ImageStatus = self.client.call("ImageService/ImageStatus", request).unwrap();
            found.image.is_some()
        });
    }

    /// Calls `ctr ARGUMENTS…`.
    #[track_caller]
    pub(crate) fn ctr(&self, arguments: &[&str]) -> program::Finished {
        let mut ctr = Command::new(debian_13().join("ctr"));
        program::run(ctr.arg("--address").arg(self.path("containerd.sock")).args(arguments))
    }

    /// Makes a pod whose containers are of this runtime.
    #[track_caller]
    pub(crate) fn pod(&self, runtime: &str, annotations: &[(&str, &str)]) -> Pod {
        let number = self.pods.replace(self.pods.get() + 1);
        let config = SandboxConfig {
            metadata: Some(Metadata {
                name: format!("pod-{number}"),
                uid: format!("uid-{number}"),
                namespace: "tests".to_owned(),
            }),
            log_directory: String::new(),
            annotations: owned(annotations),
            linux: Some(LinuxSandbox {
                cgroup_parent: self.cgroup_parent.name().to_owned(),
                security_context: Some(SandboxSecurity {
                    namespace_options: Some(NamespaceOption { network: NODE }),
                }),
            }),
        };
        let request =
            RunSandbox { config: Some(config.clone()), runtime_handler: runtime.to_owned() };
        let pod: Id = self
            .client
            .call("RuntimeService/RunPodSandbox", request)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        Pod { id: pod.id, config }
    }

    /// Creates a container; returns its id.
    pub(crate) fn create(&self, pod: &Pod, name: &str, wanted: &Wanted) -> Result<String, String> {
        let path = |path: &&Path| path.to_str().unwrap().to_owned();
        let mount = |mount| Mount { container_path: path(mount), host_path: path(mount) };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned() }),
            image: Some(ImageSpec { image: IMAGE.to_owned() }),
            command: wanted.command.iter().map(|&word| word.to_owned()).collect(),
            mounts: wanted.mounts.iter().map(mount).collect(),
            annotations: owned(wanted.annotations),
            log_path: String::new(),
        };
        let request = CreateContainer {
            sandbox: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let container: Id = self.client.call("RuntimeService/CreateContainer", request)?;
        Ok(container.id)
    }

    /// Starts a container.
    #[track_caller]
    pub(crate) fn start_container(&self, container: &str) {
        let id = Id { id: container.to_owned() };
        let _: Id = self.client.call("RuntimeService/StartContainer", id).unwrap();
    }

    /// Starts a container and waits until it has ended; returns its exit code.
    #[track_caller]
    pub(crate) fn run(&self, container: &str) -> i32 {
        self.start_container(container);
        let id = || Id { id: container.to_owned() };
        let mut status = Status::default();
        wait_until("the end of the container", || {
            let found: ContainerStatus =
                self.client.call("RuntimeService/ContainerStatus", id()).unwrap();
            status = found.status.unwrap_or_default();
            status.state == EXITED
        });
        status.exit_code
    }

    /// Removes a container.
    #[track_caller]
    pub(crate) fn remove(&self, container: &str) {
        let id = Id { id: container.to_owned() };
        let _: Id = self.client.call("RuntimeService/RemoveContainer", id).unwrap();
    }

    /// Writes a hook file that runs a shell script with `OUT` set.
    pub(crate) fn hook(&self, name: &str, script: &str, when: Value, stages: &[&str]) {
        let script = format!("OUT={}; {script}", self.path("out").display());
        let hook = json!({"path": "/bin/sh", "args": ["sh", "-c", script], "timeout": 60});
        self.hook_file(
            name,
            &json!({"version": "1.0.0", "hook": hook, "when": when, "stages": stages}).to_string(),
        );
    }

    /// Replaces a hook file, or makes it.
    pub(crate) fn hook_file(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("hooks.d").join(name)).unwrap();
    }

    /// Returns what a hook wrote to a file.
    pub(crate) fn out(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path("out").join(name)).ok()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the daemon's log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            let sandboxes =
                self.ctr(&["--namespace", "k8s.io", "containers", "list", "--quiet"]).stdout;
            for id in sandboxes.lines() {
                let id = || Id { id: id.to_owned() };
                // Those of containers are none of sandboxes.
                let _ = self.client.call::<_, Id>("RuntimeService/StopPodSandbox", id());
                let _ = self.client.call::<_, Id>("RuntimeService/RemovePodSandbox", id());
            }
        }
        self.stop_daemon();
    }
}

fn owned(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns where the programs of Debian 13's containerd are.
#[track_caller]
fn debian_13() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let bin = target.join("debian-13/usr/bin");
    assert!(
        bin.join("containerd").exists(),
        "this test needs containerd 1.7 in {}: run tests/support/debian-13.sh {} containerd passt libc6",
        bin.display(),
        target.join("debian-13").display()
    );
    bin
}
