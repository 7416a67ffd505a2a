//! Images that cannot be had: reported in the kubelet's words, soon.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::setup::{Pods, cluster};
use crate::support::cluster_images;
use crate::support::github_runner::container;
use crate::support::http::{Gate, Response, Server};
use crate::support::images::Layers;

/// Far below the ten minutes that a job waits for its containers.
const SOON: Duration = Duration::from_secs(40);

#[test]
fn images_that_are_missing_or_for_other_machines_fail_the_job_soon() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    // Of a registry that nodes ask alone: what it has not is nowhere else.
    let missing = |tag| format!("{}:5000/nobody/has:{tag}", cluster.address());
    let (missing, of_service) = (missing("this"), missing("that"));
    std::thread::scope(|scope| {
        for (name, image, words) in [
            ("missing", missing.as_str(), "cannot be pulled"),
            ("foreign", "test/foreign:1", "platform"),
            ("invalid", "Not An Image", "Not An Image"),
        ] {
            let pods = &pods;
            scope.spawn(move || {
                let mut runner = pods.runner(name);
                let begin = Instant::now();
                let args = json!({"container": runner.job_container(image), "services": []});
                let said = runner.call("prepare_job", args).failure();
                assert!(said.contains(words), "{name}: {said}");
                assert!(said.contains(image), "{name}: {said}");
                assert!(begin.elapsed() < SOON, "{name}: {:?}\n{said}", begin.elapsed());
                pods.wait_until_gone(name);
            });
        }
        // That of a service is no different.
        scope.spawn(|| {
            let mut runner = pods.runner("service");
            let services = json!([container(&of_service)]);
            let args =
                json!({"container": runner.job_container("alpine:3.20"), "services": services});
            let said = runner.call("prepare_job", args).failure();
            assert!(said.contains(&of_service) && said.contains("cannot be pulled"), "{said}");
            pods.wait_until_gone("service");
        });
    });
}

#[test]
fn an_image_that_comes_slowly_is_waited_for() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    // With a layer that the node has of no other image.
    let image = Layers::new().alpine().and(|tree| tree.file("slow", 0o644, "slow\n"));
    cluster_images::push(&cluster, "test/slow:1", &image);
    let gate = Gate::default();
    let registry = format!("http://{}:5000", cluster.address());
    let listener = TcpListener::bind((cluster.own_address(), 5000)).unwrap();
    let held = gate.clone();
    // Takes everything from the cluster's own registry, the blobs once the test lets it.
    let _server = Server::start_at(listener, None, move |request| {
        let path = request.path.split('?').next().unwrap_or_default();
        let agent: ureq::Agent =
            ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let from = agent.get(format!("{registry}{path}"));
        let accept = request.header("accept").unwrap_or("*/*");
        let mut answer = from.header("Accept", accept).call().unwrap();
        let body = answer.body_mut().with_config().limit(u64::MAX).read_to_vec().unwrap();
        let mut response = Response::ok(body);
        response.status = answer.status().as_u16();
        for name in ["content-type", "docker-content-digest"] {
            if let Some(value) = answer.headers().get(name) {
                response = response.with(name, value.to_str().unwrap());
            }
        }
        if path.contains("/blobs/") {
            response.held = Some((0, held.clone()));
        }
        response
    });
    let mut runner = pods.runner("slow");
    let image = "outside.test/test/slow:1";
    let args = json!({"container": runner.job_container(image), "services": []});
    let call = runner.start("prepare_job", args);
    gate.wait_until_reached();
    // Longer than what looks at pods would need to take it for a failure.
    std::thread::park_timeout(Duration::from_secs(3));
    gate.open();
    let ended = call.wait().success();
    runner.keep_state(&ended);
    assert_eq!(runner.run("cat /slow").success().stdout(), "slow\n");
    runner.cleanup();
}
