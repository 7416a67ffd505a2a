//! A real cluster of Kubernetes for the tests of one program: `test-cluster.sh` has it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, http};

use super::program::{self, DEADLINE};

/// Who may use which policy for pods: whoever has no right to use one cannot make any.
const POLICIES: [&str; 2] = ["privileged", "restricted"];

/// What the chart of actions-runner-controller lets runners do.
pub(crate) const RUNNER_RULES: &str = r#"[
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "create", "delete"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "delete"]}
]"#;

/// A cluster of one node. It ends with this process.
pub(crate) struct Cluster {
    directory: PathBuf,
    address: String,
    token: String,
    agent: Agent,
    control: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    namespaces: AtomicU32,
    /// Held by whoever restarts parts of it, against all others.
    users: RwLock<()>,
}

/// The cluster, which others use too.
pub(crate) struct Shared {
    cluster: &'static Cluster,
    _users: RwLockReadGuard<'static, ()>,
}

/// The cluster, which nobody else uses.
pub(crate) struct Alone {
    cluster: &'static Cluster,
    _users: RwLockWriteGuard<'static, ()>,
}

impl std::ops::Deref for Shared {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl std::ops::Deref for Alone {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        self.cluster
    }
}

impl Alone {
    /// Kills a part, `apiserver` or `kubelet`, starts it anew, and waits until it answers.
    pub(crate) fn restart(&self, part: &str) {
        let mut control = self.control.lock().expect("no holder panics");
        writeln!(control.0, "restart {part}").expect("the cluster reads");
        let mut answer = String::new();
        control.1.read_line(&mut answer).expect("a pipe can be read");
        assert_eq!(answer, "done\n", "{part} does not start again\n{}", self.logs());
    }
}

impl Cluster {
    /// Returns the cluster of this program once nobody restarts parts of it; a function fills its registry
    /// when it starts.
    pub(crate) fn shared(fill: fn(&Cluster)) -> Shared {
        let cluster = Self::get(fill);
        let users = cluster.users.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        Shared { cluster, _users: users }
    }

    /// Returns it once nobody else uses it.
    pub(crate) fn alone(fill: fn(&Cluster)) -> Alone {
        let cluster = Self::get(fill);
        let users = cluster.users.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        Alone { cluster, _users: users }
    }

    fn get(fill: fn(&Cluster)) -> &'static Cluster {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        CLUSTER.get_or_init(|| {
            let cluster = Self::start();
            cluster.make_policies();
            fill(&cluster);
            cluster
        })
    }

    fn start() -> Self {
        program::require_root();
        // The cluster removes it.
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

    /// Returns the last lines of what its parts wrote.
    pub(crate) fn logs(&self) -> String {
        let logs = fs::read_dir(self.directory.join("log")).into_iter().flatten().flatten();
        let tail = |path: PathBuf| {
            program::run(Command::new("tail").args(["-n", "5", "-v"]).arg(path)).stdout
        };
        logs.map(|log| tail(log.path())).collect()
    }

    /// Returns the address of the node, where the API and the registry are.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the address of this machine in the network of pods.
    pub(crate) fn own_address(&self) -> String {
        let (network, _) = self.address.rsplit_once('.').expect("it is an address");
        format!("{network}.254")
    }

    /// Returns the certificate of who signs those of the API server.
    pub(crate) fn authority(&self) -> PathBuf {
        self.directory.join("pki/ca.crt")
    }

    /// Returns the directory of an `emptyDir` of a pod.
    pub(crate) fn volume(&self, pod: &Value, name: &str) -> PathBuf {
        let uid = pod["metadata"]["uid"].as_str().expect("it was made");
        let volumes = self.directory.join("kubelet/pods").join(uid).join("volumes");
        volumes.join("kubernetes.io~empty-dir").join(name)
    }

    /// Makes a call as the administrator and returns the status and the answer. What cannot get through
    /// because the server starts anew is tried again if it only reads.
    #[track_caller]
    pub(crate) fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
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
        }
    }

    /// Makes an object. Tries again if the server says so, as for a pod whose service account has no token yet.
    #[track_caller]
    pub(crate) fn create(&self, path: &str, object: &Value) -> Value {
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

    /// Writes the settings of a client that has a token.
    pub(crate) fn write_kubeconfig(
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

    /// Makes what decides which pods may be: a cluster of today has pod security admission, one of 1.20
    /// has these.
    fn make_policies(&self) {
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

/// A namespace of one test; what is in it goes with the value.
pub(crate) struct Namespace<'c> {
    cluster: &'c Cluster,
    name: String,
}

impl<'c> Namespace<'c> {
    /// Makes one where all kinds of pods may be.
    pub(crate) fn new(cluster: &'c Cluster) -> Self {
        Self::with_policy(cluster, "privileged")
    }

    /// Makes one where only pods of the restricted profile may be.
    pub(crate) fn restricted(cluster: &'c Cluster) -> Self {
        Self::with_policy(cluster, "restricted")
    }

    fn with_policy(cluster: &'c Cluster, policy: &str) -> Self {
        let name = format!("test-{}", cluster.namespaces.fetch_add(1, Ordering::Relaxed));
        cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": name}}));
        let namespace = Self { cluster, name };
        let group = format!("system:serviceaccounts:{}", namespace.name);
        namespace.create("rolebindings", &binding("pods", "ClusterRole", policy, "Group", &group));
        // No pod can be made before it is there.
        program::wait_until("the service account `default`", || {
            namespace.get("serviceaccounts", "default").is_some()
        });
        namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn cluster(&self) -> &'c Cluster {
        self.cluster
    }

    /// Makes a service account that may do what these rules say, and returns its token.
    pub(crate) fn account(&self, name: &str, rules: &str) -> String {
        let rules: Value = serde_json::from_str(rules).expect("it is JSON");
        self.create("serviceaccounts", &json!({"metadata": {"name": name}}));
        self.create("roles", &json!({"metadata": {"name": name}, "rules": rules}));
        self.create("rolebindings", &binding(name, "Role", name, "ServiceAccount", name));
        let mut token = None;
        program::wait_until("the token of a service account", || {
            let secrets = self.list("secrets", "");
            let is_of = |secret: &&Value| {
                let annotations = &secret["metadata"]["annotations"];
                annotations["kubernetes.io/service-account.name"] == name
            };
            let secret = secrets.iter().find(is_of);
            token = secret.and_then(|secret| secret["data"]["token"].as_str()).map(str::to_owned);
            token.is_some()
        });
        let token = base64::engine::general_purpose::STANDARD.decode(token.unwrap_or_default());
        String::from_utf8(token.expect("secrets are in base64")).expect("tokens are text")
    }

    /// Makes an object of a kind, named as in paths: `pods`.
    #[track_caller]
    pub(crate) fn create(&self, kind: &str, object: &Value) -> Value {
        self.cluster.create(&self.path(kind, ""), object)
    }

    #[track_caller]
    pub(crate) fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let (status, object) = self.cluster.call("GET", &self.path(kind, name), None);
        match status {
            200 => Some(object),
            404 => None,
            _ => panic!("GET {kind} {name}: {object}"),
        }
    }

    /// Returns the objects of a kind that have some labels.
    #[track_caller]
    pub(crate) fn list(&self, kind: &str, labels: &str) -> Vec<Value> {
        let path = format!("{}?labelSelector={labels}", self.path(kind, ""));
        let (status, mut list) = self.cluster.call("GET", &path, None);
        assert_eq!(status, 200, "GET {path}: {list}");
        match list["items"].take() {
            Value::Array(items) => items,
            _ => Vec::new(),
        }
    }

    /// Deletes an object at once.
    pub(crate) fn delete(&self, kind: &str, name: &str) {
        let path = format!("{}?gracePeriodSeconds=0", self.path(kind, name));
        self.cluster.call("DELETE", &path, None);
    }

    /// Waits until a pod is as it is asked for, and returns it.
    #[track_caller]
    pub(crate) fn wait_for_pod(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let mut pod = Value::Null;
        let deadline = std::time::Instant::now() + DEADLINE;
        while pod.is_null() || !is_so(&pod) {
            assert!(std::time::Instant::now() < deadline, "{name} is never so:\n{pod:#}");
            pod = self.get("pods", name).unwrap_or_default();
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

impl Drop for Namespace<'_> {
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
