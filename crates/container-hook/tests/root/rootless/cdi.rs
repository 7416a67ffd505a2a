//! Devices of the Container Device Interface, for root and for ordinary users.

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::{container, merge};
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, redis, shell_step, with_each};

const SPEC: &str = "
cdiVersion: 1.1.0
kind: vendor.com/lamp
containerEdits:
  hooks:
  - {hookName: createRuntime, path: /etc/cdi/note, args: [note, SEEN], env: ['PATH=/usr/bin:/bin']}
devices:
- name: red
  containerEdits:
    env: [LAMP=red]
    deviceNodes: [{path: /dev/lamp, hostPath: /dev/fuse}]
    mounts:
    - {hostPath: /etc/cdi/driver, containerPath: /usr/lib/lamp/driver, options: [ro, nosuid, nodev, rbind, rprivate]}
- name: grouped
  containerEdits: {additionalGids: [44]}
- name: numbers
  containerEdits: {deviceNodes: [{path: /dev/numbers, type: c, major: 1, minor: 5}]}
- name: interface
  containerEdits: {netDevices: [{hostInterfaceName: eth7, name: eth0}]}
";

/// Each device sets an environment variable.
const GPUS: &str = "
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- {name: all, containerEdits: {env: [ALL=all]}}
- {name: '0', containerEdits: {env: [ZERO=0]}}
- {name: '1', containerEdits: {env: [ONE=1]}}
";

const POLICY: &str = "[policy]\ndevices = [\"vendor.com/lamp=*\", \"nvidia.com/gpu=*\"]\n";

/// Writes the specifications, a file to mount, and a hook that adds a line to a file for each container.
fn install_devices(installation: &UserInstallation<'_>) {
    let host = installation.world.host();
    let seen = host.path().join("seen").display().to_string();
    host.shell(&format!(
        "mkdir /etc/cdi; touch {seen}; chmod 666 {seen}; echo light >/etc/cdi/driver
         cat >/etc/cdi/lamp.yaml <<'END'\n{spec}\nEND
         cat >/etc/cdi/gpu.yaml <<'END'\n{GPUS}\nEND
         printf '#!/bin/sh\\ncat >/dev/null\\necho called >>$1\\n' >/etc/cdi/note; chmod 755 /etc/cdi/note",
        spec = SPEC.replace("SEEN", &seen)
    ));
}

fn with_device(container: Value, options: &str) -> Value {
    merge(container, json!({"createOptions": options}))
}

const RED: &str = "--device vendor.com/lamp=red";

/// Runs a job with a service and a container step that have the device.
fn use_device(installation: &UserInstallation<'_>) {
    install_devices(installation);
    let mut runner = installation.runner("runner-1");
    runner.prepare(with_device(runner.job_container("node:22"), RED), &[with_device(redis(), RED)]);
    let script = "echo $LAMP; cat /usr/lib/lamp/driver; test -c /dev/lamp; : <>/dev/lamp; \
                  echo x 2>/dev/null >>/usr/lib/lamp/driver || echo read-only";
    assert_eq!(runner.run(script).success().stdout(), "red\nlight\nread-only\n");
    let (ended, _) = runner.container_step(with_device(shell_step(script), RED));
    assert!(ended.success().stdout().ends_with("red\nlight\nread-only\n"));
    runner.cleanup();
    let seen = installation.world.host().path().join("seen");
    assert_eq!(std::fs::read_to_string(seen).unwrap(), "called\n".repeat(3));
}

#[test]
fn containers_get_devices_with_their_hooks() {
    with_each(&UserKind::ALL, POLICY, use_device);
}

#[test]
fn containers_in_the_hosts_user_namespace_get_devices() {
    let settings = format!("{POLICY}[security]\nuser-namespace = \"host\"\n");
    with_each(&[UserKind::Root], &settings, use_device);
}

#[test]
fn gpus_are_devices_of_nvidia() {
    with_each(&[UserKind::Root, UserKind::Single], POLICY, |installation| {
        install_devices(installation);
        let mut runner = installation.runner("runner-1");
        for (value, expected) in [("all", "=all\n"), ("2", "=01\n"), ("device=1", "=1\n")] {
            let options = format!("--gpus {value}");
            let step = with_device(shell_step("echo =$ALL$ZERO$ONE"), &options);
            let (ended, _) = runner.container_step(step);
            assert!(ended.success().stdout().ends_with(expected), "{value}");
        }
    });
}

#[test]
fn device_groups_and_numbers_work_where_the_user_has_them() {
    with_each(&UserKind::ALL, POLICY, |installation| {
        install_devices(installation);
        let mut runner = installation.runner("runner-1");
        let is_single = installation.user.is_some_and(|user| user.first.is_none());
        for (name, script, expected, reason) in [
            (
                "grouped",
                "id -G | grep -ow 44",
                (!is_single).then_some("44\n"),
                "supplementary groups",
            ),
            (
                "numbers",
                "head -c 2 /dev/numbers | wc -c",
                (!installation.is_rootless()).then_some("2\n"),
                "cannot add device /dev/numbers",
            ),
            ("interface", "true", None, "eth7 cannot be moved into a container"),
            ("blue", "true", None, "unknown device \"vendor.com/lamp=blue\""),
        ] {
            let options = format!("--device vendor.com/lamp={name}");
            let (ended, _) = runner.container_step(with_device(shell_step(script), &options));
            match expected {
                Some(expected) => {
                    let seen = ended.success().stdout();
                    assert!(seen.ends_with(expected), "{name}: {seen}");
                }
                None => {
                    let said = ended.failure();
                    assert!(said.contains(reason), "{name}: {said}");
                }
            }
        }
    });
}

#[test]
fn devices_that_others_can_change_or_no_policy_allows_are_rejected() {
    with_each(&[UserKind::Root], "", |installation| {
        let mut runner = installation.runner("runner-1");
        let args = json!({"container": with_device(container("node:22"), RED), "services": []});
        let said = runner.call("prepare_job", args).failure();
        assert!(said.contains("devices = [\"vendor.com/lamp=red\"]"), "{said}");
    });
    with_each(&UserKind::ROOT_AND_RANGES, POLICY, |installation| {
        install_devices(installation);
        let mut runner = installation.runner("runner-1");
        for file in ["/etc/cdi/lamp.yaml", "/etc/cdi/note"] {
            installation.world.host().shell(&format!("chmod o+w {file}"));
            let args = json!({"container": with_device(container("node:22"), RED), "services": []});
            let said = runner.call("prepare_job", args).failure();
            let reason = format!("{file} is writable by everyone");
            assert!(said.contains(&reason), "{said}");
            installation.world.host().shell(&format!("chmod o-w {file}"));
        }
        runner.cleanup();
        let seen = installation.world.host().path().join("seen");
        assert_eq!(std::fs::read_to_string(seen).unwrap(), "");
    });
}
