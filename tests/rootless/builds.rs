//! Dockerfile actions of users who are not root: built below the job's holder, with nothing of the host but
//! its programs in reach.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::setup::{Who, with_each};
use crate::support::github_runner::Hook as _;

fn built_step(dockerfile: &std::path::Path) -> Value {
    json!({"image": null, "dockerfile": dockerfile, "entryPointArgs": []})
}

/// What a Dockerfile can do with owners where there are ids for them.
const OWNERS: &str = "COPY --chown=33:33 file /of-33\n\
                      RUN chown 33:33 /etc/passwd; chown 65534:65534 /etc/group\n";

#[test]
fn a_dockerfile_action_is_built_and_run() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let action = runner.work().join("_actions/octo/docker-action/v1");
        let owners = if installation.has_ids() { OWNERS } else { "" };
        let expected = if installation.has_ids() { "33:33 33:33 65534:65534\n" } else { "" };
        installation.write(
            action.join("Dockerfile"),
            &format!(
                "FROM alpine:3.20\nCOPY file /file\n{owners}\
                 RUN mkdir -p /opt/a /opt/b; touch /opt/a/1 /opt/b/2\n\
                 RUN rm -r /opt; mkdir -p /opt/a; touch /opt/a/3\n\
                 RUN test \"$(find /opt -type f)\" = /opt/a/3\n\
                 ENTRYPOINT [\"sh\", \"-c\", \"cat /file; find /opt -type f; \
                 test ! -e /of-33 || echo $(stat -c %u:%g /of-33 /etc/passwd /etc/group)\"]\n"
            ),
        );
        installation.write(action.join("file"), "of the action\n");
        // Once in a job, and once in a step without one.
        runner.prepare(runner.job_container("node:22"), &[]);
        for again in [false, true] {
            let step = built_step(&action.join("Dockerfile"));
            let ended = runner.container_step(step).0.success();
            let output = format!("of the action\n/opt/a/3\n{expected}");
            assert!(ended.stdout().ends_with(&output), "{}", ended.log());
            assert_eq!(ended.log().contains("has not changed since"), again, "{}", ended.log());
        }
        runner.cleanup();
    });
}

#[test]
fn what_a_dockerfile_runs_reaches_neither_the_user_nor_the_network_of_the_host() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let user = installation.user.expect("it is not root");
        let secret = user.home.join("secret");
        installation.write(&secret, "secret\n");
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let action = runner.work().join("_actions/octo/docker-action/v1");
        let reached = [
            secret.clone(),
            user.home.clone(),
            runner.work(),
            user.data(),
            user.run_directory(),
            installation.jobs_directory(),
            format!("/proc/1/root{}", secret.display()).into(),
            "/proc/1/cwd/etc".into(),
            installation.entry(),
        ];
        let reached = reached.map(|path| path.display().to_string()).join(" ");
        installation.write(
            action.join("Dockerfile"),
            &format!(
                "FROM alpine:3.20\n\
                 RUN for path in {reached}; do ! ls -a $path || exit 9; done 2>/dev/null\n\
                 RUN for pid in /proc/[0-9]*; do ! grep -qa '[R]unner' $pid/cmdline || exit 8; done\n\
                 RUN ! grep -q -E '^ *(out|provider):' /proc/net/dev\n\
                 ENTRYPOINT [\"echo\", \"nothing reached\"]\n"
            ),
        );
        runner.prepare(runner.job_container("node:22"), &[]);
        let ended = runner.container_step(built_step(&action.join("Dockerfile"))).0.success();
        assert!(ended.stdout().ends_with("nothing reached\n"), "{}", ended.log());
        runner.cleanup();
        assert_eq!(user.foreign(installation.world, &runner.work()), "");
    });
}

#[test]
fn a_dockerfile_action_without_a_job_is_built_too() {
    with_each(&Who::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let action = runner.work().join("_actions/octo/docker-action/v1");
        let dockerfile = action.join("Dockerfile");
        installation.write(
            &dockerfile,
            "FROM alpine:3.20\nRUN echo made >/made\nENTRYPOINT [\"cat\", \"/made\"]\n",
        );
        let ended = runner.container_step(built_step(&dockerfile)).0.success();
        assert!(ended.stdout().ends_with("made\n"), "{}", ended.log());
    });
}
