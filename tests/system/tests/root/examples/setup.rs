//! Hooks that change the container before its program runs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::program::{self, FinishedCommand};
use oci_hooks_testsupport::runtime::{RuntimeContainer, TestRuntime};
use serde_json::json;

use crate::examples::example::{HookExample, annotate, processor, refusal};

/// Runs a container with a runtime that a wrapper command starts.
#[track_caller]
fn run_by(words: &[&str], container: &RuntimeContainer<'_>) -> FinishedCommand {
    let runtime = container.command("run", &["--bundle", container.bundle().path_str()]);
    let mut command = Command::new(program::find(words[0]));
    command.args(&words[1..]).arg(runtime.get_program()).args(runtime.get_args());
    program::run(&mut command)
}

/// The hook writes to the runtime's standard output, because runtimes discard its own.
#[test]
fn hook_greets_in_the_output_of_the_runtime() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("echo hello from the container");
        annotate(&bundle, "com.example.hello", "true");
        HookExample::read("50-hello").inject(&bundle);
        let container = RuntimeContainer::new(runtime, &bundle);
        let expected = format!(
            "hello from a hook: container {} is created\nhello from the container\n",
            container.id()
        );
        // To a pipe, because concurrent writes to a file would overwrite each other.
        let mut command = container.command("run", &["--bundle", bundle.path_str()]);
        let output = command.stdin(Stdio::null()).output().expect("it is installed");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{runtime}: {output:?}");
    }
}

#[test]
fn pinned_container_sees_one_cpu() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("grep Cpus_allowed_list /proc/self/status");
        annotate(&bundle, "com.example.cpu-pin", &processor());
        HookExample::read("more/50-cpu-pin").inject(&bundle);
        let allowed = RuntimeContainer::new(runtime, &bundle).run().success();
        assert_eq!(allowed, format!("Cpus_allowed_list:\t{}\n", processor()), "{runtime}");
    }
}

#[test]
fn missing_cpu_stops_the_container() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("touch /ran");
        annotate(&bundle, "com.example.cpu-pin", "8000");
        HookExample::read("more/50-cpu-pin").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("cpu-pin: this host cannot"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}

#[test]
fn fenced_container_reaches_only_allowed_networks() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("sleep 1000");
        annotate(&bundle, "com.example.egress", "192.0.2.0/24");
        HookExample::read("50-egress-firewall").inject(&bundle);
        let container = RuntimeContainer::new(runtime, &bundle);
        container.create().success();
        let enter = |command: &[&str]| {
            let target = container.pid().to_string();
            let mut nsenter = Command::new(program::find("nsenter"));
            program::run(nsenter.args(["--target", &target, "--net"]).args(command))
        };
        // Adds a link to both networks, so that only the firewall rules can block packets.
        for command in [
            "ip link add out type veth peer name other",
            "ip address add 192.0.2.1/24 dev out",
            "ip address add 198.51.100.1/24 dev out",
            "ip link set out up",
            "ip link set other up",
        ] {
            enter(&command.split(' ').collect::<Vec<_>>()).success();
        }
        let send = |to: &str| enter(&["bash", "-c", &format!("echo >/dev/udp/{to}/9")]);
        send("192.0.2.9").success();
        let message = send("198.51.100.9").failure();
        assert!(message.contains("Operation not permitted"), "{runtime}: {message}");
    }
}

#[test]
fn fence_with_invalid_networks_stops_the_container() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("touch /ran");
        annotate(&bundle, "com.example.egress", "0.0.0.0/0 } accept; add");
        HookExample::read("50-egress-firewall").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("takes IPv4 networks or none"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}

#[test]
fn loader_cache_is_created_inside_the_container() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("ls /etc");
        fs::create_dir(bundle.inside("/sbin")).expect("the root has no sbin");
        fs::copy(program::find("ldconfig"), bundle.inside("/sbin/ldconfig")).expect("a copy");
        annotate(&bundle, "com.example.ldconfig", "true");
        HookExample::read("50-ldconfig").inject(&bundle);
        let listing = RuntimeContainer::new(runtime, &bundle).run().success();
        assert!(listing.contains("ld.so.cache"), "{runtime}: {listing}");
    }
}

#[test]
fn network_parameters_are_set_only_in_the_container() {
    let somaxconn = || fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a parameter");
    let before = somaxconn();
    for runtime in TestRuntime::ALL {
        let bundle =
            BusyboxBundle::new("cd /proc/sys/net; cat core/somaxconn ipv4/tcp_keepalive_time");
        HookExample::read("more/50-net-sysctl").inject(&bundle);
        assert_eq!(
            RuntimeContainer::new(runtime, &bundle).run().success(),
            "8192\n60\n",
            "{runtime}"
        );
        assert_eq!(somaxconn(), before, "{runtime}");
    }
}

#[test]
fn host_network_parameters_are_unchanged_with_a_shared_network() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("cat /proc/sys/net/core/somaxconn");
        bundle.edit(|config| {
            let namespaces = config["linux"]["namespaces"].as_array_mut().expect("namespaces");
            namespaces.retain(|namespace| namespace["type"] != "network");
            // Without a network namespace the container cannot mount sysfs.
            let mounts = config["mounts"].as_array_mut().expect("mounts");
            mounts.retain(|mount| !mount["destination"].as_str().unwrap().starts_with("/sys"));
        });
        // Protects the network of this machine: the host namespace is a new one.
        let container = RuntimeContainer::new(runtime, &bundle);
        let host = ["unshare", "--net"];
        let before = run_by(&host, &container).success();
        assert_ne!(before, "8192\n", "the test needs another value");
        HookExample::read("more/50-net-sysctl").inject(&bundle);
        assert_eq!(run_by(&host, &container).success(), before, "{runtime}");
    }
}

#[test]
fn a_container_cannot_dump_core() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("ulimit -S -c; ulimit -H -c");
        let container = RuntimeContainer::new(runtime, &bundle);
        // Without the hook the container has the hard limit of this process, which cannot raise it
        // without CAP_SYS_RESOURCE.
        let host = ["sh", "-c", "ulimit -S -c $(ulimit -H -c); exec \"$@\"", "sh"];
        let hard = program::run(Command::new("sh").args(["-c", "ulimit -H -c"])).success();
        assert_eq!(run_by(&host, &container).success(), hard.repeat(2), "{runtime}");
        HookExample::read("50-no-core-dumps").inject(&bundle);
        assert_eq!(run_by(&host, &container).success(), "0\n0\n", "{runtime}");
    }
}

#[test]
fn container_gets_existing_devices_of_the_host() {
    program::require_root();
    let host = program::temporary_directory();
    // The kernel's log device, which containers do not have by default.
    let node = host.path().join("gpu0");
    program::run(Command::new("mknod").arg(&node).args(["c", "1", "11"])).success();
    for runtime in TestRuntime::ALL {
        let bundle =
            BusyboxBundle::new(&format!("stat -c '%F %t:%T' {0} && : >>{0}", node.display()));
        annotate(&bundle, "com.example.gpu", "true");
        HookExample::read("podman/50-gpu-devices")
            .with_env(
                "DEVICES",
                Path::new(&format!("{0}/missing* {0}/gpu?", host.path().display())),
            )
            .filter(&bundle);
        let seen = RuntimeContainer::new(runtime, &bundle).run().success();
        assert_eq!(seen, "character special file 1:b\n", "{runtime}");
    }
}

#[test]
fn a_container_gets_the_proxy_in_its_environment() {
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("echo $HTTPS_PROXY $TERM");
        HookExample::read("podman/50-proxy-env").filter(&bundle);
        let seen = RuntimeContainer::new(runtime, &bundle).run().success();
        assert_eq!(seen, "http://proxy.example.com:3128 xterm\n", "{runtime}");
    }
}

#[test]
fn configuration_of_the_demo_is_valid_for_runc() {
    let text =
        fs::read(program::repository("hooks.d-examples/bundle/config.json")).expect("a file");
    for runtime in TestRuntime::ALL {
        let bundle = BusyboxBundle::new("");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        // The image and the directory named in the file do not exist here.
        config["process"]["args"] = json!(["/bin/true"]);
        config["mounts"].as_array_mut().expect("mounts").retain(|mount| mount["type"] != "bind");
        bundle.write_config(&config);
        RuntimeContainer::new(runtime, &bundle).run().success();
    }
}
