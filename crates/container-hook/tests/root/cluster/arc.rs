//! The runner image built by `contrib/images/arc-runner`, in a pod as created by the chart of
//! actions-runner-controller.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use oci_hooks_testsupport::cluster::{TestCluster, TestNamespace};
use oci_hooks_testsupport::images::{self, SharedLayers, TestImage};
use oci_hooks_testsupport::recipes::BuildahStorage;
use oci_hooks_testsupport::{program, static_program};
use serde_json::{Value, json};

use crate::cluster::setup::{NamespaceHook, cluster};

/// Name of the image built from a fake of GitHub's runner image.
const IMAGE: &str = "test/actions-runner:oci-hooks";

/// User id and group id of the runner.
const RUNNER: u32 = 1001;

/// Rules of the Role that the chart creates for runners.
const RULES: &str = r#"[
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "delete"]}
]"#;

/// Additional rule for a work directory on a volume.
const JOBS: &str = r#"{"apiGroups": ["batch"], "resources": ["jobs"],
    "verbs": ["get", "list", "create", "delete"]}"#;

/// Returns the fake runner image, with this machine's Node.js and its libraries, and with failing hooks to be
/// replaced.
fn base() -> TestImage {
    let node = fs::canonicalize(program::find("node")).unwrap();
    let mut files = images::libraries(&node);
    files.push(node.clone());
    let image = SharedLayers::new().alpine().with(json!({
        "User": "1001:1001", "WorkingDir": "/home/runner", "Cmd": ["/home/runner/run.sh"],
        "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
    }));
    image.with_layer(|tree| {
        tree.copies(files);
        for directory in ["home/runner", "home/runner/k8s", "home/runner/k8s-novolume"] {
            tree.owned_directory(directory, 0o755, RUNNER.into());
        }
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", node.display());
        tree.script("home/runner/externals/node20/bin/node", &script);
        let start =
            "#!/bin/sh\nexec /home/runner/externals/node20/bin/node /home/runner/runner.js\n";
        tree.script("home/runner/run.sh", start);
        tree.file("home/runner/runner.js", 0o644, include_str!("arc_runner.js"));
        for hook in ["k8s", "k8s-novolume"] {
            tree.file(&format!("home/runner/{hook}/index.js"), 0o644, "process.exit(99);\n");
        }
    })
}

/// Builds the recipe once for all tests, and pushes the image.
fn push_image(cluster: &TestCluster) {
    static PUSHED: OnceLock<()> = OnceLock::new();
    PUSHED.get_or_init(|| {
        let buildah = BuildahStorage::new();
        buildah.base(&base());
        buildah.build("arc-runner", &static_program::program("container-hook"));
        let target = format!("{}:5000/{IMAGE}", cluster.address());
        program::run(&mut buildah.push(&target)).success();
    });
}

fn variable(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}

/// Returns the pod that the controller creates, as the chart's template defines it for a mode.
fn runner_pod(name: &str, mode: &str, more: &[Value]) -> Value {
    let mut env = vec![
        variable("ACTIONS_RUNNER_CONTAINER_HOOKS", &format!("/home/runner/{mode}/index.js")),
        json!({"name": "ACTIONS_RUNNER_POD_NAME",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}),
        variable("ACTIONS_RUNNER_REQUIRE_JOB_CONTAINER", "true"),
    ];
    env.extend_from_slice(more);
    json!({
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "serviceAccountName": "kube-mode",
            "containers": [{
                "name": "runner", "image": format!("registry.test/{IMAGE}"),
                "command": ["/home/runner/run.sh"], "env": env,
            }],
        },
    })
}

/// Runs a runner's pod to its end, and returns its output.
#[track_caller]
fn run(namespace: &TestNamespace<'_>, pod: &Value) -> Value {
    let name = pod["metadata"]["name"].as_str().unwrap();
    namespace.create("pods", pod);
    let has_ended = |pod: &Value| {
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        ["Succeeded", "Failed"].contains(&phase)
    };
    let ended = namespace.wait_for_pod(name, has_ended);
    let path = format!("/api/v1/namespaces/{}/pods/{name}/log", namespace.name());
    let (status, report) = namespace.cluster().call("GET", &path, None);
    assert_eq!(status, 200, "{ended:#}");
    assert!(!report.is_null(), "the runner printed no document: {ended:#}");
    report
}

/// Checks the report of the runner's job, which is the same in both modes.
#[track_caller]
fn check(report: &Value, cluster: &TestCluster) {
    let way = match cluster.minor() >= 35 {
        true => "come from the runner image, mounted as a volume",
        false => "come from an init container: Kubernetes v1.20.2 is older than 1.35",
    };
    assert!(report["doctor"].as_str().unwrap().contains(way), "{report:#}");
    assert_eq!(report["user"], "1001:1001", "{report:#}");
    assert_eq!(report["prepare"]["code"], 0, "{report:#}");
    assert_eq!(report["prepare"]["response"]["isAlpine"], false, "{report:#}");
    assert_eq!(report["script"]["code"], 7, "{report:#}");
    assert_eq!(report["script"]["stdout"], "by the runner\n", "{report:#}");
    assert_eq!(report["made"], "by the step\n", "{report:#}");
    assert_eq!(report["output"], "answer=42\n", "{report:#}");
    assert_eq!(report["container"]["code"], 3, "{report:#}");
    let output = report["container"]["stdout"].as_str().unwrap();
    assert!(output.contains("by the step\n"), "{report:#}");
    assert_eq!(report["acted"], "by the action\n", "{report:#}");
    assert_eq!(report["cleanup"]["code"], 0, "{report:#}");
}

#[test]
fn job_runs_on_arc_with_only_the_image_changed() {
    let cluster = cluster();
    push_image(&cluster);
    let pods = NamespaceHook::new(&cluster);
    pods.namespace.account("kube-mode", RULES);
    let image = variable("ACTIONS_RUNNER_IMAGE", &format!("registry.test/{IMAGE}"));
    let report = run(&pods.namespace, &runner_pod("novolume", "k8s-novolume", &[image]));
    check(&report, &cluster);
    pods.check_gone("novolume");
}

#[test]
fn job_runs_on_the_volume_of_its_runner() {
    let cluster = cluster();
    push_image(&cluster);
    let pods = NamespaceHook::new(&cluster);
    let rules = RULES.replace("\n]", &format!(",\n{JOBS}\n]"));
    pods.namespace.account("kube-mode", &rules);
    let volume = HostVolume::new(&cluster);
    let mut pod = runner_pod("volume", "k8s", &[]);
    let claim = volume.claim(&pods.namespace, "volume-work");
    pod["spec"]["volumes"] =
        json!([{"name": "work", "persistentVolumeClaim": {"claimName": claim}}]);
    pod["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "work", "mountPath": "/home/runner/_work"}]);
    let report = run(&pods.namespace, &pod);
    check(&report, &cluster);
    pods.check_gone("volume");
    // The job's files are on the volume and not copied to it.
    let made = volume.path().join("repo/repo/made");
    assert_eq!(fs::read_to_string(made).unwrap(), "by the step\n");
}

/// A ReadWriteOnce volume.
struct HostVolume<'c> {
    cluster: &'c TestCluster,
    directory: tempfile::TempDir,
    name: String,
}

impl<'c> HostVolume<'c> {
    fn new(cluster: &'c TestCluster) -> Self {
        let directory = program::temporary_directory();
        chown(directory.path(), Some(RUNNER), Some(RUNNER)).unwrap();
        let name = program::unique_name();
        let volume = json!({
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": name,
                "hostPath": {"path": directory.path()},
            },
        });
        cluster.create("/api/v1/persistentvolumes", &volume);
        HostVolume { cluster, directory, name }
    }

    fn path(&self) -> PathBuf {
        Path::to_owned(self.directory.path())
    }

    /// Creates a claim for the volume, as the controller does for each runner.
    fn claim(&self, namespace: &TestNamespace<'_>, name: &str) -> String {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": self.name,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        });
        namespace.create("persistentvolumeclaims", &claim);
        name.to_owned()
    }
}

impl Drop for HostVolume<'_> {
    fn drop(&mut self) {
        let path = format!("/api/v1/persistentvolumes/{}", self.name);
        if !std::thread::panicking() {
            self.cluster.call("DELETE", &path, None);
        }
    }
}
