//! A GARM that is not root, as its own unit has it: calls go to root by the real sudo.

use rustix::process::Signal;
use serde_json::json;

use crate::setup::{ENDLESS, World, with_each_runtime};
use crate::support::garm::answer::Status;
use crate::support::garm::provider::Provider;
use crate::support::leftovers::Snapshot;

/// A user that each system has, and who may do nothing.
const USER: (&str, (u32, u32)) = ("daemon", (1, 1));

fn unprivileged<'a>(world: &'a World<'a>) -> Provider<'a> {
    world.host().make_etc();
    let program = world.installation.program();
    let line = format!("{} ALL=(root) NOPASSWD: {} as-root", USER.0, program.display());
    world.host().allow_sudo(&line);
    Provider { user: Some(USER.1), ..world.provider() }
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
        assert!(ended.stderr().contains("password is required"), "{}", ended.stderr());
        assert_eq!(ended.stdout(), "");
    });
}
