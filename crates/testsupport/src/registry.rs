//! A real registry, `docker-registry`, on a free port of the loopback interface.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::program::{self, DEADLINE, FinishedCommand};

/// Access control of a registry.
#[derive(Clone, Copy)]
pub enum RegistryAuth<'a> {
    /// No authentication.
    None,
    /// One user with a password.
    Password(&'a str, &'a str),
    /// Tokens of the token server at this address.
    Token(&'a str),
}

/// Optional settings of a registry.
#[derive(Clone, Copy, Default)]
pub struct RegistryConfig<'a> {
    /// Certificate and key as PEM files. Without them the registry speaks plain HTTP.
    pub tls: Option<(&'a Path, &'a Path)>,
}

/// A private registry, stopped on drop; its images are removed.
pub struct TestRegistry {
    daemon: Option<Child>,
    address: SocketAddr,
    directory: TempDir,
}

impl TestRegistry {
    /// Starts a registry that speaks plain HTTP.
    #[track_caller]
    pub fn start(auth: RegistryAuth<'_>) -> Self {
        Self::start_with(auth, RegistryConfig::default())
    }

    /// Starts a registry.
    #[track_caller]
    pub fn start_with(auth: RegistryAuth<'_>, options: RegistryConfig<'_>) -> Self {
        // Another process may take the free port before the registry binds it.
        (0..5)
            .find_map(|_| Self::try_start(auth, options))
            .expect("docker-registry finds a free port")
    }

    fn try_start(auth: RegistryAuth<'_>, options: RegistryConfig<'_>) -> Option<Self> {
        let directory = program::temporary_directory_in(Path::new("/dev/shm"));
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("the loopback interface has free ports");
        let at = |name: &str| directory.path().join(name);
        let auth = match auth {
            RegistryAuth::None => String::new(),
            RegistryAuth::Password(user, password) => {
                let mut htpasswd = Command::new(program::find("htpasswd"));
                let line = program::run(htpasswd.args(["-nbB", user, password])).success();
                fs::write(at("htpasswd"), line).expect("the directory is ours");
                format!("auth:\n  htpasswd:\n    realm: test\n    path: {:?}\n", at("htpasswd"))
            }
            RegistryAuth::Token(realm) => {
                fs::copy(
                    program::repository("crates/testsupport/data/registry/server.pem"),
                    at("root.pem"),
                )
                .expect("the certificate is part of the repository");
                format!(
                    "auth:\n  token:\n    realm: {realm:?}\n    service: test\n    issuer: test\n    \
                     rootcertbundle: {:?}\n",
                    at("root.pem"),
                )
            }
        };
        let tls = options.tls.map_or(String::new(), |(certificate, key)| {
            format!("  tls:\n    certificate: {certificate:?}\n    key: {key:?}\n")
        });
        let settings = format!(
            "version: 0.1\nlog:\n  level: info\nstorage:\n  filesystem:\n    rootdirectory: {:?}\n  \
             delete:\n    enabled: true\nhttp:\n  addr: {address}\n{tls}{auth}",
            at("images"),
        );
        fs::write(at("config.yml"), settings).expect("the directory is ours");
        let mut daemon = Command::new(program::find("docker-registry"))
            .arg("serve")
            .arg(at("config.yml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start docker-registry: {error}"));
        let log = BufReader::new(daemon.stderr.take().expect("it is piped"));
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            // Keeps reading the log, so that the registry never blocks on a full pipe.
            for line in log.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut registry = TestRegistry { daemon: Some(daemon), address, directory };
        let mut seen = String::new();
        loop {
            match receiver.recv_timeout(DEADLINE) {
                Ok(line) if line.contains("listening on") => return Some(registry),
                Ok(line) => seen = format!("{seen}{line}\n"),
                Err(_) if seen.contains("address already in use") => {
                    registry.stop();
                    return None;
                }
                Err(_) => panic!("docker-registry does not start\n{seen}"),
            }
        }
    }

    /// Returns `127.0.0.1:PORT`, the prefix of image names.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Pushes the image of an OCI layout, such as `oci:DIRECTORY:TAG`, under a name with tag.
    #[track_caller]
    pub fn push(&self, from: &str, name: &str, login: Option<(&str, &str)>) {
        self.skopeo(from, name, login, &[]).success();
    }

    /// Runs `skopeo copy` with more options.
    #[track_caller]
    pub fn skopeo(
        &self,
        from: &str,
        name: &str,
        login: Option<(&str, &str)>,
        options: &[&str],
    ) -> FinishedCommand {
        let mut skopeo = Command::new(program::find("skopeo"));
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "--all"]);
        skopeo.args(options);
        if let Some((user, password)) = login {
            skopeo.arg(format!("--dest-creds={user}:{password}"));
        }
        skopeo.arg(from).arg(format!("docker://{}/{name}", self.address));
        program::run(&mut skopeo)
    }

    /// Returns the storage directory of the registry.
    pub fn images(&self) -> PathBuf {
        self.directory.path().join("images")
    }

    fn stop(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        let _ = rustix::process::kill_process(Pid::from_child(&daemon), Signal::KILL);
        program::wait(daemon, DEADLINE);
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        self.stop();
    }
}
