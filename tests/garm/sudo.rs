//! A GARM that is not root, as its own unit has it: calls go to root by the real sudo.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, World, with_each_runtime};
use crate::support::call::{Call, Ended};
use crate::support::garm::answer::Status;
use crate::support::garm::provider::Provider;
use crate::support::leftovers::Snapshot;

/// A user that each system has, and who may do nothing.
const USER: (&str, (u32, u32)) = ("daemon", (1, 1));

fn unprivileged<'a>(world: &'a World<'a>) -> Provider<'a> {
    world.host().make_etc();
    let program = world.installation.program();
    let settings = world.installation.settings();
    let line = format!(
        "{} ALL=(root) NOPASSWD: {} --config {} as-root",
        USER.0,
        program.display(),
        settings.display()
    );
    world.host().allow_sudo(&line);
    Provider { user: Some(USER.1), ..world.provider() }
}

/// Has the user call root without the program that should, with variables of their own.
fn as_root(world: &World<'_>, options: &[&str], variables: &[(&str, &str)]) -> Ended {
    let program = world.installation.program();
    let variables: serde_json::Map<_, _> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let header = json!({"variables": variables, "request_bytes": 0});
    // Root's end lives as long as the pipe is open.
    let script =
        r#"d=$(mktemp -d); mkfifo $d/f; "$@" <$d/f & exec 3>$d/f; rm -r $d; cat >&3; wait $!"#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh", "/usr/bin/sudo", "--non-interactive", "--"]).arg(program);
    command.args(options).arg("as-root").env_clear().uid(USER.1.0).gid(USER.1.1);
    Call::start(world.host(), command, format!("{header}\n").into_bytes(), None).wait()
}

#[test]
fn the_user_cannot_choose_which_settings_root_reads() {
    with_each_runtime("", |world| {
        let provider = unprivileged(world);
        let settings = world.installation.settings().display().to_string();
        let variables = |file: &'static str| {
            [("GARM_COMMAND", "ListInstances"), ("GARM_CONTROLLER_ID", "c"), ("GARM_POOL_ID", "p")]
                .into_iter()
                .chain([("GARM_PROVIDER_CONFIG_FILE", file)])
        };
        // Root's files, one that is not there, none.
        for file in ["/etc/shadow", "/etc/passwd", "/root/missing", ""] {
            let call = variables(file).map(|(n, v)| (n.to_owned(), v.to_owned()));
            let ended = provider.start_with(call, Vec::new()).wait();
            assert_eq!(ended.status.code(), Some(1), "{file}");
            let expected = match file {
                "/root/missing" => "error accessing config file",
                // Without one the usual is meant, and sudo allows another one.
                "" => "password is required",
                _ => "sudo does not let this user have root read the settings",
            };
            assert!(ended.stderr().contains(expected), "{file}: {}", ended.stderr());

            let variables: Vec<_> = variables(file).collect();
            let ended = as_root(world, &["--config", &settings], &variables);
            assert_eq!(ended.status.code(), Some(1), "{file}");
            let said = ended.stderr();
            let named =
                if file.is_empty() { "/etc/oci-hooks/garm-provider-runc.toml" } else { file };
            let expected = format!("the call names the settings {named}, expected {settings}");
            assert!(said.contains(&expected), "{file}: {said}");
            assert_eq!(ended.stdout(), "");
            for options in [&["--config", file][..], &[]] {
                let ended = as_root(world, options, &variables);
                assert!(ended.stderr().contains("password is required"), "{}", ended.stderr());
            }
        }
        let named = [
            ("GARM_COMMAND", "ListInstances"),
            ("GARM_CONTROLLER_ID", "c"),
            ("GARM_POOL_ID", "p"),
            ("GARM_PROVIDER_CONFIG_FILE", &settings),
        ];
        assert_eq!(as_root(world, &["--config", &settings], &named).success().stdout(), "[]\n");
    });
}

#[test]
fn what_is_wrong_with_the_settings_is_said_without_what_they_hold() {
    with_each_runtime("", |world| {
        let provider = unprivileged(world);
        let settings = world.installation.settings();
        let good = fs::read_to_string(&settings).unwrap();
        let bad = format!("{good}\n[proxy]\nhttps = [\"http://u:s3cret@proxy\"]\n");
        fs::write(&settings, &bad).unwrap();
        let ended = provider.start("GetInstance", "one", Vec::new()).wait();
        let line = bad.lines().count();
        let expected =
            format!("{}:{line}:9: invalid type, expected a string\n", settings.display());
        assert_eq!(ended.stderr(), expected);
    });
}

#[test]
fn instances_live_as_with_a_garm_that_is_root() {
    with_each_runtime("", |world| {
        world.warm_up();
        let provider = unprivileged(world);
        let before = Snapshot::take(&world.installation);
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        assert_eq!(provider.create(&document).status, Status::Running);
        world.installation.wait_for_log("one", "working");
        assert_eq!(provider.get("one").status, Status::Running);
        let ended = provider.start("GetInstance", "other", Vec::new()).wait();
        assert_eq!(ended.status.code(), Some(30));
        provider.delete("one");
        before.check(&world.installation, "an instance by sudo");
    });
}

#[test]
fn what_root_does_for_a_call_ends_with_it_and_holds_no_pipe() {
    with_each_runtime("", |world| {
        world.warm_up();
        let provider = unprivileged(world);
        let before = Snapshot::take(&world.installation);
        for round in 0..10 {
            let document = world.garm.bootstrap("one", ENDLESS, json!({}));
            let mut call = provider.start_create(&document);
            // No event says how far it is.
            std::thread::park_timeout(std::time::Duration::from_millis(15) * round);
            call.signal(Signal::KILL);
            // Fails if anything holds a pipe after the end.
            call.wait();
            provider.delete("one");
        }
        before.check(&world.installation, "killed calls");
    });
}

#[test]
fn sudo_is_needed_only_where_there_are_instances_and_its_refusal_is_told() {
    with_each_runtime("", |world| {
        world.host().make_etc();
        let provider = Provider { user: Some(USER.1), ..world.provider() };
        provider.start("GetVersion", "", Vec::new()).wait().success();
        let ended = provider.start("DeleteInstance", "one", Vec::new()).wait();
        assert_eq!(ended.status.code(), Some(1));
        assert!(ended.stderr().contains("sudo does not let this user"), "{}", ended.stderr());
        assert_eq!(ended.stdout(), "");
    });
}
