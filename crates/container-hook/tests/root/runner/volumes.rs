//! `container-hook volumes`: root's store, with the volumes of each runner.

use std::collections::BTreeSet;

use oci_hooks_host::userns::PrivateIds;
use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use oci_hooks_testsupport::installation::HookInstallation;
use serde_json::{Value, json};

use crate::runner::setup::{runner, shell_step, with_both_runtimes, with_each_runtime};

fn with_volumes(runner: &GithubRunner<'_>, options: &str) -> Value {
    merge(runner.job_container("node:22"), json!({"createOptions": options}))
}

fn job(runner: &mut GithubRunner<'_>, options: &str, script: &str) {
    runner.prepare(with_volumes(runner, options), &[]);
    runner.run(script).success();
    runner.cleanup();
}

fn list_volumes(installation: &HookInstallation<'_>) -> Vec<Value> {
    let said = installation.admin(&["volumes", "--format", "json"]).success();
    serde_json::from_str(&said).unwrap()
}

/// Returns the runners and names of all volumes.
fn list_names(installation: &HookInstallation<'_>) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    list_volumes(installation)
        .iter()
        .map(|one| (text(&one["runner"]), text(&one["name"])))
        .collect()
}

fn pair(runner: &str, name: &str) -> (String, String) {
    (runner.to_owned(), name.to_owned())
}

fn list_leftovers(installation: &HookInstallation<'_>) -> String {
    let store = installation.store();
    installation.host().shell(&format!("ls -A {}/volumes", store.display()))
}

#[test]
fn volumes_are_listed_with_their_runner_and_removed_by_name() {
    with_each_runtime("", |installation| {
        assert!(list_volumes(installation).is_empty());
        let mut first = runner(installation, "runner-1");
        let mut second = runner(installation, "runner-2");
        job(
            &mut first,
            "-v cache:/cache -v only:/only",
            "head -c 100000 /dev/urandom >/cache/file",
        );
        job(&mut second, "-v cache:/cache", "echo kept >/cache/kept");

        let all = [pair("runner-1", "cache"), pair("runner-1", "only"), pair("runner-2", "cache")];
        assert_eq!(BTreeSet::from_iter(list_names(installation)), BTreeSet::from(all));
        let listed = list_volumes(installation);
        let cache = listed.iter().find(|one| one["size_bytes"].as_u64().unwrap() > 90_000).unwrap();
        let keys: Vec<_> = cache.as_object().unwrap().keys().cloned().collect();
        let expected =
            ["containers", "name", "owner", "path", "runner", "size_bytes", "used", "work"];
        assert_eq!(keys, expected);
        assert_eq!(cache["work"], first.work().display().to_string());
        let table = installation.admin(&["volumes"]).success();
        assert!(table.starts_with("VOLUME  RUNNER    SIZE"), "{table}");

        let fails =
            |words: &[&str]| installation.admin(&[&["volumes", "rm"], words].concat()).failure();
        let said = fails(&["cache"]);
        assert!(said.contains("several runners have a volume cache: "), "{said}");
        let said = fails(&["only", "nothing", "runner-3/cache"]);
        assert!(said.contains("unknown volume nothing, runner-3/cache\n"), "{said}");
        assert_eq!(list_volumes(installation).len(), 3, "all names are looked at first");

        installation.admin(&["volumes", "rm", "only", "runner-1/cache"]).success();
        assert_eq!(list_names(installation), [pair("runner-2", "cache")]);
        let owner = &list_volumes(installation)[0]["owner"];
        let owner = owner.as_str().unwrap();
        assert_eq!(list_leftovers(installation), format!("{owner}\n{owner}.json\n"));
        // The next job gets a new volume.
        job(&mut first, "-v cache:/cache", "test -z \"$(ls -A /cache)\"");
        let id = format!("{}/cache", &owner[..8]);
        installation.admin(&["volumes", "rm", &id]).success();
        installation.admin(&["volumes", "prune", "--all"]).success();
        assert_eq!(list_leftovers(installation), "");
    });
}

#[test]
fn volume_in_use_is_not_removed_and_its_container_is_named() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        job(&mut runner, "-v other:/other", "true");
        runner.prepare(with_volumes(&runner, "-v cache:/cache"), &[]);
        let said = installation.admin(&["volumes", "rm", "cache", "other"]).failure();
        let used = "error: volumes in use are not removed: cache of runner-1, used by job node (";
        assert!(said.contains(used) && said.contains("hint: wait until"), "{said}");
        assert_eq!(
            list_names(installation),
            [pair("runner-1", "cache")],
            "the other one is removed"
        );
        installation.admin(&["volumes", "prune", "--all"]).success();
        runner.run("test -d /cache && echo kept >/cache/kept").success();
        assert_eq!(list_volumes(installation)[0]["containers"][0]["role"], "job");
        runner.cleanup();
        installation.admin(&["volumes", "prune", "--age", "1h"]).success();
        assert_eq!(list_volumes(installation).len(), 1);
        // Leftover of a killed removal, by a runner without jobs.
        let half = installation.store().join("volumes/00112233445566778899aabbccddeeff/.half.new");
        installation.host().shell(&format!("mkdir -p {0}; touch {0}/file", half.display()));
        // The age counts from the last use by a container: the modification time of the list of users.
        let store = installation.store();
        installation
            .host()
            .shell(&format!("touch -d '2 hours ago' {}/volumes/*/.cache.users", store.display()));
        let said = installation.admin(&["volumes", "prune", "--age", "1h"]).success();
        assert!(said.starts_with("removed cache of runner-1 ("), "{said}");
        assert_eq!(list_leftovers(installation), "");
    });
}

#[test]
fn volume_replaced_by_a_job_is_not_followed() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let outside = installation.host().path().join("outside");
        installation.host().shell(&format!("mkdir {0}; echo kept >{0}/file", outside.display()));
        let script = format!(
            "cd /cache; ln -s {0} link; ln -s {0}/file file; ln -s / root; mkfifo fifo; chmod 0 . \
             && i=0; while [ $i -lt 1500 ]; do mkdir -p d-------------------------------------------; \
             cd d-------------------------------------------; i=$((i + 1)); done; touch end",
            outside.display()
        );
        runner.prepare(with_volumes(&runner, "-v cache:/cache"), &[]);
        runner.container_step(merge(
            shell_step(&script.replace('\'', "")),
            json!({"createOptions": "-v cache:/cache"}),
        ));
        runner.cleanup();
        installation.admin(&["volumes"]).success();
        installation.admin(&["volumes", "rm", "cache"]).success();
        assert_eq!(list_leftovers(installation), "");
        let kept = installation.host().shell(&format!("cat {}/file", outside.display()));
        assert_eq!(kept, "kept\n");
    });
}

#[test]
fn limited_volumes_are_removed_with_their_file_system() {
    with_each_runtime("[limits]\nvolumes = \"32MiB\"\n", |installation| {
        let mut first = runner(installation, "runner-1");
        job(&mut first, "-v one:/one -v two:/two", "head -c 3000000 /dev/zero >/one/zeros");
        let mounts = installation.host().mounts();
        assert_eq!(list_names(installation), [pair("runner-1", "one"), pair("runner-1", "two")]);
        assert!(list_volumes(installation)[0]["size_bytes"].as_u64().unwrap() >= 3_000_000);
        installation.admin(&["volumes", "rm", "one"]).success();
        assert_eq!(installation.host().mounts(), mounts, "nothing stays mounted");
        job(&mut first, "-v one:/one -v two:/two", "test ! -e /one/zeros");
        // Also while a job of the runner uses other volumes.
        first.prepare(with_volumes(&first, "-v two:/two"), &[]);
        installation.admin(&["volumes", "rm", "one"]).success();
        assert_eq!(list_names(installation), [pair("runner-1", "two")]);
        first.run("echo kept >/two/kept").success();
        first.cleanup();
        installation.admin(&["volumes", "rm", "two"]).success();
        assert_eq!(list_leftovers(installation), "");
        assert_eq!(installation.host().mounts(), mounts);
    });
}

/// A set-user-ID file left by a job grants no permissions of a host user. Containers with and without a user
/// namespace see the same owners.
#[test]
fn files_of_volumes_belong_to_no_user_of_the_host() {
    let settings = "[policy]\nprivileged = true\n";
    with_both_runtimes(settings, |installation| {
        let mut runner = runner(installation, "runner-1");
        let leave = "cp /bin/busybox /cache/own; cp /bin/busybox /cache/of-root; \
                     chown 1000:1001 /cache/own; chmod 6755 /cache/own /cache/of-root";
        let seen = "test \"$(stat -c %u:%g:%a /cache /cache/*)\" = \"$(printf \
                    '0:0:755\\n0:0:6755\\n1000:1001:6755')\" && touch /cache/of-root /cache/own";
        job(&mut runner, "-v cache:/cache", leave);
        job(&mut runner, "-v cache:/cache", seen);
        job(&mut runner, "-v cache:/cache --privileged", seen);
        let volume = list_volumes(installation)[0]["path"].as_str().unwrap().to_owned();
        let disk = installation.host().shell(&format!("cd {volume}; stat -c %u:%g . *"));
        let first = PrivateIds::STORED.first;
        let own = format!("{}:{}\n", first + 1000, first + 1001);
        assert_eq!(disk, format!("{first}:{first}\n{first}:{first}\n{own}"));
        installation.admin(&["volumes", "prune", "--all"]).success();
    });
}
