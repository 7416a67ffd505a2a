//! A CA of the tests and a certificate for the registries that they serve.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, Weak};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::program;

const NAMES: &str = "subjectAltName=DNS:docker.io,DNS:registry-1.docker.io,DNS:index.docker.io,\
                     DNS:ghcr.io,DNS:localhost,IP:127.0.0.1";

/// Certificates in a directory that is removed with its last user.
pub struct TestCertificates(tempfile::TempDir);

impl TestCertificates {
    /// Returns the certificates shared by all running tests of this process.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<TestCertificates>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let made = Arc::new(Self::new());
            *shared = Arc::downgrade(&made);
            made
        })
    }

    fn new() -> Self {
        let made = Self(program::temporary_directory());
        let openssl = program::find("openssl");
        let run = |line: &str| {
            let mut command = Command::new(&openssl);
            program::run(command.args(line.split(' ')).current_dir(made.0.path())).success();
        };
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        run(&format!(
            "req -x509 {key} -days 3650 -subj /CN=authority -keyout ca.key -out authorities.pem"
        ));
        run(&format!("req {key} -subj /CN=registry -keyout key.pem -out request.pem"));
        fs::write(made.0.path().join("names"), NAMES).expect("the directory is new");
        run(
            "x509 -req -in request.pem -CA authorities.pem -CAkey ca.key -CAcreateserial -days 3650 \
             -extfile names -out certificate.pem",
        );
        made
    }

    /// Returns the CA bundle that replaces the system's.
    pub fn authorities(&self) -> PathBuf {
        self.path().join("authorities.pem")
    }

    pub fn certificate(&self) -> PathBuf {
        self.path().join("certificate.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.path().join("key.pem")
    }

    /// Returns the TLS configuration of a server.
    pub fn tls(&self) -> Arc<ServerConfig> {
        let chain = CertificateDer::pem_file_iter(self.certificate())
            .expect("the certificate can be read")
            .collect::<Result<_, _>>()
            .expect("it is PEM");
        let key = PrivateKeyDer::from_pem_file(self.key()).expect("the key is PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has both versions")
            .with_no_client_auth()
            .with_single_cert(chain, key);
        Arc::new(config.expect("the key belongs to the certificate"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}
