//! Services: their names, their health, their end.

use std::fs;

use serde_json::json;

use crate::setup::{Pods, cluster};
use crate::support::github_runner::{container, merge, volume};

#[test]
fn services_are_reached_by_each_of_their_names() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
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
    // In another pod, the same.
    let words = json!(["-c", "'printf \"PING\\r\\nQUIT\\r\\n\" | nc -w 5 cache 6379'"]);
    let (ended, _) = runner.container_step(
        json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": words}),
    );
    assert!(ended.success().stdout().contains("+PONG"));
    runner.cleanup();
}

#[test]
fn a_job_waits_for_services_that_have_a_health_check() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let mut runner = pods.runner("health");
    // One says in its image when it is healthy, one has it from the workflow.
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
fn a_service_that_ends_is_reported_in_its_own_words() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let mut runner = pods.runner("ends");
    let broken = merge(container("test/exits:1"), json!({"contextName": "broken"}));
    // A job waits for this service, which becomes healthy when the cluster has reported the end of the other.
    let options = "--health-cmd \"test -e /gate/open\" --health-interval 1s --health-retries 100";
    let gate = merge(
        container("alpine:3.20"),
        json!({"contextName": "gate", "createOptions": options, "entryPoint": "sleep",
            "entryPointArgs": ["1000"], "userMountVolumes": [volume("gate", "/gate", false)]}),
    );
    let args =
        json!({"container": runner.job_container("alpine:3.20"), "services": [broken, gate]});
    let preparing = runner.start("prepare_job", args);
    let pod = pods.namespace.wait_for_pod("ends-workflow", |pod| {
        let statuses = pod["status"]["containerStatuses"].as_array();
        statuses.into_iter().flatten().any(|status| status["state"]["terminated"]["exitCode"] == 3)
    });
    fs::write(cluster.volume(&pod, "oci-hooks-0").join("open"), "").unwrap();
    let ended = preparing.wait().success();
    runner.keep_state(&ended);
    let said = ended.log();
    for words in ["::warning::container broken ended with code 3", "the service says no"] {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
    runner.cleanup();
    pods.check_gone("ends");
}
