//! Jobs in a pod, whose containers are the runner's own user's: what contrib/images/rootless-runner asks of a pod is
//! enough, and each thing of it is needed. podman stands in for a kubelet.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;

use crate::support::host::Host;
use crate::support::images::Layers;
use crate::support::program::{self, Finished};
use rustix::fs::{XattrFlags, setxattr};

const PROGRAM: &str = env!("CARGO_BIN_EXE_container-hook");
const MANIFEST: &str = include_str!("../../contrib/images/rootless-runner/pod.yaml");

/// The runner's user in the pod.
const RUNNER: u32 = 1000;

/// What the manifest asks for, and what podman has to be told for it.
const ASKED: [(&str, &[&str]); 4] = [
    ("drop: [ALL]", &["--cap-drop", "all"]),
    ("add: [SETUID, SETGID]", &["--cap-add", "SETUID,SETGID"]),
    ("procMount: Unmasked", &["--security-opt", "unmask=ALL"]),
    ("seccompProfile:\n          type: Unconfined", &["--security-opt", "seccomp=unconfined"]),
];

/// The files of a pod, and the podman that runs it.
struct Pod {
    host: Host,
}

impl Pod {
    fn new() -> Self {
        let host = Host::new();
        fs::set_permissions(host.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let pod = Pod { host };
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
        Layers::new().alpine().write_layout(&pod.path("tools/layout"));
        // The locks of the machine's own podman are in one segment of shared memory for all.
        fs::write(pod.path("containers.conf"), "[engine]\nlock_type = \"file\"\n").unwrap();
        pod
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.host.path().join(name)
    }

    /// Makes what the image of the runner has: programs with file capabilities, this one, a device.
    fn make_tools(&self) {
        let tools = self.path("tools");
        fs::create_dir(&tools).unwrap();
        program::copy_program(Path::new(PROGRAM), &tools.join("container-hook"));
        fs::copy(program::repository("tests/data/rootless-pod/job.js"), tools.join("job.js"))
            .unwrap();
        for (name, capability) in [("newuidmap", 7), ("newgidmap", 6)] {
            let path = tools.join(name);
            program::copy_program(&program::find(name), &path);
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            // Version 2, with the flag that says that it has them from its start.
            let mut value = [0_u8; 20];
            value[..4].copy_from_slice(&0x0200_0001_u32.to_le_bytes());
            value[4..8].copy_from_slice(&(1_u32 << capability).to_le_bytes());
            setxattr(&path, "security.capability", &value, XattrFlags::empty()).unwrap();
        }
        let device = self.path("tun").display().to_string();
        self.host.shell(&format!("mknod -m 666 {device} c 10 200"));
    }

    /// Runs a job in a pod that is given this.
    fn job(&self, options: &[String]) -> Finished {
        let node = program::find("node");
        let node = node.to_str().unwrap();
        self.run(options, &[node, "/opt/job.js", "/opt/container-hook", "/opt/layout"])
    }

    /// Runs a command in it.
    fn run(&self, options: &[String], words: &[&str]) -> Finished {
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

    /// Returns what the manifest asks for, but for one of it.
    fn asked(&self, except: Option<&str>) -> Vec<String> {
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
fn a_pod_as_the_manifest_describes_it_runs_whole_jobs() {
    for (asked, _) in ASKED {
        assert!(MANIFEST.contains(asked), "the manifest has no {asked:?}");
    }
    let pod = Pod::new();
    let output = pod.job(&pod.asked(None)).success();
    assert!(output.ends_with("user 0 of 65535\na whole job\n"), "{output}");
}

#[test]
fn what_a_pod_lacks_is_named_in_one_line() {
    let pod = Pod::new();
    for (without, expected, is_needed_by_install) in [
        ("procMount: Unmasked", "`procMount: Unmasked`", true),
        ("add: [SETUID, SETGID]", "the capabilities SETUID and SETGID", true),
        (ASKED[3].0, "a seccomp profile", false),
        ("tun", "/dev/net/tun", false),
    ] {
        let options = pod.asked(Some(without));
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
