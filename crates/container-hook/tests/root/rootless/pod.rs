//! Rootless jobs in a pod: the permissions in `contrib/images/rootless-runner` suffice, and each of them is
//! required. podman replaces the kubelet.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::images::SharedLayers;
use oci_hooks_testsupport::program::{self, FinishedCommand};
use rustix::fs::{XattrFlags, setxattr};

const PROGRAM: &str = env!("CARGO_BIN_EXE_container-hook");
const MANIFEST: &str = include_str!("../../../../../contrib/images/rootless-runner/pod.yaml");

/// User id of the runner in the pod.
const RUNNER: u32 = 1000;

/// Security settings of the manifest, and the equivalent podman options.
const ASKED: [(&str, &[&str]); 4] = [
    ("drop: [ALL]", &["--cap-drop", "all"]),
    ("add: [SETUID, SETGID]", &["--cap-add", "SETUID,SETGID"]),
    ("procMount: Unmasked", &["--security-opt", "unmask=ALL"]),
    ("seccompProfile:\n          type: Unconfined", &["--security-opt", "seccomp=unconfined"]),
];

/// Files of a pod and of its podman.
struct PodmanPod {
    host: TestHost,
}

impl PodmanPod {
    fn new() -> Self {
        let host = TestHost::new();
        fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let pod = PodmanPod { host };
        let root = pod.path("root");
        for directory in
            ["dev", "etc", "home/runner", "proc", "root", "run", "sys", "tmp", "usr", "var/tmp"]
        {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for directory in ["tmp", "var/tmp"] {
            fs::set_permissions(root.join(directory), fs::Permissions::from_mode(0o1777)).unwrap();
        }
        for name in ["bin", "sbin", "lib", "lib64"] {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        let ranges = "runner:1:999\nrunner:1001:64535\n";
        for (name, text) in [
            ("passwd", "root:x:0:0::/root:/bin/sh\nrunner:x:1000:1000::/home/runner:/bin/sh\n"),
            ("group", "root:x:0:\nrunner:x:1000:\n"),
            ("subuid", ranges),
            ("subgid", ranges),
        ] {
            fs::write(root.join("etc").join(name), text).unwrap();
        }
        pod.make_tools();
        SharedLayers::new().alpine().write_layout(&pod.path("tools/layout"));
        // By default all podmans share the machine's shared-memory segment of locks.
        fs::write(pod.path("containers.conf"), "[engine]\nlock_type = \"file\"\n").unwrap();
        pod
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.host.path().join(name)
    }

    /// Creates the files of the runner image: programs with file capabilities, the hook, and a device.
    fn make_tools(&self) {
        let tools = self.path("tools");
        fs::create_dir(&tools).unwrap();
        program::copy_program(Path::new(PROGRAM), &tools.join("container-hook"));
        fs::copy(program::repository("crates/testsupport/data/job.js"), tools.join("job.js"))
            .unwrap();
        for (name, capability) in [("newuidmap", 7), ("newgidmap", 6)] {
            let path = tools.join(name);
            program::copy_program(&program::find(name), &path);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            // `VFS_CAP_REVISION_2` with the effective flag.
            let mut value = [0_u8; 20];
            value[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
            value[4..8].copy_from_slice(&(1_u32 << capability).to_le_bytes());
            setxattr(&path, "security.capability", &value, XattrFlags::empty()).unwrap();
        }
        let device = self.path("tun").display().to_string();
        self.host.shell(&format!("mknod -m 666 {device} c 10 200"));
    }

    /// Runs a job in a pod with these podman options.
    fn job(&self, options: &[String]) -> FinishedCommand {
        let node = program::find("node");
        let node = node.to_str().unwrap();
        self.run(options, &[node, "/opt/job.js", "/opt/container-hook", "/opt/layout"])
    }

    /// Runs a command in a pod.
    fn run(&self, options: &[String], words: &[&str]) -> FinishedCommand {
        let home = self.path("home");
        let _ = fs::remove_dir_all(&home);
        fs::create_dir(&home).unwrap();
        chown(&home, Some(RUNNER), Some(RUNNER)).unwrap();
        let podman = program::find("podman");
        let volume = |from: &str, to: &str| format!("{}:{to}", self.path(from).display());
        let volumes = [
            "/usr:/usr:ro".to_owned(),
            volume("home", "/home/runner"),
            volume("tools", "/opt:ro"),
            volume("tools/newuidmap", "/usr/bin/newuidmap:ro"),
            volume("tools/newgidmap", "/usr/bin/newgidmap:ro"),
        ];
        let mut command = Command::new(podman);
        command.env("CONTAINERS_CONF", self.path("containers.conf"));
        for name in ["root", "runroot", "tmpdir"] {
            command.arg(format!("--{name}")).arg(self.path(&format!("podman-{name}")));
        }
        command.args(["--cgroup-manager", "cgroupfs", "--runtime"]).arg(program::find("runc"));
        command.args(["run", "--rm", "--network", "none", "--user", "1000:1000"]);
        command.args(["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]);
        command.args(["--env", "HOME=/home/runner"]);
        for volume in volumes {
            command.arg("--volume").arg(volume);
        }
        command.args(options).arg("--rootfs").arg(self.path("root"));
        self.host.run(command.args(words))
    }

    /// Returns the podman options for the manifest's settings, except one.
    fn podman_options(&self, except: Option<&str>) -> Vec<String> {
        let device = self.path("tun").display().to_string();
        let device = [
            "--volume".to_owned(),
            format!("{device}:/dev/net/tun"),
            "--device".to_owned(),
            "/dev/net/tun:/dev/tun".to_owned(),
        ];
        let asked = ASKED.iter().filter(|(asked, _)| Some(*asked) != except);
        let asked = asked.flat_map(|(_, options)| options.iter().map(ToString::to_string));
        asked.chain(device.into_iter().filter(|_| except != Some("tun"))).collect()
    }
}

#[test]
fn pod_of_the_manifest_runs_whole_jobs() {
    for (asked, _) in ASKED {
        assert!(MANIFEST.contains(asked), "the manifest has no {asked:?}");
    }
    let pod = PodmanPod::new();
    let output = pod.job(&pod.podman_options(None)).success();
    assert!(output.ends_with("user 0 of 65535\na whole job\n"), "{output}");
}

#[test]
fn missing_pod_settings_are_named_in_one_line() {
    let pod = PodmanPod::new();
    for (without, expected, is_needed_by_install) in [
        ("procMount: Unmasked", "`procMount: Unmasked`", true),
        ("add: [SETUID, SETGID]", "the capabilities SETUID and SETGID", true),
        (ASKED[3].0, "a seccomp profile", false),
        ("tun", "/dev/net/tun", false),
    ] {
        let options = pod.podman_options(Some(without));
        let finished = pod.job(&options);
        let said = format!("{}{}", finished.stdout, finished.stderr);
        assert!(!finished.status.success() && said.contains(expected), "{without}: {said}");
        if is_needed_by_install {
            let install = ["/opt/container-hook", "install", "/home/runner/hook"];
            let said = pod.run(&options, &install).failure();
            let hints: Vec<_> = said.lines().filter(|line| line.contains("hint:")).collect();
            let is_one = hints.len() == 1 && hints[0].contains(expected);
            assert!(is_one && said.lines().count() == 2, "{without}: {said}");
        }
    }
}
