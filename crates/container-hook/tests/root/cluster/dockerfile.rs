//! Dockerfile actions, built by buildah in a pod.

use std::fs;

use oci_hooks_testsupport::cluster::TestCluster;
use oci_hooks_testsupport::github_runner::built_step;
use oci_hooks_testsupport::images::{self, SharedLayers};
use oci_hooks_testsupport::program;

use crate::cluster::setup::{NamespaceHook, cluster};

/// Capability numbers of the kernel.
const CAP_SETUID: u32 = 7;
const CAP_SETGID: u32 = 6;

/// Pushes an image like quay.io/buildah/stable, with the programs of this machine.
fn push_builder(cluster: &TestCluster) {
    let [buildah, uids, gids] = ["buildah", "newuidmap", "newgidmap"].map(program::find);
    let image = SharedLayers::new().alpine().with_layer(|tree| {
        let libraries = [&buildah, &uids, &gids].map(|program| images::libraries(program));
        tree.copies(libraries.concat().into_iter().chain([buildah.clone()]));
        tree.capable_program(&uids, CAP_SETUID);
        tree.capable_program(&gids, CAP_SETGID);
        for ids in ["etc/subuid", "etc/subgid"] {
            tree.file(ids, 0o644, "build:100000:65536\n");
        }
        tree.file("etc/passwd", 0o644, "root:x:0:0::/root:/bin/sh\nbuild:x:1000:1000::/:/bin/sh\n");
        tree.file("etc/group", 0o644, "root:x:0:\nbuild:x:1000:\n");
        let accept = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
        tree.file("etc/containers/policy.json", 0o644, accept);
    });
    image.push(&cluster.registry(), "test/buildah:1");
}

#[test]
fn dockerfile_action_is_built_once_and_run() {
    let cluster = cluster();
    push_builder(&cluster);
    let settings = format!(
        "[kubernetes.build]\npush = \"{}:5000/actions\"\nimage = \"test/buildah:1\"\n\
         storage-driver = \"vfs\"\n",
        cluster.address()
    );
    let pods = NamespaceHook::with(&cluster, &settings);
    let mut runner = pods.runner("dockerfile");
    let action = runner.work().join("_actions/octo/docker-action/v1");
    fs::create_dir_all(&action).unwrap();
    let dockerfile = action.join("Dockerfile");
    let text = "FROM alpine:3.20\nCOPY given /given\nRUN cat /given >/made && echo \"by $(id -u)\" >>/made\n\
                ENTRYPOINT [\"sh\", \"-c\", \"cat /made; echo out=it >>$GITHUB_OUTPUT; exit 7\"]\n";
    fs::write(&dockerfile, text).unwrap();
    fs::write(action.join("given"), "in the context\n").unwrap();
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let (built, outputs) = runner.container_step(built_step(&dockerfile));
    let built = built.code(7);
    assert!(built.log().contains("in the context\nby 0\n"), "{}", built.log());
    assert!(built.log().contains("STEP"), "buildah's output: {}", built.log());
    assert_eq!(outputs["out"], "it");
    let again = runner.container_step(built_step(&dockerfile)).0.code(7);
    assert!(again.log().contains("has not changed since it was built"), "{}", again.log());
    assert!(!again.log().contains("STEP"), "{}", again.log());
    // A failed build has buildah's message.
    fs::write(&dockerfile, "FROM alpine:3.20\nRUN echo it is broken; exit 3\n").unwrap();
    let said = runner.container_step(built_step(&dockerfile)).0.failure();
    assert!(said.contains("it is broken") && said.contains("buildah build ended with"), "{said}");
    // Only the job's pod is left.
    assert_eq!(pods.pods_of("dockerfile").len(), 1);
    runner.cleanup();
    pods.check_gone("dockerfile");
}
