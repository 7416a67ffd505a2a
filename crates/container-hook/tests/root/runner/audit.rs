//! The audit log of jobs.

use oci_hooks_testsupport::github_runner::{merge, volume};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::leftovers::LeftoverSnapshot;
use serde_json::{Value, json};

use crate::runner::setup::{redis, runner, shell_step, with_each_runtime};

const LOG: &str = "/run/audit/log.jsonl";

const SETTINGS: &str = r#"
[audit]
file = "/run/audit/log.jsonl"

[policy]
devices = ["/dev/full"]
bind-mounts = ["/run/shared"]
"#;

fn lines(host: &TestHost) -> Vec<Value> {
    let text = host.shell(&format!("cat {LOG}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the first entry with these fields.
#[track_caller]
fn entry<'l>(lines: &'l [Value], fields: &Value) -> &'l Value {
    let fields = fields.as_object().unwrap();
    let has = |line: &&Value| fields.iter().all(|(key, value)| line[key] == *value);
    lines.iter().find(has).unwrap_or_else(|| panic!("{fields:?} is not in {lines:#?}"))
}

#[test]
fn audit_log_contains_all_host_access_of_a_job() {
    with_each_runtime(SETTINGS, |installation| {
        let mut runner = runner(installation, "runner-1");
        let host = installation.host();
        host.shell("mkdir /run/shared");
        let asked = json!({
            "createOptions": "--device /dev/full --tmpfs /memory --cap-add SYS_PTRACE -e S=hunter2",
            "userMountVolumes": [volume("/run/shared", "/shared", true), volume("data", "/data", false)],
            "environmentVariables": {"TOKEN": "hunter2"},
        });
        let container = merge(runner.job_container("node:22"), asked);
        let response = runner.prepare(container, &[redis()]);
        let (ended, _) = runner.container_step(shell_step("echo hunter2"));
        ended.success();
        runner.cleanup();

        let lines = lines(host);
        let context = &response["context"];
        let id = &context["container"]["id"];
        for line in &lines {
            assert_eq!(line["runner"], "runner-1");
            assert_eq!(line["uid"], 0);
            assert!(line["job"]["repository"].is_string(), "{line}");
        }
        let job = entry(&lines, &json!({"event": "container", "container": id, "role": "job"}));
        assert_eq!(job["subject"], "job container");
        assert_eq!(job["image"], "docker.io/library/node:22");
        assert!(job["digest"].as_str().unwrap().starts_with("sha256:"));
        assert_eq!(job["capabilities"], json!(["CAP_SYS_PTRACE"]));
        assert_eq!(job["user_namespace"], true);
        let device = json!({"source": "/dev/full", "target": "/dev/full"});
        entry(&lines, &merge(device, json!({"event": "device", "container": id})));
        for (target, kind, source) in [
            ("/shared", "bind", json!("/run/shared")),
            ("/__w", "bind", json!(runner.work())),
            ("/memory", "tmpfs", Value::Null),
        ] {
            let mount = json!({"event": "mount", "container": id, "target": target});
            let mount = entry(&lines, &mount);
            assert_eq!((&mount["kind"], &mount["source"]), (&json!(kind), &source));
            assert_eq!(mount["read_only"], target == "/shared");
        }
        let named = entry(&lines, &json!({"event": "mount", "target": "/data"}));
        assert_eq!(named["kind"], "volume");
        let service = &context["services"][0];
        let port = entry(&lines, &json!({"event": "port", "container": service["id"]}));
        assert_eq!(port["host_port"].to_string(), service["ports"]["6379"].as_str().unwrap());
        assert_eq!((&port["container_port"], &port["protocol"]), (&json!(6379), &json!("tcp")));
        entry(&lines, &json!({"event": "container", "role": "step", "subject": "container step"}));
        for option in ["--device /dev/full", "the volume /run/shared:/shared"] {
            entry(
                &lines,
                &json!({"event": "allowed", "option": option, "subject": "job container"}),
            );
        }
        // Environment variables and arguments are not logged.
        let text = host.shell(&format!("cat {LOG}; stat -c %a:%u {LOG}"));
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.ends_with("600:0\n"), "{text}");

        let shown = installation.admin(&["audit", "--event", "device"]).success();
        assert!(shown.contains("/dev/full at /dev/full"), "{shown}");
        assert_eq!(shown.lines().count(), 2, "{shown}");
        let shown = installation.admin(&["audit", "--format", "json", "--tail", "1"]).success();
        let shown: Vec<Value> = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown, lines[lines.len() - 1..]);
    });
}

#[test]
fn audit_log_contains_all_denials() {
    with_each_runtime(SETTINGS, |installation| {
        let mut runner = runner(installation, "runner-1");
        let options = json!({
            "createOptions": "--privileged --pid=host",
            "userMountVolumes": [volume("/srv", "/y", true)],
        });
        let container = merge(runner.job_container("node:22"), options);
        let service = merge(redis(), json!({"userMountVolumes": [volume("/etc", "/x", true)]}));
        let args = json!({"container": container, "services": [service]});
        let said = runner.call("prepare_job", args).failure();

        let log = || lines(installation.host());
        let lines = log();
        assert_eq!(lines.len(), 4, "nothing was started: {lines:#?}");
        for option in ["--privileged", "--pid=host", "the volume /srv:/y"] {
            let denied = json!({"event": "denied", "option": option, "subject": "job container"});
            assert!(entry(&lines, &denied)["reason"].as_str().unwrap().contains("[policy]"));
            assert!(said.contains(option) && said.contains("service redis: the volume /etc:/x"));
        }
        let denied = entry(&lines, &json!({"option": "the volume /etc:/x"}));
        assert_eq!(
            (&denied["event"], &denied["subject"]),
            (&json!("denied"), &json!("service redis"))
        );

        // A later error does not hide the denials.
        let missing =
            format!("--mount type=bind,source={}/none,target=/x", runner.work().display());
        let service = merge(redis(), json!({"createOptions": missing}));
        let options = json!({
            "createOptions": "--cap-add SYS_ADMIN",
            "userMountVolumes": [volume("/etc", "/z", true), volume("", "relative", true)],
        });
        let container = merge(runner.job_container("node:22"), options);
        runner
            .call("prepare_job", json!({"container": container, "services": [service]}))
            .failure();
        let lines = log();
        for option in ["--cap-add", "the volume /etc:/z"] {
            let is_denied =
                |line: &Value| line["option"].as_str().is_some_and(|it| it.contains(option));
            assert!(lines.iter().any(is_denied), "{option}: {lines:#?}");
        }
    });
}

#[test]
fn container_that_cannot_be_audited_is_not_started() {
    with_each_runtime(SETTINGS, |installation| {
        let mut runner = runner(installation, "runner-1");
        let host = installation.host();
        host.shell("mkdir /run/audit; mount -t tmpfs -o size=64k audit /run/audit");
        runner.prepare(runner.job_container("node:22"), &[]);
        // The rest of the last page still has room for a few lines.
        host.shell("cat /dev/zero >/run/audit/zeros 2>/dev/null || true");
        let said = (0..100).find_map(|_| {
            let (ended, _) = runner.container_step(shell_step("true"));
            (!ended.status.success()).then(|| ended.failure())
        });
        let said = said.unwrap();
        assert!(said.contains("audit") && said.contains("No space left"), "{said}");
        for line in lines(host) {
            assert!(line["event"].is_string());
        }
        runner.run("echo still here").success();
        runner.cleanup();
        let before = LeftoverSnapshot::take(installation);
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        runner.call("prepare_job", args).failure();
        runner.cleanup();
        before.check(installation, "a job that could not be written down");

        host.shell(&format!("umount /run/audit; ln -s /run/elsewhere {LOG}"));
        let args = json!({"container": runner.job_container("node:22"), "services": []});
        let said = runner.call("prepare_job", args).failure();
        assert!(said.contains(LOG), "{said}");
        host.shell("test ! -e /run/elsewhere");
        runner.cleanup();
    });
}
