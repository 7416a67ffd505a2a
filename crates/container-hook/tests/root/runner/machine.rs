//! Checks of the test machinery. Without them, failures in other tests would be hard to interpret.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, HubLogin, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::{externals, program};

use crate::runner::setup::runner;

#[test]
fn test_registries_have_their_real_names() {
    let host = TestHost::new();
    let _hub = HostRegistry::start(&host, RegistryName::Hub, None);
    let _ghcr =
        HostRegistry::start(&host, RegistryName::Ghcr, Some(HubLogin("octocat", "a \"b\" $c")));
    let inspect =
        |words: &[&str]| host.run(Command::new(program::find("skopeo")).arg("inspect").args(words));
    assert!(inspect(&["docker://node:22"]).success().contains("IMAGE=debian"));
    let image = "docker://ghcr.io/octo/ci-image:main";
    assert!(inspect(&[image]).failure().contains("authentication required"));
    inspect(&["--creds", "octocat:a \"b\" $c", image]).success();
}

#[test]
fn test_host_shows_only_its_own_resources() {
    let host = TestHost::new();
    assert_eq!(host.processes(), []);
    let mut child = host.spawn(Command::new("sleep").arg("1000"));
    let processes = host.processes();
    assert_eq!(processes.len(), 1, "{processes:?}");
    assert_eq!(processes[0].line, "sleep 1000 ");
    host.shell("unshare --pid --fork --kill-child sleep 2000 &");
    let is_seen = || host.processes().iter().any(|process| process.line == "sleep 2000 ");
    program::wait_until("a process of another namespace is seen", is_seen);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(host.shell("ip -o link").lines().count(), 1);
}

#[test]
fn both_kinds_of_node_run_on_this_machine() {
    let externals = externals::shared();
    assert!(externals.join("node20_alpine/bin/node").is_file());
    let mut node = Command::new(externals.join("node20/bin/node"));
    assert_eq!(program::run(node.args(["-p", "1+1"])).success(), "2\n");
}

#[test]
fn misbehaving_hook_is_detected_by_the_tests() {
    let host = TestHost::new();
    let installation = HookInstallation::new(&host, TestRuntime::Runc, "");
    let runner = runner(&installation, "runner-1");
    let hook = |script: &str| fs::write(installation.entry(), script).unwrap();
    let fails = |check: &dyn Fn()| catch_unwind(AssertUnwindSafe(check)).is_err();
    let before = LeftoverSnapshot::take(&installation);

    hook("setsid sleep 1000 & exit 0");
    assert!(fails(&|| drop(runner.start_run("").wait().success())), "it holds the pipes");
    drop(installation.host().shell("kill $(pidof sleep)"));
    before.check(&installation, "nothing is left");

    hook("ip link add left type bridge; setsid sleep 1000 <&- >&- 2>&- & exit 0");
    runner.start_run("").wait().success();
    let found = before.faults(&installation).0.join("\n");
    for fault in ["a link is left: \"left:", "a process is left: \"sleep 1000"] {
        assert!(found.contains(fault), "{found}");
    }

    // A shell that waits for a foreground program may miss the signal.
    hook("trap 'echo told; exit 3' INT; echo started; while :; do sleep 0.1 & wait; done");
    let mut call = runner.start_run("");
    call.wait_for_line("started");
    assert_eq!(call.interrupt().code(3).stdout(), "started\ntold\n");
}
