//! Common setup of the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use oci_hooks_testsupport::api_proxy::ApiProxy;
use oci_hooks_testsupport::call::RunningCall;
use oci_hooks_testsupport::cluster::{
    ExclusiveCluster, RUNNER_RULES, SharedCluster, TestCluster, TestNamespace,
};
use oci_hooks_testsupport::cluster_images;
use oci_hooks_testsupport::github_runner::{GithubRunner, InstalledHook};
use oci_hooks_testsupport::program;
use serde_json::{Value, json};

/// Returns the cluster with its images.
pub(crate) fn cluster() -> SharedCluster {
    TestCluster::shared(fill)
}

/// Returns the cluster for exclusive use, for a test that disturbs others.
pub(crate) fn cluster_alone() -> ExclusiveCluster {
    TestCluster::lock_exclusively(fill)
}

fn fill(cluster: &TestCluster) {
    cluster_images::push_all(cluster, installed_hook());
}

/// Returns the path of the hook, here and in the runner image. Installed once for all tests.
pub(crate) fn installed_hook() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes");
        fs::create_dir_all(&directory).unwrap();
        let program = directory.join("container-hook");
        // Without debug information, which is most of the file, and would be uploaded to the node.
        let mut strip = Command::new(program::find("strip"));
        strip.args(["--strip-debug", "-o"]).arg(&program);
        program::run(strip.arg(env!("CARGO_BIN_EXE_container-hook"))).success();
        program
    })
}

/// Returns the number of repetitions of a test: `usual`, or `OCI_HOOKS_CYCLES` for a soak test.
pub(crate) fn cycles(usual: u32) -> u32 {
    let asked = std::env::var("OCI_HOOKS_CYCLES").ok();
    asked.map_or(usual, |text| text.parse().expect("it is a number"))
}

/// The hook of the runners of one namespace.
pub(crate) struct NamespaceHook<'c> {
    pub(crate) namespace: TestNamespace<'c>,
    directory: tempfile::TempDir,
    token: String,
    proxy: Option<ApiProxy>,
}

impl<'c> NamespaceHook<'c> {
    /// Creates a namespace with a service account that has a runner's permissions.
    pub(crate) fn new(cluster: &'c TestCluster) -> Self {
        Self::for_namespace(TestNamespace::new(cluster), "")
    }

    /// Creates a namespace with additional settings.
    pub(crate) fn with(cluster: &'c TestCluster, settings: &str) -> Self {
        Self::for_namespace(TestNamespace::new(cluster), settings)
    }

    /// Sets up the hook for an existing namespace.
    pub(crate) fn for_namespace(namespace: TestNamespace<'c>, settings: &str) -> Self {
        let directory = program::temporary_directory();
        let token = namespace.account("runner", RUNNER_RULES);
        let pods = Self { namespace, directory, token, proxy: None };
        // The hook reads image configurations from this registry.
        let registry = format!("{}:5000", pods.cluster().address());
        let settings = format!(
            "[backend]\nkind = \"kubernetes\"\n\n{settings}\n\
             [registry.\"docker.io\"]\nmirrors = [{registry:?}]\n\n\
             [registry.{registry:?}]\ninsecure = true\n"
        );
        fs::write(pods.path_of("container-hook.toml"), settings).unwrap();
        let script = format!("#!/bin/sh\nexec {}\n", installed_hook().display());
        program::write_program(&pods.path_of("container-hook.sh"), &script);
        let cluster = pods.cluster();
        pods.write_kubeconfig(&format!("https://{}", cluster.address()), &cluster.authority());
        pods
    }

    /// Gives runners a service account with these permissions for all further calls.
    pub(crate) fn use_rules(&mut self, rules: &str) {
        self.token = self.namespace.account("limited", rules);
        let cluster = self.cluster();
        self.write_kubeconfig(&format!("https://{}", cluster.address()), &cluster.authority());
    }

    /// Routes all further calls through a proxy.
    pub(crate) fn use_proxy(&mut self) {
        let proxy = ApiProxy::start(self.cluster());
        self.write_kubeconfig(&proxy.url(), &proxy.authority());
        self.proxy = Some(proxy);
    }

    pub(crate) fn proxy(&self) -> &ApiProxy {
        self.proxy.as_ref().expect("this test uses one")
    }

    pub(crate) fn cluster(&self) -> &'c TestCluster {
        self.namespace.cluster()
    }

    /// Writes the administrator's template, which applies from then on.
    pub(crate) fn write_template(&self, text: &str) {
        fs::write(self.path_of("template.yaml"), text).unwrap();
    }

    /// Creates a runner with its pod. The pod need not run: the hook only reads its specification.
    pub(crate) fn runner(&self, name: &str) -> GithubRunner<'_, Self> {
        self.make_runner_pod(name, json!({}));
        let mut runner = GithubRunner::new(self, name);
        // Path in the runner image.
        runner.externals = "/home/runner/externals".into();
        runner
    }

    /// Creates the pod of a runner, with additional fields in its specification.
    pub(crate) fn make_runner_pod(&self, name: &str, more: Value) -> Value {
        let mut spec = json!({
            "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "runner", "image": "ghcr.io/actions/actions-runner:latest",
                "imagePullPolicy": "IfNotPresent",
            }],
        });
        for (name, value) in more.as_object().unwrap() {
            spec[name] = value.clone();
        }
        self.namespace.create("pods", &json!({"metadata": {"name": name}, "spec": spec}))
    }

    /// Returns the pods that the hook created for a runner, except pods being deleted.
    pub(crate) fn pods_of(&self, runner: &str) -> Vec<Value> {
        let mut pods = self.namespace.list("pods", &format!("runner-pod={runner}"));
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods
    }

    /// Checks that no pod or secret of a runner is left, except its own pod and objects being deleted: a
    /// kubelet of 1.20 is slow to report the end of a pod.
    #[track_caller]
    pub(crate) fn check_gone(&self, runner: &str) {
        for kind in ["pods", "secrets"] {
            let mut left = self.namespace.list(kind, &format!("runner-pod={runner}"));
            left.retain(|one| one["metadata"]["deletionTimestamp"].is_null());
            let names: Vec<_> = left.iter().map(|one| &one["metadata"]["name"]).collect();
            assert!(left.is_empty(), "left of {runner}: {kind} {names:?}");
        }
    }

    /// Waits until no pod or secret of a runner is left.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self, runner: &str) {
        program::wait_until("that nothing of a runner is left", || {
            let is_gone =
                |kind| self.namespace.list(kind, &format!("runner-pod={runner}")).is_empty();
            is_gone("pods") && is_gone("secrets")
        });
    }

    fn write_kubeconfig(&self, server: &str, authority: &Path) {
        let (file, name) = (self.path_of("kubeconfig"), self.namespace.name());
        self.cluster().write_kubeconfig(&file, server, authority, name, &self.token);
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl InstalledHook for NamespaceHook<'_> {
    fn runners(&self) -> &Path {
        self.directory.path()
    }

    fn entry(&self) -> PathBuf {
        self.path_of("container-hook.sh")
    }

    fn variables(&self, runner: &str) -> Vec<(String, String)> {
        let file = |name: &str| self.path_of(name).display().to_string();
        let mut variables = vec![
            ("OCI_HOOKS_CONTAINER_HOOK_CONFIG", file("container-hook.toml")),
            ("KUBECONFIG", file("kubeconfig")),
            ("ACTIONS_RUNNER_POD_NAME", runner.to_owned()),
        ];
        if self.path_of("template.yaml").exists() {
            variables.push(("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", file("template.yaml")));
        }
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> RunningCall {
        let spawn = |command: &mut Command| command.spawn().unwrap();
        RunningCall::start_by(spawn, command, request, response)
    }
}
