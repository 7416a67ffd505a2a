//! GARM's metadata and callbacks, and the download host of runners: one server on the loopback interface of a
//! test host.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::github_runner::merge;
use super::super::host::TestHost;
use super::super::http::{WebRequest, WebResponse, WebServer};
use super::super::images::digest;
use super::super::program::{self, DEADLINE};
use super::faults::{ConnectionFault, PlannedFaults};
use super::instances::{KnownInstance, RunnerStatus, encode, refusal};
use super::provider::POOL;
use super::runner;

/// File name of the runner archive for this machine.
pub const ARCHIVE: &str = "actions-runner-linux-x64-2.328.0.tar.gz";

/// File name of Gitea's runner, an executable and no archive.
pub const GITEA: &str = "act_runner-0.2.13-linux-amd64";

/// A fake GARM server.
pub struct GarmServer {
    server: WebServer,
    is_tls: bool,
    shared: Arc<ServerState>,
}

#[derive(Default)]
struct ServerState {
    state: Mutex<GarmState>,
    changed: Condvar,
}

#[derive(Default)]
struct GarmState {
    instances: Vec<KnownInstance>,
    files: BTreeMap<String, Vec<u8>>,
    faults: PlannedFaults,
    /// Bearer token that downloads require.
    download_token: Option<String>,
}

impl GarmServer {
    /// Starts the server on the loopback interface of a host.
    pub fn start(host: &TestHost) -> Self {
        Self::listen(host, false)
    }

    /// Starts the server with TLS, with a certificate of the host's CA.
    pub fn start_tls(host: &TestHost) -> Self {
        Self::listen(host, true)
    }

    fn listen(host: &TestHost, is_tls: bool) -> Self {
        let shared = Arc::<ServerState>::default();
        {
            let mut state = shared.state.lock().expect("no holder panics");
            state.files.insert(ARCHIVE.to_owned(), runner::archive(""));
            state.files.insert(GITEA.to_owned(), runner::ACT_RUNNER.into());
        }
        let listener = host.enter(|| TcpListener::bind("127.0.0.1:0"));
        let tls = is_tls.then(|| host.certificates.tls());
        let server = WebServer::start_at(listener.expect("the loopback has free ports"), tls, {
            let shared = Arc::clone(&shared);
            move |request| {
                let response = shared.state.lock().expect("no holder panics").answer(request);
                shared.changed.notify_all();
                response
            }
        });
        Self { server, is_tls, shared }
    }

    /// Returns the URL of a path.
    pub fn url(&self, path: &str) -> String {
        let (scheme, name) =
            if self.is_tls { ("https", "localhost") } else { ("http", "127.0.0.1") };
        format!("{scheme}://{name}:{}{path}", self.server.port())
    }

    /// Registers an instance, replacing an older one of that name, and returns its bootstrap document with
    /// some fields changed. Its runner runs a shell script as its job.
    pub fn bootstrap(&self, name: &str, job: &str, fields: Value) -> Value {
        let token = new_token();
        let (archive, sha) = {
            let state = self.shared.state.lock().expect("no holder panics");
            (ARCHIVE, digest(&state.files[ARCHIVE]))
        };
        let tool = |os: &str, architecture: &str| {
            let filename = archive.replace("linux-x64", &format!("{os}-{architecture}"));
            json!({
                "os": os, "architecture": architecture, "filename": filename,
                "download_url": self.url(&format!("/downloads/{filename}")),
                "sha256_checksum": sha.strip_prefix("sha256:"),
            })
        };
        let document = json!({
            "name": name,
            "tools": [tool("osx", "x64"), tool("win", "x64"), tool("linux", "arm64"), tool("linux", "x64")],
            "repo_url": self.url("/acme/widgets"),
            "callback-url": self.url("/api/v1/callbacks"),
            "metadata-url": self.url("/api/v1/metadata"),
            "instance-token": token,
            "ssh-keys": null,
            "extra_specs": {"runner_install_template": encode(INJECTED.as_bytes())},
            "github-runner-group": "",
            "ca-cert-bundle": null,
            "arch": "amd64",
            "os_type": "linux",
            "flavor": "default",
            "image": "docker.io/garm/runner:1",
            "labels": null,
            "pool_id": POOL,
            "user_data_options": {
                "disable_updates_on_boot": false, "extra_packages": null, "enable_boot_debug": false,
            },
            "jit_config_enabled": true,
            "proxy_config": {"http_proxy": "", "https_proxy": "", "no_proxy": ""},
        });
        let document = merge(document, fields);
        self.register_instance(&document, job);
        document
    }

    /// Registers the instance of a document.
    pub fn register_instance(&self, document: &Value, job: &str) {
        let text = |key: &str| document[key].as_str().expect("GARM sends it").to_owned();
        let instance = KnownInstance::new(&text("name"), text("instance-token"), document, job);
        self.change(|state| {
            state.instances.retain(|known| known.name != instance.name);
            state.instances.push(instance);
        });
    }

    /// Returns Gitea's tools.
    pub fn gitea_tools(&self) -> Value {
        json!([{
            "os": "linux", "architecture": "x64", "filename": GITEA,
            "download_url": self.url(&format!("/downloads/{GITEA}")),
        }])
    }

    /// Adds a file to download.
    pub fn serve(&self, name: &str, content: impl Into<Vec<u8>>) {
        self.change(|state| drop(state.files.insert(name.to_owned(), content.into())));
    }

    /// Returns the hexadecimal digest of a file to download.
    pub fn checksum(&self, name: &str) -> String {
        self.change(|state| digest(&state.files[name])).replace("sha256:", "")
    }

    /// Makes downloads require a token.
    pub fn require_download_token(&self, token: &str) {
        self.change(|state| state.download_token = Some(token.to_owned()));
    }

    /// Sets GARM's install script for an instance.
    pub fn set_install_script(&self, name: &str, script: &str) {
        self.change(|state| {
            let known = state.instances.iter_mut().find(|known| known.name == name);
            known.expect("it is known").install_script = Some(script.to_owned());
        });
    }

    /// Sets agent mode for an instance, with or without a shell.
    pub fn set_agent_mode(&self, name: &str, shell: bool) {
        self.change(|state| {
            let known = state.instances.iter_mut().find(|known| known.name == name);
            known.expect("it is known").agent_shell = Some(shell);
        });
    }

    /// Plans a fault for the next `times` requests whose path contains a text.
    pub fn plan(&self, path: &str, fault: ConnectionFault, times: usize) {
        self.change(|state| state.faults.plan(path, fault, times));
    }

    /// Returns GARM's state of an instance.
    pub fn instance(&self, name: &str) -> KnownInstance {
        let find = |state: &mut GarmState| state.instances.iter().find(|i| i.name == name).cloned();
        self.change(find).expect("it is known")
    }

    /// Waits until a runner has a status. Panics at another final status.
    #[track_caller]
    pub fn wait_for(&self, name: &str, status: RunnerStatus) -> KnownInstance {
        let instance = self.wait_until(name, |i| i.status == status || !i.is_young());
        assert_eq!(instance.status, status, "{name} said {:#?}", instance.messages);
        instance
    }

    /// Waits until an instance meets a condition.
    #[track_caller]
    pub fn wait_until(&self, name: &str, is_so: impl Fn(&KnownInstance) -> bool) -> KnownInstance {
        let deadline = Instant::now() + DEADLINE;
        let mut state = self.shared.state.lock().expect("no holder panics");
        loop {
            let instance = state.instances.iter().find(|i| i.name == name).expect("it is known");
            if is_so(instance) {
                return instance.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let messages = instance.messages.clone();
            assert!(left > Duration::ZERO, "{name} does not go on; it said {messages:#?}");
            state = self.shared.changed.wait_timeout(state, left).expect("no holder panics").0;
        }
    }

    /// Returns all requests.
    pub fn requests(&self) -> Vec<WebRequest> {
        self.server.requests()
    }

    /// Returns the number of requests whose path contains a text.
    pub fn count(&self, path: &str) -> usize {
        self.requests().iter().filter(|request| request.path.contains(path)).count()
    }

    fn change<T>(&self, change: impl FnOnce(&mut GarmState) -> T) -> T {
        let result = change(&mut self.shared.state.lock().expect("no holder panics"));
        self.shared.changed.notify_all();
        result
    }
}

impl GarmState {
    fn answer(&mut self, request: &WebRequest) -> WebResponse {
        let fault = self.faults.take(request);
        let response = match &fault {
            Some(fault) if fault.is_before() => WebResponse::default(),
            _ => self.route(request),
        };
        fault.map_or(response.clone(), |fault| fault.apply(response))
    }

    fn route(&mut self, request: &WebRequest) -> WebResponse {
        if request.method == "CONNECT" {
            // The rest of the connection is for the host behind the proxy.
            return WebResponse::status(200);
        }
        // Requests to a proxy have an absolute URL.
        let path = request.path.split_once("://").map_or(request.path.as_str(), |(_, rest)| {
            rest.find('/').map_or("/", |at| &rest[at..])
        });
        if let Some(name) = path.strip_prefix("/downloads/") {
            return self.download(name, request);
        }
        let Some(path) = path.strip_prefix("/api/v1/") else { return refusal(404, "not found") };
        // Routes exist with and without a trailing slash.
        let path = path.strip_suffix('/').unwrap_or(path);
        let words: Vec<_> =
            request.header("authorization").unwrap_or_default().split(' ').collect();
        let instance = match words[..] {
            [_, token] => self.instances.iter_mut().find(|known| known.token == token),
            _ => None,
        };
        let Some(instance) = instance.filter(|instance| instance.is_young()) else {
            return refusal(401, "Authentication failed");
        };
        if let Some(what) = path.strip_prefix("callbacks/") {
            return instance.callback(what, request);
        }
        match path.strip_prefix("metadata/") {
            Some(what) if request.method == "GET" => instance.metadata(what),
            _ => refusal(404, "not found"),
        }
    }

    fn download(&self, name: &str, request: &WebRequest) -> WebResponse {
        let expected = self.download_token.as_ref().map(|token| format!("Bearer {token}"));
        let shown = request.header("authorization");
        // An unexpected token is wrong too: it must not be sent to hosts that do not ask for it.
        if shown != expected.as_deref() {
            return refusal(401, "wrong token for a download");
        }
        self.files
            .get(name)
            .map_or_else(|| refusal(404, "not found"), |file| WebResponse::ok(file.as_slice()))
    }
}

/// Install template that GARM adds to the extra specs of every pool; the real one contains the token.
const INJECTED: &str = "#!/bin/bash\n\nset -ex\nset -o pipefail\n\nBEARER_TOKEN=\"none\"\n\
    curl -o /tmp/real-install.sh \"$METADATA_URL/install-script/\"\n/tmp/real-install.sh\n";

/// Returns a token of GARM's format with a canary, to find leaks.
fn new_token() -> String {
    let name = program::unique_name();
    format!("eyJhbGciOiJIUzI1NiJ9.{}.canary-token-{name}", encode(name.as_bytes()).replace('=', ""))
}
