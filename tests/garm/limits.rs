//! What instances may have and reach: what the admin allows.

use std::fs;

use serde_json::{Value, json};

use crate::setup::{World, with_each_runtime, with_runtime};
use crate::support::garm::answer::Status;
use crate::support::leftovers::Snapshot;
use crate::support::program;
use crate::support::runtime::Runtime;

const FLAVORS: &str = "[flavors.small]\ncpus = 0.5\nmemory = \"64MiB\"\npids = 50\n\
    [flavors.big]\ncpus = 2\nmemory = \"1GiB\"\npids = 500\n\
    [limits]\ncpus = 1\nmemory = \"128MiB\"\npids = 100\n";

/// Prints a limit whichever version of cgroups there is.
const SHOW_LIMITS: &str = "cd /sys/fs/cgroup; for f in memory.max memory/memory.limit_in_bytes \
    pids.max pids/pids.max cpu.max cpu/cpu.cfs_quota_us; do \
    [ ! -e $f ] || echo \"@ limit ${f##*/} $(cat $f)\"; done";

#[track_caller]
fn refused(world: &World<'_>, fields: Value) -> String {
    world.provider().create_fails(&world.garm.bootstrap("refused", "true", fields))
}

#[test]
fn a_flavor_is_what_an_instance_has() {
    with_each_runtime(FLAVORS, |world| {
        let record = world.run("one", SHOW_LIMITS, json!({"flavor": "small"}));
        let limits = record.all("limit").join("\n");
        assert!(limits.contains(&(64 << 20).to_string()), "{limits}");
        assert!(limits.contains("pids.max 50"), "{limits}");
        assert!(limits.contains("50000"), "half of a processor: {limits}");
        world.provider().delete("one");
        let said = refused(world, json!({"flavor": "huge"}));
        assert!(said.contains("huge") && said.contains("big") && said.contains("small"), "{said}");
    });
}

#[test]
fn extra_specs_change_a_flavor_up_to_the_ceilings_of_the_admin() {
    with_each_runtime(FLAVORS, |world| {
        let with = |extra_specs: Value| json!({"flavor": "small", "extra_specs": extra_specs});
        let record = world.run(
            "one",
            SHOW_LIMITS,
            with(json!({"memory": "128MiB", "pids": 100, "cpus": 1})),
        );
        let limits = record.all("limit").join("\n");
        assert!(limits.contains(&(128 << 20).to_string()), "{limits}");
        assert!(limits.contains("pids.max 100"), "{limits}");
        world.provider().delete("one");
        for (name, value) in [
            ("memory", json!("129MiB")),
            ("pids", json!(101)),
            ("cpus", json!(1.5)),
            ("memory", json!(-1)),
            ("pids", json!(0)),
            ("cpus", json!("many")),
        ] {
            let said = refused(world, with(json!({name: value})));
            assert!(said.contains(name), "{name} {value}: {said}");
        }
    });
}

#[test]
fn extra_specs_that_nobody_knows_or_allows_are_refused_by_name() {
    with_each_runtime("", |world| {
        for (extra_specs, word) in [
            (json!({"cpu": 1}), "cpu"),
            (json!({"privileged": true}), "privileged"),
            (json!({"nesting": true}), "nesting"),
            (json!({"mounts": ["none-of-these"]}), "none-of-these"),
            (json!({"caches": ["none-of-these"]}), "none-of-these"),
            (json!({"network": "none-of-these"}), "none-of-these"),
            (json!({"mounts": ["/:/host"]}), "/:/host"),
            (json!({"pre_install_scripts": {"a": "no base64!"}}), "pre_install_scripts"),
            (json!([1]), "extra"),
            (json!("text"), "extra"),
        ] {
            let said = refused(world, json!({"extra_specs": extra_specs}));
            assert!(said.contains(word), "{extra_specs}: {said}");
        }
        for extra_specs in [Value::Null, json!({})] {
            world.run("one", "true", json!({"extra_specs": extra_specs}));
            world.provider().delete("one");
        }
    });
}

#[test]
fn an_instance_that_fills_its_disk_fills_nobody_elses() {
    let settings = "[flavors.default]\ndisk = \"32MiB\"\n";
    with_each_runtime(settings, |world| {
        world.warm_up();
        let before = Snapshot::take(&world.installation);
        let job = "dd if=/dev/zero of=/home/runner/full bs=1M count=64; echo \"@ dd $?\"; \
                   stat -c '@ size %s' /home/runner/full";
        let record = world.run("one", job, json!({}));
        assert_eq!(record.one("dd"), "1", "{}", record.text);
        let size: u64 = record.one("size").parse().unwrap();
        assert!(size < 33 << 20, "{size}");
        world.provider().delete("one");
        before.check(&world.installation, "a full disk");
        // Of nothing else is there any loop device.
        let path = world.host().path().display().to_string();
        let loops = fs::read_dir("/sys/block").unwrap().flatten();
        let files =
            loops.filter_map(|e| fs::read_to_string(e.path().join("loop/backing_file")).ok());
        let left: Vec<_> = files.filter(|file| file.contains(&path)).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn the_metadata_address_and_the_host_are_out_of_reach() {
    with_each_runtime("", |world| {
        let host = world.host();
        // Whoever listens everywhere on the host is there for instances only if the admin says so.
        host.shell("ip addr add 169.254.169.254/32 dev lo");
        let mut nc = std::process::Command::new("busybox");
        nc.args(["nc", "-ll", "-p", "8000", "-e", "echo", "reached"]);
        nc.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        let mut listener = host.spawn(&mut nc);
        let there = |address: &str| {
            host.shell(&format!("busybox nc -w 2 {address} 8000 </dev/null || true"))
        };
        program::wait_until("it listens", || there("127.0.0.1").contains("reached"));
        assert!(there("169.254.169.254").contains("reached"));
        let job = "gateway=$(ip route | sed -n 's/default via \\([^ ]*\\).*/\\1/p'); \
                   for a in '169.254.169.254 8000' \"$gateway 8000\" '127.0.0.1 8000'; do \
                   echo \"@ answer <$(nc -w 2 $a </dev/null 2>/dev/null)>\"; done; \
                   echo \"@ gateway $gateway\"";
        let record = world.run("one", job, json!({}));
        assert_eq!(record.all("answer"), ["<>", "<>", "<>"], "{}", record.text);
        assert_ne!(record.one("gateway"), "");
        world.provider().delete("one");

        world.installation.configure("[networks.open]\nhost-access = true\npools = [\"*\"]\n");
        let record = world.run("two", job, json!({"extra_specs": {"network": "open"}}));
        assert_eq!(record.all("answer"), ["<>", "<reached>", "<>"], "{}", record.text);
        world.provider().delete("two");
        listener.kill().unwrap();
        listener.wait().unwrap();
    });
}

#[test]
fn mounts_are_given_to_the_pools_that_may_have_them() {
    with_each_runtime("", |world| {
        let source = world.host().path().join("shared");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), "from the host\n").unwrap();
        let source = source.display();
        world.installation.configure(&format!(
            "[mounts.asked]\nsource = \"{source}\"\ntarget = \"/asked\"\nread-only = true\npools = [\"a pool/1\"]\n\
             [mounts.all]\nsource = \"{source}\"\ntarget = \"/all\"\npools = [\"*\"]\nalways = true\n"
        ));
        let job = "cat /all/file; cat /asked/file; echo x >/asked/new; echo \"@ write $?\"";
        let fields = json!({"pool_id": "a pool/1", "extra_specs": {"mounts": ["asked"]}});
        let record = world.provider().of_pool("a pool/1");
        world.create("one", job, fields.clone());
        record.wait_for("one", Status::Stopped);
        let record = world.installation.log("one");
        assert_eq!(record.text.matches("from the host").count(), 2, "{}", record.text);
        assert_eq!(record.one("write"), "1");
        world.provider().delete("one");
        let said = refused(world, json!({"extra_specs": {"mounts": ["asked"]}}));
        assert!(said.contains("asked"), "{said}");
        let record = world.run("two", "ls /asked; cat /all/file", json!({}));
        assert!(record.text.contains("from the host") && record.text.contains("No such file"));
        world.provider().delete("two");
    });
}

#[test]
fn a_cache_outlives_instances_and_is_of_its_pool_alone() {
    let settings = "[caches.tools]\ntarget = \"/cache\"\npools = [\"*\"]\nalways = true\n";
    with_each_runtime(settings, |world| {
        let job = "cat /cache/kept; echo from before >/cache/kept; echo \"@ write $?\"";
        let first = world.run("one", job, json!({}));
        assert_eq!(first.one("write"), "0", "the runner may write: {}", first.text);
        assert!(!first.text.contains("\nfrom before"));
        world.provider().delete("one");
        let second = world.run("two", "echo \"@ cache $(cat /cache/kept)\"", json!({}));
        assert_eq!(second.one("cache"), "from before");
        world.provider().delete("two");
        let other = "another pool/..";
        world.create("three", "echo \"@ cache $(cat /cache/kept)\"", json!({"pool_id": other}));
        world.provider().wait_for("three", Status::Stopped);
        assert_eq!(world.installation.log("three").one("cache"), "");
        world.provider().delete("three");
    });
}

#[test]
fn only_flavors_that_allow_it_are_privileged() {
    let settings = "[flavors.default]\n[flavors.trusted]\nprivileged = true\n";
    with_runtime(Runtime::Runc, settings, |world| {
        let job = "awk '/CapBnd/ {print \"@ capabilities \" $2}' /proc/self/status";
        let plain = world.run("one", job, json!({}));
        let trusted = world.run("two", job, json!({"flavor": "trusted"}));
        assert_ne!(plain.one("capabilities"), trusted.one("capabilities"));
        let capabilities = u64::from_str_radix(plain.one("capabilities").trim(), 16).unwrap();
        assert_eq!(capabilities >> 21 & 1, 0, "no CAP_SYS_ADMIN");
        world.provider().remove_all();
    });
}

#[test]
fn instances_do_not_reach_each_other() {
    with_each_runtime("", |world| {
        let one =
            world.create("one", "nc -ll -p 7777 -e echo reached & echo up; sleep 1000", json!({}));
        world.installation.wait_for_log("one", "up");
        let address = &one.addresses[0].address;
        let job = format!("echo \"@ answer <$(nc -w 2 {address} 7777 </dev/null 2>/dev/null)>\"");
        let record = world.run("two", &job, json!({}));
        assert_eq!(record.one("answer"), "<>");
        world.provider().remove_all();
    });
}
