//! What containers are made with on this machine, as the settings say.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::monitor::MONITOR;
use super::paths::Place;
use super::programs::this_program;
use super::sections::{Registry, Runtime as RuntimeSection, Store};
use crate::container::{Engine, MonitorProgram};
use crate::image::{
    self, ClientOptions, CredentialFile, CredentialFileError, Credentials, Helpers, Limits, Pace,
    RegistryClient, RegistryError, RegistryOptions, StoreError, StoreOptions,
};
use crate::runtime::{self, DEFAULT_PATH, FindError, Runtime};
use crate::sys::fs::{PathError, ReadError, read_bounded};
use crate::sys::privilege::Privilege;

/// Variables that name the proxy to registries, and the hosts that need none.
pub const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

/// More than any file of logins has.
const MAX_LOGINS_BYTES: u64 = 4 << 20;

/// Why containers cannot be had with these settings.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(transparent)]
    Runtime(#[from] FindError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot read the logins in {}", path.display())]
    Logins { path: PathBuf, source: CredentialFileError },
    /// A setting asks for what only root of the host can do.
    #[error("{key}: {reason}; leave it out, or have root run the program")]
    OnlyRoot { key: &'static str, reason: &'static str },
    #[error("hooks.as: unknown consumer {name:?}: expected one of {known}")]
    Consumer { name: String, known: String },
}

/// What the settings of a program say about this machine.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The program's name, for hints that name its commands.
    pub program: &'static str,
    pub runtime: &'a RuntimeSection,
    pub store: &'a Store,
    pub registry: &'a BTreeMap<String, Registry>,
    pub place: &'a Place,
}

/// Where podman keeps what root logs in to.
const ROOT_LOGINS: &str = "/run/containers/0/auth.json";

/// Where it keeps what another user logs in to, in their runtime directory.
const SESSION_LOGINS: &str = "containers/auth.json";

impl<'a> Host<'a> {
    /// Opens the store of images.
    pub fn store(self) -> Result<image::Store, HostError> {
        Ok(image::Store::open(StoreOptions {
            root: self.store.root.clone(),
            run: self.store.run.clone(),
            limits: Limits {
                bytes: self.store.max_layer_size.0,
                entries: self.store.max_layer_files,
                ..Limits::default()
            },
            privilege: self.place.privilege,
        })?)
    }

    /// Returns what containers are made and found with.
    pub fn engine(self) -> Result<Engine, HostError> {
        self.with_runtime(self.runtime()?)
    }

    /// Returns what containers are found with. Those that are there have the runtime they were made
    /// with in their records, so that none has to be installed.
    pub fn existing(self) -> Result<Engine, HostError> {
        let root = self.runtime_root();
        self.with_runtime(self.runtime().unwrap_or_else(|_| Runtime::new("runc".into(), root)))
    }

    fn with_runtime(self, runtime: Runtime) -> Result<Engine, HostError> {
        Ok(Engine {
            store: self.store()?,
            runtime,
            run: self.run().to_owned(),
            disk: self.disk().to_owned(),
            monitor: MonitorProgram { path: this_program()?, arguments: vec![MONITOR.to_owned()] },
            privilege: self.place.privilege,
        })
    }

    /// Returns the runtime of new containers.
    pub fn runtime(self) -> Result<Runtime, FindError> {
        let names = match &self.runtime.path {
            Some(path) => vec![path.as_os_str()],
            None => self.runtime.order.iter().map(AsRef::as_ref).collect(),
        };
        let program = runtime::find(&names, Some(DEFAULT_PATH.as_ref()), None)?;
        let systemd_cgroup = self.runtime.systemd_cgroup;
        Ok(Runtime { systemd_cgroup, ..Runtime::new(program, self.runtime_root()) })
    }

    /// Returns where containers and networks keep what does not outlive a boot.
    pub fn run(&self) -> &'a Path {
        self.place.run.as_ref().unwrap_or(&self.store.run)
    }

    /// Returns where root file systems and volumes of containers are.
    pub fn disk(&self) -> &'a Path {
        self.place.disk.as_ref().unwrap_or(&self.store.root)
    }

    fn runtime_root(self) -> PathBuf {
        self.run().join("runtime")
    }

    /// Returns how registries are reached, by a proxy if one of [`PROXY_VARIABLES`] names it.
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
            pace: Pace { bytes_per_second: self.store.min_pull_speed.0, ..Pace::default() },
            max_time: self.store.max_pull_time.0,
            ..ClientOptions::default()
        })?)
    }

    /// Returns the logins that the settings name, and those of the user who runs this.
    pub fn credentials(self) -> Result<Credentials, HostError> {
        let mut credentials = Credentials::default();
        for path in &self.store.logins {
            credentials = credentials.with_file(login_file(path)?);
        }
        let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
        let docker = std::env::var_os("DOCKER_CONFIG").filter(|dir| !dir.is_empty());
        let docker = docker.map_or_else(|| home.join(".docker"), PathBuf::from);
        let own = [docker.join("config.json"), home.join(".config/containers/auth.json")];
        let of_session = match self.place.privilege {
            Privilege::Root => Some(PathBuf::from(ROOT_LOGINS)),
            Privilege::Mapped(_) | Privilege::Single => {
                let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                run.map(|run| run.join(SESSION_LOGINS))
            }
        };
        for path in own.into_iter().chain(of_session).filter(|path| path.exists()) {
            credentials = credentials.with_file(login_file(&path)?);
        }
        Ok(credentials.with_helpers(Helpers {
            directories: std::env::split_paths(DEFAULT_PATH).collect(),
            env: vec![("HOME".into(), home.into()), ("PATH".into(), DEFAULT_PATH.into())],
            ..Helpers::default()
        }))
    }
}

fn login_file(path: &Path) -> Result<CredentialFile, HostError> {
    let bytes = read_bounded(path, MAX_LOGINS_BYTES)?;
    CredentialFile::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|source| HostError::Logins { path: path.to_owned(), source })
}
