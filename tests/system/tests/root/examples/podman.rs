//! The same files loaded by podman.

use std::fs;

use oci_hooks_testsupport::podman::TestPodman;
use oci_hooks_testsupport::program;

use crate::examples::example::{HookExample, processor};

#[test]
fn podman_loads_all_examples_and_runs_matching_ones() {
    let hooks_dir = program::temporary_directory();
    let pids = hooks_dir.path().join("pids");
    let log = hooks_dir.path().join("log");
    for example in HookExample::read_all() {
        let name = example.name().to_owned();
        let variables = example.json["hook"]["env"].to_string();
        let example = if variables.contains("LOG_FILE=") {
            example.with_env("LOG_FILE", &log)
        } else if variables.contains("DIRECTORY=") {
            example.with_env("DIRECTORY", &pids)
        } else {
            example
        };
        let text = example.with_uninstalled_program().json.to_string();
        fs::write(hooks_dir.path().join(name), text).expect("the directory is ours");
    }
    let podman = TestPodman::new(&program::find("runc"), &[hooks_dir.path()]);

    let processor = processor();
    let pin = format!("com.example.cpu-pin={processor}");
    let options = ["--name", "one", "--annotation", &pin, "--volume", "/usr:/host:ro"];
    let script = "echo $HTTPS_PROXY; grep Cpus_allowed_list /proc/self/status";
    let output = podman.run(&options, &["/bin/sh", "-c", script]).success();
    let expected = format!("http://proxy.example.com:3128\nCpus_allowed_list:\t{processor}\n");
    assert_eq!(output, expected);
    let config = podman.config("one");
    let count = |stage: &str| config["hooks"][stage].as_array().map_or(0, Vec::len);
    // createRuntime: cpu-pin, net-sysctl, no-core-dumps; poststart: lifecycle-log, mount-audit,
    // pid-registry. Podman runs poststop hooks itself.
    assert_eq!(
        ["createRuntime", "createContainer", "startContainer", "poststart"].map(count),
        [3, 0, 0, 3]
    );
    let logged = fs::read_to_string(&log).expect("hooks have logged");
    assert!(logged.contains(" /host ro from "), "{logged}");

    let refused = podman.run(&["--rm"], &["/usr/sbin/sshd"]).failure();
    assert!(refused.contains("no remote shells"), "{refused}");
}
