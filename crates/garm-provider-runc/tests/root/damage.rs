//! Instances with damaged files: each is still found, by its record or its container, and can be
//! removed, and other instances are unaffected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oci_hooks_testsupport::damage::RecordDamage;
use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::garm::provider::CONTROLLER;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::UserIds;
use serde_json::json;

use crate::setup::{ENDLESS, GarmFixture, with_each_runtime, with_runtime, with_user};

/// Another controller, whose instance must be unaffected.
const OTHER: &str = "11111111-1111-1111-1111-111111111111";

/// Damages a file; `None` removes it. A namespace that is mounted on the file is unmounted, since the test is in another
/// mount namespace.
fn damage(world: &GarmFixture<'_>, kind: Option<RecordDamage>, path: &Path) {
    match kind {
        Some(kind) => kind.inflict(path),
        None => fs::remove_file(path).unwrap(),
    }
    if let (Some((user, group)), Some(_)) = (world.installation.user(), kind) {
        world.host().shell(&format!("chown -hR {user}:{group} {}", path.display()));
    }
}

const KINDS: [Option<RecordDamage>; 6] = [
    None,
    Some(RecordDamage::Empty),
    Some(RecordDamage::CutOff),
    Some(RecordDamage::OtherVersion),
    Some(RecordDamage::Directory),
    Some(RecordDamage::Link),
];

/// Returns the files below the run directory.
fn files(world: &GarmFixture<'_>) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut directories = vec![world.installation.run_directory()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                directories.push(entry.path());
            } else if kind.is_file() {
                found.insert(entry.path());
            }
        }
    }
    found
}

/// Returns the files that are not among `others`, by their paths with `ID` instead of ids, which are the same for each
/// instance of a name.
fn own_files(world: &GarmFixture<'_>, others: &BTreeSet<PathBuf>) -> BTreeMap<String, PathBuf> {
    let run = world.installation.run_directory();
    let is_id = |word: &&str| word.len() >= 16 && word.bytes().all(|it| it.is_ascii_hexdigit());
    let key = |path: &Path| {
        let path = path.strip_prefix(&run).unwrap().display().to_string();
        let ids = path.split(['/', '-', '.']).filter(is_id);
        ids.fold(path.clone(), |key, id| key.replace(id, "ID"))
    };
    files(world).difference(others).map(|path| (key(path), path.clone())).collect()
}

/// An operation that removes the instance `one`.
type Removal = (&'static str, fn(&GarmFixture<'_>));

const REMOVALS: [Removal; 4] = [
    ("DeleteInstance", |world| world.provider().delete("one")),
    ("rm", |world| drop(world.installation.admin(&["rm", "one", "--force"]).success())),
    ("RemoveAllInstances", |world| world.provider().remove_all()),
    ("CreateInstance", |world| {
        let document = world.garm.bootstrap("one", ENDLESS, json!({}));
        if !world.provider().start_create(&document).wait().status.success() {
            // GARM deletes an instance that it cannot create, and creates it again.
            world.provider().delete("one");
            world.create("one", ENDLESS, json!({}));
        }
        assert_eq!(world.provider().get("one").status, AnswerStatus::Running);
        world.provider().delete("one");
    }),
];

/// Damages each file of an instance in each way, and removes the instance by one operation after another. `is_wanted`
/// selects cases by their number.
fn check_damage(world: &GarmFixture<'_>, is_wanted: impl Fn(usize) -> bool) {
    world.warm_up();
    let other = world.provider().of_controller(OTHER);
    other.create(&world.garm.bootstrap("other", ENDLESS, json!({})));
    world.garm.wait_for("other", RunnerStatus::Idle);
    world.wait_for_job();
    let (before, others) = (LeftoverSnapshot::take(&world.installation), files(world));
    world.bring_up("one", ENDLESS, json!({}));
    let keys: Vec<_> = own_files(world, &others).into_keys().collect();
    world.provider().delete("one");
    for name in ["instance.json", "supervisor.json", "/record.json", "/config.json", "bridge.netns"]
    {
        assert!(keys.iter().any(|key| key.ends_with(name)), "{name}: {keys:#?}");
    }
    let cases = keys.iter().flat_map(|key| KINDS.map(|kind| (key, kind)));
    #[expect(clippy::print_stderr, reason = "names the case that fails")]
    for (number, (key, kind)) in cases.enumerate().filter(|(number, _)| is_wanted(*number)) {
        // Over the files, each kind of damage meets each removal.
        let (file, kind_index) = (number / KINDS.len(), number % KINDS.len());
        let (removal, remove) = REMOVALS[(file + kind_index / 2) % REMOVALS.len()];
        let context = format!("{key}, {kind:?}, {removal}");
        eprintln!("{context}");
        world.bring_up("one", ENDLESS, json!({}));
        damage(world, kind, &own_files(world, &others)[key]);
        assert_eq!(world.provider().names(), ["one"], "{context}");
        world.provider().get("one");
        world.installation.admin(&["prune"]).success();
        assert_eq!(other.get("other").status, AnswerStatus::Running, "{context}");
        remove(world);
        assert!(world.provider().names().is_empty(), "{context}");
        before.check(&world.installation, &context);
        assert_eq!(other.get("other").status, AnswerStatus::Running, "{context}");
    }
    other.remove_all();
}

#[test]
fn an_instance_with_any_damaged_file_is_listed_and_removed() {
    // Half of the cases with each runtime.
    for (half, runtime) in TestRuntime::ALL.into_iter().enumerate() {
        with_runtime(runtime, "", |world| check_damage(world, |number| number % 2 == half));
    }
}

#[test]
fn a_rootless_instance_with_any_damaged_file_is_listed_and_removed() {
    // Each file in one or two ways.
    let is_wanted = |number| number % 5 == 0;
    with_user(TestRuntime::Crun, UserIds::Ranges, "", |world, _| check_damage(world, is_wanted));
}

#[test]
fn prune_keeps_an_ended_instance_whose_container_is_newer_and_continues() {
    with_runtime(TestRuntime::Crun, "", |world| {
        world.warm_up();
        let (before, others) = (LeftoverSnapshot::take(&world.installation), files(world));
        world.run("one", "true", json!({}));
        let all = own_files(world, &others);
        damage(world, Some(RecordDamage::OtherVersion), &all["containers/ID/record.json"]);
        world.run("two", "true", json!({}));
        let pruned = world.installation.admin(&["prune", "--ended", "0s"]);
        assert!(pruned.stderr.contains("newer version"), "{}", pruned.stderr);
        let pruned = pruned.success();
        assert!(pruned.contains("removed instance two"), "{pruned}");
        assert_eq!(world.provider().names(), ["one"]);
        world.installation.admin(&["prune", "--newer"]).success();
        let pruned = world.installation.admin(&["prune", "--ended", "0s"]).success();
        assert!(pruned.contains("removed instance one"), "{pruned}");
        before.check(&world.installation, "prune --newer");
    });
}

/// Kills a supervisor and removes its record, while processes of the job and of another user have a supervisor's
/// arguments.
fn check_imitation(world: &GarmFixture<'_>) {
    world.warm_up();
    let words = format!("-- {CONTROLLER} one ");
    let pid_of = |start: &str| {
        let mut processes = world.host().processes().into_iter();
        let found = processes.find(|it| it.line.starts_with(start) && it.line.contains(&words));
        found.map(|process| process.pid)
    };
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--clear-groups", "cat", "-", "supervise"]).args(words.split(' '));
    other.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut other = world.host().spawn(&mut other);
    program::wait_until("another user's imitation runs", || pid_of("cat ").is_some());
    let (before, others) = (LeftoverSnapshot::take(&world.installation), files(world));
    let supervisor = format!("{} ", world.installation.program().display());
    for removal in [&["rm", "--orphans", "--force"][..], &["prune"]] {
        world.bring_up(
            "one",
            &format!("exec sh -c 'sleep 1000; :' x supervise {words}"),
            json!({}),
        );
        program::wait_until("the imitation runs", || pid_of("sh ").is_some());
        let all = own_files(world, &others);
        let record = all.iter().find(|(key, _)| key.ends_with("/supervisor.json")).unwrap().1;
        fs::remove_file(record).unwrap();
        world.host().shell(&format!("kill -9 {}", pid_of(&supervisor).unwrap()));
        program::wait_until("the supervisor is dead", || pid_of(&supervisor).is_none());
        assert!(pid_of("sh ").is_some());
        world.installation.admin(removal).success();
        assert!(world.provider().names().is_empty(), "{removal:?}");
        before.check(&world.installation, &format!("{removal:?}"));
    }
    assert!(other.try_wait().unwrap().is_none(), "it was killed");
    drop(other.stdin.take());
    other.wait().unwrap();
}

#[test]
fn processes_of_jobs_and_other_users_are_not_taken_for_a_supervisor() {
    with_each_runtime("", check_imitation);
    with_user(TestRuntime::Crun, UserIds::Ranges, "", |world, _| check_imitation(world));
}

#[test]
fn a_running_instance_whose_record_is_damaged_is_kept_by_prune_and_removed_by_force() {
    with_each_runtime("", |world| {
        world.warm_up();
        let (before, others) = (LeftoverSnapshot::take(&world.installation), files(world));
        let is_record = |key: &&String| key.contains("/instances/") && key.ends_with(".json");
        for kind in KINDS {
            world.bring_up("one", ENDLESS, json!({}));
            let all = own_files(world, &others);
            for key in all.keys().filter(is_record) {
                damage(world, kind, &all[key]);
            }
            let context = format!("{kind:?}");
            let prune = world.installation.admin(&["prune", "--newer"]);
            assert_eq!(world.provider().get("one").status, AnswerStatus::Running, "{context}");
            if kind == Some(RecordDamage::OtherVersion) {
                let expected = "`garm-provider-runc rm --force one`";
                assert!(prune.stderr.contains(expected), "{}", prune.stderr);
            }
            assert!(prune.status.success(), "{}", prune.stderr);
            let kept = world.installation.admin(&["rm", "one"]);
            assert_eq!(kept.status.code(), Some(1), "{}", kept.stderr);
            assert!(kept.stderr.contains("use --force"), "{}", kept.stderr);
            world.installation.admin(&["rm", "--orphans"]).success();
            assert_eq!(world.provider().names(), ["one"], "{context}");
            world.installation.admin(&["rm", "one", "--force"]).success();
            before.check(&world.installation, &context);
        }
    });
}

#[test]
fn an_instance_without_any_record_is_found_by_its_container() {
    with_each_runtime("", |world| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let program = format!("{} ", world.installation.program().display());
        for (removal, remove) in REMOVALS {
            let created = world.bring_up("one", ENDLESS, json!({}));
            let listed = world.provider().get("one");
            let garm = world.installation.run_directory().join("garm").display().to_string();
            world.host().shell(&format!("rm -r {garm}/*/instances/one {garm}/*/locks/one"));
            let found = world.provider().list();
            assert_eq!(found.len(), 1, "{removal}: {created:?}");
            assert_eq!(found[0].status, listed.status, "{removal}");
            remove(world);
            program::wait_until("no supervisor runs", || {
                !world.host().processes().iter().any(|it| it.line.starts_with(&program))
            });
            before.check(&world.installation, removal);
        }
    });
}

#[test]
fn a_rootless_instance_whose_record_is_damaged_is_listed_and_removed() {
    with_user(TestRuntime::Crun, UserIds::Ranges, "", |world, _| {
        world.warm_up();
        let before = LeftoverSnapshot::take(&world.installation);
        let garm = world.installation.run_directory().join("garm");
        for (kind, (removal, remove)) in KINDS.iter().zip(REMOVALS.iter().cycle()) {
            let context = format!("{kind:?}, {removal}");
            world.bring_up("one", ENDLESS, json!({}));
            for controller in fs::read_dir(&garm).unwrap().flatten() {
                let record = controller.path().join("instances/one/instance.json");
                if record.exists() {
                    damage(world, *kind, &record);
                }
            }
            assert_eq!(world.provider().get("one").status, AnswerStatus::Running, "{context}");
            assert_eq!(world.provider().names(), ["one"], "{context}");
            world.installation.admin(&["prune"]).success();
            assert_eq!(world.provider().get("one").status, AnswerStatus::Running, "{context}");
            remove(world);
            assert!(world.provider().names().is_empty(), "{context}");
            before.check(&world.installation, &context);
        }
    });
}
