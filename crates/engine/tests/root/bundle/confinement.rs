//! Privileges and limits of containers, seen from inside.

use std::collections::HashMap;
use std::fs;

use oci_hooks_engine::bundle::{self, ExecOptions, HostDevice, NamespaceSource, ProcessRlimit};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;

use crate::bundle::container::{TestBundle, config};

/// Docker's fourteen without MKNOD: bits of CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID,
/// SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT, AUDIT_WRITE and SETFCAP.
const DEFAULT_CAPABILITIES: &str = "00000000a00425fb";
const NONE: &str = "0000000000000000";

fn fields(text: &str) -> HashMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(':')).map(|(k, v)| (k, v.trim())).collect()
}

#[test]
fn default_privileges_are_minimal_inside_the_container() {
    for runtime in TestRuntime::ALL {
        let out = TestBundle::new("cat /proc/self/status").run(runtime).success();
        let status = fields(&out);
        for (key, expected) in [
            ("CapEff", DEFAULT_CAPABILITIES),
            ("CapPrm", DEFAULT_CAPABILITIES),
            ("CapBnd", DEFAULT_CAPABILITIES),
            ("CapInh", NONE),
            ("CapAmb", NONE),
            ("NoNewPrivs", "1"),
            ("Seccomp", "2"),
        ] {
            assert_eq!(status[key], expected, "{runtime}: {key}");
        }
    }
}

#[test]
fn another_user_has_no_capabilities_at_all() {
    for runtime in TestRuntime::ALL {
        let mut parts = TestBundle::new("cat /proc/self/status; id -G; echo HOME=$HOME");
        parts.image.user = "app".to_owned();
        let out = parts.run(runtime).success();
        let status = fields(&out);
        for key in ["CapEff", "CapPrm", "CapInh", "CapAmb"] {
            assert_eq!(status[key], NONE, "{runtime}: {key}");
        }
        assert!(out.contains("\n100 10\n") && out.contains("HOME=/srv\n"), "{runtime}: {out}");
    }
}

#[test]
fn the_restricted_profile_leaves_nothing_to_drop() {
    for runtime in TestRuntime::ALL {
        let mut parts = TestBundle::new("cat /proc/self/status");
        parts.image.user = "app".to_owned();
        parts.options.security.restricted = true;
        parts.options.security.no_new_privileges = false;
        let out = parts.run(runtime).success();
        let status = fields(&out);
        for key in ["CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb"] {
            assert_eq!(status[key], NONE, "{runtime}: {key}");
        }
        assert_eq!((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), "{runtime}");
    }
}

#[test]
fn set_user_id_programs_work_where_new_privileges_are_allowed() {
    for runtime in TestRuntime::ALL {
        for allowed in [false, true] {
            // Busybox would drop privileges. The init, which runs `cat`, keeps them.
            let mut parts = TestBundle::new("");
            parts.image.cmd =
                Some(["/bin/as-root", "cat", "/proc/1/status"].map(str::to_owned).into());
            let program = parts.layer("/bin/as-root");
            fs::write(&program, oci_hooks_init::PROGRAM).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
            fs::set_permissions(&program, mode).unwrap();
            parts.image.user = "app".to_owned();
            parts.options.security.no_new_privileges = !allowed;
            let out = parts.run(runtime).success();
            let uids = fields(&out)["Uid"].to_owned();
            let is_root = uids.split_whitespace().nth(1) == Some("0");
            assert_eq!(is_root, allowed, "{runtime}: {out}");
        }
    }
}

#[test]
fn kernel_interfaces_are_hidden_or_read_only() {
    let script = "head -c1 /proc/keys | grep -c . ; ls /sys/firmware | head -n1
        for f in /proc/sys/kernel/core_pattern /proc/sysrq-trigger /sys/kernel/mm/ksm/run; do
          if [ -e $f ] && (echo x > $f) 2>/dev/null; then echo wrote $f; fi
        done
        for d in /sys/fs/cgroup/*/; do (mkdir $d/x) 2>/dev/null && echo made $d/x; done; true";
    for runtime in TestRuntime::ALL {
        let out = TestBundle::new(script).run(runtime).success();
        assert_eq!(out, "0\n", "{runtime}");
    }
}

#[test]
fn namespaces_are_private_to_the_container() {
    let kinds = ["pid", "mnt", "ipc", "uts", "cgroup", "net"];
    let script =
        "for n in pid mnt ipc uts cgroup net; do stat -L -c \"$n:%i\" /proc/self/ns/$n; done";
    for runtime in TestRuntime::ALL {
        let out = TestBundle::new(script).run(runtime).success();
        let inside = fields(&out);
        for kind in kinds {
            use std::os::unix::fs::MetadataExt as _;
            let own = fs::metadata(format!("/proc/self/ns/{kind}")).unwrap().ino();
            assert_ne!(inside[kind], own.to_string(), "{runtime}: {kind}");
        }
    }
}

#[test]
fn system_calls_beyond_the_container_are_denied() {
    let script = "/bin/busybox unshare -U true 2>&1; /bin/busybox mount -t tmpfs x /tmp 2>&1; true";
    for runtime in TestRuntime::ALL {
        let out = TestBundle::new(script).run(runtime).success();
        assert_eq!(out.matches("Operation not permitted").count(), 1, "{runtime}: {out}");
        assert!(out.contains("permission denied"), "{runtime}: {out}");
    }
}

/// System calls that create nodes: a program uses either of them, depending on its library.
const MAKE_NODE: &[(&str, libc::c_long)] = &[
    #[cfg(not(target_arch = "aarch64"))]
    ("mknod", libc::SYS_mknod),
    ("mknodat", libc::SYS_mknodat),
];

/// Creates a container that tries to create nodes of all types by these calls, and prints the results.
fn maker_of_nodes() -> TestBundle {
    // An overlay does not permit whiteouts in itself.
    let mut script = "cd /dev/shm; perl -e '
        sub make { my ($call, @before) = @_;
          for ([\"fifo\", 0010644, 0], [\"file\", 0100644, 0], [\"none\", 0644, 0],
               [\"socket\", 0140644, 0], [\"whiteout\", 0020000, 0],
               [\"character\", 0020666, 0x103], [\"block\", 0060666, 0x700]) {
            my ($kind, $mode, $device) = @$_; my $name = \"$kind-$call\";
            my $result = syscall($call, @before, $name, $mode, $device);
            print \"$kind \", $result == 0 ? \"made\" : $! + 0, \"\\n\"; } }"
        .to_owned();
    for (name, number) in MAKE_NODE {
        let before = if *name == "mknodat" { ", -100" } else { "" };
        script += &format!("make({number}{before});");
    }
    let parts = TestBundle::new(&format!("{script}'"));
    let perl = fs::canonicalize("/usr/bin/perl").unwrap();
    let needed = program::run(std::process::Command::new("ldd").arg(&perl)).success();
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries.map(std::path::Path::new).chain([perl.as_path()]) {
        let target = parts.layer(file.to_str().unwrap());
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(file, target).unwrap();
    }
    parts
}

fn expected_nodes(devices: &str) -> String {
    let kinds = ["fifo", "file", "none", "socket", "whiteout"].map(|kind| format!("{kind} made\n"));
    let one = kinds.concat() + &format!("character {devices}\nblock {devices}\n");
    one.repeat(MAKE_NODE.len())
}

#[test]
fn only_device_nodes_cannot_be_created() {
    const EPERM: &str = "1";
    for runtime in TestRuntime::ALL {
        let mut parts = maker_of_nodes();
        let written = parts.write().unwrap();
        let profile = config(&written)["linux"]["seccomp"].clone();
        let out = parts.run_written(runtime, &written).success();
        assert_eq!(out, expected_nodes(EPERM), "{runtime}");
        // The filter rejects the calls, even if the container has the capability.
        parts.options.security.cap_add = vec!["MKNOD".to_owned()];
        parts.options.security.seccomp = bundle::Seccomp::Profile(profile);
        let out = parts.run(runtime).success();
        assert_eq!(out, expected_nodes(EPERM), "{runtime}");
        parts.options.security.seccomp = bundle::Seccomp::Default;
        let out = parts.run(runtime).success();
        assert_eq!(out, expected_nodes("made"), "{runtime}");
    }
}

#[test]
fn resource_limits_are_enforced() {
    // Paths of both versions of cgroups.
    let script = "cd /sys/fs/cgroup; cat pids.max pids/pids.max 2>/dev/null
        cat memory.max memory/memory.limit_in_bytes 2>/dev/null
        ulimit -n; ulimit -Hn; cat /proc/self/oom_score_adj; grep -c 'shm.*size=1024k' /proc/mounts";
    for runtime in TestRuntime::ALL {
        let mut parts = TestBundle::new(script);
        parts.options.resources.pids_limit = Some(77);
        parts.options.resources.memory_bytes = Some(64 << 20);
        parts.options.resources.nano_cpus = Some(500_000_000);
        parts.options.rlimits = vec![ProcessRlimit::new("nofile", Some(512), None).unwrap()];
        parts.options.oom_score_adj = Some(-1000);
        parts.options.shm_size_bytes = Some(1 << 20);
        let out = parts.run(runtime).success();
        let own = fs::read_to_string("/proc/self/oom_score_adj").unwrap();
        let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let hard = hard.map_or("unlimited".to_owned(), |hard| hard.to_string());
        assert_eq!(out, format!("77\n67108864\n512\n{hard}\n{own}1\n"), "{runtime}");
    }
}

#[test]
fn only_requested_descriptors_are_open() {
    for runtime in TestRuntime::ALL {
        let out = TestBundle::new("ls /proc/self/fd").run(runtime).success();
        // Descriptor 3 is opened by `ls` itself.
        assert_eq!(out, "0\n1\n2\n3\n", "{runtime}");
    }
}

#[test]
fn hosts_file_resolvers_and_hostname_are_the_engines() {
    for runtime in TestRuntime::ALL {
        let script = "cat /etc/hosts /etc/hostname /etc/resolv.conf /proc/sys/kernel/hostname";
        let mut parts = TestBundle::new(&format!("{script}; echo $HOSTNAME"));
        fs::write(parts.host("resolv"), "nameserver 192.0.2.1\n").unwrap();
        parts.options.hostname = Some("box".to_owned());
        parts.options.hosts = Some(vec![bundle::HostEntry {
            address: "10.9.8.7".parse().unwrap(),
            names: vec!["redis".to_owned()],
        }]);
        let dns = bundle::ResolverOptions {
            host_files: vec![parts.host("resolv")],
            ..bundle::ResolverOptions::default()
        };
        parts.options.dns = Some(dns);
        let out = parts.run(runtime).success();
        assert!(out.contains("10.9.8.7\tredis\n"), "{runtime}: {out}");
        assert!(out.ends_with("box\nnameserver 192.0.2.1\nbox\nbox\n"), "{runtime}: {out}");
    }
}

#[test]
fn a_privileged_container_gets_the_devices_of_the_host() {
    for runtime in TestRuntime::ALL {
        let mut parts =
            TestBundle::new("grep Seccomp: /proc/self/status; ls -l /dev/kmsg; ls /dev/pts");
        parts.options.security.privileged = true;
        parts.options.namespaces.pid = NamespaceSource::Host;
        let finished = parts.run(runtime);
        let out = finished.success();
        assert!(out.contains("Seccomp:\t0"), "{runtime}: {out}");
    }
}

#[test]
fn device_is_present_with_the_requested_access() {
    for runtime in TestRuntime::ALL {
        for (access, expected) in [("w", "opened"), ("r", "Operation not permitted")] {
            let mut parts = TestBundle::new("(: > /dev/log0) 2>&1 && echo opened; true");
            parts.options.devices = vec![HostDevice {
                host: HostFile::open_trusted("/dev/kmsg".as_ref()).unwrap(),
                container: "/dev/log0".into(),
                access: access.parse().unwrap(),
            }];
            let out = parts.run(runtime).success();
            assert!(out.contains(expected), "{runtime}, {access}: {out}");
        }
    }
}

#[test]
fn exec_is_confined_like_its_container() {
    for runtime in TestRuntime::ALL {
        let parts = TestBundle::new("sleep 1000");
        let bundle = parts.write().unwrap();
        let id = program::unique_name();
        let call = |words: &[&str]| {
            let mut command = runtime.command();
            program::run(command.arg("--root").arg(parts.host("state")).args(words)).success()
        };
        let path = bundle.dir.to_str().unwrap();
        call(&["create", "--bundle", path, &id]);
        call(&["start", &id]);
        let options = ExecOptions {
            args: ["sh", "-c", "echo $PATH $A; pwd; cat /proc/self/status"]
                .map(str::to_owned)
                .into(),
            env: vec!["A=a b".to_owned()],
            prepend_path: vec!["/tools".to_owned()],
            cwd: Some("/tmp".into()),
            ..ExecOptions::default()
        };
        let process = bundle::process(&config(&bundle), &options).unwrap();
        let file = parts.host("process.json");
        fs::write(&file, process.to_string()).unwrap();
        let out = call(&["exec", "--process", file.to_str().unwrap(), &id]);
        call(&["delete", "--force", &id]);
        parts.clear();
        assert!(out.starts_with("/tools:/usr/local/sbin:"), "{runtime}: {out}");
        assert!(out.contains(":/bin a b\n/tmp\n"), "{runtime}: {out}");
        let status = fields(&out);
        assert_eq!(status["CapEff"], DEFAULT_CAPABILITIES, "{runtime}");
        assert_eq!((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), "{runtime}");
    }
}
