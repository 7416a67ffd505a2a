//! Limits of instances' resources and network access by the settings.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use oci_hooks_host::userns::PrivateIds;
use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::{Value, json};

use crate::setup::{GarmFixture, with_both_runtimes, with_each_runtime, with_runtime};

const FLAVORS: &str = "[flavors.small]\ncpus = 0.5\nmemory = \"64MiB\"\npids = 50\n\
    [flavors.big]\ncpus = 2\nmemory = \"1GiB\"\npids = 500\n\
    [limits]\ncpus = 1\nmemory = \"128MiB\"\npids = 100\n";

/// Prints the limits of cgroups v1 or v2.
const SHOW_LIMITS: &str = "cd /sys/fs/cgroup; for f in memory.max memory/memory.limit_in_bytes \
    pids.max pids/pids.max cpu.max cpu/cpu.cfs_quota_us; do \
    [ ! -e $f ] || echo \"@ limit ${f##*/} $(cat $f)\"; done";

#[track_caller]
fn rejection_error(world: &GarmFixture<'_>, fields: Value) -> String {
    world.provider().create_fails(&world.garm.bootstrap("refused", "true", fields))
}

#[test]
fn instance_has_the_resources_of_its_flavor() {
    with_both_runtimes(FLAVORS, |world| {
        let record = world.run("one", SHOW_LIMITS, json!({"flavor": "small"}));
        let limits = record.records("limit").join("\n");
        assert!(limits.contains(&(64 << 20).to_string()), "{limits}");
        assert!(limits.contains("pids.max 50"), "{limits}");
        assert!(limits.contains("50000"), "half of a processor: {limits}");
        world.provider().delete("one");
        let said = rejection_error(world, json!({"flavor": "huge"}));
        assert!(said.contains("huge") && said.contains("big") && said.contains("small"), "{said}");
    });
}

#[test]
fn extra_specs_change_a_flavor_within_the_maximums() {
    with_each_runtime(FLAVORS, |world| {
        let with = |extra_specs: Value| json!({"flavor": "small", "extra_specs": extra_specs});
        let record = world.run(
            "one",
            SHOW_LIMITS,
            with(json!({"memory": "128MiB", "pids": 100, "cpus": 1})),
        );
        let limits = record.records("limit").join("\n");
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
            let said = rejection_error(world, with(json!({name: value})));
            assert!(said.contains(name), "{name} {value}: {said}");
        }
    });
}

#[test]
fn unknown_and_denied_extra_specs_are_rejected_by_name() {
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
            let said = rejection_error(world, json!({"extra_specs": extra_specs}));
            assert!(said.contains(word), "{extra_specs}: {said}");
        }
        for extra_specs in [Value::Null, json!({})] {
            world.run("one", "true", json!({"extra_specs": extra_specs}));
            world.provider().delete("one");
        }
    });
}

#[test]
fn the_log_says_that_a_step_was_killed_for_memory() {
    with_both_runtimes(FLAVORS, |world| {
        let job = "tail /dev/zero; echo \"@ step $?\"";
        let record = world.run("one", job, json!({"flavor": "small"}));
        assert_eq!(record.only_record("step"), "137", "{}", record.text);
        let expected = "the instance ran out of memory: 1 of its processes were killed";
        assert!(record.text.contains(expected), "{}", record.text);
        world.provider().delete("one");
    });
}

#[test]
fn instance_that_fills_its_disk_does_not_affect_others() {
    let settings = "[flavors.default]\ndisk = \"32MiB\"\n";
    with_each_runtime(settings, |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let job = "dd if=/dev/zero of=/home/runner/full bs=1M count=64; echo \"@ dd $?\"; \
                   stat -c '@ size %s' /home/runner/full";
        let record = world.run("one", job, json!({}));
        assert_eq!(record.only_record("dd"), "1", "{}", record.text);
        let size: u64 = record.only_record("size").parse().unwrap();
        assert!(size < 33 << 20, "{size}");
        world.provider().delete("one");
        before.check(&world.installation, "a full disk");
        let path = world.host().path().display().to_string();
        // The kernel detaches a loop device after the last mount of it is gone.
        program::wait_until("no loop device is left", || {
            let loops = fs::read_dir("/sys/block").unwrap().flatten();
            let mut files =
                loops.filter_map(|e| fs::read_to_string(e.path().join("loop/backing_file")).ok());
            !files.any(|file| file.contains(&path))
        });
    });
}

#[test]
fn metadata_address_and_host_are_unreachable() {
    with_each_runtime("", |world| {
        let host = world.host();
        // Instances can reach servers that listen on all addresses of the host only with `host-access`.
        host.shell("ip addr add 169.254.169.254/32 dev lo");
        let mut nc = std::process::Command::new("busybox");
        nc.args(["nc", "-ll", "-p", "8000", "-e", "echo", "reached"]);
        nc.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null());
        let mut listener = host.spawn(&mut nc);
        let there = |address: &str| {
            host.shell(&format!("busybox nc -w 60 {address} 8000 </dev/null || true"))
        };
        program::wait_until("it listens", || there("127.0.0.1").contains("reached"));
        assert!(there("169.254.169.254").contains("reached"));
        // If packets are dropped, `nc` waits for its whole timeout, so only an expected answer has a long one.
        let job = |seconds: u32| {
            format!(
                "gateway=$(ip route | sed -n 's/default via \\([^ ]*\\).*/\\1/p'); \
                 for a in '2 169.254.169.254' \"{seconds} $gateway\" '2 127.0.0.1'; do \
                 echo \"@ answer <$(nc -w $a 8000 </dev/null 2>/dev/null)>\"; done; \
                 echo \"@ gateway $gateway\""
            )
        };
        let record = world.run("one", &job(2), json!({}));
        assert_eq!(record.records("answer"), ["<>", "<>", "<>"], "{}", record.text);
        assert_ne!(record.only_record("gateway"), "");
        world.provider().delete("one");

        world.installation.configure("[networks.open]\nhost-access = true\npools = [\"*\"]\n");
        let record = world.run("two", &job(60), json!({"extra_specs": {"network": "open"}}));
        assert_eq!(record.records("answer"), ["<>", "<reached>", "<>"], "{}", record.text);
        world.provider().delete("two");
        listener.kill().unwrap();
        listener.wait().unwrap();
    });
}

#[test]
fn mounts_are_given_only_to_permitted_pools() {
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
        record.wait_for("one", AnswerStatus::Stopped);
        let record = world.installation.log("one");
        assert_eq!(record.text.matches("from the host").count(), 2, "{}", record.text);
        assert_eq!(record.only_record("write"), "1");
        world.provider().delete("one");
        let said = rejection_error(world, json!({"extra_specs": {"mounts": ["asked"]}}));
        assert!(said.contains("asked"), "{said}");
        let record = world.run("two", "ls /asked; cat /all/file", json!({}));
        assert!(record.text.contains("from the host") && record.text.contains("No such file"));
        world.provider().delete("two");
    });
}

#[test]
fn cache_outlives_instances_and_is_private_to_its_pool() {
    let settings = "[caches.tools]\ntarget = \"/cache\"\npools = [\"*\"]\nalways = true\n";
    with_each_runtime(settings, |world| {
        let job = "cat /cache/kept; echo from before >/cache/kept; echo \"@ write $?\"; \
                   cp /bin/busybox /cache/program; chmod 4755 /cache/program";
        let first = world.run("one", job, json!({}));
        assert_eq!(first.only_record("write"), "0", "the runner may write: {}", first.text);
        assert!(!first.text.contains("\nfrom before"));
        world.provider().delete("one");
        // With this mode, other users of the host could run the job's set-user-ID program.
        let caches = world.installation.store().join("garm/caches");
        fs::set_permissions(&caches, Permissions::from_mode(0o755)).unwrap();
        let second = world.run("two", "echo \"@ cache $(cat /cache/kept)\"", json!({}));
        assert_eq!(fs::metadata(&caches).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(second.only_record("cache"), "from before");
        let left = world.host().shell(&format!("stat -c %u:%g {}/*/program", caches.display()));
        let id = PrivateIds::STORED.first + 1001;
        assert_eq!(left, format!("{id}:{id}\n"), "no user of the host has this id");
        world.provider().delete("two");
        let other = "another pool/..";
        world.create("three", "echo \"@ cache $(cat /cache/kept)\"", json!({"pool_id": other}));
        world.provider().wait_for("three", AnswerStatus::Stopped);
        assert_eq!(world.installation.log("three").only_record("cache"), "");
        world.provider().delete("three");
    });
}

#[test]
fn only_permitted_flavors_are_privileged() {
    let settings = "[flavors.default]\n[flavors.trusted]\nprivileged = true\n";
    with_runtime(TestRuntime::Runc, settings, |world| {
        let job = "awk '/CapBnd/ {print \"@ capabilities \" $2}' /proc/self/status";
        let plain = world.run("one", job, json!({}));
        let trusted = world.run("two", job, json!({"flavor": "trusted"}));
        assert_ne!(plain.only_record("capabilities"), trusted.only_record("capabilities"));
        let capabilities =
            u64::from_str_radix(plain.only_record("capabilities").trim(), 16).unwrap();
        assert_eq!(capabilities >> 21 & 1, 0, "no CAP_SYS_ADMIN");
        world.provider().remove_all();
    });
}

#[test]
fn instances_cannot_reach_each_other() {
    with_each_runtime("", |world| {
        let job = "nc -ll -p 7777 -e echo reached & \
                   until nc 127.0.0.1 7777 </dev/null | grep reached; do sleep 1; done; \
                   echo up; sleep 1000";
        let one = world.create("one", job, json!({}));
        world.installation.wait_for_log("one", "up");
        let address = &one.addresses[0].address;
        let job = format!("echo \"@ answer <$(nc -w 2 {address} 7777 </dev/null 2>/dev/null)>\"");
        let record = world.run("two", &job, json!({}));
        assert_eq!(record.only_record("answer"), "<>");
        world.provider().remove_all();
    });
}
