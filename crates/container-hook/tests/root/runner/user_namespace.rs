//! Users of containers are unused ids on the host: each job has its own user namespace.

use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge, volume};
use oci_hooks_testsupport::images::SharedLayers;
use serde_json::{Value, json};

use crate::runner::setup::{redis, runner, shell_step, with_both_runtimes, with_each_runtime};

/// `uid_map` of the host's user namespace.
const IDENTITY: [u32; 3] = [0, 0, u32::MAX];

/// Ids that no user of the host has.
pub(crate) const PRIVATE: std::ops::Range<u32> = 0x7100_0000..0x8000_0000;

/// Returns the first id in the namespace, its id on the host, and the length of the range.
#[track_caller]
fn uid_map(seen: &str) -> [u32; 3] {
    let numbers = seen.split_whitespace().map(|word| word.parse().unwrap());
    numbers.collect::<Vec<_>>().try_into().unwrap_or_else(|_| panic!("more than a line: {seen}"))
}

fn uid_map_of(runner: &mut GithubRunner<'_>) -> [u32; 3] {
    uid_map(&runner.run("cat /proc/self/uid_map").success().stdout())
}

/// Checks that all processes in a job's user namespace run with its ids on the host.
fn processes_are_of(runner: &GithubRunner<'_>, first: u32) {
    let seen = runner.host().shell(&format!(
        "for p in /proc/[0-9]*; do read -r zero first count <$p/uid_map || continue; \
         [ \"$first\" != {first} ] || stat -c %u $p || continue; done 2>/dev/null"
    ));
    assert!(!seen.is_empty(), "it has no process");
    for uid in seen.lines() {
        let uid: u32 = uid.parse().unwrap();
        assert!((first..first + 65536).contains(&uid), "a process of the job is {uid}'s");
    }
}

/// Runs common commands of users in containers.
fn do_usual_things(runner: &mut GithubRunner<'_>) {
    let nginx = merge(container("nginx:alpine"), json!({"portMappings": ["8080:80"]}));
    let options = json!({"createOptions": "--device /dev/full"});
    runner.prepare(merge(runner.job_container("node:22"), options), &[redis(), nginx]);
    let script = "
        id -u
        mkdir -p /opt/package; echo x >/opt/package/file; chown -R app:extra /opt/package
        stat -c %u:%g /opt/package/file
        su app -s /bin/sh -c 'id -u; touch /tmp/of-app'
        mount -t tmpfs none /mnt 2>/dev/null && exit 9
        ping -c 1 127.0.0.1 >/dev/null
        head -c 3 /dev/full | wc -c
        (echo x >/dev/full) 2>/dev/null && exit 9
        printf 'PING\\r\\nQUIT\\r\\n' | nc -w 60 redis 6379
        until wget -q -O- http://nginx/ 2>/dev/null; do sleep 0.05; done";
    let seen = runner.run(script).success().stdout();
    assert_eq!(seen, "0\n1001:1234\n1001\n3\n+PONG\r\nhello from nginx\n");
    let page = runner.host().shell("busybox wget -q -O- http://127.0.0.1:8080/");
    assert_eq!(page, "hello from nginx\n");
    let ended = runner.container_step(shell_step("echo action >made; id -u")).0.success();
    assert!(ended.stdout().ends_with("0\n"));
    runner.run("cat made").success();
}

#[test]
fn jobs_have_their_own_users_and_work_normally() {
    with_both_runtimes("[policy]\ndevices = [\"/dev/full\"]\n", |installation| {
        let mut first = runner(installation, "runner-1");
        do_usual_things(&mut first);
        let [zero, on_host, count] = uid_map_of(&mut first);
        assert_eq!((zero, count), (0, 65536));
        assert!(PRIVATE.contains(&on_host), "{on_host}");
        processes_are_of(&first, on_host);
        let mut second = runner(installation, "runner-2");
        second.prepare(second.job_container("node:22"), &[]);
        let [_, of_second, _] = uid_map_of(&mut second);
        assert!(on_host.abs_diff(of_second) >= 65536, "{on_host} and {of_second}");
        processes_are_of(&second, of_second);
        first.cleanup();
        second.cleanup();
    });
}

#[test]
fn jobs_with_the_hosts_users_work_normally() {
    let settings = "[policy]\ndevices = [\"/dev/full\"]\n[security]\nuser-namespace = \"host\"\n";
    with_both_runtimes(settings, |installation| {
        let mut runner = runner(installation, "runner-1");
        do_usual_things(&mut runner);
        assert_eq!(uid_map_of(&mut runner), IDENTITY);
        runner.cleanup();
    });
}

/// Even with runtimes that, in a user namespace, mount without submounts.
#[test]
fn submounts_of_a_mount_are_visible() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let volumes =
            json!([volume("cache", "/__w/cache", true), volume("own", "/__w/own", false)]);
        let container =
            merge(runner.job_container("node:22"), json!({"userMountVolumes": volumes}));
        runner.prepare(container, &[]);
        let seen = runner.run("grep -o ' /__w/[^ ]*' /proc/self/mountinfo | sort").success();
        assert_eq!(
            seen.stdout(),
            " /__w/_actions\n /__w/_temp\n /__w/_tool\n /__w/cache\n /__w/own\n"
        );
        runner.run("touch /__w/cache/made 2>/dev/null && exit 9; touch /__w/own/made").success();
        assert!(!runner.work().join("own/made").exists(), "it is in what should be hidden");
        runner.cleanup();
    });
}

#[test]
fn containers_that_share_host_namespaces_use_host_users() {
    let settings = "[policy]\nprivileged = true\nhost-namespaces = [\"pid\"]\n";
    with_both_runtimes(settings, |installation| {
        let mut runner = runner(installation, "runner-1");
        for options in ["--privileged", "--pid=host"] {
            let options = json!({"createOptions": options});
            runner.prepare(merge(runner.job_container("node:22"), options.clone()), &[]);
            assert_eq!(uid_map_of(&mut runner), IDENTITY, "{options}");
            runner.cleanup();
            let step: Value = merge(shell_step("cat /proc/self/uid_map"), options);
            let ended = runner.container_step(step).0.success();
            let seen = ended.stdout();
            assert_eq!(uid_map(seen.lines().last().unwrap()), IDENTITY, "{}", ended.log());
        }
    });
}

#[test]
fn owners_that_a_container_does_not_have_are_reported() {
    with_each_runtime("pull = \"missing\"\n", |installation| {
        let layout = installation.host().path().join("layout");
        let image = SharedLayers::new()
            .alpine()
            .with_layer(|layer| layer.owned_directory("of-other", 0o700, 70_000));
        image.write_layout(&layout);
        installation.admin(&["import", layout.to_str().unwrap(), "local/high"]).success();
        let mut runner = runner(installation, "runner-1");
        let args = json!({"container": runner.job_container("local/high"), "services": []});
        let log = runner.call("prepare_job", args).success().log();
        let warning = "files of local/high:latest belong to users or groups up to 70000, and the container has only 0 to 65535";
        assert!(log.contains(warning), "{log}");
        assert_eq!(runner.run("stat -c %u /of-other").success().stdout(), "65534\n");
        runner.cleanup();
    });
}
