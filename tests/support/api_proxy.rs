//! A proxy in front of an API server, which does to connections whatever networks and servers do. TLS ends
//! at it, so that it can answer requests in the server's place too.

mod connection;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::certificates::Certificates;
use super::cluster::Cluster;
use super::program;

/// What a client asked of the API server.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    /// Returns whether this asked for a command in a container.
    pub(crate) fn is_exec(&self) -> bool {
        self.path.split('?').next().is_some_and(|path| path.ends_with("/exec"))
    }
}

/// How a connection ends that nobody at its ends wants to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// With a reset, as a machine that was there no longer sends it.
    Reset,
    /// As a load balancer ends it that has seen nothing for long.
    Closed,
    /// As a server ends a stream when it ends itself: with a frame that says so, if it is a stream.
    Said,
}

/// What the proxy answers instead of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    /// In seconds.
    pub(crate) retry_after: Option<u32>,
}

/// A proxy; it ends when dropped.
pub(crate) struct ApiProxy {
    address: SocketAddr,
    certificates: Arc<Certificates>,
    faults: Arc<Faults>,
    // Ends what it runs when it is dropped.
    _runtime: Runtime,
}

/// What is to happen, and what did.
struct Faults {
    /// Whether bytes go through.
    goes: watch::Sender<bool>,
    /// How often connections were cut, and how at last.
    cuts: watch::Sender<(u64, Cut)>,
    delay: Mutex<Duration>,
    refusals: Mutex<VecDeque<(String, Refusal)>>,
    asked: Mutex<Vec<Asked>>,
}

impl ApiProxy {
    /// Starts one in front of the API server of a cluster.
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let certificates = Certificates::shared();
        let (goes, _) = watch::channel(true);
        let (cuts, _) = watch::channel((0, Cut::Reset));
        let faults = Arc::new(Faults {
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
        let server = connection::Server {
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

    /// Returns where clients find the API.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Returns the certificate of who signs the proxy's.
    pub(crate) fn authority(&self) -> PathBuf {
        self.certificates.authorities()
    }

    /// Ends all connections that there are.
    pub(crate) fn cut(&self, how: Cut) {
        self.faults.cuts.send_modify(|cuts| *cuts = (cuts.0 + 1, how));
    }

    /// Lets nothing through any more, in connections that there are and in new ones.
    pub(crate) fn freeze(&self) {
        self.faults.goes.send_replace(false);
    }

    /// Lets everything through again.
    pub(crate) fn thaw(&self) {
        self.faults.goes.send_replace(true);
    }

    /// Holds up whatever comes from the server for so long.
    pub(crate) fn delay(&self, delay: Duration) {
        *self.faults.delay.lock().expect("no holder panics") = delay;
    }

    /// Answers the next requests itself, so many of those whose line, such as `POST /api/v1/…`, begins so
    /// and ends with a text, but for the query.
    pub(crate) fn refuse(&self, count: usize, end: &str, refusal: Refusal) {
        let mut refusals = self.faults.refusals.lock().expect("no holder panics");
        refusals.extend(std::iter::repeat_n((end.to_owned(), refusal), count));
    }

    /// Returns how many answers are still to be given in the server's place.
    pub(crate) fn refusals_left(&self) -> usize {
        self.faults.refusals.lock().expect("no holder panics").len()
    }

    /// Returns what was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.faults.asked.lock().expect("no holder panics").clone()
    }

    /// Waits until so many commands were asked for.
    #[track_caller]
    pub(crate) fn wait_for_execs(&self, count: usize) {
        program::wait_until("an exec", || {
            self.asked().iter().filter(|asked| asked.is_exec()).count() >= count
        });
    }

    /// Waits until something was asked for.
    #[track_caller]
    pub(crate) fn wait_for(&self, what: &str, is_it: impl Fn(&Asked) -> bool) {
        program::wait_until(what, || self.asked().iter().any(&is_it));
    }
}

impl Faults {
    /// Notes a request, and returns what to answer if that is not the server's to do.
    fn ask(&self, asked: Asked) -> Option<Refusal> {
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

fn server_config(certificates: &Certificates) -> ServerConfig {
    let chain = CertificateDer::pem_file_iter(certificates.certificate())
        .expect("the certificate can be read")
        .collect::<Result<_, _>>()
        .expect("it is PEM");
    let key = PrivateKeyDer::from_pem_file(certificates.key()).expect("the key is PEM");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has both versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("the key belongs to the certificate");
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}

fn client_config(cluster: &Cluster) -> ClientConfig {
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
