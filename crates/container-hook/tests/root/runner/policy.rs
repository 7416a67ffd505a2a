//! Options permitted to workflows, and limits of their values.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;

use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge, volume};
use serde_json::{Value, json};

use crate::runner::setup::{
    HostCanary, runner, shell_step, with_both_runtimes, with_each_runtime, write,
};

fn with_options(container: Value, options: &str) -> Value {
    merge(container, json!({"createOptions": options}))
}

#[test]
fn only_directories_within_the_work_directory_can_be_mounted() {
    with_each_runtime("", |installation| {
        let canary = HostCanary::new(installation.host());
        let mut runner = runner(installation, "runner-1");
        let workspace = runner.workspace();
        write(workspace.join("policy.yaml"), "allowed\n");
        let path = workspace.display();
        let options = format!(
            "-v {path}:/work -v {path}/new/er:/new \
             --mount type=bind,source={path}/policy.yaml,target=/policy.yaml"
        );
        let service = shell_step("cat /policy.yaml >/work/of-service; sleep 1000");
        let service = json!({
            "entryPoint": service["entryPoint"],
            "entryPointArgs": service["entryPointArgs"],
            "createOptions": options,
        });
        let job = with_options(runner.job_container("node:22"), &options);
        runner.prepare(job, &[merge(container("alpine:3.20"), service)]);
        let script =
            "cat /policy.yaml; echo x >/work/of-job; echo x >/new/file; chown 5:5 /new/file
            until test -s /work/of-service; do :; done";
        assert_eq!(runner.run(script).success().stdout(), "allowed\n");
        runner.cleanup();
        for made in ["of-service", "of-job", "new/er/file"] {
            let owner = fs::metadata(workspace.join(made)).unwrap().uid();
            assert_eq!(owner, fs::metadata(&workspace).unwrap().uid(), "{made}");
        }
        symlink("/run/canary", workspace.join("link")).unwrap();
        for outside in [
            format!("{path}/link"),
            format!("{path}/link/made"),
            format!("{path}/../../../../hook"),
            runner.home().join("externals").display().to_string(),
        ] {
            for options in [
                format!("-v {outside}:/x"),
                format!("--mount type=bind,source={outside},target=/x"),
            ] {
                let job = with_options(runner.job_container("node:22"), &options);
                let args = json!({"container": job, "services": []});
                let said = runner.call("prepare_job", args).failure();
                let is_denied = said.contains("is not followed") || said.contains("not allowed");
                assert!(is_denied, "{options}: {said}");
                canary.check(&options);
            }
        }
        // The same with `volumes:`.
        let volumes = json!([volume(&format!("{path}"), "/work", true)]);
        let step = merge(shell_step("cat /work/policy.yaml"), json!({"userMountVolumes": volumes}));
        assert!(runner.container_step(step).0.success().stdout().ends_with("allowed\n"));
    });
}

#[test]
fn host_ipc_becomes_private_memory_with_one_message() {
    with_both_runtimes("", |installation| {
        let outside = installation.host().shell("readlink /proc/self/ns/ipc");
        let size = "df -P -k /dev/shm | tail -n 1 | tr -s ' ' | cut -d ' ' -f 2";
        let of_host: u64 = installation.host().shell(size).trim().parse().unwrap();
        let mut runner = runner(installation, "runner-1");
        let options = "--ipc=host --restart always -P --security-opt label=disable";
        let job = with_options(runner.job_container("node:22"), options);
        let service = with_options(container("redis:7"), options);
        let args = json!({"container": job, "services": [service]});
        let said = runner.call("prepare_job", args).success().log();
        for note in [
            "job container, service redis: --ipc=host has no effect: ",
            "job container, service redis: --publish-all has no effect: ",
            "job container, service redis: --restart has no effect: ",
        ] {
            assert_eq!(said.matches(note).count(), 1, "{note} is not in {said}");
        }
        let seen = runner.run(&format!("readlink /proc/self/ns/ipc; {size}")).success().stdout();
        let (namespace, own) = seen.split_once('\n').unwrap();
        assert_ne!(namespace, outside.trim());
        assert_eq!(own.trim().parse::<u64>().unwrap(), of_host.max(64 << 10));
        runner.cleanup();
    });
}

#[test]
fn docker_preset_options_reach_the_host() {
    with_both_runtimes("[policy]\npreset = \"docker\"\nprivileged = false\n", |installation| {
        installation.host().shell("mkdir /run/shared; echo of-host >/run/shared/file");
        let mut runner = runner(installation, "runner-1");
        for (options, script) in [
            ("--pid=host --ipc=host --uts=host --cgroupns=host", "true"),
            ("--network host", "true"),
            ("--cap-add ALL --security-opt seccomp=unconfined", "unshare -m true"),
            ("--security-opt apparmor=unconfined --security-opt systempaths=unconfined", "true"),
            ("--device /dev/full --device-cgroup-rule 'c 1:* rwm'", "! echo x >/dev/full"),
            ("-v /run/shared:/shared", "grep -q of-host /shared/file"),
            ("-v /run/made:/made", "test -d /made"),
            ("--oom-score-adj -10 --pids-limit -1 --annotation a=b", "true"),
        ] {
            runner.prepare(with_options(runner.job_container("node:22"), options), &[]);
            runner.run(script).success();
            runner.cleanup();
        }
        // A key that is set overrides the preset, and the error names its file.
        let job = with_options(runner.job_container("node:22"), "--privileged");
        let said = runner.call("prepare_job", json!({"container": job, "services": []})).failure();
        let file = installation.host().path().join("container-hook.toml");
        let expected = format!("`privileged = true` under [policy] in {}", file.display());
        assert!(said.contains(&expected), "{said}");
    });
}

/// Maximum values for each container, and for the whole job.
const MAXIMUMS: &str = "[limits]\nmemory = \"1GiB\"\n\
    [policy.max]\nmemory = \"96MiB\"\ncpus = 0.5\npids = 60\nshm-size = \"8MiB\"\n\
    ulimits = { nofile = 200 }\n[policy.max.job]\nmemory = \"160MiB\"\ncpus = 0.75\npids = 70\n";

/// Prints a container's limits: memory, CPU time per 100 ms, processes, shared memory, open files.
const HAS: &str = "m=/sys/fs/cgroup; cat $m/memory.max $m/memory/memory.limit_in_bytes 2>/dev/null || true; \
    cut -d \" \" -f 1 $m/cpu.max $m/cpu/cpu.cfs_quota_us 2>/dev/null || true; \
    cat $m/pids.max $m/pids/pids.max 2>/dev/null || true; \
    df -P -k /dev/shm | tail -n 1 | tr -s \" \" | cut -d \" \" -f 2; ulimit -Hn";

/// Output of the script above with these maximum values.
const HAVE: &str = "100663296\n50000\n60\n8192\n200\n";

/// Returns the directories of a job's cgroup in all hierarchies.
fn job_cgroups(network: &str) -> Vec<PathBuf> {
    let roots = fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let roots = roots.chain([PathBuf::from("/sys/fs/cgroup")]);
    let dirs = roots.map(|root| root.join(format!("oci-hooks/job-{network}")));
    dirs.filter(|dir| dir.is_dir()).collect()
}

fn read_first(dirs: &[PathBuf], files: &[&str]) -> String {
    let all = dirs.iter().flat_map(|dir| files.iter().map(move |file| dir.join(file)));
    let found = all.filter_map(|path| fs::read_to_string(path).ok()).next();
    found.unwrap_or_else(|| panic!("none of {files:?} is in {dirs:?}")).trim().to_owned()
}

fn network(response: &Value) -> String {
    response["context"]["container"]["network"].as_str().unwrap().to_owned()
}

#[test]
fn containers_and_jobs_stay_within_the_maximums() {
    with_both_runtimes(MAXIMUMS, |installation| {
        let mut runner = runner(installation, "runner-1");
        let greedy = "--memory 64g --memory-swap -1 --cpus 64 --pids-limit -1 --shm-size 1g \
                      --ulimit nofile=100:5000";
        let job = with_options(runner.job_container("node:22"), greedy);
        let script = shell_step(&format!("({HAS}) >/__w/of-service 2>&1; sleep 1000"));
        let work = runner.work().display().to_string();
        let service = json!({
            "entryPoint": script["entryPoint"],
            "entryPointArgs": script["entryPointArgs"],
            "userMountVolumes": [volume(&work, "/__w", false)],
        });
        let args =
            json!({"container": job, "services": [merge(container("alpine:3.20"), service)]});
        let ended = runner.call("prepare_job", args).success();
        let said = ended.log();
        let file = installation.host().path().join("container-hook.toml");
        for (asked, entry) in [
            ("--memory 64GiB", "memory = \"96MiB\""),
            ("--memory-swap -1", "memory = \"96MiB\""),
            ("--cpus 64", "cpus = 0.5"),
            ("--pids-limit -1", "pids = 60"),
            ("--shm-size 1GiB", "shm-size = \"8MiB\""),
            ("--ulimit nofile=100:5000", "ulimits = { nofile = 200 }"),
        ] {
            let line = format!(
                "job container: {asked} is lowered: the maximum is `{entry}` under [policy.max] in {}",
                file.display()
            );
            assert!(said.contains(&line), "{line} is not in {said}");
        }
        assert_eq!(runner.run(HAS).success().stdout(), HAVE);
        let script =
            "until test \"$(wc -l </__w/of-service)\" = 5; do :; done; cat /__w/of-service";
        assert_eq!(runner.run(script).success().stdout(), HAVE);
        let step = runner.container_step(shell_step(HAS)).0.success();
        assert!(step.stdout().ends_with(HAVE), "{}", step.log());

        let network = network(&ended.response.unwrap());
        let dirs = job_cgroups(&network);
        assert_eq!(read_first(&dirs, &["memory.max", "memory.limit_in_bytes"]), "167772160");
        assert_eq!(read_first(&dirs, &["pids.max"]), "70");
        let quota = read_first(&dirs, &["cpu.max", "cpu.cfs_quota_us"]);
        assert!(quota.starts_with("75000"), "{quota}");
        runner.cleanup();
        assert_eq!(job_cgroups(&network), Vec::<PathBuf>::new());
    });
}

#[test]
fn containers_of_a_job_share_its_memory() {
    let settings = "[policy.max.job]\nmemory = \"64MiB\"\n";
    with_each_runtime(settings, |installation| {
        let mut runner = runner(installation, "runner-1");
        let network = network(&runner.prepare(runner.job_container("alpine:3.20"), &[]));
        runner.run("sh -c 'x=12345678; while :; do x=$x$x; done' || true").success();
        let said = runner.cleanup().log();
        assert!(said.contains("::warning::job alpine ran out of memory: "), "{said}");
        assert_eq!(job_cgroups(&network), Vec::<PathBuf>::new());
        // A container step without a job counts as a job.
        let step = shell_step("x=12345678; while :; do x=$x$x; done");
        let ended = runner.container_step(step).0;
        assert!(!ended.status.success(), "{}", ended.log());
    });
}

#[test]
fn prune_removes_the_cgroup_of_an_unended_job() {
    with_each_runtime("[policy.max.job]\npids = 500\n", |installation| {
        let mut runner = runner(installation, "runner-1");
        let response = runner.prepare(runner.job_container("node:22"), &[]);
        let network = network(&response);
        assert!(!job_cgroups(&network).is_empty());
        installation.admin(&["prune", "--all"]).success();
        assert_eq!(job_cgroups(&network), Vec::<PathBuf>::new());
    });
}

#[test]
fn jobs_without_maximums_have_no_cgroup() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let response = runner.prepare(runner.job_container("node:22"), &[]);
        assert_eq!(job_cgroups(&network(&response)), Vec::<PathBuf>::new());
        runner.cleanup();
    });
}

#[test]
fn exceeding_a_maximum_is_denied_if_configured() {
    let settings = "[policy.max]\nwhen-exceeded = \"deny\"\nmemory = \"1GiB\"\n";
    with_each_runtime(settings, |installation| {
        let mut runner = runner(installation, "runner-1");
        let prepare = |runner: &mut GithubRunner<'_>, options: &str| {
            let job = with_options(runner.job_container("node:22"), options);
            runner.call("prepare_job", json!({"container": job, "services": []}))
        };
        let said = prepare(&mut runner, "--memory 2g").failure();
        let file = installation.host().path().join("container-hook.toml");
        let expected = format!(
            "--memory 2GiB is not allowed: the maximum is `memory = \"1GiB\"` under \
             [policy.max] in {}",
            file.display()
        );
        assert!(said.contains(&expected), "{said}");
        prepare(&mut runner, "--memory 1g").success();
        runner.cleanup();
    });
}
