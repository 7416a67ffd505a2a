//! Rootless `doctor` checks and settings.

use std::path::Path;
use std::process::Command;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::program::{self, FinishedCommand, wait_until};
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::UserIds;
use serde_json::Value;

use crate::rootless::setup::{UserKind, with, with_each};

/// Calls a test for a user of each kind. The checks do not depend on the runtime.
fn with_users(test: impl Fn(&UserInstallation<'_>)) {
    for who in UserKind::ROOTLESS {
        with(who, TestRuntime::ALL[0], "", &test);
    }
}

/// Calls a test that does not depend on subordinate ids.
fn with_user(test: impl Fn(&UserInstallation<'_>)) {
    with(UserKind::Ranges, TestRuntime::ALL[0], "", test);
}

/// Returns the checks of `doctor`, and whether it succeeded.
fn findings(installation: &UserInstallation<'_>) -> (Vec<Value>, bool) {
    let FinishedCommand { status, stdout, stderr, .. } =
        installation.admin(&["doctor", "--format", "json"]);
    let mut report: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert_eq!(report["ok"], status.success());
    let checks = report["checks"].take().as_array().unwrap().clone();
    (checks, status.success())
}

/// Returns status, finding and hint of a check.
fn find_check(checks: &[Value], name: &str) -> [String; 3] {
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("{name} is not in {checks:#?}"));
    ["status", "found", "hint"].map(|key| check[key].as_str().unwrap_or_default().to_owned())
}

#[test]
fn doctor_tries_requirements_and_leaves_nothing() {
    with_users(|installation| {
        let user = installation.user.unwrap();
        let before = installation.world.shell_as(user, "find ~ | sort");
        let (checks, is_content) = findings(installation);
        assert!(is_content, "{checks:#?}");
        for name in [
            "user namespaces",
            "overlay",
            "nft",
            "uplink",
            "store",
            "run directory",
            "test container",
        ] {
            let [status, found, _] = find_check(&checks, name);
            assert_eq!(status, "ok", "{name}: {found}");
        }
        let [status, text, hint] = find_check(&checks, "id ranges");
        if installation.has_ids() {
            assert_eq!((status.as_str(), hint.as_str()), ("ok", ""), "{text}");
            assert!(text.starts_with("65536 user ids and 65536 group ids of "), "{text}");
        } else {
            assert!(text.contains(" has none in /etc/subuid and /etc/subgid: "), "{text}");
            assert!(hint.starts_with("sudo usermod --add-subuids "), "{status}: {hint}");
        }
        assert_eq!(installation.world.shell_as(user, "find ~ | sort"), before);
        wait_until("the pause process has ended", || {
            let processes = installation.world.host().processes();
            !processes.iter().any(|process| process.line.contains("doctor"))
        });
    });
}

#[test]
fn doctor_rejects_a_run_directory_that_other_users_can_enter() {
    with_user(|installation| {
        let user = installation.user.unwrap();
        let run = installation.world.shell_as(user, "mkdir -m 755 ~/open && echo ~/open");
        installation.write_settings(&format!("[store]\nrun = {:?}\n", run.trim()));
        let (checks, is_content) = findings(installation);
        let [status, found, hint] = find_check(&checks, "run directory");
        assert!(!is_content && status == "fail", "{status}: {found}");
        assert!(found.contains("/open is not private to this user"), "{found}");
        assert!(hint.starts_with("chmod 700 /"), "{hint}");
    });
}

/// A runtime that loses the exit codes of containers, and one that starts none.
#[test]
fn doctor_runs_a_container_with_each_runtime() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let (runtime, place) = (&installation.runtime, installation.world.host().path());
        let name = runtime.file_name().unwrap().to_str().unwrap();
        let [lossy, broken] = ["lossy", "broken"].map(|word| place.join(format!("{name}-{word}")));
        for (program, action) in [(&lossy, "\"$real\" \"$@\"; exit 0"), (&broken, "exit 3")] {
            let script = format!(
                "#!/bin/sh\nreal={}\ncase \"$*\" in *\" run \"*) {action} ;; esac\nexec \"$real\" \"$@\"\n",
                runtime.display()
            );
            program::write_program(program, &script);
        }
        let settings = |path: &Path, further: &str| {
            let store = match installation.user {
                Some(_) => String::new(),
                None => {
                    let (root, run) = (installation.store(), installation.run_directory());
                    format!("[store]\nroot = {root:?}\nrun = {run:?}\n")
                }
            };
            format!("[runtime]\npath = {path:?}\n{store}{further}")
        };
        let classes = format!("[template.runtime-classes]\nlossy = {lossy:?}\n");
        installation.write_settings(&settings(runtime, &classes));
        let (checks, _) = findings(installation);
        let tried = checks.iter().filter(|check| check["name"] == "test container");
        let mut found: Vec<_> = tried
            .map(|it| {
                format!("{} {}", it["status"].as_str().unwrap(), it["found"].as_str().unwrap())
            })
            .collect();
        found.sort();
        let [failed, passed] = &found[..] else { panic!("{found:?}") };
        assert!(
            failed.starts_with("fail ")
                && failed.contains("-lossy: the program ended with code 42")
        );
        assert_eq!(passed, &format!("ok {} ran a container to its end", runtime.display()));
        installation.write_settings(&settings(&broken, ""));
        let [status, text, _] = find_check(&findings(installation).0, "test container");
        assert!(status == "fail" && text.contains("-broken: "), "{text}");
    });
}

#[test]
fn doctor_tries_the_uplink_device() {
    with_user(|installation| {
        installation.world.host().shell("chmod 600 /dev/net/tun");
        let (checks, is_content) = findings(installation);
        assert!(!is_content);
        let [status, text, hint] = find_check(&checks, "uplink");
        assert_eq!(status, "fail");
        assert!(text.starts_with("cannot open /dev/net/tun, which "), "{text}");
        assert!(hint.contains("chmod 0666 /dev/net/tun"), "{hint}");
    });
}

/// As in a service with `ProtectKernelTunables=yes`.
#[test]
fn doctor_names_the_option_of_a_unit_that_hides_proc() {
    with_user(|installation| {
        let host = installation.world.host();
        host.shell("mount --bind /proc/sys /proc/sys; mount -o remount,bind,ro /proc/sys");
        let [status, text, hint] = find_check(&findings(installation).0, "user namespaces");
        assert_eq!(status, "fail", "{text}");
        // A container around the test has the same effect.
        let marks = ["/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"];
        let fix = match marks.iter().any(|mark| Path::new(mark).exists()) {
            true => "`procMount: Unmasked`",
            false => "ProtectKernelTunables=no",
        };
        assert!(text.contains("/proc") && hint.contains(fix), "{text}: {hint}");
    });
}

#[test]
fn doctor_ignores_runners_of_other_users() {
    with_user(|installation| {
        let world = installation.world;
        let other = world.user(UserIds::None);
        let listener = installation.program().with_file_name("Runner.Listener");
        let place = listener.display();
        world.host().shell(&format!("install -m 755 $(command -v sleep) {place}"));
        let mut command = Command::new(&listener);
        let mut child = world.host().spawn(other.switch_user(command.arg("600")));
        // A job's process can have the name, too.
        let mut nested = Command::new("unshare");
        nested.args(["--pid", "--fork", "--kill-child"]).arg(&listener).arg("601");
        let mut nested = world.host().spawn(&mut nested);
        let line = format!("{place} 601 ");
        wait_until("it runs", || world.host().processes().iter().any(|it| it.line == line));
        // Without the process id, which differs in the test host's PID namespace.
        let said_of_other =
            format!("of user {} was not checked: run doctor as that user", other.id);
        let is_of_other = |check: &Value| {
            check["name"] == "runner"
                && check["found"].as_str().unwrap().contains(&format!("of user {}", other.id))
        };
        let mut said = Vec::new();
        wait_until("the runner is seen", || {
            let (checks, _) = findings(installation);
            said = checks;
            said.iter().any(is_of_other)
        });
        for child in [&mut child, &mut nested] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let runners = said.iter().filter(|check| check["name"] == "runner").count();
        assert_eq!(runners, 1, "{said:?}");
        let of_other: Vec<_> = said.iter().filter(|check| is_of_other(check)).collect();
        assert_eq!(of_other.len(), 1, "{of_other:?}");
        assert!(of_other[0]["found"].as_str().unwrap().ends_with(&said_of_other), "{of_other:?}");
    });
}

#[test]
fn user_settings_complete_but_do_not_override_system_settings() {
    with_user(|installation| {
        let user = installation.user.unwrap();
        let system = "/etc/oci-hooks/container-hook.toml";
        let text = "[store]\npull = \"never\"\n";
        installation.world.host().shell(&format!(
            "mkdir -p /etc/oci-hooks; printf '{}' >{system}; chmod 644 {system}",
            text.replace('\n', "\\n")
        ));
        installation.write_settings("[store]\npull = \"always\"\nkeep-age = \"10d\"\n");
        let own = user.settings().display().to_string();
        let said = installation.admin(&["config"]).success();
        for expected in [
            format!("# {system} and {own} and defaults\n"),
            format!("\npull = \"never\" # {system}:2\n"),
            format!("\nkeep-age = \"10d\" # {own}:3\n"),
            format!("\nroot = \"{}\"\n", user.data().display()),
            format!("\nrun = \"{}\"\n", user.run_directory().display()),
        ] {
            assert!(said.contains(&expected), "{expected} is not in {said}");
        }
        installation.write_settings("[store]\npul = \"always\"\n");
        let said = installation.admin(&["config"]).failure();
        assert!(said.contains(&format!("{own}:2:1: unknown field")), "{said}");
        // Any user who can write the settings could act as their owner.
        let mode = format!("chmod 666 {own}");
        installation.world.host().shell(&mode);
        let said = installation.admin(&["config"]).failure();
        assert!(said.contains("the settings are not trusted"), "{said}");
    });
}

#[test]
fn script_is_written_where_it_works() {
    with_users(|installation| {
        let user = installation.user.unwrap();
        let dir = user.home.join("other");
        let dir = dir.to_str().unwrap();
        let said = installation.admin(&["install", dir]).success();
        let ids = if installation.has_ids() { "with 65537 user ids" } else { "with user 0 only" };
        assert!(said.contains(ids), "{said}");
        let show = format!("cd {dir}; stat -c %u:%g container-hook.sh; cat container-hook.sh");
        let script = installation.world.shell_as(user, &show);
        let program = installation.program().display().to_string();
        assert!(script.starts_with(&format!("{0}:{0}\n", user.id)), "{script}");
        assert!(script.ends_with(&format!("\nexec {program}\n")), "{script}");
        assert!(!script.contains("sudo"), "{script}");
        let said = installation.admin(&["install", "--sudo", &format!("{dir}2")]).failure();
        assert!(said.contains("--sudo is not supported"), "{said}");
        let said = installation.admin(&["install", "/opt/of-root"]).failure();
        assert!(said.contains("/opt/of-root: Permission denied"), "{said}");
        assert!(said.contains("hint: name a directory of this user"), "{said}");
        let said = installation.world.shell_as(user, &format!("ls {dir}2 2>&1 || true"));
        assert!(said.contains("No such file"), "{said}");
    });
}
