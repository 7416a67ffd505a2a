//! What users who are not root are told about their machine, and what their settings are.

use std::process::Command;

use serde_json::Value;

use crate::setup::{Who, with};
use crate::support::by_user::ByUser;
use crate::support::program::{Finished, wait_until};
use crate::support::runtime::Runtime;
use crate::support::world::Ids;

/// Calls a test for a user of each kind. What is looked at does not differ by runtime.
fn with_users(test: impl Fn(&ByUser<'_>)) {
    for who in Who::ROOTLESS {
        with(who, Runtime::ALL[0], "", &test);
    }
}

/// Returns the findings of `doctor`, and whether it is content.
fn findings(installation: &ByUser<'_>) -> (Vec<Value>, bool) {
    let Finished { status, stdout, stderr, .. } =
        installation.admin(&["doctor", "--format", "json"]);
    let mut report: Value =
        serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert_eq!(report["ok"], status.success());
    let checks = report["checks"].take().as_array().unwrap().clone();
    (checks, status.success())
}

/// Returns how a thing was found to be, and what to do.
fn found(checks: &[Value], name: &str) -> [String; 3] {
    let check = checks.iter().find(|check| check["name"] == name);
    let check = check.unwrap_or_else(|| panic!("{name} is not in {checks:#?}"));
    ["status", "found", "hint"].map(|key| check[key].as_str().unwrap_or_default().to_owned())
}

#[test]
fn what_jobs_need_is_tried_and_nothing_is_left_of_it() {
    with_users(|installation| {
        let user = installation.user.unwrap();
        let before = installation.world.shell_as(user, "find ~ | sort");
        let (checks, is_content) = findings(installation);
        assert!(is_content, "{checks:#?}");
        for name in ["user namespaces", "overlay", "nft", "uplink", "store", "run directory"] {
            let [status, found, _] = found(&checks, name);
            assert_eq!(status, "ok", "{name}: {found}");
        }
        let [status, text, hint] = found(&checks, "id ranges");
        if installation.has_ids() {
            assert_eq!((status.as_str(), hint.as_str()), ("ok", ""), "{text}");
            assert!(text.starts_with("65536 user ids and 65536 group ids of "), "{text}");
        } else {
            assert!(text.contains(" has none in /etc/subuid and /etc/subgid: "), "{text}");
            assert!(hint.starts_with("sudo usermod --add-subuids "), "{status}: {hint}");
        }
        assert_eq!(installation.world.shell_as(user, "find ~ | sort"), before);
        wait_until("the holder has ended", || {
            let processes = installation.world.host().processes();
            !processes.iter().any(|process| process.line.contains("doctor"))
        });
    });
}

#[test]
fn the_device_of_the_uplink_is_tried() {
    with_users(|installation| {
        installation.world.host().shell("chmod 600 /dev/net/tun");
        let (checks, is_content) = findings(installation);
        assert!(!is_content);
        let [status, text, hint] = found(&checks, "uplink");
        assert_eq!(status, "fail");
        assert!(text.starts_with("cannot open /dev/net/tun, which "), "{text}");
        assert!(hint.contains("chmod 0666 /dev/net/tun"), "{hint}");
    });
}

#[test]
fn runners_of_other_users_are_not_judged() {
    with_users(|installation| {
        let world = installation.world;
        let other = world.user(Ids::None);
        let listener = installation.program().with_file_name("Runner.Listener");
        let place = listener.display();
        world.host().shell(&format!("install -m 755 $(command -v sleep) {place}"));
        let mut command = Command::new(&listener);
        let mut child = world.host().spawn(other.become_by(command.arg("600")));
        // The host counts its processes by itself.
        let said_of_other =
            format!("of user {} is not looked at: run doctor as that user", other.id);
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
        child.kill().unwrap();
        child.wait().unwrap();
        let of_other: Vec<_> = said.iter().filter(|check| is_of_other(check)).collect();
        assert_eq!(of_other.len(), 1, "{of_other:?}");
        assert!(of_other[0]["found"].as_str().unwrap().ends_with(&said_of_other), "{of_other:?}");
    });
}

#[test]
fn what_the_systems_settings_say_stays_and_the_users_supply_the_rest() {
    with_users(|installation| {
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
        // Whoever else may write it has as good as the user's name.
        let mode = format!("chmod 666 {own}");
        installation.world.host().shell(&mode);
        let said = installation.admin(&["config"]).failure();
        assert!(said.contains("the settings are not trusted"), "{said}");
    });
}

#[test]
fn a_script_is_written_where_it_can_work() {
    with_users(|installation| {
        let user = installation.user.unwrap();
        let dir = user.home.join("other");
        let dir = dir.to_str().unwrap();
        let said = installation.admin(&["install", dir]).success();
        let ids = if installation.has_ids() { "with 65537 user ids" } else { "have user 0 alone" };
        assert!(said.contains(ids), "{said}");
        let script = installation.world.shell_as(user, &format!("cat {dir}/container-hook.sh"));
        let program = installation.program().display().to_string();
        assert!(script.ends_with(&format!("\nexec {program}\n")), "{script}");
        let said = installation.admin(&["install", "--sudo", &format!("{dir}2")]).failure();
        assert!(said.contains("--sudo is not supported"), "{said}");
        let said = installation.admin(&["install", "/opt/of-root"]).failure();
        assert!(said.contains("/opt/of-root: Permission denied"), "{said}");
        assert!(said.contains("hint: name a directory of this user"), "{said}");
        let said = installation.world.shell_as(user, &format!("ls {dir}2 2>&1 || true"));
        assert!(said.contains("No such file"), "{said}");
    });
}
