//! Calls open no files of other instances, as seen by `strace`, so that they do not become slower with each instance.

use std::fs;
use std::process::Command;

use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::leftovers::containers;
use oci_hooks_testsupport::program;
use serde_json::json;

use crate::setup::{ENDLESS, GarmFixture, with_each_runtime};

/// Number of other instances.
const OTHERS: usize = 3;

/// Runs a call under strace, and returns its system calls with paths, without those of programs that it executes.
fn trace(world: &GarmFixture<'_>, command: &str, stdin: &str) -> Vec<String> {
    let trace = world.host().path().join(format!("trace-{command}"));
    let mut strace = Command::new(program::find("strace"));
    strace.args(["-f", "-b", "execve", "-e", "trace=%file", "-s", "4096", "-o"]).arg(&trace);
    strace.arg(world.installation.program()).env_clear();
    strace.envs(world.provider().variables(command, "one"));
    RunningCall::start(world.host(), strace, stdin.as_bytes().to_vec(), None).wait().success();
    fs::read_to_string(&trace).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn calls_open_no_files_of_other_instances() {
    with_each_runtime("", |world| {
        world.warm_up();
        for number in 0..OTHERS {
            world.create(&format!("other-{number}"), ENDLESS, json!({}));
        }
        let others = containers(&world.installation);
        assert_eq!(others.len(), OTHERS);
        let document = world.garm.bootstrap("one", ENDLESS, json!({})).to_string();
        for (command, stdin) in [("CreateInstance", &*document), ("DeleteInstance", "")] {
            let calls = trace(world, command, stdin);
            assert!(calls.iter().any(|call| call.contains("/instances/one")), "{calls:#?}");
            // A new network avoids the addresses of all others.
            let is_allowed = |call: &str| command == "CreateInstance" && call.contains("/network/");
            let is_of_other = |call: &&String| {
                !is_allowed(call) && others.iter().any(|id| call.contains(&id[..16]))
            };
            let found: Vec<_> = calls.iter().filter(is_of_other).collect();
            assert!(found.is_empty(), "{command}: {found:#?}");
            let processes = calls.iter().filter(|call| call.contains("/cmdline")).count();
            assert_eq!(processes, 0, "{command} lists all processes");
        }
        world.provider().remove_all();
    });
}
