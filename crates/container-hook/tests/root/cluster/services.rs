//! Services: their names, their health checks, their exit.

use oci_hooks_testsupport::github_runner::{GithubRunner, container, merge, volume};
use serde_json::json;

use crate::cluster::setup::{NamespaceHook, cluster};

#[test]
fn services_are_reachable_by_each_of_their_names() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("names");
    let redis = merge(
        container("redis:7"),
        json!({"contextName": "cache", "createOptions": "--network-alias store"}),
    );
    let postgres = merge(container("postgres:16"), json!({"contextName": "db"}));
    runner.prepare(runner.job_container("alpine:3.20"), &[redis, postgres]);
    let ask = "for name in cache store redis localhost; do \
               printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 $name 6379; done; \
               printf 'PING\\r\\nQUIT\\r\\n' | nc -w 5 db 5432";
    let ended = runner.run(ask).success();
    assert_eq!(ended.stdout().matches("+PONG").count(), 5, "{}", ended.log());
    // Services are also reachable from the pod of a container action.
    let words = json!(["-c", "'printf \"PING\\r\\nQUIT\\r\\n\" | nc -w 5 cache 6379'"]);
    let (ended, _) = runner.container_step(
        json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": words}),
    );
    assert!(ended.success().stdout().contains("+PONG"));
    runner.cleanup();
}

#[test]
fn job_waits_for_services_with_health_checks() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("health");
    // One service has a health check from its image, one from the workflow.
    let image = merge(container("test/healthy:1"), json!({"contextName": "image"}));
    let options = "--health-cmd \"test -e /tmp/ready\" --health-interval 1s --health-retries 30";
    let workflow = merge(
        container("alpine:3.20"),
        json!({"contextName": "workflow", "createOptions": options, "entryPoint": "sh",
            "entryPointArgs": ["-c", "'sleep 2; touch /tmp/ready; sleep 1000'"]}),
    );
    runner.prepare(runner.job_container("alpine:3.20"), &[image, workflow]);
    let pod = &pods.pods_of("health")[0];
    let statuses = pod["status"]["containerStatuses"].as_array().unwrap();
    assert!(statuses.iter().all(|status| status["ready"] == true), "{statuses:#?}");
    runner.cleanup();
}

#[test]
fn a_service_that_fails_before_the_steps_fails_the_job_with_its_last_lines() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("ends");
    let broken = merge(container("test/exits:1"), json!({"contextName": "broken"}));
    // The job waits for this service, which is never healthy.
    let options = "--health-cmd false --health-interval 1s --health-retries 1000";
    let gate = merge(
        container("alpine:3.20"),
        json!({"contextName": "gate", "createOptions": options, "entryPoint": "sleep",
            "entryPointArgs": ["1000"]}),
    );
    let args =
        json!({"container": runner.job_container("alpine:3.20"), "services": [broken, gate]});
    let said = runner.call("prepare_job", args).failure();
    for words in
        ["container broken of pod ends-workflow-", " ended with code 3", "the service says no"]
    {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    pods.wait_until_gone("ends");
}

#[test]
fn a_health_check_that_fails_as_often_as_its_retries_fails_the_job() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("unhealthy");
    let options =
        "--health-cmd \"echo still closed; exit 4\" --health-interval 1s --health-retries 3";
    let sick = merge(
        container("alpine:3.20"),
        json!({"contextName": "sick", "createOptions": options, "entryPoint": "sleep",
            "entryPointArgs": ["1000"]}),
    );
    let args = json!({"container": runner.job_container("alpine:3.20"), "services": [sick]});
    let said = runner.call("prepare_job", args).failure();
    let expected = "container sick is unhealthy: its health check failed 3 times in succession, the last time \
                    because it ended with code 4: still closed";
    assert!(said.contains(expected), "{said}");
    pods.wait_until_gone("unhealthy");
}

#[test]
fn volumes_of_the_node_and_a_port_of_the_job_are_warnings_for_a_service() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("ignored");
    let job = merge(runner.job_container("alpine:3.20"), json!({"portMappings": ["6379"]}));
    let redis = merge(
        container("redis:7"),
        json!({"contextName": "redis", "portMappings": ["6379"],
            "userMountVolumes": [volume("/etc", "/of-the-node", false)]}),
    );
    let args = json!({"container": job, "services": [redis]});
    let ended = runner.call("prepare_job", args).success();
    for words in ["the volume /etc:/of-the-node is ignored", "both name the port 6379/tcp"] {
        assert!(ended.log().contains(words), "{words:?} is not in {}", ended.log());
    }
    runner.keep_state(&ended);
    runner.run("true").success();
    runner.cleanup();
}

/// Returns a service that runs a script after the first connection to its port.
fn ending_service(name: &str, port: u16, script: &str) -> serde_json::Value {
    let script = format!("'nc -l -p {port}; echo the last words; {script}'");
    merge(
        container("alpine:3.20"),
        json!({"contextName": name, "entryPoint": "sh", "entryPointArgs": ["-c", script],
            "createOptions": "--memory 64m"}),
    )
}

/// Waits until the API server reports that a service of a job has ended.
fn wait_for_end(pods: &NamespaceHook<'_>, pod: &str, service: &str) {
    pods.namespace.wait_for_pod(pod, |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        statuses
            .into_iter()
            .flatten()
            .any(|status| status["name"] == service && status["state"]["terminated"].is_object())
    });
}

#[test]
fn end_of_a_service_is_reported_once_in_the_next_step() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("watched");
    // `tail` keeps an endless line in memory.
    let hungry = ending_service("hungry", 7001, "tail -n 1 /dev/zero");
    let finished = ending_service("finished", 7002, "exit 0");
    let failed = ending_service("failed", 7003, "exit 6");
    runner.prepare(runner.job_container("alpine:3.20"), &[hungry, finished, failed]);
    let end = |runner: &mut GithubRunner<'_, NamespaceHook<'_>>, service: &str, port: u16| {
        let connect = format!("until echo | nc -w 1 {service} {port}; do sleep 0.1; done");
        // The kubelet may report the end before this step ends.
        let said = runner.run(&connect).success().log();
        wait_for_end(&pods, "watched-workflow-", service);
        said
    };
    let said = end(&mut runner, "hungry", 7001) + &runner.run("exit 1").code(1).log();
    let of_hungry =
        "container hungry was killed for exceeding its memory limit (OOMKilled, code 137)";
    assert_eq!(said.matches(of_hungry).count(), 1, "{said}");
    assert!(said.contains("hungry | the last words"), "{said}");
    let said = end(&mut runner, "finished", 7002);
    let step = json!({"image": "alpine:3.20", "entryPoint": "true"});
    let said = said + &runner.container_step(step).0.success().log();
    assert_eq!(said.matches("container finished ended with code 0").count(), 1, "{said}");
    assert!(!said.contains(of_hungry), "{said}");
    let said = end(&mut runner, "failed", 7003) + &runner.cleanup().log();
    assert_eq!(said.matches("container failed ended with code 6").count(), 1, "{said}");
    assert!(!said.contains("container finished ended") && !said.contains(of_hungry), "{said}");
}

#[test]
fn service_that_becomes_unhealthy_is_reported_once() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("sick");
    let options = "--health-cmd \"test ! -e /tmp/sick\" --health-interval 1s --health-retries 2";
    let service = merge(
        container("alpine:3.20"),
        json!({"contextName": "fragile", "createOptions": options, "entryPoint": "sh",
            "entryPointArgs": ["-c", "'nc -l -p 7004; touch /tmp/sick; sleep 1000'"]}),
    );
    runner.prepare(runner.job_container("alpine:3.20"), &[service]);
    let connect = "until echo | nc -w 1 fragile 7004; do sleep 0.1; done";
    let begun = runner.run(connect).success().log();
    pods.namespace.wait_for_pod("sick-workflow-", |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        statuses.into_iter().flatten().any(|status| status["ready"] == false)
    });
    let said = begun + &runner.run("false").code(1).log() + &runner.run("true").success().log();
    let expected = "container fragile is unhealthy: its health check fails";
    assert_eq!(said.matches(expected).count(), 1, "{said}");
    let said = runner.cleanup().log();
    assert!(!said.contains(expected), "{said}");
}
