//! Registries of a test host: the real `docker-registry`, under the names that jobs use.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::host::TestHost;
use super::images::{self, SharedLayers, TestImage};
use super::program;

/// Name of a registry of a test host.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RegistryName {
    /// `docker.io`, with TLS.
    Hub,
    /// `ghcr.io`, with TLS.
    Ghcr,
    /// `localhost:5000`, without TLS.
    Local,
}

impl RegistryName {
    fn address(self) -> SocketAddr {
        match self {
            Self::Hub => SocketAddr::from(([127, 0, 0, 2], 443)),
            Self::Ghcr => SocketAddr::from(([127, 0, 0, 3], 443)),
            Self::Local => SocketAddr::from(([127, 0, 0, 1], 5000)),
        }
    }
}

/// User and password that a registry requires.
#[derive(Clone, Copy)]
pub struct HubLogin<'a>(pub &'a str, pub &'a str);

/// A running registry.
pub struct HostRegistry(Child);

impl HostRegistry {
    /// Starts a registry with all images of the tests.
    pub fn start(host: &TestHost, name: RegistryName, login: Option<HubLogin<'_>>) -> Self {
        Self::serve(host, name, login, &storage())
    }

    /// Starts a registry with this storage directory.
    pub fn serve(
        host: &TestHost,
        name: RegistryName,
        login: Option<HubLogin<'_>>,
        storage: &Path,
    ) -> Self {
        let directory = host.path().join(format!("registry-{}", name.address().ip()));
        fs::create_dir(&directory).expect("each registry is started once");
        let mut config = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n",
            storage.display()
        );
        write!(config, "http:\n  addr: {}\n", name.address()).expect("a string takes it");
        if name != RegistryName::Local {
            let certificates = &host.certificates;
            let (certificate, key) = (certificates.certificate(), certificates.key());
            let (certificate, key) = (certificate.display(), key.display());
            writeln!(config, "  tls: {{certificate: {certificate}, key: {key}}}")
                .expect("a string takes it");
        }
        if let Some(HubLogin(user, password)) = login {
            let file = directory.join("htpasswd");
            let mut htpasswd = Command::new(program::find("htpasswd"));
            // On standard input: the password may be a canary that must not appear on a command line.
            let line = program::run_with_input(htpasswd.args(["-niB", user]), password.as_bytes());
            fs::write(&file, line.success()).expect("the directory is new");
            writeln!(config, "auth: {{htpasswd: {{realm: test, path: {}}}}}", file.display())
                .expect("a string takes it");
        }
        let file = directory.join("config.yml");
        fs::write(&file, config).expect("the directory is new");
        let mut command = Command::new(program::find("docker-registry"));
        command.arg("serve").arg(file).env("OTEL_TRACES_EXPORTER", "none");
        let mut child =
            host.spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()));
        let mut log = BufReader::new(child.stderr.take().expect("it is a pipe"));
        let mut said = String::new();
        loop {
            let from = said.len();
            let read = log.read_line(&mut said).expect("a pipe can be read");
            assert_ne!(read, 0, "docker-registry does not start:\n{said}");
            if said[from..].contains("listening on") {
                break;
            }
        }
        // The registry must never block on its log.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self(child)
    }
}

impl Drop for HostRegistry {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a registry storage directory with all images, created once for each version of the sources.
fn storage() -> PathBuf {
    let sources = concat!(include_str!("images.rs"), include_str!("hub.rs"));
    let name = images::digest(sources.as_bytes()).replace(':', "-");
    program::made_once(&name, |making| {
        let all = SharedLayers::new().all_images();
        push_all(making, all.iter().map(|(name, image)| (name.as_str(), image)));
    })
}

/// Fills a registry storage directory with images, each under a name of repository and tag.
pub fn push_all<'a>(storage: &Path, images: impl Iterator<Item = (&'a str, &'a TestImage)>) {
    let host = TestHost::new();
    let _registry = HostRegistry::serve(&host, RegistryName::Local, None, storage);
    let registry = format!("http://{}", RegistryName::Local.address());
    for (name, image) in images {
        host.enter(|| image.push(&registry, name));
    }
}
