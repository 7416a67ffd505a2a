//! Engine, image store, registries and credentials of this machine, built from the settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_hooks_engine::container::{Engine, MonitorProgram};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_files::find::{DEFAULT_PATH, FindError, find};
use oci_hooks_files::fs::{PathError, ReadError, read_bounded};
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{
    ClientOptions, CredentialFile, CredentialFileError, CredentialHelpers, Credentials,
    LayerLimits, MinRate, RegistryClient, RegistryError, RegistryOptions, StoreError, StoreOptions,
};

use super::monitor::MONITOR;
use super::programs::program_path;
use super::sections::{RegistrySection, RuntimeSection, StoreSection};

/// Environment variables of the proxy to registries, and of the hosts reached without it.
pub const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

/// Size limit of a credentials file, larger than any real one.
const MAX_LOGINS_BYTES: u64 = 4 << 20;

/// Errors of building the engine from the settings.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("cannot find an OCI runtime")]
    Runtime(#[from] FindError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot read the registry logins in {}", path.display())]
    Logins { path: PathBuf, source: CredentialFileError },
    /// A setting requires root on the host.
    #[error("{key}: {reason}; remove this setting, or run the program as root")]
    OnlyRoot { key: &'static str, reason: &'static str },
    #[error("hooks.as: unknown consumer {name:?}: expected one of {known}")]
    Consumer { name: String, known: String },
}

/// Sections of a program's settings that describe this machine.
#[derive(Clone, Copy, Debug)]
pub struct HostSections<'a> {
    /// Name of the program, for hints with its commands.
    pub program: &'static str,
    pub runtime: &'a RuntimeSection,
    pub store: &'a StoreSection,
    pub registry: &'a BTreeMap<String, RegistrySection>,
}

/// Root's credentials file of Podman.
const ROOT_LOGINS: &str = "/run/containers/0/auth.json";

/// Path of a user's credentials file of Podman below `XDG_RUNTIME_DIR`.
const SESSION_LOGINS: &str = "containers/auth.json";

impl<'a> HostSections<'a> {
    /// Opens the image store.
    pub fn store(self) -> Result<oci_hooks_image::ImageStore, HostError> {
        Ok(oci_hooks_image::ImageStore::open(StoreOptions {
            root: self.store.root.clone(),
            run: self.store.run.clone(),
            limits: LayerLimits {
                bytes: self.store.max_layer_size.0,
                entries: self.store.max_layer_files,
                ..LayerLimits::default()
            },
            privilege: self.store.place.privilege,
        })?)
    }

    /// Returns an engine that creates and finds containers.
    pub fn engine(self) -> Result<Engine, HostError> {
        self.with_runtime(self.runtime()?)
    }

    /// Returns an engine that finds existing containers. Their records name the runtime that created them, so this
    /// works even if no runtime is found.
    pub fn into_existing_engine(self) -> Result<Engine, HostError> {
        let root = self.runtime_root();
        self.with_runtime(self.runtime().unwrap_or_else(|_| OciRuntime::new("runc".into(), root)))
    }

    fn with_runtime(self, runtime: OciRuntime) -> Result<Engine, HostError> {
        Ok(Engine {
            store: self.store()?,
            runtime,
            run: self.run().to_owned(),
            disk: self.disk().to_owned(),
            monitor: MonitorProgram { path: program_path()?, arguments: vec![MONITOR.to_owned()] },
            privilege: self.store.place.privilege,
        })
    }

    /// Returns the runtime of new containers.
    pub fn runtime(self) -> Result<OciRuntime, HostError> {
        let names = match &self.runtime.path {
            Some(path) => vec![path.as_os_str()],
            None => self.runtime.order.iter().map(AsRef::as_ref).collect(),
        };
        let program = find(&names, Some(DEFAULT_PATH.as_ref()), None)?;
        let systemd_cgroup = self.runtime.systemd_cgroup;
        Ok(OciRuntime { systemd_cgroup, ..OciRuntime::new(program, self.runtime_root()) })
    }

    /// Returns the directory of container and network state that is cleared on reboot.
    pub fn run(&self) -> &'a Path {
        self.store.container_run()
    }

    /// Returns the directory of root file systems and volumes.
    pub fn disk(&self) -> &'a Path {
        self.store.container_disk()
    }

    fn runtime_root(self) -> PathBuf {
        self.run().join("runtime")
    }

    /// Returns a registry client, which uses a proxy if one of [`PROXY_VARIABLES`] is set.
    pub fn registries(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<RegistryClient, HostError> {
        let variable = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let proxy = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
        let proxy = proxy.iter().find_map(variable);
        let no_proxy = ["NO_PROXY", "no_proxy"].iter().find_map(variable).unwrap_or_default();
        let registries = self.registry.iter().map(|(host, registry)| {
            let options = RegistryOptions {
                insecure: registry.insecure,
                ca_files: registry.ca.iter().cloned().collect(),
                mirrors: registry.mirrors.clone(),
            };
            (host.clone(), options)
        });
        Ok(RegistryClient::new(ClientOptions {
            registries: registries.collect(),
            proxy,
            no_proxy: no_proxy.split(',').map(|host| host.trim().to_owned()).collect(),
            min_rate: MinRate {
                bytes_per_second: self.store.min_pull_speed.0,
                ..MinRate::default()
            },
            max_time: self.store.max_pull_time.0,
            hint: registry_hint,
            ..ClientOptions::default()
        })?)
    }

    /// Returns the credentials of the files in the settings, and of the current user's files of Docker and Podman.
    pub fn credentials(self) -> Result<Credentials, HostError> {
        let mut credentials = Credentials::default();
        for path in &self.store.logins {
            credentials = credentials.with_file(login_file(path)?);
        }
        let home = home();
        let own = [docker_config(&home), home.join(".config/containers/auth.json")];
        let of_session = match self.store.place.privilege {
            Privilege::Root => Some(PathBuf::from(ROOT_LOGINS)),
            Privilege::Mapped(_) | Privilege::Single => {
                let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                run.map(|run| run.join(SESSION_LOGINS))
            }
        };
        for path in own.into_iter().chain(of_session).filter(|path| path.exists()) {
            credentials = credentials.with_file(login_file(&path)?);
        }
        Ok(credentials.with_helpers(CredentialHelpers {
            directories: std::env::split_paths(DEFAULT_PATH).collect(),
            env: vec![("HOME".into(), home.into()), ("PATH".into(), DEFAULT_PATH.into())],
            ..CredentialHelpers::default()
        }))
    }
}

/// Returns a hint on the setting that may prevent an error of a registry.
fn registry_hint(error: &RegistryError) -> Option<&'static str> {
    match error {
        RegistryError::TooSlow { .. } => Some("or lower min-pull-speed under [store]"),
        RegistryError::TooLong { .. } => Some("or raise max-pull-time under [store]"),
        RegistryError::PlainHttp { .. } => {
            Some("if that is right, set `insecure = true` under [registry.\"HOST\"]")
        }
        RegistryError::Tls { .. } => Some(
            "set `ca` under [registry.\"HOST\"] to a file with its CA certificate, or `insecure = true`",
        ),
        _ => None,
    }
}

/// Returns the environment variables with proxies that `docker` of this user sets in containers.
pub fn container_env_of_docker() -> Result<Vec<(String, String)>, HostError> {
    let path = docker_config(&home());
    if !path.exists() {
        return Ok(Vec::new());
    }
    Ok(login_file(&path)?.container_env().to_owned())
}

fn home() -> PathBuf {
    std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from)
}

/// Returns the path of the configuration file of `docker`.
fn docker_config(home: &Path) -> PathBuf {
    let docker = std::env::var_os("DOCKER_CONFIG").filter(|dir| !dir.is_empty());
    docker.map_or_else(|| home.join(".docker"), PathBuf::from).join("config.json")
}

fn login_file(path: &Path) -> Result<CredentialFile, HostError> {
    let bytes = read_bounded(path, MAX_LOGINS_BYTES)?;
    CredentialFile::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|source| HostError::Logins { path: path.to_owned(), source })
}
