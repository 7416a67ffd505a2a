//! `container-hook volumes` of ordinary users: each user's own store, with files of all subordinate ids.

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::merge;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{UserIds, UserWorld};
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, UsersRunner, with_each};

fn prepare(runner: &mut UsersRunner<'_>, volume: &str) {
    let options = json!({"createOptions": format!("-v {volume}:/volume")});
    runner.prepare(merge(runner.job_container("alpine:3.20"), options), &[]);
}

fn list_volumes(installation: &UserInstallation<'_>) -> Vec<String> {
    let said = installation.admin(&["volumes", "--format", "json"]).success();
    let volumes: Vec<Value> = serde_json::from_str(&said).unwrap();
    let name = |volume: &Value| {
        format!("{}/{}", volume["runner"].as_str().unwrap(), volume["name"].as_str().unwrap())
    };
    volumes.iter().map(name).collect()
}

#[test]
fn volumes_of_users_are_listed_and_removed_with_all_their_files() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let host = installation.host();
        let store = installation.user.unwrap().data().display().to_string();
        let run = installation.run_directory().display().to_string();
        assert_eq!(list_volumes(installation), [""; 0]);
        assert_eq!(host.shell(&format!("ls {store} {run} 2>/dev/null || true")), "", "who looks");

        let mut runner = installation.runner("runner-1");
        prepare(&mut runner, "cache");
        let script = "mkdir -p /volume/a/b; touch /volume/a/b/c; ln -s / /volume/l; chown -R 7:7 /volume/a; \
                      chmod 700 /volume/a";
        runner.run(script).success();
        assert_eq!(list_volumes(installation), ["runner-1/cache"]);
        let said = installation.admin(&["volumes", "rm", "cache"]).failure();
        assert!(said.contains("cache of runner-1, used by job alpine ("), "{said}");
        runner.run("test -e /volume/a/b/c").success();
        runner.cleanup();

        // As after a reboot.
        host.shell(&format!("rm -rf {run}"));
        assert_eq!(list_volumes(installation), ["runner-1/cache"]);
        assert_eq!(host.shell(&format!("ls {run} 2>/dev/null || true")), "", "who looks");
        installation.admin(&["volumes", "rm", "runner-1/cache"]).success();
        assert_eq!(list_volumes(installation), [""; 0]);
        assert_eq!(host.shell(&format!("ls -A {store}/jobs")), "");
        prepare(&mut runner, "cache");
        runner.run("test -z \"$(ls -A /volume)\"").success();
        runner.cleanup();
    });
}

#[test]
fn volumes_of_other_users_are_not_seen_or_removed() {
    let world = UserWorld::new();
    let _hub = HostRegistry::start(world.host(), RegistryName::Hub, None);
    let (one, other) = (world.user(UserIds::Ranges), world.user(UserIds::Ranges));
    let one = UserInstallation::new(&world, Some(&one), TestRuntime::Runc, "");
    let other = UserInstallation::new(&world, Some(&other), TestRuntime::Crun, "");
    for installation in [&one, &other] {
        let mut runner = installation.runner("runner-1");
        prepare(&mut runner, "cache");
        runner.run("echo kept >/volume/kept").success();
        runner.cleanup();
    }
    assert_eq!(list_volumes(&one), ["runner-1/cache"]);
    one.admin(&["volumes", "prune", "--all"]).success();
    assert_eq!(
        (list_volumes(&one), list_volumes(&other)),
        (vec![], vec!["runner-1/cache".to_owned()])
    );
    let mut runner = other.runner("runner-1");
    prepare(&mut runner, "cache");
    runner.run("cat /volume/kept").success();
    runner.cleanup();
}
