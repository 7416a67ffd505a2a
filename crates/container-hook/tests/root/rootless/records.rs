//! Corrupt records of pause processes, while the pause process runs and after its death: jobs still run, and
//! no other process is killed instead.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::Value;

use crate::rootless::setup::{UserKind, with};

/// Process name (`comm`) of the pause process.
const PAUSE_PROCESS: &str = "pause-process";

/// A function that returns the damaged text of a record, or nothing to remove the record.
type RecordEdit = fn(&UserInstallation<'_>, &str) -> Option<String>;

/// Damage as left by killed programs, or as written by a hostile program.
const DAMAGES: [(&str, RecordEdit); 10] = [
    ("nothing", |_, _| None),
    ("nothing, without a lock", |installation, _| {
        remove_lock(installation);
        None
    }),
    ("an empty file", |_, _| Some(String::new())),
    ("half of a record", |_, text| Some(text[..text.len() / 2].to_owned())),
    ("zeros", |_, text| Some("\0".repeat(text.len()))),
    ("something else", |_, _| Some("[1, 2]".to_owned())),
    ("a record of a newer version", |_, text| Some(with_value(text, "/version", 2.into()))),
    ("that of another owner", |_, text| Some(with_value(text, "/owner", "0000".into()))),
    ("one that names another process", |installation, text| {
        Some(with_other_process(installation, text))
    }),
    ("one that names another process, without a lock", |installation, text| {
        remove_lock(installation);
        Some(with_other_process(installation, text))
    }),
];

/// Removes the file that the pause process locks.
fn remove_lock(installation: &UserInstallation<'_>) {
    let lock = record(installation).with_file_name("pause.lock");
    installation.host().enter(|| fs::remove_file(lock)).unwrap();
}

fn with_other_process(installation: &UserInstallation<'_>, text: &str) -> String {
    let pid = installation.world.find_processes("tail")[0];
    let stat = installation.world.host().shell(&format!("cat /proc/{pid}/stat"));
    let start: u64 = stat.split(' ').nth(21).unwrap().parse().unwrap();
    let text = with_value(text, "/process/start", start.into());
    with_value(&text, "/process/pid", pid.into())
}

fn with_value(text: &str, pointer: &str, value: Value) -> String {
    let mut record: Value = serde_json::from_str(text).unwrap();
    *record.pointer_mut(pointer).unwrap() = value;
    record.to_string()
}

/// Returns the path of the only record, as seen on the host.
fn record(installation: &UserInstallation<'_>) -> PathBuf {
    let jobs = installation.jobs_directory();
    let found = installation.host().shell(&format!("ls {}/*/pause.json", jobs.display()));
    let [record] = found.lines().collect::<Vec<_>>()[..] else { panic!("{found}") };
    record.into()
}

/// Calls a test for each kind of damage to the record of a running job.
fn with_damage(
    test: impl Fn(&UserInstallation<'_>, &mut crate::rootless::setup::UsersRunner<'_>, &PathBuf, &str),
) {
    with(UserKind::Ranges, TestRuntime::Crun, "", |installation| {
        let mut other = Command::new("tail");
        other.args(["-f", "/dev/null"]);
        let user = installation.user.unwrap();
        let mut other = installation.host().spawn(user.switch_user(&mut other));
        program::wait_until("another process runs", || {
            !installation.world.find_processes("tail").is_empty()
        });
        for (name, damage) in DAMAGES {
            let before = LeftoverSnapshot::take(installation);
            let mut runner = installation.runner("runner-1");
            runner.prepare(runner.job_container("alpine:3.20"), &[]);
            let record = record(installation);
            let text = installation.host().enter(|| fs::read_to_string(&record)).unwrap();
            let damaged = damage(installation, &text);
            let done = installation.host().enter(|| match damaged {
                Some(text) => fs::write(&record, text),
                None => fs::remove_file(&record),
            });
            done.unwrap();
            test(installation, &mut runner, &record, name);
            before.check_live(installation, name);
            assert_eq!(installation.world.find_processes(PAUSE_PROCESS), [0; 0], "{name}");
            assert_eq!(other.try_wait().unwrap(), None, "{name}: another process was killed");
        }
        other.kill().unwrap();
        other.wait().unwrap();
    });
}

#[test]
fn job_continues_with_a_corrupt_pause_process_record() {
    with_damage(|installation, runner, _, name| {
        let pause_processes = installation.world.find_processes(PAUSE_PROCESS);
        assert_eq!(runner.run("echo it runs").success().stdout(), "it runs\n", "{name}");
        assert_eq!(installation.world.find_processes(PAUSE_PROCESS), pause_processes, "{name}");
        let listed = installation.admin(&["ps", "--format", "json"]).success();
        assert!(listed.contains("alpine:3.20"), "{name}: {listed}");
        runner.cleanup();
    });
}

#[test]
fn next_job_ends_a_pause_process_with_a_corrupt_record() {
    with_damage(|installation, runner, _, name| {
        let pause_processes = installation.world.find_processes(PAUSE_PROCESS);
        runner.state = Value::Null;
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let new = installation.world.find_processes(PAUSE_PROCESS);
        assert!(
            new.len() == 1 && new != pause_processes,
            "{name}: {new:?} after {pause_processes:?}"
        );
        runner.run("true").success();
        runner.cleanup();
    });
}

#[test]
fn prune_removes_a_corrupt_record_once_its_pause_process_is_dead() {
    with_damage(|installation, runner, record, name| {
        let prune = |more: &[&str]| {
            let words = [&["prune", "--format", "json"], more].concat();
            let report: Value =
                serde_json::from_str(&installation.admin(&words).success()).unwrap();
            report["unreadable"].to_string()
        };
        let exists = || installation.host().enter(|| record.exists());
        let is_newer = name.contains("newer");
        let pause_processes = installation.world.find_processes(PAUSE_PROCESS);
        let said = prune(&[]);
        let expected = if is_newer { "newer version" } else { "whether the job of" };
        assert!(said.contains(expected), "{name}: {said}");
        let said = prune(&["--newer"]);
        assert!(said.contains(&format!("kill process {}", pause_processes[0])), "{name}: {said}");
        assert_eq!(
            installation.world.find_processes(PAUSE_PROCESS),
            pause_processes,
            "{name}: its job may go on"
        );

        installation.world.kill(&pause_processes);
        if is_newer {
            let said = prune(&[]);
            assert!(said.contains("newer version") && exists(), "{said}");
        }
        program::wait_until("nothing of it runs", || prune(&["--newer"]) == "[]");
        assert!(!exists(), "{name}");
        runner.state = Value::Null;
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        runner.cleanup();
    });
}
