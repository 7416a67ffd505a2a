//! Jobs of a runner whose service has a delegated cgroup, as with `Delegate=yes` in systemd. Here it is
//! created by hand, with the controllers that this machine has free for cgroup v2; `tests/guest/run` has real
//! delegation.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, InstalledHook, merge};
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, with_each};

/// Limits that the job requests, and the cgroup files that contain them.
const OPTIONS: &str = "--memory 64m --cpus 0.5 --pids-limit 77";
const LIMITS: [(&str, &str, &str); 3] = [
    ("memory", "memory.max", "67108864"),
    ("cpu", "cpu.max", "50000 100000"),
    ("pids", "pids.max", "77"),
];

/// A user's runner service, whose processes are in a cgroup owned by that user.
struct DelegatedService<'a> {
    installation: &'a UserInstallation<'a>,
    dir: PathBuf,
}

impl<'a> DelegatedService<'a> {
    fn new(installation: &'a UserInstallation<'a>) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(at))
        });
        let mount =
            mount.expect("cgroups of version 2 are mounted: mount -t cgroup2 none /sys/fs/cgroup");
        let dir = mount.join(program::unique_name());
        fs::create_dir(&dir).expect("root may make cgroups");
        let service = DelegatedService { installation, dir };
        let (uid, gid) = installation.ids();
        for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            chown(service.dir.join(file), Some(uid), Some(gid)).unwrap();
        }
        service
    }

    fn runner(&self, name: &str) -> GithubRunner<'_, Self> {
        // Uses the externals of an ordinary runner, but makes calls through the service.
        let mut runner = GithubRunner::new(self, name);
        runner.externals = self.installation.runner(name).externals;
        runner.run_as(self.installation.ids());
        runner
    }

    /// Returns the relative paths of all descendant cgroups.
    fn cgroups(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut dirs = vec![self.dir.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    dirs.push(entry.path());
                    let path = entry.path();
                    found.insert(path.strip_prefix(&self.dir).unwrap().display().to_string());
                }
            }
        }
        found
    }

    fn jobs(&self) -> Vec<String> {
        let is_job = |name: &String| name.starts_with("oci-hooks-") && !name.contains('/');
        self.cgroups().into_iter().filter(is_job).collect()
    }

    fn has(&self, controller: &str) -> bool {
        let list = fs::read_to_string(self.dir.join("cgroup.controllers")).unwrap();
        list.split_whitespace().any(|name| name == controller)
    }

    /// Returns the processes of a cgroup and its descendants.
    fn processes(&self, cgroup: &str) -> Vec<u32> {
        let below = format!("{cgroup}/");
        let mut all = self.cgroups();
        all.retain(|name| name == cgroup || name.starts_with(&below));
        let lists = all.iter().map(|name| self.dir.join(name).join("cgroup.procs"));
        let lists = lists.filter_map(|path| fs::read_to_string(path).ok()).collect::<String>();
        lists.lines().filter_map(|pid| pid.parse().ok()).collect()
    }
}

impl InstalledHook for DelegatedService<'_> {
    fn runners(&self) -> &Path {
        self.installation.runners()
    }

    fn entry(&self) -> PathBuf {
        self.installation.entry()
    }

    fn variables(&self, runner: &str) -> Vec<(String, String)> {
        self.installation.variables(runner)
    }

    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> RunningCall {
        // Enters the cgroup as root, then drops privileges and executes the command.
        let (uid, gid) = self.installation.ids();
        let script = "echo 0 >\"$1/cgroup.procs\" && shift && exec setpriv \"$@\"";
        let mut inside = Command::new("sh");
        inside.args(["-c", script, "sh"]).arg(&self.dir);
        inside.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}"));
        inside.args(["--clear-groups", "--inh-caps=-all"]);
        inside.arg(command.get_program()).args(command.get_args());
        let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        inside.env_clear().envs(variables);
        inside.current_dir(command.get_current_dir().expect("each call has one"));
        self.installation.start(inside, request, response)
    }
}

impl Drop for DelegatedService<'_> {
    fn drop(&mut self) {
        let _ = fs::write(self.dir.join("cgroup.kill"), "1");
        let is_gone = || {
            for name in self.cgroups().iter().rev() {
                let _ = fs::remove_dir(self.dir.join(name));
            }
            fs::remove_dir(&self.dir).is_ok()
        };
        // Killed processes leave their cgroup a moment later. After a failed test no second panic is raised.
        let deadline = Instant::now() + program::DEADLINE;
        while Instant::now() < deadline {
            if is_gone() {
                return;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        assert!(std::thread::panicking(), "{} is not empty", self.dir.display());
    }
}

fn job(runner: &GithubRunner<'_, DelegatedService<'_>>) -> Value {
    let container = runner.job_container("alpine:3.20");
    merge(container, json!({"createOptions": OPTIONS}))
}

#[test]
fn jobs_have_delegated_cgroups_with_enforced_limits() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let service = DelegatedService::new(installation);
        let before = LeftoverSnapshot::take(installation);
        let mut runners = [service.runner("one"), service.runner("two")];
        for (at, runner) in runners.iter_mut().enumerate() {
            let args = json!({"container": job(runner), "services": []});
            let ended = runner.call("prepare_job", args).success();
            let missing = LIMITS.iter().any(|(controller, ..)| !service.has(controller));
            assert_eq!(ended.log().contains("limits not enforced"), missing, "{}", ended.log());
            assert_eq!(service.jobs().len(), at + 1, "{:?}", service.cgroups());
        }
        for runner in &mut runners {
            let shown = runner.run("cat /proc/self/cgroup").success().stdout();
            assert!(
                shown.lines().any(|line| line == "0::/"),
                "its cgroup is the root of all: {shown}"
            );
            for (controller, file, value) in LIMITS {
                if service.has(controller) {
                    let shown = runner.run(&format!("cat /sys/fs/cgroup/{file}")).success();
                    assert_eq!(shown.stdout().trim(), value, "{file}");
                }
            }
        }
        for job in service.jobs() {
            let cgroups = service.cgroups();
            let containers = format!("{job}/oci-hooks/");
            assert!(cgroups.contains(&format!("{job}/init")), "{cgroups:?}");
            assert!(cgroups.iter().any(|name| name.starts_with(&containers)), "{cgroups:?}");
        }
        let [one, two] = &mut runners;
        one.cleanup();
        assert_eq!(service.jobs().len(), 1, "{:?}", service.cgroups());
        two.run("true").success();
        two.cleanup();
        assert_eq!(service.jobs(), [""; 0], "{:?}", service.cgroups());
        before.check_live(installation, "two jobs");
    });
}

#[test]
fn job_of_a_killed_pause_process_leaves_no_cgroup() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let service = DelegatedService::new(installation);
        let mut runner = service.runner("one");
        for end in ["cleanup", "prepare"] {
            runner
                .call("prepare_job", json!({"container": job(&runner), "services": []}))
                .success();
            let [name] = &service.jobs()[..] else { panic!("{:?}", service.cgroups()) };
            let pause_process = installation.world.find_processes("pause-process");
            assert_eq!(pause_process.len(), 1);
            installation.world.kill(&pause_process);
            program::wait_until("all processes of the job are dead", || {
                service.processes(name).is_empty()
            });
            if end == "cleanup" {
                runner.cleanup();
                assert_eq!(service.jobs(), [""; 0], "{:?}", service.cgroups());
            }
        }
        runner.call("prepare_job", json!({"container": job(&runner), "services": []})).success();
        runner.run("true").success();
        assert_eq!(service.jobs().len(), 1);
        runner.cleanup();
        assert_eq!(service.jobs(), [""; 0], "{:?}", service.cgroups());
    });
}

#[test]
fn unenforced_limits_fail_the_job_if_configured() {
    with_each(&[UserKind::Ranges], "[limits]\nenforce = true\n", |installation| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("one");
        let limited = merge(runner.job_container("alpine:3.20"), json!({"createOptions": OPTIONS}));
        let ended = runner.call("prepare_job", json!({"container": limited, "services": []}));
        let log = ended.failure();
        assert!(
            log.contains("limits not enforced: job container: memory, cpus, pids-limit"),
            "{log}"
        );
        // Without the option, the limit of processes is not reported.
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        runner.run("true").success();
        runner.cleanup();
        before.check_live(installation, "a job");
    });
}
