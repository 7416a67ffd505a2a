//! Steps run in minimal root file systems.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use oci_hooks_testsupport::program::{DEADLINE, wait};
use rustix::process::{Pid, Signal, kill_process};

use crate::static_program::setup::{ProgramRoot, RootContent};

/// Root, and a user without an entry in `/etc/passwd`.
const USERS: [&str; 2] = ["0:0", "1000:1000"];

#[test]
fn steps_run_in_a_root_with_only_the_program() {
    let root = ProgramRoot::new(RootContent::Nothing);
    root.write("step.yml", "{}\n---\nexec: {command: [/step-runner, --version]}\n");
    for user in USERS {
        let ran = root.host.run(&mut root.command(user, &[], &["run", "/step.yml"]));
        assert!(ran.success().contains("step-runner 0."), "{user}");
    }
}

#[test]
fn scripts_run_in_the_busybox_shell() {
    let root = ProgramRoot::new(RootContent::Busybox);
    root.write("step.yml", "{}\n---\nrun: [{name: a, script: 'echo \"grün $0 $(id -u)\"'}]\n");
    for user in USERS {
        // With and without locales that do not exist.
        for variables in [&[][..], &[("LC_ALL", "de_DE.UTF-8"), ("LANG", "xx")]] {
            let mut command = root.command(user, variables, &["run", "/step.yml"]);
            let printed = root.host.run(&mut command).success();
            let id = user.split(':').next().unwrap();
            assert!(printed.contains("grün "), "{user}: {printed}");
            assert!(printed.lines().any(|line| line.ends_with(&format!(" {id}"))), "{printed}");
        }
    }
}

#[test]
fn servers_start_and_end() {
    let root = ProgramRoot::new(RootContent::Nothing);
    for user in USERS {
        // One path for each user, because another user's lock file would be rejected.
        let socket = format!("/tmp/{user}.sock");
        let mut command = root.command(user, &[], &["serve", "--socket", &socket]);
        let mut server = root.host.spawn(command.stderr(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains(&socket), "{user}: {line}");
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert!(wait(server, DEADLINE).is_some(), "{user}");
    }
}
