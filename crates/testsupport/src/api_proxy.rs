//! A proxy in front of an API server, which injects faults of networks and servers. It terminates TLS, so
//! that it can also answer requests in the server's place.

mod connection;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::certificates::TestCertificates;
use super::cluster::TestCluster;
use super::program;

/// A request of a client to the API server.
#[derive(Clone, Debug)]
pub struct ApiRequest {
    pub method: String,
    /// With the query.
    pub path: String,
    pub body: Vec<u8>,
}

/// A way for a connection to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionCut {
    /// With a TCP reset, as from a crashed machine.
    Reset,
    /// Closed, as by a load balancer after an idle timeout.
    Closed,
    /// Closed in order, as by a server that shuts down: streams get a close frame.
    Said,
}

/// An error response of the proxy, sent instead of the server's response.
#[derive(Clone, Copy, Debug)]
pub struct ErrorResponse {
    pub status: u16,
    /// In seconds.
    pub retry_after: Option<u32>,
}

/// A proxy, stopped on drop.
pub struct ApiProxy {
    address: SocketAddr,
    certificates: Arc<TestCertificates>,
    faults: Arc<ProxyState>,
    // Dropping the runtime stops its tasks.
    _runtime: Runtime,
}

/// Faults to inject, and the requests seen so far.
struct ProxyState {
    /// If set, bytes are forwarded.
    goes: watch::Sender<bool>,
    /// Number of cuts, and the kind of the last cut.
    cuts: watch::Sender<(u64, ConnectionCut)>,
    delay: Mutex<Duration>,
    refusals: Mutex<VecDeque<(String, ErrorResponse)>>,
    asked: Mutex<Vec<ApiRequest>>,
}

impl ApiProxy {
    /// Starts a proxy in front of the API server of a cluster.
    pub fn start(cluster: &TestCluster) -> Self {
        let certificates = TestCertificates::shared();
        let (goes, _) = watch::channel(true);
        let (cuts, _) = watch::channel((0, ConnectionCut::Reset));
        let faults = Arc::new(ProxyState {
            goes,
            cuts,
            delay: Mutex::default(),
            refusals: Mutex::default(),
            asked: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime can be made");
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("the loopback has free ports");
        let address = listener.local_addr().expect("it is bound");
        let server = connection::UpstreamServer {
            address: format!("{}:443", cluster.address()),
            acceptor: TlsAcceptor::from(Arc::new(server_config(&certificates))),
            connector: TlsConnector::from(Arc::new(client_config(cluster))),
        };
        let server = Arc::new(server);
        runtime.spawn({
            let faults = Arc::clone(&faults);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    tokio::spawn(connection::serve(
                        client,
                        Arc::clone(&server),
                        Arc::clone(&faults),
                    ));
                }
            }
        });
        Self { address, certificates, faults, _runtime: runtime }
    }

    /// Returns the URL of the API for clients.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the CA certificate of the proxy.
    pub fn authority(&self) -> PathBuf {
        self.certificates.authorities()
    }

    /// Cuts all open connections.
    pub fn cut_connections(&self, how: ConnectionCut) {
        self.faults.cuts.send_modify(|cuts| *cuts = (cuts.0 + 1, how));
    }

    /// Stops forwarding, in open connections and in new ones.
    pub fn freeze(&self) {
        self.faults.goes.send_replace(false);
    }

    /// Resumes forwarding.
    pub fn thaw(&self) {
        self.faults.goes.send_replace(true);
    }

    /// Delays all data from the server.
    pub fn delay(&self, delay: Duration) {
        *self.faults.delay.lock().expect("no holder panics") = delay;
    }

    /// Answers the next `count` matching requests in the server's place. `end` is the end of a path without the
    /// query, optionally after a method: `POST /pods`.
    pub fn refuse(&self, count: usize, end: &str, refusal: ErrorResponse) {
        let mut refusals = self.faults.refusals.lock().expect("no holder panics");
        refusals.extend(std::iter::repeat_n((end.to_owned(), refusal), count));
    }

    /// Returns the number of planned refusals that are left.
    pub fn refusals_left(&self) -> usize {
        self.faults.refusals.lock().expect("no holder panics").len()
    }

    /// Returns all requests so far.
    pub fn seen_requests(&self) -> Vec<ApiRequest> {
        self.faults.asked.lock().expect("no holder panics").clone()
    }

    /// Waits until the proxy has seen a matching request.
    #[track_caller]
    pub fn wait_for(&self, what: &str, is_it: impl Fn(&ApiRequest) -> bool) {
        program::wait_until(what, || self.seen_requests().iter().any(&is_it));
    }
}

impl ProxyState {
    /// Records a request, and returns the refusal if the proxy is to answer it.
    fn ask(&self, asked: ApiRequest) -> Option<ErrorResponse> {
        let line = format!("{} {}", asked.method, asked.path.split('?').next().unwrap_or_default());
        self.asked.lock().expect("no holder panics").push(asked);
        let mut refusals = self.refusals.lock().expect("no holder panics");
        let (end, refusal) = refusals.front()?;
        let (method, end) = end.split_once(' ').unwrap_or(("", end));
        let is_next = line.starts_with(method) && line.ends_with(end);
        let refusal = is_next.then_some(*refusal)?;
        refusals.pop_front();
        Some(refusal)
    }
}

fn server_config(certificates: &TestCertificates) -> ServerConfig {
    let mut config = ServerConfig::clone(&certificates.tls());
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

fn client_config(cluster: &TestCluster) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(cluster.authority());
    roots.add(authority.expect("the cluster has one")).expect("it is a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has both versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}
