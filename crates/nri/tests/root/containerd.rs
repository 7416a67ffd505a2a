//! A containerd 1.7 with its CRI and NRI, for tests.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use oci_hooks_testsupport::cgroup::CgroupParent;
use oci_hooks_testsupport::program::{self, DEADLINE, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cri::{
    ContainerConfig, ContainerMetadata, ContainerStatus, CreateContainer, CriClient, CriMount,
    IdMessage, ImageSpec, ImageStatus, LinuxSandbox, NamespaceOption, RunSandbox, SandboxConfig,
    SandboxMetadata, SandboxSecurity, StatusMessage,
};
use crate::image::{self, IMAGE};

/// `NamespaceMode.NODE`, the host's network namespace: pods need no network plugins then.
const NODE: i32 = 2;

/// State of an ended container.
const EXITED: i32 = 2;

/// A containerd separate from the machine's own, with its directories and those of the plugin.
pub(crate) struct Containerd {
    daemon: Option<Child>,
    client: CriClient,
    cgroup_parent: CgroupParent,
    pods: Cell<usize>,
    directory: TempDir,
}

/// A pod for containers, with its configuration, which each container's creation needs again.
pub(crate) struct CriPod {
    id: String,
    config: SandboxConfig,
}

/// Parameters of a container.
#[derive(Default)]
pub(crate) struct ContainerParams<'w> {
    pub(crate) command: &'w [&'w str],
    pub(crate) annotations: &'w [(&'w str, &'w str)],
    pub(crate) mounts: &'w [&'w Path],
}

impl Containerd {
    /// Starts containerd without plugins.
    #[track_caller]
    pub(crate) fn start() -> Self {
        let mut containerd = Self::prepare();
        containerd.start_daemon();
        containerd.import();
        containerd
    }

    /// Starts containerd with our plugin in its plugin directory, and this configuration.
    #[track_caller]
    pub(crate) fn start_with_plugin(config: &str) -> Self {
        let mut containerd = Self::prepare_with_plugin(config);
        containerd.start_daemon();
        containerd.import();
        containerd
    }

    /// Prepares a containerd that starts our plugin.
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
        let client = CriClient::new(&directory.path().join("containerd.sock"));
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
             plugin_registration_timeout = \"100s\"\nplugin_request_timeout = \"100s\"\n\
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
        let version =
            || self.client.call::<_, IdMessage>("RuntimeService/Version", IdMessage::default());
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

    /// Stops the daemon; containers continue.
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

    /// Runs `ctr ARGUMENTS…`.
    #[track_caller]
    pub(crate) fn ctr(&self, arguments: &[&str]) -> program::FinishedCommand {
        let mut ctr = Command::new(debian_13().join("ctr"));
        program::run(ctr.arg("--address").arg(self.path("containerd.sock")).args(arguments))
    }

    /// Writes programs `containerd` and `ctr` that call Debian 13's, and returns their directory.
    pub(crate) fn bin(&self) -> PathBuf {
        let debian = debian_13();
        let bin = self.path("bin");
        fs::create_dir_all(&bin).unwrap();
        for (name, option) in [
            ("containerd", format!(" --config '{}'", self.path("config.toml").display())),
            ("ctr", String::new()),
        ] {
            let script =
                format!("#!/bin/sh\nexec {}{option} \"$@\"\n", debian.join(name).display());
            program::write_program(&bin.join(name), &script);
        }
        bin
    }

    /// Creates a pod whose containers use this runtime.
    #[track_caller]
    pub(crate) fn pod(&self, runtime: &str, annotations: &[(&str, &str)]) -> CriPod {
        let number = self.pods.replace(self.pods.get() + 1);
        let config = SandboxConfig {
            metadata: Some(SandboxMetadata {
                name: format!("pod-{number}"),
                uid: format!("uid-{number}"),
                namespace: "tests".to_owned(),
            }),
            log_directory: String::new(),
            annotations: to_owned_map(annotations),
            linux: Some(LinuxSandbox {
                cgroup_parent: self.cgroup_parent.name().to_owned(),
                security_context: Some(SandboxSecurity {
                    namespace_options: Some(NamespaceOption { network: NODE }),
                }),
            }),
        };
        let request =
            RunSandbox { config: Some(config.clone()), runtime_handler: runtime.to_owned() };
        let pod: IdMessage = self
            .client
            .call("RuntimeService/RunPodSandbox", request)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.log()));
        CriPod { id: pod.id, config }
    }

    /// Creates a container; returns its id.
    pub(crate) fn create(
        &self,
        pod: &CriPod,
        name: &str,
        wanted: &ContainerParams,
    ) -> Result<String, String> {
        let path = |path: &&Path| path.to_str().unwrap().to_owned();
        let mount = |mount| CriMount { container_path: path(mount), host_path: path(mount) };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata { name: name.to_owned() }),
            image: Some(ImageSpec { image: IMAGE.to_owned() }),
            command: wanted.command.iter().map(|&word| word.to_owned()).collect(),
            mounts: wanted.mounts.iter().map(mount).collect(),
            annotations: to_owned_map(wanted.annotations),
            log_path: String::new(),
        };
        let request = CreateContainer {
            sandbox: pod.id.clone(),
            config: Some(config),
            sandbox_config: Some(pod.config.clone()),
        };
        let container: IdMessage = self.client.call("RuntimeService/CreateContainer", request)?;
        Ok(container.id)
    }

    /// Starts a container.
    #[track_caller]
    pub(crate) fn start_container(&self, container: &str) {
        let id = IdMessage { id: container.to_owned() };
        let _: IdMessage = self.client.call("RuntimeService/StartContainer", id).unwrap();
    }

    /// Starts a container and waits for its end; returns its exit code.
    #[track_caller]
    pub(crate) fn run(&self, container: &str) -> i32 {
        self.start_container(container);
        let id = || IdMessage { id: container.to_owned() };
        let mut status = StatusMessage::default();
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
        let id = IdMessage { id: container.to_owned() };
        let _: IdMessage = self.client.call("RuntimeService/RemoveContainer", id).unwrap();
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

    /// Creates or replaces a hook file.
    pub(crate) fn hook_file(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path("hooks.d").join(name)).unwrap();
    }

    /// Returns the contents of a hook's output file.
    pub(crate) fn hook_output(&self, name: &str) -> Option<String> {
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
                let id = || IdMessage { id: id.to_owned() };
                // Ids of containers are not ids of sandboxes, so these calls fail for them.
                let _ = self.client.call::<_, IdMessage>("RuntimeService/StopPodSandbox", id());
                let _ = self.client.call::<_, IdMessage>("RuntimeService/RemovePodSandbox", id());
            }
        }
        self.stop_daemon();
    }
}

fn to_owned_map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the directory of the programs of Debian 13's containerd.
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
