//! User namespaces of root's instances: root of an instance cannot affect the host.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::garm::instances::encode;
use oci_hooks_testsupport::garm::record::RunnerLog;
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

use crate::setup::{ENDLESS, GarmFixture, with_both_runtimes, with_each_runtime, with_each_user};

/// Ids unused on the host.
const PRIVATE: std::ops::Range<u32> = 0x7100_0000..0x8000_0000;

/// Tries operations of the host's root as root of an instance. core_pattern is overwritten with its own value.
const ATTACK: &str =
    "cd /proc/sys/kernel; cat core_pattern 2>/dev/null >core_pattern && echo '@ wrote core_pattern'
    unshare -rm sh -c 'cat core_pattern >core_pattern' 2>/dev/null && echo '@ wrote core_pattern'
    echo 2>/dev/null >/proc/sysrq-trigger && echo '@ wrote sysrq-trigger'
    head -c 1 /proc/kcore 2>/dev/null | grep -q . && echo '@ wrote kcore'
    mknod /tmp/disk b 8 0 2>/dev/null && echo '@ wrote disk'
    find /dev -type b | sed 's/^/@ wrote /'
    echo \"@ users $(cat /proc/self/uid_map)\"; echo attacked";

/// Returns the fields of an instance that runs a script as root before the runner.
fn as_root(script: &str, flavor: &str) -> Value {
    let scripts = json!({"1": encode(format!("{script}\ntrue\n").as_bytes())});
    json!({"flavor": flavor, "extra_specs": {"pre_install_scripts": scripts}})
}

/// Parses a line of `uid_map`: first id inside, first id on the host, and count.
#[track_caller]
fn map(seen: &str) -> [u32; 3] {
    let numbers = seen.split_whitespace().map(|word| word.parse().unwrap());
    numbers.collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("more than a line: {seen}"))
}

#[test]
fn privileged_root_of_an_instance_is_unprivileged_on_the_host() {
    let settings = "[flavors.default]\n[flavors.nesting]\nnesting = true\n\
                    [flavors.privileged]\nprivileged = true\n";
    with_both_runtimes(settings, |world| {
        let before = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
        let mut firsts = Vec::new();
        for flavor in ["nesting", "privileged", "default"] {
            world.bring_up(flavor, ENDLESS, as_root(ATTACK, flavor));
            let log = world.installation.wait_for_log(flavor, "working");
            assert!(log.text.contains("attacked"), "{}", log.text);
            assert_eq!(log.records("wrote"), <[&str; 0]>::default(), "{flavor}: {}", log.text);
            let [zero, first, count] = map(log.only_record("users"));
            assert_eq!((zero, count), (0, 65536), "{flavor}");
            assert!(PRIVATE.contains(&first), "{flavor}: {first}");
            firsts.push(first);
        }
        assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), before);
        firsts.sort_unstable();
        assert!(firsts.is_sorted_by(|one, other| other - one >= 65536), "{firsts:?}");
        world.provider().remove_all();
    });
}

#[test]
fn root_of_a_users_instance_is_unprivileged_on_the_host() {
    with_each_user("[flavors.nesting]\nnesting = true\n", |world, _| {
        world.bring_up("one", ENDLESS, as_root(ATTACK, "nesting"));
        let log = world.installation.wait_for_log("one", "working");
        assert!(log.text.contains("attacked"), "{}", log.text);
        assert_eq!(log.records("wrote"), <[&str; 0]>::default(), "{}", log.text);
        world.provider().delete("one");
    });
}

/// Creates a nested user namespace in the instance, with mounts like a container's.
const NEST: &str = "unshare -rmpuif --propagation private sh -c 'mount -t proc proc /proc && \
    mount -t tmpfs none /tmp && touch /tmp/file && chown 0:0 /tmp/file && \
    echo \"@ nested $(id -u) $(echo $(cat /proc/self/uid_map))\"' || echo '@ nested no'";

#[test]
fn runner_user_can_create_namespaces_if_the_flavor_permits() {
    let settings = "[flavors.default]\n[flavors.nesting]\nnesting = true\n";
    with_both_runtimes(settings, |world| {
        let record = world.run("nesting", NEST, json!({"flavor": "nesting"}));
        assert_eq!(record.only_record("nested"), "0 0 1001 1", "{}", record.text);
        let record = world.run("default", NEST, json!({}));
        assert_eq!(record.only_record("nested"), "no", "{}", record.text);
        world.provider().remove_all();
    });
}

#[test]
fn nesting_is_denied_with_the_hosts_users() {
    let settings = "[security]\nuser-namespace = \"host\"\n[flavors.default]\n\
                    [flavors.nesting]\nnesting = true\n[flavors.privileged]\nprivileged = true\n";
    with_each_runtime(settings, |world| {
        let document = world.garm.bootstrap("one", "true", json!({"flavor": "nesting"}));
        let said = world.provider().create_fails(&document);
        assert!(
            said.contains("flavor \"nesting\" has `nesting`, which needs a user namespace"),
            "{said}"
        );
        let doctor = world.installation.admin(&["doctor"]);
        assert!(
            doctor.stdout.contains("instances of flavors nesting are rejected"),
            "{}",
            doctor.stdout
        );
        for flavor in ["default", "privileged"] {
            let record = world.run(
                flavor,
                "echo \"@ users $(cat /proc/self/uid_map)\"",
                json!({"flavor": flavor}),
            );
            assert_eq!(map(record.only_record("users")), [0, 0, u32::MAX], "{flavor}");
        }
        world.provider().remove_all();
    });
}

/// Compiles the attack program, and returns its path and the settings that mount it.
fn attack(world: &GarmFixture<'_>) -> (PathBuf, String) {
    let path = world.host().path().join("attack");
    program::compile_attack(&path);
    let mount = format!(
        "[mounts.attack]\nsource = {path:?}\ntarget = \"/attack\"\npools = [\"*\"]\nalways = true\n"
    );
    (path, mount)
}

/// Runs a copy of the program as user 65534, and returns its output for a file.
#[track_caller]
fn run_as_unprivileged(program: &Path, file: &Path) -> String {
    let mut command = Command::new(program::find("setpriv"));
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(program).arg("show").arg(file);
    program::run(&mut command).success()
}

#[test]
fn programs_in_a_writable_mount_grant_no_root_on_the_host() {
    with_both_runtimes("", |world| {
        let (tool, mount) = attack(world);
        let [source, secret] = ["shared", "secret"].map(|name| world.host().path().join(name));
        fs::create_dir(&source).unwrap();
        fs::write(&secret, "secret").unwrap();
        world
            .host()
            .shell(&format!("cd {}; chmod 711 .; chmod 600 secret", world.host().path().display()));
        assert_eq!(run_as_unprivileged(&tool, &secret), "shown <>\n");
        world.installation.configure(&format!(
            "{mount}[mounts.shared]\nsource = {source:?}\ntarget = \"/shared\"\nread-only = false\n\
             pools = [\"*\"]\nalways = true\n[flavors.default]\n[flavors.nesting]\nnesting = true\n"
        ));
        let said = world.provider().create_fails(&world.garm.bootstrap("one", "true", json!({})));
        let expected =
            format!("mount \"shared\" is writable and {} belongs to root", source.display());
        assert!(said.contains(&expected), "{said}");
        let doctor = world.installation.admin(&["doctor"]);
        assert!(doctor.stdout.contains("mount \"shared\" is writable"), "{}", doctor.stdout);
        chown(&source, Some(54321), Some(54322)).unwrap();

        let script = "cp /attack /shared/root; chmod 4755 /shared/root; mknod /shared/disk b 8 0";
        let job = "echo from the runner >/shared/kept && cp /attack /shared/own && chmod 4755 /shared/own; \
                   echo \"@ made $(stat -c %u:%g /shared/kept)\"";
        for flavor in ["default", "nesting"] {
            let record = world.run(flavor, job, as_root(script, flavor));
            assert_eq!(record.only_record("made"), "1001:1001", "{}", record.text);
            let owner = |name: &str| {
                let found = source.join(name).metadata().unwrap();
                (found.uid(), found.gid())
            };
            assert!(PRIVATE.contains(&owner("root").0) && PRIVATE.contains(&owner("root").1));
            assert_eq!((owner("kept"), owner("own")), ((54321, 54322), (54321, 54322)));
            assert!(!source.join("disk").exists());
            for name in ["root", "own"] {
                assert_eq!(
                    run_as_unprivileged(&source.join(name), &secret),
                    "shown <>\n",
                    "{name}"
                );
                fs::remove_file(source.join(name)).unwrap();
            }
        }
        let job = "cat /shared/kept; echo more >>/shared/kept; echo \"@ kept $?\"";
        let record = world.run("later", job, json!({}));
        assert_eq!(record.only_record("kept"), "0", "{}", record.text);
        assert!(record.text.contains(" from the runner"), "{}", record.text);
        world.provider().remove_all();
    });
}

#[test]
fn instance_that_exhausts_its_users_limits_does_not_affect_others() {
    with_each_runtime("", |world| {
        let (tool, mount) = attack(world);
        world.installation.configure(&mount);
        world.bring_up("greedy", "exec /attack all", json!({}));
        let log = world.installation.wait_for_log("greedy", "taken");
        let taken = |record: &RunnerLog| {
            ["inotify", "queue", "pending"]
                .map(|name| record.only_record(name).parse::<u32>().unwrap())
        };
        assert!(taken(&log).iter().all(|count| *count > 1), "{}", log.text);
        let as_root = as_root("/attack one | sed 's/@/@ as-root/'", "default");
        let record = world.run("modest", "/attack one", as_root);
        assert_eq!(taken(&record), [1, 1, 1], "{}", record.text);
        assert_eq!(
            record.records("as-root"),
            ["inotify 1", "queue 1", "pending 1"],
            "{}",
            record.text
        );
        let of_host = world.host().run(Command::new(&tool).arg("one")).success();
        // Message queues of root are limited for the whole machine, so other tests may use them up.
        for left in ["@ inotify 1\n", "@ pending 1\n"] {
            assert!(of_host.contains(left), "{of_host}");
        }
        world.provider().remove_all();
    });
}

#[test]
fn runner_opens_its_streams_by_name_and_has_mapped_ids() {
    with_both_runtimes("", |world| {
        let job = "echo once >/dev/stdout; echo twice >/dev/stderr; echo \"@ opened $?\"";
        let record = world.run("one", job, as_root("echo thrice >/dev/stderr", "default"));
        assert_eq!(record.only_record("opened"), "0", "{}", record.text);
        for word in ["once", "twice", "thrice"] {
            assert!(record.text.contains(word), "{word}: {}", record.text);
        }
        world.provider().delete("one");
        let fields = json!({"extra_specs": {"user": "70000"}});
        let said = world.provider().create_fails(&world.garm.bootstrap("two", "true", fields));
        assert!(said.contains("an instance has users 0 to 65535"), "{said}");
    });
}
