//! Hooks that change the container before its program runs.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::example::{Example, annotate, processor, refusal};
use crate::support::bundle::Bundle;
use crate::support::program::{self, Finished};
use crate::support::runtime::{Container, Runtime};

/// Runs a container to its end by a runtime that another program starts.
#[track_caller]
fn run_by(words: &[&str], container: &Container<'_>) -> Finished {
    let runtime = container.command("run", &["--bundle", container.bundle().path_str()]);
    let mut command = Command::new(program::find(words[0]));
    command.args(&words[1..]).arg(runtime.get_program()).args(runtime.get_args());
    program::run(&mut command)
}

/// Besides to its standard output, which runtimes discard.
#[test]
fn a_hook_greets_in_the_output_of_the_runtime() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("echo hello from the container");
        annotate(&bundle, "com.example.hello", "true");
        Example::read("50-hello").inject(&bundle);
        let container = Container::new(runtime, &bundle);
        let expected = format!(
            "hello from a hook: container {} is created\nhello from the container\n",
            container.id()
        );
        // To a pipe, not a file, where what is written at once would overwrite each other.
        let mut command = container.command("run", &["--bundle", bundle.path_str()]);
        let output = command.stdin(Stdio::null()).output().expect("it is installed");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{runtime}: {output:?}");
    }
}

#[test]
fn a_pinned_container_sees_one_processor() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("grep Cpus_allowed_list /proc/self/status");
        annotate(&bundle, "com.example.cpu-pin", &processor());
        Example::read("more/50-cpu-pin").inject(&bundle);
        let allowed = Container::new(runtime, &bundle).run().success();
        assert_eq!(allowed, format!("Cpus_allowed_list:\t{}\n", processor()), "{runtime}");
    }
}

#[test]
fn a_processor_that_the_host_has_not_stops_the_container() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("touch /ran");
        annotate(&bundle, "com.example.cpu-pin", "8000");
        Example::read("more/50-cpu-pin").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("cpu-pin: this host cannot"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}

#[test]
fn a_fenced_container_reaches_only_the_networks_it_may() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("sleep 1000");
        annotate(&bundle, "com.example.egress", "192.0.2.0/24");
        Example::read("50-egress-firewall").inject(&bundle);
        let container = Container::new(runtime, &bundle);
        container.create().success();
        let enter = |command: &[&str]| {
            let target = container.pid().to_string();
            let mut nsenter = Command::new(program::find("nsenter"));
            program::run(nsenter.args(["--target", &target, "--net"]).args(command))
        };
        // A link to both networks, so that nothing but the rules stands in the way.
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
fn a_fence_with_anything_but_networks_stops_the_container() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("touch /ran");
        annotate(&bundle, "com.example.egress", "0.0.0.0/0 } accept; add");
        Example::read("50-egress-firewall").inject(&bundle);
        let message = refusal(runtime, &bundle);
        assert!(message.contains("takes IPv4 networks or none"), "{runtime}: {message}");
        assert!(!bundle.inside("/ran").exists(), "{runtime}");
    }
}

#[test]
fn the_loader_cache_is_made_inside_the_container() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("ls /etc");
        fs::create_dir(bundle.inside("/sbin")).expect("the root has no sbin");
        fs::copy(program::find("ldconfig"), bundle.inside("/sbin/ldconfig")).expect("a copy");
        annotate(&bundle, "com.example.ldconfig", "true");
        Example::read("50-ldconfig").inject(&bundle);
        let listing = Container::new(runtime, &bundle).run().success();
        assert!(listing.contains("ld.so.cache"), "{runtime}: {listing}");
    }
}

#[test]
fn network_parameters_are_set_in_the_container_alone() {
    let somaxconn = || fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a parameter");
    let before = somaxconn();
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("cd /proc/sys/net; cat core/somaxconn ipv4/tcp_keepalive_time");
        Example::read("more/50-net-sysctl").inject(&bundle);
        assert_eq!(Container::new(runtime, &bundle).run().success(), "8192\n60\n", "{runtime}");
        assert_eq!(somaxconn(), before, "{runtime}");
    }
}

#[test]
fn network_parameters_of_the_host_stay_when_a_container_shares_its_network() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("cat /proc/sys/net/core/somaxconn");
        bundle.edit(|config| {
            let namespaces = config["linux"]["namespaces"].as_array_mut().expect("namespaces");
            namespaces.retain(|namespace| namespace["type"] != "network");
            // Without a network namespace of its own it cannot mount sysfs anew.
            let mounts = config["mounts"].as_array_mut().expect("mounts");
            mounts.retain(|mount| !mount["destination"].as_str().unwrap().starts_with("/sys"));
        });
        // This machine's network is not put at stake: the host's is a new one.
        let container = Container::new(runtime, &bundle);
        let host = ["unshare", "--net"];
        let before = run_by(&host, &container).success();
        assert_ne!(before, "8192\n", "the test needs another value");
        Example::read("more/50-net-sysctl").inject(&bundle);
        assert_eq!(run_by(&host, &container).success(), before, "{runtime}");
    }
}

#[test]
fn a_container_cannot_dump_core() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("ulimit -S -c; ulimit -H -c");
        let container = Container::new(runtime, &bundle);
        // Without the hook it could.
        let host = ["prlimit", "--core=unlimited:unlimited"];
        assert_eq!(run_by(&host, &container).success(), "unlimited\nunlimited\n", "{runtime}");
        Example::read("50-no-core-dumps").inject(&bundle);
        assert_eq!(run_by(&host, &container).success(), "0\n0\n", "{runtime}");
    }
}

#[test]
fn a_container_gets_the_devices_that_the_host_has() {
    program::require_root();
    let host = program::temporary_directory();
    // The kernel's log: no container has it by itself.
    let node = host.path().join("gpu0");
    program::run(Command::new("mknod").arg(&node).args(["c", "1", "11"])).success();
    for runtime in Runtime::ALL {
        let bundle = Bundle::new(&format!("stat -c '%F %t:%T' {0} && : >>{0}", node.display()));
        annotate(&bundle, "com.example.gpu", "true");
        Example::read("podman/50-gpu-devices")
            .with_env(
                "DEVICES",
                Path::new(&format!("{0}/missing* {0}/gpu?", host.path().display())),
            )
            .filter(&bundle);
        let seen = Container::new(runtime, &bundle).run().success();
        assert_eq!(seen, "character special file 1:b\n", "{runtime}");
    }
}

#[test]
fn a_container_gets_the_proxy_in_its_environment() {
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("echo $HTTPS_PROXY $TERM");
        Example::read("podman/50-proxy-env").filter(&bundle);
        let seen = Container::new(runtime, &bundle).run().success();
        assert_eq!(seen, "http://proxy.example.com:3128 xterm\n", "{runtime}");
    }
}

#[test]
fn the_configuration_of_the_demonstration_is_one_that_runc_takes() {
    let text =
        fs::read(program::repository("hooks.d-examples/bundle/config.json")).expect("a file");
    for runtime in Runtime::ALL {
        let bundle = Bundle::new("");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        // The image and the directory that it names are not here.
        config["process"]["args"] = json!(["/bin/true"]);
        config["mounts"].as_array_mut().expect("mounts").retain(|mount| mount["type"] != "bind");
        bundle.write_config(&config);
        Container::new(runtime, &bundle).run().success();
    }
}
