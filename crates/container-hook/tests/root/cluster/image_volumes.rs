//! Pods that mount the runner image as a volume, and clusters that cannot.

use oci_hooks_testsupport::github_runner::{GithubRunner, merge};
use serde_json::{Value, json};

use crate::cluster::setup::{NamespaceHook, cluster};

const SETTINGS: &str = "[kubernetes]\nimage-volumes = true\n";
const WARNING: &str = "the pod cannot be started with the runner image as a volume";

#[test]
fn runner_image_is_mounted_where_the_cluster_supports_it() {
    let cluster = cluster();
    let is_supported = cluster.minor() >= 35;
    let pods = NamespaceHook::with(&cluster, SETTINGS);
    let mut runner = pods.runner("mounted");
    let said = prepare(&mut runner, "node:22").success().log();
    assert_eq!(said.contains(WARNING), !is_supported, "{said}");
    assert_eq!(has_init_container(&pods, "mounted"), !is_supported);
    // As the runner runs JavaScript actions.
    let said = runner.run("/__e/node20/bin/node index.js").success().stdout();
    assert_eq!(said, "node: index.js\n");
    runner.run("echo text >file; echo KEY=value >>\"$GITHUB_ENV\"").success();
    let step = json!({"image": "alpine:3.20", "entryPoint": "sh", "entryPointArgs": ["-c", "'cat file; echo 1 >made'"]});
    let (ended, _) =
        runner.container_step(merge(step, json!({"workingDirectory": "/github/workspace"})));
    let ended = ended.success();
    assert_eq!(ended.stdout(), "text\n");
    assert!(!ended.log().contains(WARNING), "as in the job's pod: {}", ended.log());
    assert_eq!(runner.run("cat made").success().stdout(), "1\n");
    runner.cleanup();
    pods.check_gone("mounted");
}

#[test]
fn ordinary_user_can_write_to_the_workspace_beside_a_mounted_image() {
    let cluster = cluster();
    let pods = NamespaceHook::with(&cluster, SETTINGS);
    let mut runner = pods.runner("ordinary");
    prepare(&mut runner, "docker.io/test/user:1").success();
    let script = "touch made ../beside /github/home/in && ! touch /.oci-hooks/image/in && id -un";
    assert_eq!(runner.run(script).success().stdout(), "app\n");
    runner.cleanup();
}

#[test]
fn image_without_the_agent_is_copied_by_an_init_container() {
    let cluster = cluster();
    let settings = format!("{SETTINGS}runner-image = \"docker.io/test/runner-without-agent:1\"\n");
    let pods = NamespaceHook::with(&cluster, &settings);
    let mut runner = pods.runner("without");
    let ended = prepare(&mut runner, "alpine:3.20").success();
    assert_eq!(ended.log().matches(WARNING).count(), 1, "{}", ended.log());
    assert!(has_init_container(&pods, "without"));
    runner.run("true").success();
    runner.cleanup();
    // A job without a container has no pod from which its steps could learn.
    let step = json!({"image": "alpine:3.20", "entryPoint": "true"});
    runner.state = Value::Null;
    let (ended, _) = runner.container_step(step);
    let ended = ended.success();
    assert!(ended.log().contains(WARNING), "{}", ended.log());
    pods.wait_until_gone("without");
}

#[test]
fn missing_runner_image_is_named() {
    let cluster = cluster();
    // Without image volumes, it is the image of the init container.
    if cluster.minor() < 35 {
        return;
    }
    let settings = format!("{SETTINGS}runner-image = \"docker.io/test/none:1\"\n");
    let pods = NamespaceHook::with(&cluster, &settings);
    let said = prepare(&mut pods.runner("missing"), "alpine:3.20").failure();
    let problem = "image docker.io/test/none:1 of the job container cannot be pulled: ";
    assert!(said.contains(problem), "{said}");
    pods.wait_until_gone("missing");
}

fn prepare(
    runner: &mut GithubRunner<'_, NamespaceHook<'_>>,
    image: &str,
) -> oci_hooks_testsupport::call::EndedCall {
    let args = json!({"container": runner.job_container(image), "services": []});
    runner.call("prepare_job", args)
}

fn has_init_container(pods: &NamespaceHook<'_>, runner: &str) -> bool {
    let pod = pods.pods_of(runner).remove(0);
    !pod["spec"]["initContainers"].is_null()
}
