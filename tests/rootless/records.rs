//! The record of a job's holder is damaged, while the holder runs and after it died: no job is kept from running
//! by that, and nothing else is ended in the holder's place.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::setup::{Who, with};
use crate::support::by_user::ByUser;
use crate::support::leftovers::{Installed as _, Snapshot};
use crate::support::runtime::Runtime;

/// The holder as the kernel names it.
const HOLDER: &str = "job-holder";

/// What becomes of a record: the text that is in its place, given what was there.
type Damage = fn(&ByUser<'_>, &str) -> Option<String>;

/// What programs leave that are killed, and what a hostile one could write.
const DAMAGES: [(&str, Damage); 8] = [
    ("nothing", |_, _| None),
    ("an empty file", |_, _| Some(String::new())),
    ("half of a record", |_, text| Some(text[..text.len() / 2].to_owned())),
    ("zeros", |_, text| Some("\0".repeat(text.len()))),
    ("something else", |_, _| Some("[1, 2]".to_owned())),
    ("a record of a newer version", |_, text| Some(with_value(text, "/version", 2.into()))),
    ("that of another owner", |_, text| Some(with_value(text, "/owner", "0000".into()))),
    ("one that names another process", |installation, text| {
        let pid = installation.world.named("tail")[0];
        let stat = installation.world.host().shell(&format!("cat /proc/{pid}/stat"));
        let start: u64 = stat.split(' ').nth(21).unwrap().parse().unwrap();
        let text = with_value(text, "/process/start", start.into());
        Some(with_value(&text, "/process/pid", pid.into()))
    }),
];

fn with_value(text: &str, pointer: &str, value: Value) -> String {
    let mut record: Value = serde_json::from_str(text).unwrap();
    *record.pointer_mut(pointer).unwrap() = value;
    record.to_string()
}

/// Returns the only record; it is seen on the host.
fn record(installation: &ByUser<'_>) -> PathBuf {
    let jobs = installation.jobs_directory();
    let found = installation.host().shell(&format!("ls {}/*/holder.json", jobs.display()));
    let [record] = found.lines().collect::<Vec<_>>()[..] else { panic!("{found}") };
    record.into()
}

/// Calls a test for each kind of damage, done to the record of a job that runs.
fn with_damage(test: impl Fn(&ByUser<'_>, &mut crate::setup::UsersRunner<'_>, &PathBuf, &str)) {
    for (who, runtime) in [(Who::Ranges, Runtime::Runc), (Who::Single, Runtime::Crun)] {
        with(who, runtime, "", |installation| {
            let mut other = Command::new("tail");
            other.args(["-f", "/dev/null"]);
            let user = installation.user.unwrap();
            let mut other = installation.host().spawn(user.become_by(&mut other));
            for (name, damage) in DAMAGES {
                let before = Snapshot::take(installation);
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
                assert_eq!(installation.world.named(HOLDER), [0; 0], "{name}");
                assert_eq!(other.try_wait().unwrap(), None, "{name}: another process was killed");
            }
            other.kill().unwrap();
            other.wait().unwrap();
        });
    }
}

#[test]
fn a_job_goes_on_and_ends_whose_holders_record_is_damaged() {
    with_damage(|installation, runner, _, name| {
        let holders = installation.world.named(HOLDER);
        assert_eq!(runner.run("echo it runs").success().stdout(), "it runs\n", "{name}");
        assert_eq!(installation.world.named(HOLDER), holders, "{name}");
        let listed = installation.admin(&["ps", "--format", "json"]).success();
        assert!(listed.contains("alpine:3.20"), "{name}: {listed}");
        runner.cleanup();
    });
}

#[test]
fn the_next_job_ends_a_holder_whose_record_is_damaged() {
    with_damage(|installation, runner, _, name| {
        let holders = installation.world.named(HOLDER);
        runner.state = Value::Null;
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let new = installation.world.named(HOLDER);
        assert!(new.len() == 1 && new != holders, "{name}: {new:?} after {holders:?}");
        runner.run("true").success();
        runner.cleanup();
    });
}

#[test]
fn prune_removes_a_holders_damaged_record_once_the_holder_is_dead() {
    with_damage(|installation, runner, record, name| {
        let prune = |more: &[&str]| {
            let words = [&["prune", "--format", "json"], more].concat();
            let report: Value =
                serde_json::from_str(&installation.admin(&words).success()).unwrap();
            report["unreadable"].to_string()
        };
        let exists = || installation.host().enter(|| record.exists());
        let is_newer = name.contains("newer");
        let holders = installation.world.named(HOLDER);
        let said = prune(&[]);
        let expected = if is_newer { "newer version" } else { "cannot tell whether the job" };
        assert!(said.contains(expected), "{name}: {said}");
        let said = prune(&["--newer"]);
        assert!(said.contains(&format!("end process {}", holders[0])), "{name}: {said}");
        assert_eq!(installation.world.named(HOLDER), holders, "{name}: its job may go on");

        installation.world.kill(&holders);
        if is_newer {
            let said = prune(&[]);
            assert!(said.contains("newer version") && exists(), "{said}");
        }
        crate::support::program::wait_until("nothing of it runs", || prune(&["--newer"]) == "[]");
        assert!(!exists(), "{name}");
        runner.state = Value::Null;
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        runner.cleanup();
    });
}
