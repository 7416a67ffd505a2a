//! The library's values, from the settings.

use std::path::{Path, PathBuf};

use oci_hooks::bundle::HookOptions;
use oci_hooks::container::{Engine, MonitorProgram};
use oci_hooks::container_hook::pod::TemplateSettings;
use oci_hooks::container_hook::{self, BuildOptions};
use oci_hooks::hooks::Consumer;
use oci_hooks::image::{
    ClientOptions, CredentialFile, CredentialFileError, Credentials, Helpers, Limits, PullPolicy,
    RegistryClient, RegistryError, RegistryOptions, Store, StoreError, StoreOptions,
};
use oci_hooks::network::NetworkOptions;
use oci_hooks::runtime::{self, DEFAULT_PATH, FindError, Runtime};
use oci_hooks::sys::fs::{PathError, ReadError, read_bounded};

use crate::environment::{self, sudo_caller};
use crate::monitor::MONITOR;
use crate::relay::this_program;
use crate::settings::{Hooks, Ownership, Pull, Settings};

/// More than any file of logins has.
const MAX_LOGINS_BYTES: u64 = 4 << 20;

/// Why containers cannot be had with these settings.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EngineError {
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
    #[error("hooks.as: there is no consumer {name:?}, only {known}")]
    Consumer { name: String, known: String },
}

/// Opens the store of images.
pub(crate) fn store(settings: &Settings) -> Result<Store, EngineError> {
    let Settings { store, .. } = settings;
    Ok(Store::open(StoreOptions {
        root: store.root.clone(),
        run: store.run.clone(),
        limits: Limits {
            bytes: store.max_layer_size.0,
            entries: store.max_layer_files,
            ..Limits::default()
        },
    })?)
}

/// Returns what containers are made and found with.
pub(crate) fn open(settings: &Settings) -> Result<Engine, EngineError> {
    with_runtime(settings, runtime(settings)?)
}

/// Returns what containers are found with. Those that are there have the runtime they were made
/// with in their records, so that none has to be installed.
pub(crate) fn existing(settings: &Settings) -> Result<Engine, EngineError> {
    let root = runtime_root(settings);
    with_runtime(settings, runtime(settings).unwrap_or_else(|_| Runtime::new("runc".into(), root)))
}

fn with_runtime(settings: &Settings, runtime: Runtime) -> Result<Engine, EngineError> {
    Ok(Engine {
        store: store(settings)?,
        runtime,
        run: settings.store.run.clone(),
        disk: settings.store.root.clone(),
        monitor: MonitorProgram { path: this_program()?, arguments: vec![MONITOR.to_owned()] },
    })
}

/// Returns the runtime of new containers.
pub(crate) fn runtime(settings: &Settings) -> Result<Runtime, FindError> {
    let names = match &settings.runtime.path {
        Some(path) => vec![path.as_os_str()],
        None => settings.runtime.order.iter().map(AsRef::as_ref).collect(),
    };
    let program = runtime::find(&names, Some(DEFAULT_PATH.as_ref()), None)?;
    let root = runtime_root(settings);
    Ok(Runtime { systemd_cgroup: settings.runtime.systemd_cgroup, ..Runtime::new(program, root) })
}

fn runtime_root(settings: &Settings) -> PathBuf {
    settings.store.run.join("runtime")
}

/// Returns where networks of jobs get their addresses from.
pub(crate) fn network(settings: &Settings) -> NetworkOptions {
    NetworkOptions {
        run: settings.store.run.clone(),
        pool: settings.network.pool,
        pool6: settings.network.pool6,
        host_access: settings.network.host_access,
    }
}

/// Returns how registries are reached.
pub(crate) fn registries(settings: &Settings) -> Result<RegistryClient, EngineError> {
    let proxy = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];
    let proxy = proxy.iter().find_map(|name| variable(name));
    let no_proxy = variable("NO_PROXY").or_else(|| variable("no_proxy")).unwrap_or_default();
    let registries = settings.registry.iter().map(|(host, registry)| {
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
        ..ClientOptions::default()
    })?)
}

/// Where podman keeps what root logs in to.
const ROOT_LOGINS: &str = "/run/containers/0/auth.json";

/// Returns the logins that the settings name and, unless this was called by sudo, those of the user
/// who runs this.
///
/// After sudo that user is root, and what root may fetch is not for every job. Nor is the runner's
/// own file read then: a helper that it names would run as root.
pub(crate) fn credentials(settings: &Settings) -> Result<Credentials, EngineError> {
    let mut credentials = Credentials::default();
    for path in &settings.store.logins {
        credentials = credentials.with_file(login_file(path)?);
    }
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    if sudo_caller().is_none() {
        let own = [home.join(".docker/config.json"), home.join(".config/containers/auth.json")];
        let of_root = rustix::process::geteuid().is_root().then(|| PathBuf::from(ROOT_LOGINS));
        for path in own.into_iter().chain(of_root).filter(|path| path.exists()) {
            credentials = credentials.with_file(login_file(&path)?);
        }
    }
    Ok(credentials.with_helpers(Helpers {
        directories: std::env::split_paths(DEFAULT_PATH).collect(),
        env: vec![("HOME".into(), home.into()), ("PATH".into(), DEFAULT_PATH.into())],
        ..Helpers::default()
    }))
}

fn login_file(path: &Path) -> Result<CredentialFile, EngineError> {
    let bytes = read_bounded(path, MAX_LOGINS_BYTES)?;
    CredentialFile::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|source| EngineError::Logins { path: path.to_owned(), source })
}

/// Returns a variable that is set and not empty.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns what the admin decides on jobs.
pub(crate) fn hook_settings(settings: &Settings) -> Result<container_hook::Settings, EngineError> {
    Ok(container_hook::Settings {
        policy: settings.policy.clone(),
        pull: settings.store.pull.into(),
        hooks: settings.hooks.enabled.then(|| hooks(&settings.hooks)).transpose()?,
        dns: settings.network.dns.clone(),
        log_bytes: settings.log.size.0,
        allow_new_privileges: settings.security.allow_new_privileges,
        restricted: settings.security.restricted,
        runner_owns_files: settings.mounts.ownership == Ownership::Runner,
        memory_bytes: settings.limits.memory.map(|size| size.0),
        pids_limit: Some(settings.limits.pids),
        build: BuildOptions {
            program: settings.build.buildah.clone(),
            options: settings.build.options.clone(),
            env: environment::proxies(),
        },
        template: TemplateSettings {
            file: settings.template.file.clone(),
            config_maps: settings.template.config_maps.clone(),
            secrets: settings.template.secrets.clone(),
            seccomp_profiles: settings.template.seccomp_profiles.clone(),
            runtime_classes: settings.template.runtime_classes.clone(),
        },
    })
}

fn hooks(settings: &Hooks) -> Result<HookOptions, EngineError> {
    let name = &settings.consumer;
    let consumer = Consumer::from_name(name).ok_or_else(|| EngineError::Consumer {
        name: name.clone(),
        known: Consumer::ALL.map(|consumer| consumer.name).join(", "),
    })?;
    Ok(HookOptions {
        dirs: settings.dirs.clone(),
        consumer,
        strict: settings.strict,
        skip_bad_files: settings.skip_bad_files,
        precreate: settings.precreate,
    })
}

impl From<Pull> for PullPolicy {
    fn from(pull: Pull) -> Self {
        match pull {
            Pull::Always => PullPolicy::Always,
            Pull::Missing => PullPolicy::Missing,
            Pull::Newer => PullPolicy::Newer,
            Pull::Never => PullPolicy::Never,
        }
    }
}

#[test]
fn defaults_are_those_of_the_library() {
    let mut settings = hook_settings(&Settings::default()).unwrap();
    // These are of the machine.
    settings.build.env.clear();
    assert_eq!(format!("{settings:?}"), format!("{:?}", container_hook::Settings::default()));
}
