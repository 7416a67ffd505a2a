//! `container-hook volumes` of users who are not root: their own store, files of any of their ids.

use serde_json::{Value, json};

use crate::setup::{UsersRunner, Who, with_each};
use crate::support::by_user::ByUser;
use crate::support::github_runner::merge;
use crate::support::hub::{Name, Registry};
use crate::support::leftovers::Installed as _;
use crate::support::runtime::Runtime;
use crate::support::world::{Ids, World};

fn prepare(runner: &mut UsersRunner<'_>, volume: &str) {
    let options = json!({"createOptions": format!("-v {volume}:/volume")});
    runner.prepare(merge(runner.job_container("alpine:3.20"), options), &[]);
}

fn listed(installation: &ByUser<'_>) -> Vec<String> {
    let said = installation.admin(&["volumes", "--format", "json"]).success();
    let volumes: Vec<Value> = serde_json::from_str(&said).unwrap();
    let name = |volume: &Value| {
        format!("{}/{}", volume["runner"].as_str().unwrap(), volume["name"].as_str().unwrap())
    };
    volumes.iter().map(name).collect()
}

#[test]
fn volumes_of_users_are_listed_and_removed_with_files_of_all_their_ids() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let host = installation.host();
        let store = installation.user.unwrap().data().display().to_string();
        let run = installation.run_directory().display().to_string();
        assert_eq!(listed(installation), [""; 0]);
        assert_eq!(host.shell(&format!("ls {store} {run} 2>/dev/null || true")), "", "who looks");

        let mut runner = installation.runner("runner-1");
        prepare(&mut runner, "cache");
        let owned = if installation.has_ids() { "chown -R 7:7 /volume/a;" } else { "" };
        let script = format!(
            "mkdir -p /volume/a/b; touch /volume/a/b/c; ln -s / /volume/l; {owned} chmod 700 /volume/a"
        );
        runner.run(&script).success();
        assert_eq!(listed(installation), ["runner-1/cache"]);
        let said = installation.admin(&["volumes", "rm", "cache"]).failure();
        assert!(said.contains("cache of runner-1 by job alpine ("), "{said}");
        runner.run("test -e /volume/a/b/c").success();
        runner.cleanup();

        // As after a boot.
        host.shell(&format!("rm -rf {run}"));
        assert_eq!(listed(installation), ["runner-1/cache"]);
        assert_eq!(host.shell(&format!("ls {run} 2>/dev/null || true")), "", "who looks");
        installation.admin(&["volumes", "rm", "runner-1/cache"]).success();
        assert_eq!(listed(installation), [""; 0]);
        assert_eq!(host.shell(&format!("ls -A {store}/jobs")), "");
        prepare(&mut runner, "cache");
        runner.run("test -z \"$(ls -A /volume)\"").success();
        runner.cleanup();
    });
}

#[test]
fn volumes_of_others_are_neither_seen_nor_removed() {
    let world = World::new();
    let _hub = Registry::start(world.host(), Name::Hub, None);
    let (one, other) = (world.user(Ids::Ranges), world.user(Ids::Ranges));
    let one = ByUser::new(&world, Some(&one), Runtime::Runc, "");
    let other = ByUser::new(&world, Some(&other), Runtime::Crun, "");
    for installation in [&one, &other] {
        let mut runner = installation.runner("runner-1");
        prepare(&mut runner, "cache");
        runner.run("echo kept >/volume/kept").success();
        runner.cleanup();
    }
    assert_eq!(listed(&one), ["runner-1/cache"]);
    one.admin(&["volumes", "prune", "--all"]).success();
    assert_eq!((listed(&one), listed(&other)), (vec![], vec!["runner-1/cache".to_owned()]));
    let mut runner = other.runner("runner-1");
    prepare(&mut runner, "cache");
    runner.run("cat /volume/kept").success();
    runner.cleanup();
}
