//! Paths in a request are resolved once, so that swapping a path for a link has no effect.
//!
//! Some tests swap a path continuously. However a call ends, files outside are neither read nor changed.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use container_hook_job::RunnerFiles;
use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, merge, volume};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::program::{self, DEADLINE};
use oci_hooks_testsupport::threads::repeat_during;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Value, json};

use crate::runner::setup::{HostCanary, runner, shell_step, with_each_runtime};

/// Number of container actions, on each runtime, while a directory that they mount is swapped.
const CALLS: usize = 150;

/// Number of opens while a host thread swaps the path.
const OPENS: usize = 10_000;

/// Swaps a directory with a link in a container, as fast as node can.
const SWAP: &str = r#"
const fs = require("fs");
const [place, target] = process.argv.slice(1);
const quietly = (call) => { try { call(); return true } catch { return false } };
const forced = {recursive: true, force: true};
const begin = () => {
    for (const name of [place, place + ".kept", place + ".link"]) quietly(() => fs.rmSync(name, forced));
    quietly(() => fs.mkdirSync(place));
    quietly(() => fs.symlinkSync(target, place + ".link"));
};
begin();
console.log("started");
for (;;) {
    quietly(() => fs.renameSync(place, place + ".kept"));
    quietly(() => fs.renameSync(place + ".link", place));
    quietly(() => fs.renameSync(place, place + ".link"));
    // Another process may have created the path meanwhile.
    if (!quietly(() => fs.renameSync(place + ".kept", place))) begin();
}
"#;

/// Makes the job container swap a directory with a link continuously.
fn start_swapping(runner: &GithubRunner<'_>, place: &str, target: &str) -> RunningCall {
    let script = format!("exec /__e/node20/bin/node -e '{SWAP}' {place} {target}");
    let mut call = runner.start_run(&script);
    call.wait_for_line("started");
    call
}

#[test]
fn directory_swapped_for_a_link_is_mounted_or_rejected() {
    with_each_runtime("", |installation| {
        let canary = HostCanary::new(installation.host());
        home_is_swapped(runner(installation, "runner-root"), &canary);
    });
}

fn home_is_swapped(mut runner: GithubRunner<'_>, canary: &HostCanary<'_>) {
    runner.prepare(runner.job_container("node:22"), &[]);
    let swapping = start_swapping(&runner, "/__w/_temp/_github_home", "/run/canary");
    let mut mounted = 0;
    for number in 0..CALLS / 2 {
        let step = shell_step("echo made >/github/home/made; ls -a /github/home");
        let ended = runner.container_step(step).0;
        let seen = ended.stdout();
        assert!(!seen.lines().any(|name| name == "file"), "call {number}: {seen}");
        mounted += usize::from(ended.status.success());
        canary.check(&format!("call {number}"));
    }
    assert_ne!(mounted, 0, "not one action ran");
    swapping.kill_after(Duration::ZERO);
    runner.cleanup();
}

#[test]
fn directory_swapped_concurrently_is_opened_or_rejected() {
    let top = program::temporary_directory();
    let top = top.path().canonicalize().unwrap();
    let (work, canary) = (top.join("_work"), top.join("canary"));
    let (place, link) = (work.join("_temp/_github_home"), work.join("link"));
    fs::create_dir_all(&place).unwrap();
    fs::create_dir(&canary).unwrap();
    symlink(&canary, &link).unwrap();
    let outside = fs::metadata(&canary).unwrap().ino();
    let is_outside = |file: &File| file.metadata().unwrap().ino() == outside;
    let swap = || {
        let _ = renameat_with(CWD, &place, CWD, &link, RenameFlags::EXCHANGE);
    };
    repeat_during(swap, || {
        let mut bound = 0..10_000_000;
        let lost = bound.any(|_| checked_by_name(&place).is_some_and(|file| is_outside(&file)));
        assert!(
            lost,
            "a check by name is never too early: the other half of the test means nothing"
        );
        let files = RunnerFiles::new(&work).unwrap();
        let (mut opened, mut refused) = (0, 0);
        // On a busy machine the other thread may be paused for long.
        let deadline = Instant::now() + DEADLINE;
        while opened + refused < OPENS || opened == 0 || refused == 0 {
            assert!(Instant::now() < deadline, "{opened} times opened, {refused} times refused");
            match files.open_or_make_dir(&place, (0, 0)) {
                Ok(file) => {
                    assert!(!is_outside(&file.reopen().unwrap()));
                    opened += 1;
                }
                Err(_) => refused += 1,
            }
        }
    });
    assert_eq!(fs::read_dir(&canary).unwrap().count(), 0);
}

/// Opens a directory in a racy way, with a check of its path.
fn checked_by_name(path: &Path) -> Option<File> {
    let _ = fs::create_dir(path);
    let real = path.canonicalize().ok()?;
    (real == path).then(|| File::open(path).ok())?
}

/// Returns a step with an image that has files, directories and hard links at `/filled`.
fn filled_step(volume_name: &str, script: &str) -> Value {
    let volumes = json!([volume(volume_name, "/filled", false)]);
    merge(shell_step(script), json!({"image": "evil/volume:1", "userMountVolumes": volumes}))
}

const FILLED: &str = "0:0 /filled\n1001:1001 /filled/dir\n0:0 /filled/dir/again\n\
                      0:0 /filled/dir/file\n0:0 /filled/file\n";

fn list_filled() -> &'static str {
    "find /filled | sort | while read -r f; do stat -c \"%u:%g %n\" $f; done"
}

#[test]
fn volume_is_filled_only_while_unused() {
    with_each_runtime("", |installation| {
        let canary = HostCanary::new(installation.host());
        let mut runner = runner(installation, "runner-1");
        let script = format!("{}; cat /filled/dir/file", list_filled());
        let ended = runner.container_step(filled_step("fresh", &script)).0.success();
        assert!(ended.stdout().ends_with(&format!("{FILLED}from the image\n")), "{}", ended.log());

        let volumes = json!([volume("cache", "/data", false)]);
        let container =
            merge(runner.job_container("node:22"), json!({"userMountVolumes": volumes}));
        runner.prepare(container, &[]);
        let ended = runner.container_step(filled_step("cache", list_filled())).0.success();
        assert!(ended.stdout().ends_with("0:0 /filled\n"), "{}", ended.log());
        assert_eq!(runner.run("ls -A /data").success().stdout(), "");
        another_runner_has_its_own(installation);
        canary.check("another runner");
        runner.cleanup();

        // No container uses the volume any more.
        let ended = runner.container_step(filled_step("cache", list_filled())).0.success();
        assert!(ended.stdout().ends_with(FILLED), "{}", ended.log());
    });
}

#[test]
fn volume_in_use_is_not_filled_while_a_directory_is_swapped() {
    with_each_runtime("", |installation| {
        let canary = HostCanary::new(installation.host());
        let mut runner = runner(installation, "runner-1");
        let volumes = json!([volume("cache", "/data", false)]);
        let container =
            merge(runner.job_container("node:22"), json!({"userMountVolumes": volumes}));
        runner.prepare(container, &[]);
        let swapping = start_swapping(&runner, "/data/dir", "/run/canary");
        for number in 0..CALLS {
            // The swapped names come and go, so they are not counted or compared.
            let ended = runner.container_step(filled_step("cache", "cd /filled; echo *")).0;
            let seen = ended.success().stdout();
            assert!(!seen.split_whitespace().any(|name| name == "file"), "step {number}: {seen}");
            canary.check(&format!("step {number}"));
        }
        another_runner_has_its_own(installation);
        canary.check("another runner");
        swapping.kill_after(Duration::ZERO);
        // The step dies with its hook.
        runner.run("if pidof node; then exit 1; fi; rm -rf /data/*").success();
        runner.cleanup();
        let ended = runner.container_step(filled_step("cache", list_filled())).0.success();
        assert!(ended.stdout().ends_with(FILLED), "{}", ended.log());
    });
}

fn another_runner_has_its_own(installation: &HookInstallation<'_>) {
    let mut other = runner(installation, "runner-2");
    let ended = other.container_step(filled_step("cache", list_filled())).0.success();
    assert!(ended.stdout().ends_with(FILLED), "{}", ended.log());
}

/// Policy with a directory that steps may mount.
const ALLOWED: &str = "[policy]\nbind-mounts = [\"/run/allowed\"]\n";

/// Creates the allowed directory, with a link out of it.
const MAKE_ALLOWED: &str = "mkdir -p /run/allowed/dir; ln -s /run/canary /run/allowed/link";

/// Returns a step with a mount, in which it creates a file.
fn mounting_step(source: &str) -> Value {
    let options = json!({"createOptions": format!("--volume {source}:/x")});
    merge(shell_step("echo made >/x/made; ls /x"), options)
}

#[test]
fn mount_leads_nowhere_but_to_the_allowed_directory() {
    with_each_runtime(ALLOWED, |installation| {
        let host = installation.host();
        host.shell(MAKE_ALLOWED);
        let canary = HostCanary::new(host);
        let mut runner = runner(installation, "runner-1");
        let ended = runner.container_step(mounting_step("/run/allowed/dir")).0.success();
        assert!(ended.stdout().ends_with("made\n"));
        assert_eq!(host.shell("cat /run/allowed/dir/made"), "made\n");
        runner.container_step(mounting_step("/run/allowed/new/dir")).0.success();
        assert_eq!(host.shell("stat -c %u:%g /run/allowed/new/dir"), "0:0\n");
        for outside in ["/run/canary", "/run/allowed/link", "/run/allowed/../canary", "/run"] {
            let said = runner.container_step(mounting_step(outside)).0.failure();
            assert!(said.contains("is not allowed: "), "{outside}: {said}");
        }
        canary.check("what is asked for plainly");
    });
}

#[test]
fn allowed_directory_replaced_by_a_link_is_not_followed() {
    with_each_runtime(ALLOWED, |installation| {
        let host = installation.host();
        host.shell(MAKE_ALLOWED);
        let canary = HostCanary::new(host);
        let mut runner = runner(installation, "runner-1");
        let swap = || {
            let (place, link) = ("/run/allowed/dir", "/run/allowed/link");
            for _ in 0..1000 {
                renameat_with(CWD, place, CWD, link, RenameFlags::EXCHANGE).unwrap();
            }
        };
        repeat_during(
            || host.enter(swap),
            || {
                for number in 0..CALLS {
                    let seen = runner.container_step(mounting_step("/run/allowed/dir")).0.stdout();
                    assert!(!seen.lines().any(|name| name == "file"), "step {number}: {seen}");
                    canary.check(&format!("step {number}"));
                }
            },
        );
    });
}

#[test]
fn missing_allowed_directory_is_created_for_the_runners_user() {
    with_each_runtime(ALLOWED, |installation| {
        let host = installation.host();
        host.shell("mkdir /run/allowed");
        let mut runner = runner(installation, "runner-root");
        let options = json!({"createOptions": "--volume /run/allowed/new:/x"});
        let script = "echo made >/x/made; touch /x/of-app; chown 1000:1000 /x/of-app";
        runner.container_step(merge(shell_step(script), options)).0.success();
        let owners = host.shell("stat -c %u:%g /run/allowed/new /run/allowed/new/made");
        assert_eq!(owners, "0:0\n0:0\n");
        // Other jobs may use the administrator's directory, so the runner does not become the owner of files
        // that other users of the container create there.
        let owner: u32 = host.shell("stat -c %u /run/allowed/new/of-app").trim().parse().unwrap();
        assert!(crate::runner::user_namespace::PRIVATE.contains(&owner), "{owner}");
    });
}
