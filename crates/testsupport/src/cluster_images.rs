//! The images of a cluster's registry, and their upload.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::cluster::TestCluster;
use super::images::{self, SharedLayers, TestImage, TestLayer};
use super::program;

/// Path of the hook in the runner image.
const PROGRAM: &str = "usr/local/bin/container-hook";

/// Fills the registry with the images of the tests of jobs. The runner image contains the hook, and a symlink
/// to it at the path that it has on this machine.
pub fn push_all(cluster: &TestCluster, program: &Path) {
    let layers = SharedLayers::new();
    let alpine = layers.alpine();
    let debian = alpine.with_layer(|tree| {
        tree.file("etc/os-release", 0o644, "PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n");
    });
    let second = 1_000_000_000_u64;
    let health = |test: Value| json!({"Healthcheck": {"Test": test, "Interval": second, "Timeout": 10 * second, "Retries": 30}});
    let late = "sleep 2; touch /tmp/healthy; sleep 1000";
    let old_runner = runner(&debian, program);
    let agent = fs::read(install_agent(program)).expect("it was installed");
    let runner = old_runner.with_layer(|tree| {
        tree.file("usr/libexec/oci-hooks/agent", 0o755, agent);
    });
    let images = [
        ("actions/actions-runner:latest", runner),
        ("test/runner-without-agent:1", old_runner),
        ("library/node:22", debian.clone()),
        ("library/redis:7", layers.service(6379)),
        ("library/postgres:16", layers.service(5432)),
        ("test/scratch:1", layers.scratch()),
        ("test/user:1", debian.with(json!({"User": "app", "WorkingDir": "/srv/made"}))),
        (
            "test/healthy:1",
            debian
                .with(json!({"Cmd": ["sh", "-c", late]}))
                .with(health(json!(["CMD-SHELL", "test -e /tmp/healthy"]))),
        ),
        (
            "test/entrypoint:1",
            alpine.with(json!({"Entrypoint": ["printf", "<%s>\\n"], "Cmd": ["a b", "c"]})),
        ),
        (
            "test/exits:1",
            alpine.with(json!({"Entrypoint": ["sh", "-c", "echo the service says no; exit 3"]})),
        ),
        ("library/alpine:3.20", alpine),
    ];
    for (name, image) in &images {
        image.push(&cluster.registry(), name);
    }
    push_foreign(&cluster.registry(), "test/foreign:1");
}

/// Installs the agent of the hook in the hook's directory, and returns its path.
fn install_agent(program: &Path) -> PathBuf {
    let agent = program.with_file_name("agent");
    let mut command = Command::new(program);
    program::run(command.args(["fill", "--agent"]).arg(&agent)).success();
    agent
}

/// Returns a runner image: the hook with its libraries, and fakes of node.
fn runner(base: &TestImage, program: &Path) -> TestImage {
    let mut image = base.with(json!({
        "User": "1001", "Cmd": ["sleep", "1000000"], "WorkingDir": "/home/runner",
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/home/runner"],
    }));
    let content = fs::read(program).unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    // Compression takes longer than it saves.
    image.layers.push(TestLayer::compressed(flate2::Compression::none(), |tree| {
        tree.copies(images::libraries(program));
        tree.file(PROGRAM, 0o755, content);
        let here = program.strip_prefix("/").expect("the path is absolute");
        tree.link(here.to_str().expect("it is ASCII"), &format!("/{PROGRAM}"));
        // The runner image has these directories: its hook moves them.
        for path in ["", "/node20", "/node20/bin", "/node20_alpine", "/node20_alpine/bin"] {
            tree.owned_directory(&format!("home/runner/externals{path}"), 0o755, 1001);
        }
        for (path, content) in [
            ("home/runner/externals/node20/bin/node", "#!/bin/sh\necho \"node: $*\"\n"),
            ("home/runner/externals/node20_alpine/bin/node", "#!/bin/sh\necho \"alpine: $*\"\n"),
        ] {
            tree.script(path, content);
        }
    }));
    image
}

/// Pushes an image for another architecture.
fn push_foreign(registry: &str, name: &str) {
    let mut config: Value =
        serde_json::from_slice(&SharedLayers::new().scratch().config_document())
            .expect("it is JSON");
    config["architecture"] = json!("s390x");
    let layer = TestLayer::new(|tree| tree.file("echo", 0o755, "no program"));
    config["rootfs"]["diff_ids"] = json!([images::digest(b"whatever")]);
    let config = config.to_string().into_bytes();
    let describe = |kind: &str, blob: &[u8]| json!({"mediaType": kind, "digest": images::digest(blob), "size": blob.len()});
    let manifest = json!({
        "schemaVersion": 2, "mediaType": images::MANIFEST,
        "config": describe("application/vnd.oci.image.config.v1+json", &config),
        "layers": [describe("application/vnd.oci.image.layer.v1.tar+gzip", &layer.blob)],
    });
    let manifest = manifest.to_string().into_bytes();
    images::push_blob(registry, name, &config);
    images::push_blob(registry, name, &layer.blob);
    let repository = name.split(':').next().expect("a name has one");
    images::push_manifest(registry, &format!("{repository}:s390x"), images::MANIFEST, &manifest);
    let index = "application/vnd.oci.image.index.v1+json";
    let mut entry = describe(images::MANIFEST, &manifest);
    entry["platform"] = json!({"os": "linux", "architecture": "s390x"});
    let list = json!({"schemaVersion": 2, "mediaType": index, "manifests": [entry]});
    images::push_manifest(registry, name, index, list.to_string().as_bytes());
}
