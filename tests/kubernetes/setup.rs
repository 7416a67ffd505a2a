//! What the tests begin with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::{Value, json};

use crate::support::api_proxy::ApiProxy;
use crate::support::call::Call;
use crate::support::cluster::{Alone, Cluster, Namespace, RUNNER_RULES, Shared};
use crate::support::cluster_images;
use crate::support::github_runner::{Hook, Runner};
use crate::support::program;

/// Returns the cluster with its images.
pub(crate) fn cluster() -> Shared {
    Cluster::shared(fill)
}

/// Returns it for a test that disturbs all others.
pub(crate) fn cluster_alone() -> Alone {
    Cluster::alone(fill)
}

fn fill(cluster: &Cluster) {
    cluster_images::push_all(cluster, installed());
}

/// Returns the hook as it is installed, here and in the runner's image, once for all tests.
pub(crate) fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubernetes");
        fs::create_dir_all(&directory).unwrap();
        let program = directory.join("container-hook");
        // Debug information is most of it, and would have to be brought to the node.
        let mut strip = Command::new(program::find("strip"));
        strip.args(["--strip-debug", "-o"]).arg(&program);
        program::run(strip.arg(env!("CARGO_BIN_EXE_container-hook"))).success();
        program
    })
}

/// Returns how often a test does what it repeats: as usual, or as often as a soak wants, which sets
/// `OCI_HOOKS_CYCLES`.
pub(crate) fn cycles(usual: u32) -> u32 {
    let asked = std::env::var("OCI_HOOKS_CYCLES").ok();
    asked.map_or(usual, |text| text.parse().expect("it is a number"))
}

/// The hook of the runners of one namespace.
pub(crate) struct Pods<'c> {
    pub(crate) namespace: Namespace<'c>,
    directory: tempfile::TempDir,
    token: String,
    proxy: Option<ApiProxy>,
}

impl<'c> Pods<'c> {
    /// Makes a namespace with a service account that has the rights of runners.
    pub(crate) fn new(cluster: &'c Cluster) -> Self {
        Self::within(Namespace::new(cluster), "")
    }

    /// Makes one with further settings.
    pub(crate) fn with(cluster: &'c Cluster, settings: &str) -> Self {
        Self::within(Namespace::new(cluster), settings)
    }

    /// Makes one in a namespace.
    pub(crate) fn within(namespace: Namespace<'c>, settings: &str) -> Self {
        let directory = program::temporary_directory();
        let token = namespace.account("runner", RUNNER_RULES);
        let pods = Self { namespace, directory, token, proxy: None };
        // The hook asks it what images are run with.
        let registry = format!("{}:5000", pods.cluster().address());
        let settings = format!(
            "[backend]\nkind = \"kubernetes\"\n\n{settings}\n\
             [registry.\"docker.io\"]\nmirrors = [{registry:?}]\n\n\
             [registry.{registry:?}]\ninsecure = true\n"
        );
        fs::write(pods.at("container-hook.toml"), settings).unwrap();
        let script = format!("#!/bin/sh\nexec {}\n", installed().display());
        program::write_program(&pods.at("container-hook.sh"), &script);
        let cluster = pods.cluster();
        pods.write_kubeconfig(&format!("https://{}", cluster.address()), &cluster.authority());
        pods
    }

    /// Has all calls from now on go through a proxy.
    pub(crate) fn use_proxy(&mut self) {
        let proxy = ApiProxy::start(self.cluster());
        self.write_kubeconfig(&proxy.url(), &proxy.authority());
        self.proxy = Some(proxy);
    }

    /// Returns the proxy that calls go through.
    pub(crate) fn proxy(&self) -> &ApiProxy {
        self.proxy.as_ref().expect("this test uses one")
    }

    pub(crate) fn cluster(&self) -> &'c Cluster {
        self.namespace.cluster()
    }

    /// Writes the template of the administrator, which is then used.
    pub(crate) fn write_template(&self, text: &str) {
        fs::write(self.at("template.yaml"), text).unwrap();
    }

    /// Makes a runner with its pod. The pod need not run: the hook reads what it is.
    pub(crate) fn runner(&self, name: &str) -> Runner<'_, Self> {
        self.make_runner_pod(name, json!({}));
        let mut runner = Runner::new(self, name);
        // Where pods find them: in the runner's image.
        runner.externals = "/home/runner/externals".into();
        runner
    }

    /// Makes the pod of a runner with more in its specification.
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

    /// Returns the pods that the hook made for a runner, without those that are about to go.
    pub(crate) fn pods_of(&self, runner: &str) -> Vec<Value> {
        let mut pods = self.namespace.list("pods", &format!("runner-pod={runner}"));
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        pods
    }

    /// Checks that nothing of a runner is left, its own pod apart, but what is about to go: a kubelet of 1.20
    /// reports an ended pod when it comes to it.
    #[track_caller]
    pub(crate) fn check_gone(&self, runner: &str) {
        for kind in ["pods", "secrets"] {
            let mut left = self.namespace.list(kind, &format!("runner-pod={runner}"));
            left.retain(|one| one["metadata"]["deletionTimestamp"].is_null());
            let names: Vec<_> = left.iter().map(|one| &one["metadata"]["name"]).collect();
            assert!(left.is_empty(), "left of {runner}: {kind} {names:?}");
        }
    }

    /// Waits until nothing of a runner is left.
    #[track_caller]
    pub(crate) fn wait_until_gone(&self, runner: &str) {
        program::wait_until("that nothing of a runner is left", || {
            let is_gone =
                |kind| self.namespace.list(kind, &format!("runner-pod={runner}")).is_empty();
            is_gone("pods") && is_gone("secrets")
        });
    }

    fn write_kubeconfig(&self, server: &str, authority: &Path) {
        let (file, name) = (self.at("kubeconfig"), self.namespace.name());
        self.cluster().write_kubeconfig(&file, server, authority, name, &self.token);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

impl Hook for Pods<'_> {
    fn runners(&self) -> &Path {
        self.directory.path()
    }

    fn entry(&self) -> PathBuf {
        self.at("container-hook.sh")
    }

    fn variables(&self, runner: &str) -> Vec<(String, String)> {
        let file = |name: &str| self.at(name).display().to_string();
        let mut variables = vec![
            ("OCI_HOOKS_CONTAINER_HOOK_CONFIG", file("container-hook.toml")),
            ("KUBECONFIG", file("kubeconfig")),
            ("ACTIONS_RUNNER_POD_NAME", runner.to_owned()),
        ];
        if self.at("template.yaml").exists() {
            variables.push(("ACTIONS_RUNNER_CONTAINER_HOOK_TEMPLATE", file("template.yaml")));
        }
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    fn start(&self, command: Command, request: Vec<u8>, response: Option<PathBuf>) -> Call {
        let spawn = |command: &mut Command| command.spawn().unwrap();
        Call::start_by(spawn, command, request, response)
    }
}
