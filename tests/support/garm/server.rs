//! GARM's metadata and callbacks and the host that runners are downloaded from: one server on the
//! loopback interface of a test host.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::github_runner::merge;
use super::super::host::Host;
use super::super::http::{Request, Response, Server};
use super::super::images::digest;
use super::super::program::{self, DEADLINE};
use super::faults::{Fault, Faults};
use super::instances::{Instance, RunnerStatus, encode, refusal};
use super::provider::POOL;
use super::runner;

/// The file that the runner for this machine is in.
pub(crate) const ARCHIVE: &str = "actions-runner-linux-x64-2.328.0.tar.gz";

/// Gitea's, which is no archive.
pub(crate) const GITEA: &str = "act_runner-0.2.13-linux-amd64";

/// A server that plays GARM.
pub(crate) struct Garm {
    server: Server,
    is_tls: bool,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    instances: Vec<Instance>,
    files: BTreeMap<String, Vec<u8>>,
    faults: Faults,
    /// What a download must show.
    download_token: Option<String>,
}

impl Garm {
    /// Starts the server on the loopback interface of a host.
    pub(crate) fn start(host: &Host) -> Self {
        Self::listen(host, false)
    }

    /// Starts it with TLS, with a certificate of the host's authority.
    pub(crate) fn start_tls(host: &Host) -> Self {
        Self::listen(host, true)
    }

    fn listen(host: &Host, is_tls: bool) -> Self {
        let shared = Arc::<Shared>::default();
        {
            let mut state = shared.state.lock().expect("no holder panics");
            state.files.insert(ARCHIVE.to_owned(), runner::archive(""));
            state.files.insert(GITEA.to_owned(), runner::ACT_RUNNER.into());
        }
        let listener = host.enter(|| TcpListener::bind("127.0.0.1:0"));
        let tls = is_tls.then(|| host.certificates.tls());
        let server = Server::start_at(listener.expect("the loopback has free ports"), tls, {
            let shared = Arc::clone(&shared);
            move |request| {
                let response = shared.state.lock().expect("no holder panics").answer(request);
                shared.changed.notify_all();
                response
            }
        });
        Self { server, is_tls, shared }
    }

    /// Returns the address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        let (scheme, name) =
            if self.is_tls { ("https", "localhost") } else { ("http", "127.0.0.1") };
        format!("{scheme}://{name}:{}{path}", self.server.port())
    }

    /// Makes an instance known, anew if it was, and returns the document on it with some fields
    /// changed. Its runner runs a shell script as its job.
    pub(crate) fn bootstrap(&self, name: &str, job: &str, fields: Value) -> Value {
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
        self.know(&document, job);
        document
    }

    /// Makes the instance of a document known.
    pub(crate) fn know(&self, document: &Value, job: &str) {
        let text = |key: &str| document[key].as_str().expect("GARM sends it").to_owned();
        let instance = Instance::new(&text("name"), text("instance-token"), document, job);
        self.change(|state| {
            state.instances.retain(|known| known.name != instance.name);
            state.instances.push(instance);
        });
    }

    /// Returns the tools of Gitea.
    pub(crate) fn gitea_tools(&self) -> Value {
        json!([{
            "os": "linux", "architecture": "x64", "filename": GITEA,
            "download_url": self.url(&format!("/downloads/{GITEA}")),
        }])
    }

    /// Has a file to download.
    pub(crate) fn serve(&self, name: &str, content: impl Into<Vec<u8>>) {
        self.change(|state| drop(state.files.insert(name.to_owned(), content.into())));
    }

    /// Returns a file to download.
    pub(crate) fn file(&self, name: &str) -> Vec<u8> {
        self.change(|state| state.files[name].clone())
    }

    /// Returns the digest of a file to download, hexadecimal.
    pub(crate) fn checksum(&self, name: &str) -> String {
        self.change(|state| digest(&state.files[name])).replace("sha256:", "")
    }

    /// Has downloads show a token.
    pub(crate) fn require_download_token(&self, token: &str) {
        self.change(|state| state.download_token = Some(token.to_owned()));
    }

    /// Gives an instance a script of GARM's.
    pub(crate) fn set_install_script(&self, name: &str, script: &str) {
        self.change(|state| {
            let known = state.instances.iter_mut().find(|known| known.name == name);
            known.expect("it is known").install_script = Some(script.to_owned());
        });
    }

    /// Plans a fault for the next requests whose path has a text in it.
    pub(crate) fn plan(&self, path: &str, fault: Fault, times: usize) {
        self.change(|state| state.faults.plan(path, fault, times));
    }

    /// Returns what GARM knows of an instance.
    pub(crate) fn instance(&self, name: &str) -> Instance {
        let find = |state: &mut State| state.instances.iter().find(|i| i.name == name).cloned();
        self.change(find).expect("it is known")
    }

    /// Waits until a runner has a status; another that it would not leave fails the test.
    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str, status: RunnerStatus) -> Instance {
        let instance = self.wait_until(name, |i| i.status == status || !i.is_young());
        assert_eq!(instance.status, status, "{name} said {:#?}", instance.messages);
        instance
    }

    /// Waits until something is so of an instance.
    #[track_caller]
    pub(crate) fn wait_until(&self, name: &str, is_so: impl Fn(&Instance) -> bool) -> Instance {
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

    /// Returns everything that was asked.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.server.requests()
    }

    /// Returns how often something was asked for whose path has a text in it.
    pub(crate) fn count(&self, path: &str) -> usize {
        self.requests().iter().filter(|request| request.path.contains(path)).count()
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.shared.state.lock().expect("no holder panics"));
        self.shared.changed.notify_all();
        result
    }
}

impl State {
    fn answer(&mut self, request: &Request) -> Response {
        let fault = self.faults.take(request);
        let response = match &fault {
            Some(fault) if fault.is_before() => Response::default(),
            _ => self.route(request),
        };
        fault.map_or(response.clone(), |fault| fault.apply(response))
    }

    fn route(&mut self, request: &Request) -> Response {
        if request.method == "CONNECT" {
            // What comes next on the connection is for the host behind.
            return Response::status(200);
        }
        // A proxy is asked with the whole address.
        let path = request.path.split_once("://").map_or(request.path.as_str(), |(_, rest)| {
            rest.find('/').map_or("/", |at| &rest[at..])
        });
        if let Some(name) = path.strip_prefix("/downloads/") {
            return self.download(name, request);
        }
        let Some(path) = path.strip_prefix("/api/v1/") else { return refusal(404, "not found") };
        // Routes exist with a slash at their end and without.
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

    fn download(&self, name: &str, request: &Request) -> Response {
        let expected = self.download_token.as_ref().map(|token| format!("Bearer {token}"));
        let shown = request.header("authorization");
        // Whoever shows nothing where nothing is asked for tells no secrets.
        if shown != expected.as_deref() {
            return refusal(401, "wrong token for a download");
        }
        self.files
            .get(name)
            .map_or_else(|| refusal(404, "not found"), |file| Response::ok(file.as_slice()))
    }
}

/// What GARM puts into the extra specs of every pool: it holds the token too.
const INJECTED: &str = "#!/bin/bash\n\nset -ex\nset -o pipefail\n\nBEARER_TOKEN=\"none\"\n\
    curl -o /tmp/real-install.sh \"$METADATA_URL/install-script/\"\n/tmp/real-install.sh\n";

/// Returns a token that looks as GARM's do, and that can be found wherever it gets to.
fn new_token() -> String {
    let name = program::unique_name();
    format!("eyJhbGciOiJIUzI1NiJ9.{}.canary-token-{name}", encode(name.as_bytes()).replace('=', ""))
}
