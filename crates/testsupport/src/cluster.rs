//! A real Kubernetes cluster for the tests of one test program, run by `test-cluster.sh`.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use serde_json::{Value, json};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, http};

use super::program::{self, DEADLINE};

/// Profiles of pod security. Kubernetes before 1.25 has policies of these names, which a service account needs
/// permission to use.
const POLICIES: [&str; 2] = ["privileged", "restricted"];

/// Permissions that the Helm chart of actions-runner-controller gives to runners.
pub const RUNNER_RULES: &str = r#"[
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "delete"]}
]"#;

/// A cluster of one node, stopped when this process exits.
pub struct TestCluster {
    directory: PathBuf,
    address: String,
    token: String,
    agent: Agent,
    control: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    namespaces: AtomicU32,
    /// Write-locked while parts of the cluster restart.
    users: RwLock<()>,
}

/// The cluster, shared with other tests.
pub struct SharedCluster {
    cluster: &'static TestCluster,
    _users: RwLockReadGuard<'static, ()>,
}

/// The cluster, used exclusively.
pub struct ExclusiveCluster {
    cluster: &'static TestCluster,
    _users: RwLockWriteGuard<'static, ()>,
}

impl std::ops::Deref for SharedCluster {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        self.cluster
    }
}

impl std::ops::Deref for ExclusiveCluster {
    type Target = TestCluster;

    fn deref(&self) -> &TestCluster {
        self.cluster
    }
}

impl ExclusiveCluster {
    /// Kills a part, `apiserver` or `kubelet`, restarts it, and waits until it is ready.
    pub fn restart(&self, part: &str) {
        let mut control = self.control.lock().expect("no holder panics");
        writeln!(control.0, "restart {part}").expect("the cluster reads");
        let mut answer = String::new();
        control.1.read_line(&mut answer).expect("a pipe can be read");
        assert_eq!(answer, "done\n", "{part} does not start again\n{}", self.logs());
    }
}

impl TestCluster {
    /// Returns the cluster of this program for shared use, while no part of it restarts. `fill` fills its
    /// registry after the start.
    pub fn shared(fill: fn(&TestCluster)) -> SharedCluster {
        let cluster = Self::get(fill);
        let users = cluster.users.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        SharedCluster { cluster, _users: users }
    }

    /// Returns the cluster for exclusive use.
    pub fn lock_exclusively(fill: fn(&TestCluster)) -> ExclusiveCluster {
        let cluster = Self::get(fill);
        let users = cluster.users.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        ExclusiveCluster { cluster, _users: users }
    }

    fn get(fill: fn(&TestCluster)) -> &'static TestCluster {
        static CLUSTER: OnceLock<TestCluster> = OnceLock::new();
        // After a panic, other tests panic too, instead of starting the cluster again.
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            let cluster = Self::start();
            cluster.make_policies();
            fill(&cluster);
            let _ = CLUSTER.set(cluster);
        });
        CLUSTER.get().expect("it has started")
    }

    fn start() -> Self {
        program::require_root();
        // The cluster's script removes it.
        let directory = program::temporary_directory().keep();
        let script = program::repository("tests/support/test-cluster.sh");
        let mut process = Command::new(script);
        process.arg("run").arg(&directory).env("TESTCLUSTER_ADMISSION", "PodSecurityPolicy");
        process.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = process.spawn().expect("the script can be run");
        let commands = process.stdin.take().expect("it is a pipe");
        let mut answers = BufReader::new(process.stdout.take().expect("it is a pipe"));
        std::thread::spawn(move || process.wait());
        let mut line = String::new();
        answers.read_line(&mut line).expect("a pipe can be read");
        assert_eq!(line, "ready\n", "no cluster: what it takes is above; tests/run installs it");
        let read = |name: &str| fs::read_to_string(directory.join(name)).expect("the cluster runs");
        let authority = Certificate::from_pem(read("pki/ca.crt").as_bytes()).expect("it is one");
        let roots = RootCerts::new_with_certs(&[authority]);
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(Duration::from_secs(30)))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .build();
        Self {
            address: read("address").trim_end().to_owned(),
            token: read("token").trim_end().to_owned(),
            agent: agent.into(),
            control: Mutex::new((commands, answers)),
            namespaces: AtomicU32::new(0),
            users: RwLock::default(),
            directory,
        }
    }

    /// Returns the last log lines of the cluster's parts.
    pub fn logs(&self) -> String {
        let logs = fs::read_dir(self.directory.join("log")).into_iter().flatten().flatten();
        let tail = |path: PathBuf| {
            program::run(Command::new("tail").args(["-n", "5", "-v"]).arg(path)).stdout
        };
        logs.map(|log| tail(log.path())).collect()
    }

    /// Returns the address of the node, which serves the API and the registry.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the URL of the registry.
    pub fn registry(&self) -> String {
        format!("http://{}:5000", self.address)
    }

    /// Returns the address of this machine in the pod network.
    pub fn own_address(&self) -> String {
        let (network, _) = self.address.rsplit_once('.').expect("it is an address");
        format!("{network}.254")
    }

    /// Returns the CA certificate of the API server.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("pki/ca.crt")
    }

    /// Returns the directory of an `emptyDir` volume of a pod.
    pub fn volume(&self, pod: &Value, name: &str) -> PathBuf {
        let uid = pod["metadata"]["uid"].as_str().expect("it was made");
        let volumes = self.directory.join("kubelet/pods").join(uid).join("volumes");
        volumes.join("kubernetes.io~empty-dir").join(name)
    }

    /// Calls the API as the administrator, and returns the status and the response. Read requests that fail
    /// while the server restarts are retried.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let deadline = std::time::Instant::now() + DEADLINE;
        loop {
            let request = http::Request::builder()
                .method(method)
                .uri(format!("https://{}{path}", self.address))
                .header("Authorization", format!("Bearer {}", self.token))
                .header("Content-Type", "application/json");
            let answered = match body {
                None => self.agent.run(request.body(()).expect("it is a request")),
                Some(body) => {
                    self.agent.run(request.body(body.to_string()).expect("it is a request"))
                }
            };
            let read = answered.and_then(|mut response| {
                let text = response.body_mut().read_to_vec()?;
                Ok((response.status().as_u16(), text))
            });
            match read {
                Ok((status, text)) => {
                    return (status, serde_json::from_slice(&text).unwrap_or(Value::Null));
                }
                Err(error) => assert!(
                    method == "GET" && std::time::Instant::now() < deadline,
                    "{method} {path}: {error}"
                ),
            }
            std::thread::park_timeout(Duration::from_millis(50));
        }
    }

    /// Creates an object. Retries if the server asks for it, as for a pod whose service account has no token yet.
    #[track_caller]
    pub fn create(&self, path: &str, object: &Value) -> Value {
        let deadline = std::time::Instant::now() + DEADLINE;
        loop {
            let (status, answer) = self.call("POST", path, Some(object));
            let may_retry = status == 500 && answer["details"]["retryAfterSeconds"].is_number();
            if !may_retry || std::time::Instant::now() > deadline {
                assert_eq!(status, 201, "POST {path}: {answer}");
                return answer;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        }
    }

    /// Returns the minor version of Kubernetes 1.
    pub fn minor(&self) -> u32 {
        let (_, version) = self.call("GET", "/version", None);
        let minor = version["minor"].as_str().expect("it has a version");
        minor.trim_end_matches('+').parse().expect("it is a number")
    }

    /// Writes the kubeconfig of a client with a token.
    pub fn write_kubeconfig(
        &self,
        path: &Path,
        server: &str,
        authority: &Path,
        namespace: &str,
        token: &str,
    ) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {
                "server": server, "certificate-authority": authority,
            }}],
            "users": [{"name": "test", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {
                "cluster": "test", "user": "test", "namespace": namespace,
            }}],
        });
        fs::write(path, config.to_string()).expect("the directory is there");
    }

    /// Creates the pod security policies. Kubernetes before 1.25 has them instead of pod security admission.
    fn make_policies(&self) {
        if self.minor() >= 25 {
            return;
        }
        let any = json!({"rule": "RunAsAny"});
        let some = json!({"rule": "MustRunAs", "ranges": [{"min": 1, "max": 65535}]});
        let seccomp = "seccomp.security.alpha.kubernetes.io/allowedProfileNames";
        let privileged = json!({
            "metadata": {"name": "privileged", "annotations": {seccomp: "*"}},
            "spec": {
                "privileged": true, "allowPrivilegeEscalation": true, "allowedCapabilities": ["*"],
                "volumes": ["*"], "hostNetwork": true, "hostPID": true, "hostIPC": true,
                "hostPorts": [{"min": 0, "max": 65535}],
                "runAsUser": any, "seLinux": any, "supplementalGroups": any, "fsGroup": any,
            },
        });
        let restricted = json!({
            "metadata": {"name": "restricted", "annotations": {seccomp: "runtime/default"}},
            "spec": {
                "allowPrivilegeEscalation": false, "requiredDropCapabilities": ["ALL"],
                "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI",
                    "persistentVolumeClaim"],
                "runAsUser": {"rule": "MustRunAsNonRoot"}, "seLinux": any,
                "supplementalGroups": some, "fsGroup": some,
            },
        });
        for policy in [&privileged, &restricted] {
            self.create("/apis/policy/v1beta1/podsecuritypolicies", policy);
        }
        for name in POLICIES {
            let rule = json!({"apiGroups": ["policy"], "resources": ["podsecuritypolicies"],
                "resourceNames": [name], "verbs": ["use"]});
            self.create(
                "/apis/rbac.authorization.k8s.io/v1/clusterroles",
                &json!({"metadata": {"name": name}, "rules": [rule]}),
            );
        }
    }
}

/// A namespace of one test, deleted with its objects on drop.
pub struct TestNamespace<'c> {
    cluster: &'c TestCluster,
    name: String,
}

impl<'c> TestNamespace<'c> {
    /// Creates a namespace that admits all pods.
    pub fn new(cluster: &'c TestCluster) -> Self {
        Self::with_policy(cluster, "privileged")
    }

    /// Creates a namespace that only admits pods of the restricted profile.
    pub fn restricted(cluster: &'c TestCluster) -> Self {
        Self::with_policy(cluster, "restricted")
    }

    fn with_policy(cluster: &'c TestCluster, policy: &str) -> Self {
        let name = format!("test-{}", cluster.namespaces.fetch_add(1, Ordering::Relaxed));
        let labels = json!({"pod-security.kubernetes.io/enforce": policy});
        let metadata = json!({"name": name, "labels": labels});
        cluster.create("/api/v1/namespaces", &json!({"metadata": metadata}));
        let namespace = Self { cluster, name };
        let group = format!("system:serviceaccounts:{}", namespace.name);
        namespace.create("rolebindings", &binding("pods", "ClusterRole", policy, "Group", &group));
        // Pods cannot be created without it.
        program::wait_until("the service account `default`", || {
            namespace.get("serviceaccounts", "default").is_some()
        });
        namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn cluster(&self) -> &'c TestCluster {
        self.cluster
    }

    /// Creates a service account with these RBAC rules, and returns its token.
    pub fn account(&self, name: &str, rules: &str) -> String {
        let rules: Value = serde_json::from_str(rules).expect("it is JSON");
        self.create("serviceaccounts", &json!({"metadata": {"name": name}}));
        self.create("roles", &json!({"metadata": {"name": name}, "rules": rules}));
        self.create("rolebindings", &binding(name, "Role", name, "ServiceAccount", name));
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{name}/token", self.name);
        let request = json!({"spec": {"audiences": [], "expirationSeconds": 86400}});
        let answer = self.cluster.create(&path, &request);
        answer["status"]["token"].as_str().expect("it is a token").to_owned()
    }

    /// Creates an object of a kind, named as in paths: `pods`.
    #[track_caller]
    pub fn create(&self, kind: &str, object: &Value) -> Value {
        self.cluster.create(&self.path(kind, ""), object)
    }

    #[track_caller]
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let (status, object) = self.cluster.call("GET", &self.path(kind, name), None);
        match status {
            200 => Some(object),
            404 => None,
            _ => panic!("GET {kind} {name}: {object}"),
        }
    }

    /// Returns the objects of a kind that match a label selector.
    #[track_caller]
    pub fn list(&self, kind: &str, labels: &str) -> Vec<Value> {
        let path = format!("{}?labelSelector={labels}", self.path(kind, ""));
        let (status, mut list) = self.cluster.call("GET", &path, None);
        assert_eq!(status, 200, "GET {path}: {list}");
        match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    }

    /// Deletes an object without a grace period.
    pub fn delete(&self, kind: &str, name: &str) {
        let path = format!("{}?gracePeriodSeconds=0", self.path(kind, name));
        self.cluster.call("DELETE", &path, None);
    }

    /// Waits until a pod meets a condition, and returns it. A name that ends with `-` is the beginning of one.
    #[track_caller]
    pub fn wait_for_pod(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut pod = Value::Null;
        let deadline = std::time::Instant::now() + DEADLINE;
        let is_meant = |pod: &Value| {
            let found = pod["metadata"]["name"].as_str().unwrap();
            found == name || name.ends_with('-') && found.starts_with(name)
        };
        while pod.is_null() || !is_so(&pod) {
            assert!(std::time::Instant::now() < deadline, "{name} is never so:\n{pod:#}");
            pod = self.list("pods", "").into_iter().find(is_meant).unwrap_or_default();
            std::thread::park_timeout(Duration::from_millis(20));
        }
        pod
    }

    fn path(&self, kind: &str, name: &str) -> String {
        let group = match kind {
            "roles" | "rolebindings" => "apis/rbac.authorization.k8s.io/v1",
            _ => "api/v1",
        };
        let path = format!("/{group}/namespaces/{}/{kind}", self.name);
        if name.is_empty() { path } else { format!("{path}/{name}") }
    }
}

impl Drop for TestNamespace<'_> {
    fn drop(&mut self) {
        // A panic here would hide why the test failed.
        if !std::thread::panicking() {
            self.cluster.call("DELETE", &format!("/api/v1/namespaces/{}", self.name), None);
        }
    }
}

fn binding(name: &str, role_kind: &str, role: &str, kind: &str, subject: &str) -> Value {
    let group = if kind == "Group" { "rbac.authorization.k8s.io" } else { "" };
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        "subjects": [{"kind": kind, "name": subject, "apiGroup": group}],
    })
}
