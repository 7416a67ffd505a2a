//! A real registry, `docker-registry`, on a free port of the loopback interface.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::program::{self, DEADLINE, Finished};

/// Who may use a registry.
#[derive(Clone, Copy)]
pub(crate) enum Auth<'a> {
    /// Everybody.
    None,
    /// One user with a password.
    Password(&'a str, &'a str),
    /// Those whom the token server at this address lets in.
    Token(&'a str),
}

/// How a registry is set up, with everything optional.
#[derive(Clone, Copy, Default)]
pub(crate) struct Options<'a> {
    /// A certificate and its key, as PEM files; without them the registry speaks plain HTTP.
    pub(crate) tls: Option<(&'a Path, &'a Path)>,
}

/// A registry of our own; it stops and its images go away when dropped.
pub(crate) struct Registry {
    daemon: Option<Child>,
    address: SocketAddr,
    directory: TempDir,
}

impl Registry {
    /// Starts one that speaks plain HTTP.
    #[track_caller]
    pub(crate) fn start(auth: Auth<'_>) -> Self {
        Self::start_with(auth, Options::default())
    }

    /// Starts one.
    #[track_caller]
    pub(crate) fn start_with(auth: Auth<'_>, options: Options<'_>) -> Self {
        // Between our closing the port and the registry's opening it, another process may take it.
        (0..5)
            .find_map(|_| Self::try_start(auth, options))
            .expect("docker-registry finds a free port")
    }

    fn try_start(auth: Auth<'_>, options: Options<'_>) -> Option<Self> {
        let directory = program::temporary_directory_in(Path::new("/dev/shm"));
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.expect("the loopback interface has free ports");
        let at = |name: &str| directory.path().join(name);
        let auth = match auth {
            Auth::None => String::new(),
            Auth::Password(user, password) => {
                let mut htpasswd = Command::new(program::find("htpasswd"));
                let line = program::run(htpasswd.args(["-nbB", user, password])).success();
                fs::write(at("htpasswd"), line).expect("the directory is ours");
                format!("auth:\n  htpasswd:\n    realm: test\n    path: {:?}\n", at("htpasswd"))
            }
            Auth::Token(realm) => {
                fs::copy(program::repository("tests/data/registry/server.pem"), at("root.pem"))
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
            // Reading on keeps the registry from blocking on a full pipe.
            for line in log.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut registry = Registry { daemon: Some(daemon), address, directory };
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

    /// Returns `127.0.0.1:PORT`, which names of images start with.
    pub(crate) fn address(&self) -> String {
        self.address.to_string()
    }

    /// Pushes the image of an OCI layout, such as `oci:DIRECTORY:TAG`, under a name with tag.
    #[track_caller]
    pub(crate) fn push(&self, from: &str, name: &str, login: Option<(&str, &str)>) {
        self.skopeo(from, name, login, &[]).success();
    }

    /// Calls `skopeo copy` with more options.
    #[track_caller]
    pub(crate) fn skopeo(
        &self,
        from: &str,
        name: &str,
        login: Option<(&str, &str)>,
        options: &[&str],
    ) -> Finished {
        let mut skopeo = Command::new(program::find("skopeo"));
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", "--all"]);
        skopeo.args(options);
        if let Some((user, password)) = login {
            skopeo.arg(format!("--dest-creds={user}:{password}"));
        }
        skopeo.arg(from).arg(format!("docker://{}/{name}", self.address));
        program::run(&mut skopeo)
    }

    /// Returns where the registry keeps what was pushed.
    pub(crate) fn images(&self) -> PathBuf {
        self.directory.path().join("images")
    }

    fn stop(&mut self) {
        let Some(daemon) = self.daemon.take() else { return };
        let _ = rustix::process::kill_process(Pid::from_child(&daemon), Signal::KILL);
        program::wait(daemon, DEADLINE);
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop();
    }
}
