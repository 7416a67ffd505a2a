//! Commands as processes: their exit, and their leftover processes.

use std::fs;
use std::path::Path;
use std::time::Duration;

use oci_hooks_testsupport::program::wait_until;
use step_runner::engine::{CancelHandle, CancelReason, RecordedProcesses};
use step_runner::wire::proto::step_result::Status;

use crate::engine::play::{FinishedJob, JobPlay, SHORT_GRACE};

fn script(text: &str) -> (tempfile::TempDir, JobPlay) {
    let dir = tempfile::tempdir().unwrap();
    let steps = format!("{{}}\n---\nrun:\n- name: a\n  script: {}\n", serde_json::json!(text));
    let play = JobPlay::new(dir.path(), &steps);
    (dir, play)
}

/// Returns whether a process exists and is no zombie.
fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn exit_code_is_that_of_the_command() {
    for (text, code, message) in [
        ("exit 3", 3, "step \"a\": exec: exit status 3"),
        ("exit 255", 255, "step \"a\": exec: exit status 255"),
        ("kill -9 $$", 137, "step \"a\": exec: signal: killed"),
        ("kill -SEGV $$", 139, "step \"a\": exec: signal: segmentation fault"),
    ] {
        let FinishedJob { outcome, .. } = script(text).1.run();
        assert_eq!((outcome.exit_code, outcome.message.as_str()), (code, message));
    }
}

#[test]
fn background_process_holding_the_pipe_does_not_delay_its_step() {
    let (dir, play) = script("sleep 1000 & echo $! > pid; echo started");
    let played = play.run();
    assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    assert!(played.text.ends_with("started\n"), "{}", played.text);
    // The background process ends with the job.
    let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
    wait_until("the end of the background process", || !is_alive(&pid));
}

#[test]
fn background_output_is_read_during_later_steps() {
    let dir = tempfile::tempdir().unwrap();
    let steps = r#"{}
---
run:
- name: server
  script: mkfifo go gone; (read x < go; echo from behind; echo > gone) & echo started
- name: client
  script: echo > go; read x < gone; echo done
"#;
    let played = JobPlay::new(dir.path(), steps).run();
    assert_eq!(played.outcome.status, Status::Success, "{}", played.outcome.message);
    for line in ["started\n", "from behind\n", "done\n"] {
        assert!(played.text.contains(line), "{}", played.text);
    }
}

#[test]
fn background_process_ignoring_sigterm_is_killed_after_the_grace_period() {
    let (dir, mut play) = script(
        "(trap '' TERM; echo > up; while :; do sleep 0.05; done) & echo $! > pid; read x < up",
    );
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("up"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    play.grace = SHORT_GRACE;
    play.run();
    let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
    wait_until("the end of the background process", || !is_alive(&pid));
}

#[test]
fn cancelled_job_gets_sigterm_and_reports_the_cancellation() {
    let (_dir, play) =
        script("trap 'echo cleaned; exit 7' TERM; echo ready; while :; do sleep 0.05; done");
    let cancel = CancelHandle::new().unwrap();
    let played = play.run_until(&cancel, |text| {
        if text.ends_with("ready\n") {
            cancel.cancel(CancelReason::Requested);
        }
    });
    assert_eq!(played.outcome.status, Status::Cancelled);
    assert_eq!(played.outcome.exit_code, 7);
    assert!(played.text.ends_with("cleaned\n"), "{}", played.text);
}

#[test]
fn command_ignoring_sigterm_is_killed_with_its_children() {
    let (dir, mut play) = script(
        "trap '' TERM; sleep 1000 & echo $! > pid; echo ready; while :; do sleep 0.05; done",
    );
    play.grace = SHORT_GRACE;
    let cancel = CancelHandle::new().unwrap();
    let played = play.run_until(&cancel, |text| {
        if text.ends_with("ready\n") {
            cancel.cancel(CancelReason::Requested);
        }
    });
    assert_eq!(played.outcome.message, "step \"a\": exec: signal: killed");
    let pid = fs::read_to_string(dir.path().join("pid")).unwrap();
    wait_until("the end of the child", || !is_alive(&pid));
}

#[test]
fn job_exceeding_its_time_limit_is_stopped() {
    let (dir, mut play) = script("touch up; sleep 1000");
    play.timeout = Some(Duration::from_secs(2));
    let played = play.run();
    assert_eq!(played.outcome.status, Status::Failure);
    let message = &played.outcome.message;
    let reason = message.strip_prefix("job exceeded its maximum run time: ");
    // On a busy machine, the time may be over before the step starts.
    let reasons = ["step \"a\": exec: signal: terminated", "the job was cancelled"];
    let reasons = if dir.path().join("up").exists() { &reasons[..1] } else { &reasons[..] };
    assert!(reason.is_some_and(|reason| reasons.contains(&reason)), "{message}");
}

#[test]
fn endless_background_output_does_not_delay_its_step() {
    let (_dir, play) = script("yes & echo started");
    assert_eq!(play.run().outcome.status, Status::Success);
}

#[test]
fn command_has_no_input_and_only_its_own_environment() {
    let (_dir, play) = script("cat; env | grep -vE '^(PWD|SHLVL|_|STEP_RUNNER_JOB)=' | sort");
    let played = play.run();
    assert_eq!(played.text, "Running step name=a\nPATH=/usr/bin:/bin\n");

    // `main` does this first.
    oci_hooks_files::spawn::close_inherited_on_exec().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let steps = "{}\n---\nexec: {command: [ls, /proc/self/fd]}\n";
    // The fourth descriptor is the listed directory.
    assert_eq!(JobPlay::new(dir.path(), steps).run().text, "Running step name=ls\n0\n1\n2\n3\n");
}

#[test]
fn program_is_looked_up_in_the_path_of_the_step() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("bin/own");
    fs::create_dir(dir.path().join("bin")).unwrap();
    fs::write(&program, "#!/bin/sh\necho mine\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let steps = "{}\n---\nenv: {PATH: '${{work_dir}}/bin:${{env.PATH}}'}\nexec: {command: [own]}\n";
    let played = JobPlay::new(dir.path(), steps).run();
    assert!(played.text.ends_with("mine\n"), "{} {}", played.text, played.outcome.message);
}

#[test]
fn working_directory_is_not_searched_without_a_path() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("own");
    fs::write(&program, "#!/bin/sh\necho mine\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let mut play = JobPlay::new(dir.path(), "{}\n---\nexec: {command: [own]}\n");
    for path in [None, Some(""), Some(":/nowhere")] {
        play.env.remove("PATH");
        play.env.extend(path.map(|path| ("PATH".to_owned(), path.to_owned())));
        let message = "exec: exec: \"own\": executable file not found in $PATH";
        assert_eq!(play.run().outcome.message, message);
    }
}

#[test]
fn job_of_a_dead_server_is_killed_by_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let mut leader = std::process::Command::new("sleep");
    std::os::unix::process::CommandExt::process_group(&mut leader, 0);
    let mut leader = leader.arg("1000").spawn().unwrap();
    let pid = leader.id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let start = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap().to_owned();

    // With another start time the process id denotes another process.
    let record = |start: &str| {
        fs::write(dir.path().join("groups"), format!("{pid} {start}\nnonsense\n")).unwrap();
    };
    let kill = || {
        let mut processes = RecordedProcesses::default();
        // A record that is missing, and a directory in place of one.
        let other = dir.path().join("other");
        fs::create_dir_all(other.join("groups")).unwrap();
        for path in [Path::new("/nowhere"), &other, dir.path()] {
            processes.add(path);
        }
        processes.kill();
    };
    record("1");
    kill();
    assert!(is_alive(&pid.to_string()));

    record(&start);
    // A job may have enlarged the file.
    let file = fs::File::options().write(true).open(dir.path().join("groups")).unwrap();
    file.set_len(1 << 40).unwrap();
    kill();
    leader.wait().unwrap();
}
