//! A runner that is not root: `install --sudo`, by the real sudo.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use serde_json::json;

use crate::builds::{built_step, no_context_of};
use crate::setup::{Canary, runner, shell_step, with_each_runtime, write};
use crate::support::github_runner::{Runner, mount};
use crate::support::installation::Installation;
use crate::support::leftovers::Snapshot;

/// A user that each system has, and who may do nothing.
pub(crate) const USER: (&str, (u32, u32)) = ("daemon", (1, 1));

/// Returns a runner that is not root.
pub(crate) fn unprivileged<'a>(installation: &'a Installation<'a>) -> Runner<'a> {
    installation.use_sudo(USER.0, "runner-1");
    let mut runner = runner(installation, "runner-1");
    runner.run_as(USER.1);
    runner
}

#[test]
fn a_runner_that_is_not_root_runs_jobs_by_sudo() {
    with_each_runtime("", |installation| {
        let mut runner = unprivileged(installation);
        let before = Snapshot::take(installation);
        runner.prepare(runner.job_container("node:22"), &[]);
        let ended = runner.run("id -u; echo made >made; echo oops >&2; exit 7").code(7);
        assert_eq!((ended.stdout().as_str(), ended.stderr().as_str()), ("0\n", "oops\n"));
        let made = fs::metadata(runner.workspace().join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), USER.1);
        let (ended, outputs) =
            runner.container_step(shell_step("cat made; echo by=step >>$GITHUB_OUTPUT"));
        assert!(ended.success().stdout().ends_with("made\n"));
        assert_eq!(outputs["by"], "step");
        runner.cleanup();
        before.check_live(installation, "a job by sudo");
    });
}

#[test]
fn signals_get_past_sudo_and_nothing_outlives_the_near_end() {
    with_each_runtime("", |installation| {
        let mut runner = unprivileged(installation);
        runner.prepare(runner.job_container("node:22"), &[]);
        let before = Snapshot::take(installation);
        let polite =
            "trap 'echo told; exit 5' INT TERM\necho started\nwhile :; do sleep 0.1 & wait; done";
        let mut call = runner.start_run(polite);
        call.wait_for_line("started");
        let (ended, signals) = call.cancel();
        assert_eq!((ended.stdout().as_str(), signals), ("started\ntold\n", 1));
        before.check_live(installation, "a cancelled step");

        let mut call = runner.start_container_step(shell_step("echo started; exec sleep 1000"));
        call.wait_for_line("started");
        call.kill_after(Duration::ZERO);
        before.check_live(installation, "a step whose near end was killed");
        runner.cleanup();
    });
}

#[test]
fn sudo_allows_the_hook_and_nothing_else() {
    with_each_runtime("", |installation| {
        let runner = unprivileged(installation);
        let program = installation.program().display().to_string();
        for line in [
            format!("sudo -n {program} images"),
            format!("sudo -n {program} as-root --config /tmp/x"),
            format!("sudo -n {program}"),
            format!("sudo -n LD_PRELOAD=/tmp/x {program} as-root"),
            "sudo -n true".to_owned(),
        ] {
            let script = format!("setpriv --reuid 1 --regid 1 --clear-groups {line} 2>&1 || true");
            let said = installation.host().shell(&script);
            assert!(
                said.contains("password is required") || said.contains("not allowed"),
                "{line}: {said}"
            );
        }
        let request = json!({"command": "images"}).to_string().into_bytes();
        runner.start_raw(request, None).wait().failure();
    });
}

/// Runs a script on the host as the runner's user would before.
fn as_runner(installation: &Installation<'_>, script: &str) {
    let words = "setpriv --reuid 1 --regid 1 --clear-groups sh -ec";
    installation.host().shell(&format!("{words} '{script}'"));
}

#[test]
fn an_answer_goes_to_no_file_but_the_runners_own() {
    with_each_runtime("", |installation| {
        let runner = unprivileged(installation);
        let host = installation.host();
        let home = runner.home().display().to_string();
        host.shell(&format!("umask 77; echo secret >/etc/of-root; echo root >{home}/of-root"));
        host.shell(&format!("echo root >{home}/shared; chmod 666 {home}/shared"));
        as_runner(installation, &format!("ln -s /etc {home}/link; ln -s /etc/of-root {home}/file"));
        let state = || {
            host.shell(&format!("ls -A /etc | sort; cat /etc/of-root {home}/of-root {home}/shared"))
        };
        let before = state();
        let inside = ["link/nologin", "file", "of-root", "shared", "../of-root"];
        let inside = inside.map(|name| format!("{home}/{name}"));
        let outside = ["/etc/nologin", "/etc/ld.so.preload", "/etc/of-root"].map(str::to_owned);
        for path in outside.iter().chain(&inside) {
            let args = json!({"container": runner.job_container("node:22"), "services": []});
            let request =
                json!({"command": "prepare_job", "responseFile": path, "args": args, "state": {}});
            let said = runner.start_raw(request.to_string().into_bytes(), None).wait().failure();
            assert!(said.contains("response file"), "{path}: {said}");
            assert_eq!(state(), before, "{path}");
        }
    });
}

#[test]
fn a_runner_has_its_directories_where_root_recorded_them() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let top = host.path().display();
        let mut runner = unprivileged(installation);
        let home = runner.home().display().to_string();
        host.shell(&format!(
            "mkdir -p {top}/other/_work/_temp {home}/_root/_temp; chown -R 1:1 {top}/other; \
             chown 1:1 {home}/_root/_temp"
        ));
        as_runner(installation, &format!("ln -s {top}/other/_work {home}/_link"));
        for (temp, expected) in [
            (format!("{top}/other/_work/_temp"), "in no directory that is recorded"),
            ("/tmp".to_owned(), "in no directory that is recorded"),
            (format!("{home}/_root/_temp"), "belongs to user 0, not to the calling user 1"),
            (format!("{home}/_link/_temp"), "cannot open"),
        ] {
            runner.variables = vec![("RUNNER_TEMP".to_owned(), temp.clone())];
            let args = json!({"container": runner.job_container("node:22"), "services": []});
            let said = runner.start("prepare_job", args).wait().failure();
            assert!(said.contains(expected), "{temp}: {said}");
        }
        runner.variables.clear();
        host.shell("sed -i '/^directories/d' /etc/oci-hooks/container-hook.toml");
        let said = runner.start("cleanup_job", json!({})).wait().failure();
        assert!(said.contains("install --sudo --runner-dir DIR"), "{said}");
    });
}

#[test]
fn a_build_has_what_the_runners_user_can_read() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let canary = Canary::new(host);
        let mut runner = unprivileged(installation);
        let action = runner.work().join("_actions/octo/docker-action/v1");
        let text = "FROM alpine:3.20\nCOPY . /action\nENTRYPOINT [\"ls\", \"/action\"]\n";
        write(action.join("Dockerfile"), text);
        host.shell(&format!("chown -R 1:1 {}/_actions", runner.work().display()));
        let step = built_step(&action.join("Dockerfile"));
        let ended = runner.container_step(step).0.success();
        assert!(ended.stdout().ends_with("Dockerfile\n"), "{}", ended.log());
        no_context_of(installation, 1);

        for (dir, expected) in [
            (host.path().join("shared"), "recorded for runners"),
            (runner.home().join("shared"), "shared/key: Permission denied"),
        ] {
            host.shell(&format!(
                "mkdir {0}; chmod 1777 {0}; echo secret >{0}/key; chmod 600 {0}/key",
                dir.display()
            ));
            as_runner(
                installation,
                &format!("printf \"FROM alpine:3.20\nCOPY key /\n\" >{}/Dockerfile", dir.display()),
            );
            let said = runner.container_step(built_step(&dir.join("Dockerfile"))).0.failure();
            assert!(said.contains(expected), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
        let said = runner.container_step(built_step("/dev/zero".as_ref())).0.failure();
        assert!(said.contains("recorded for runners"), "{said}");
        canary.check("builds");
    });
}

#[test]
fn mounts_lead_to_nothing_but_the_runners_own_files() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let canary = Canary::new(host);
        let mut runner = unprivileged(installation);
        let home = runner.home().display().to_string();
        let top = host.path().display();
        host.shell(&format!(
            "mkdir {top}/others {home}/of-root; chmod 700 {home}/of-root; chown 2:2 {top}/others; \
             mkdir {home}/of-another; chown 2:2 {home}/of-another"
        ));
        as_runner(installation, &format!("ln -s /etc {home}/link"));
        let missing = "/etc/systemd/system/ssh.service.d";
        let sources =
            ["/", "/etc", "/var", "/proc", "/root", "/etc/shadow", missing].map(str::to_owned);
        let named = [format!("{top}/others"), format!("{top}/missing")];
        let inside = ["of-root", "of-another", "link", "link/cron.d", "../others"];
        let inside = inside.map(|name| format!("{home}/{name}"));
        let state = || {
            host.shell(&format!(
                "stat -c '%n %u %a' {home}/* {top}/others; ls -A / /etc; \
                 ls -A /etc/systemd/system {top}/missing 2>&1 || true"
            ))
        };
        let before = state();
        for source in sources.iter().chain(&named).chain(&inside) {
            let mut container = runner.job_container("node:22");
            let asked = mount(source, "/x", false);
            container["systemMountVolumes"].as_array_mut().unwrap().push(asked.clone());
            let args = json!({"container": container, "services": []});
            runner.start("prepare_job", args).wait().failure();
            let step = json!({"image": "alpine:3.20", "systemMountVolumes": [asked]});
            runner.container_step(step).0.failure();
            assert_eq!(state(), before, "{source}");
        }
        canary.check("mounts");
    });
}
