//! Jobs begun by one version of `container-hook` and ended by another, in both directions: upgrade and
//! downgrade. `tests/upgrade` builds the other version and runs these tests.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[expect(dead_code, reason = "the runner's tests use all of it")]
#[path = "../root/runner/setup.rs"]
mod setup;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks_testsupport::github_runner::GithubRunner;
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::program;
use serde_json::json;

use crate::setup::{redis, runner, shell_step, with_each_runtime};

/// Environment variable with the path of the other version's program.
const OTHER: &str = "OCI_HOOKS_OTHER_PROGRAM";

/// Number of kills of a command of each version on each runtime.
const KILLS: u32 = 4;

/// Two versions of the program, in the order of their use by a job.
struct ProgramVersions {
    name: &'static str,
    first: PathBuf,
    then: PathBuf,
}

/// Runs a test on each runtime, once as an upgrade and once as a downgrade.
fn with_both_orders(play: impl Fn(&HookInstallation<'_>, &ProgramVersions)) {
    let other = std::env::var_os(OTHER);
    let other =
        PathBuf::from(other.unwrap_or_else(|| panic!("{OTHER} is not set: run tests/upgrade")));
    let this = || PathBuf::from(env!("CARGO_BIN_EXE_container-hook"));
    for versions in [
        ProgramVersions { name: "upgrade", first: other.clone(), then: this() },
        ProgramVersions { name: "roll-back", first: this(), then: other.clone() },
    ] {
        with_each_runtime("", |installation| {
            install(installation, &versions.first);
            play(installation, &versions);
        });
    }
}

/// Replaces the installed program, as packages do.
fn install(installation: &HookInstallation<'_>, program: &Path) {
    let new = installation.program().with_extension("new");
    program::copy_program(program, &new);
    fs::rename(&new, installation.program()).unwrap();
}

/// Removes the step sockets left by a version that does not know them. No process listens on them, and this
/// version's next call would remove them.
fn remove_sockets(installation: &HookInstallation<'_>) {
    for socket in fs::read_dir(installation.run_directory().join("steps")).into_iter().flatten() {
        let path = socket.unwrap().path();
        UnixStream::connect(&path).unwrap_err();
        fs::remove_file(path).unwrap();
    }
}

fn prepare(runner: &mut GithubRunner<'_>) {
    runner.prepare(runner.job_container("node:22"), &[redis()]);
}

const PING: &str = "printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 redis 6379";

#[test]
fn job_started_by_one_version_is_finished_by_the_other() {
    with_both_orders(|installation, ProgramVersions { name, first, then }| {
        let before = LeftoverSnapshot::take(installation);
        let mut runner = runner(installation, "runner-1");
        prepare(&mut runner);
        runner.run("echo first >file").success();
        install(installation, then);
        assert_eq!(runner.run(&format!("cat file; {PING}")).success().stdout(), "first\n+PONG\r\n");
        let (ended, _) = runner.container_step(shell_step("cat file; chown 33:33 file"));
        assert!(ended.success().stdout().ends_with("first\n"), "{name}");
        let listed = installation.admin(&["ps", "--format", "json"]).success();
        assert_eq!(listed.matches("\"role\"").count(), 2, "{name}: {listed}");
        // Back to the first version in the middle of the job.
        install(installation, first);
        runner.run(PING).success();
        let (ended, _) = runner.container_step(shell_step("echo back"));
        assert!(ended.success().stdout().ends_with("back\n"), "{name}");
        install(installation, then);
        runner.cleanup();
        before.check_live(installation, name);
        let file = fs::metadata(runner.workspace().join("file")).unwrap();
        assert_eq!((file.uid(), file.gid()), (0, 0), "{name}");
    });
}

#[test]
fn leftovers_of_a_killed_version_are_removed_by_the_other() {
    with_both_orders(|installation, ProgramVersions { name, first, then }| {
        let mut victim = runner(installation, "victim");
        // A complete job first, to pull the images and measure the duration.
        let began = std::time::Instant::now();
        prepare(&mut victim);
        let took = began.elapsed();
        victim.container_step(shell_step("true")).0.success();
        victim.cleanup();
        install(installation, then);
        victim.cleanup();
        let before = LeftoverSnapshot::take(installation);
        for kill in 0..KILLS {
            install(installation, first);
            let after = took.mul_f64(f64::from(kill) / f64::from(KILLS));
            let args = json!({"container": victim.job_container("node:22"), "services": [redis()]});
            victim.start("prepare_job", args).kill_after(after);
            install(installation, then);
            victim.cleanup();
            remove_sockets(installation);
            before.check(installation, &format!("{name}: prepare_job killed after {after:?}"));
            install(installation, first);
            prepare(&mut victim);
            let mut call = victim.start_container_step(shell_step("echo up; exec sleep 1000"));
            call.wait_for_line("up");
            call.kill_after(Duration::ZERO);
            install(installation, then);
            victim.cleanup();
            remove_sockets(installation);
            before.check(installation, &format!("{name}: a step killed"));
        }
    });
}

#[test]
fn each_version_prunes_abandoned_jobs_of_the_other() {
    with_both_orders(|installation, ProgramVersions { name, first, then }| {
        let mut gone = runner(installation, "gone");
        prepare(&mut gone);
        gone.cleanup();
        let before = LeftoverSnapshot::take(installation);
        gone.run_through_worker();
        let args = json!({"container": gone.job_container("node:22"), "services": [redis()]});
        gone.start("prepare_job", args).wait().success();
        install(installation, then);
        installation.admin(&["prune"]).success();
        if *name == "roll-back" {
            // The older version does not know the socket and leaves it.
            install(installation, first);
            installation.admin(&["prune"]).success();
        }
        before.check(installation, name);
    });
}

#[test]
fn each_version_uses_images_of_the_other() {
    with_both_orders(|installation, ProgramVersions { name, then, .. }| {
        installation.admin(&["pull", "node:22"]).success();
        let layers = || {
            let shown = format!("find {}/layers -name layer.json", installation.store().display());
            let mut found: Vec<_> = installation
                .host()
                .shell(&shown)
                .lines()
                .map(|path| fs::metadata(Path::new(path).with_file_name("tree")).unwrap().ino())
                .collect();
            found.sort_unstable();
            found
        };
        let pulled = layers();
        assert!(!pulled.is_empty());
        install(installation, then);
        let listed = installation.admin(&["images"]).success();
        assert!(listed.contains("node"), "{name}: {listed}");
        let mut runner = runner(installation, "runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        assert_eq!(layers(), pulled, "{name}: they were unpacked again");
        runner.cleanup();
        installation.admin(&["prune", "--all"]).success();
        assert_eq!(layers(), <[u64; 0]>::default(), "{name}");
    });
}
