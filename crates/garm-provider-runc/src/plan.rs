//! Plan of an instance: GARM's request, checked against the settings.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use oci_hooks_engine::bundle::{
    self, ContainerSecurity, IdMapping, MountPropagation, MountRequest, MountSource, ResourceLimits,
};
use oci_hooks_engine::container::allow_nesting;
use oci_hooks_files::fs::PathError;
use oci_hooks_files::quantity::ByteSize;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_image::{Digest, ImageReference, Platform, PullPolicy};

use super::bootstrap::Bootstrap;
use super::extra_specs::{ExtraSpecs, ExtraSpecsError};
use super::settings::{
    Cpus, Flavor, ImageNameError, InstanceUserNamespace, MountSettings, NetworkSettings, PoolIds,
    ProviderSettings, find_image,
};

/// Plan of an instance.
#[derive(Clone, Debug)]
pub struct InstancePlan {
    pub image: ImageReference,
    /// Pull policy of the image.
    pub pull: PullPolicy,
    pub platform: Platform,
    /// Resources, privileges, mounts, devices, host name, and environment of all processes.
    /// The provider adds network, DNS files, annotations and hooks.
    pub options: bundle::BundleOptions,
    /// Size limit of the root file system.
    pub disk_bytes: Option<u64>,
    /// Cache directories on the host, which are bind-mounted, and created if missing.
    pub caches: Vec<PathBuf>,
    /// If set, the instance can reach services of the host.
    pub host_access: bool,
    /// DNS resolvers, if not the host's.
    pub dns: Vec<IpAddr>,
    pub boot: BootPlan,
}

/// Plan for starting the runner.
#[derive(Clone, Debug)]
pub struct BootPlan {
    /// If set, GARM's script starts the runner instead of the provider.
    pub use_garm_template: bool,
    /// User of the runner, a name or a number.
    pub user: String,
    /// Directory of the runner in the image. If none, the usual directories are searched, and a runner is downloaded if
    /// they contain none.
    pub runner_dir: Option<PathBuf>,
    /// If set, `bin/installdependencies.sh` is run if the runner does not start without it.
    pub install_dependencies: bool,
    pub packages: Vec<String>,
    /// Scripts to run first, as root, ordered by name.
    pub pre_install: BTreeMap<String, Vec<u8>>,
    pub env: BTreeMap<String, String>,
    /// Timeout until the runner listens for jobs.
    pub timeout: std::time::Duration,
}

/// Reasons to reject a request for an instance.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    #[error("unsupported os_type {0:?}: expected linux")]
    OsType(String),
    #[error("unknown arch {0:?}: expected amd64, i386, arm64 or arm")]
    Arch(String),
    #[error(transparent)]
    Image(#[from] ImageNameError),
    #[error("unknown flavor {name:?}: expected one of {known}")]
    Flavor { name: String, known: String },
    #[error("extra specs")]
    ExtraSpecs(#[from] ExtraSpecsError),
    /// The extra specs exceed a limit.
    #[error("extra specs: \"/{key}\" is {asked}, over the limit of {highest} in {origin}")]
    OverLimit {
        key: &'static str,
        asked: String,
        highest: String,
        /// Section or flavor of the settings that has the limit.
        origin: String,
    },
    /// The extra specs request privileges that the flavor does not have.
    #[error(
        "extra specs: \"/{key}\" is true, which needs `{key} = true` in flavor {flavor:?} of the settings"
    )]
    Privilege { key: &'static str, flavor: String },
    /// Root of the instance would be root on the host.
    #[error(
        "flavor {flavor:?} has `{key}`, which needs a user namespace for each instance: {reason}"
    )]
    HostRoot { key: &'static str, flavor: String, reason: &'static str },
    /// Files that instances create in the mount would belong to root.
    #[error(
        "mount {name:?} is writable and {} belongs to root or to group root, and so would files that jobs create \
         there: change its user and group to others (chown USER:GROUP), or set `read-only = true` for the mount",
        path.display()
    )]
    MountOfRoot { name: String, path: PathBuf },
    /// The source of a mount cannot be opened.
    #[error("mount {name:?}")]
    Mount { name: String, source: PathError },
    /// A device for nested containers cannot be opened.
    #[error(transparent)]
    Device(#[from] PathError),
    /// The disk cannot be limited without root.
    #[error(
        "{asked_by} limits the disk of the instance to {size}, which needs a loop device, available only \
         to root: remove `disk` there, or run the provider as root"
    )]
    Disk { asked_by: String, size: String },
    /// The extra specs name a network, mount or cache that is unknown or not for this pool.
    #[error(
        "extra specs: {pointer:?}: unknown {kind} {name:?} for this pool; {}",
        expected_names(kind, known)
    )]
    Unknown {
        pointer: String,
        kind: &'static str,
        name: String,
        /// Names available to this pool.
        known: Vec<String>,
    },
}

/// Returns the plan of an instance.
pub fn plan(settings: &ProviderSettings, bootstrap: &Bootstrap) -> Result<InstancePlan, PlanError> {
    let platform = platform(bootstrap)?;
    let planning = PlanInputs {
        settings,
        pool_id: &bootstrap.pool_id,
        flavor_name: &bootstrap.flavor,
        flavor: flavor(settings, &bootstrap.flavor)?,
        specs: ExtraSpecs::parse(&bootstrap.extra_specs)?,
    };
    let image = find_image(&settings.images, &bootstrap.image)?;
    let (host_access, dns) = planning.network()?;
    let (mounts, caches) = planning.mounts()?;
    let privileged = planning.is_privileged()?;
    let nests = planning.can_nest()?;
    let (resources, disk_bytes) = planning.resources()?;
    let no_new_privileges = planning.flavor.no_new_privileges;
    let ExtraSpecs { env, pre_install_scripts, extra_packages, user, .. } = planning.specs;
    let mut options = bundle::BundleOptions {
        env: env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        mounts,
        security: ContainerSecurity {
            privileged,
            no_new_privileges,
            ..ContainerSecurity::default()
        },
        resources,
        hostname: Some(hostname(&bootstrap.name).to_owned()),
        ..bundle::BundleOptions::default()
    };
    // A privileged instance with its own user namespace gets the devices for nesting, but no others of the host.
    if nests || privileged && settings.has_user_namespaces() {
        allow_nesting(&mut options)?;
    }
    let boot = &settings.boot;
    Ok(InstancePlan {
        image: image.reference,
        pull: image.pull.unwrap_or(settings.pull),
        platform,
        options,
        disk_bytes,
        caches,
        host_access,
        dns,
        boot: BootPlan {
            use_garm_template: planning.specs.use_garm_template.unwrap_or(boot.use_garm_template),
            user: user.or(image.user).unwrap_or_else(|| boot.user.clone()),
            runner_dir: image.runner_dir,
            install_dependencies: planning
                .specs
                .install_dependencies
                .unwrap_or(boot.install_dependencies),
            packages: extra_packages,
            pre_install: pre_install_scripts,
            env,
            timeout: boot.timeout.0,
        },
    })
}

/// Reason of [`PlanError::HostRoot`] if the settings select the host's user namespace.
const HOST_BY_SETTING: &str = "the settings have `user-namespace = \"host\"` under [security]: \
     remove one of the two";

/// Reason of [`PlanError::HostRoot`] if the kernel does not support a user namespace for each instance.
const HOST_BY_KERNEL: &str = "this host provides none, so root of the instance would be root of this machine; \
     `garm-provider-runc doctor` prints the cause";

struct PlanInputs<'a> {
    settings: &'a ProviderSettings,
    pool_id: &'a str,
    flavor_name: &'a str,
    flavor: Flavor,
    specs: ExtraSpecs,
}

impl PlanInputs<'_> {
    /// Returns whether the instance can reach services of the host, and its DNS resolvers.
    fn network(&self) -> Result<(bool, Vec<IpAddr>), PlanError> {
        let Some(name) = &self.specs.network else {
            return Ok((self.settings.host_access, self.settings.dns.clone()));
        };
        let networks = &self.settings.networks;
        let pools = |network: &NetworkSettings| network.pools.contains_pool(self.pool_id);
        let network = networks.get(name).filter(|network| pools(network)).ok_or_else(|| {
            let known = networks.iter().filter(|(_, network)| pools(network));
            let known = known.map(|(name, _)| name.clone()).collect();
            unknown("/network".to_owned(), "network", name, known)
        })?;
        let dns = if network.dns.is_empty() { &self.settings.dns } else { &network.dns };
        Ok((network.host_access, dns.clone()))
    }

    /// Returns all mounts, and the host directories of caches among them.
    fn mounts(&self) -> Result<(Vec<MountRequest>, Vec<PathBuf>), PlanError> {
        let ProviderSettings { mounts, caches, .. } = self.settings;
        let asked = &self.specs.mounts;
        let chosen = self.choose("mount", mounts, |mount| (&mount.pools, mount.always), asked)?;
        let mounts = chosen.into_iter().map(|(name, mount)| self.mount(name, mount));
        let mut mounts = mounts.collect::<Result<Vec<_>, _>>()?;

        let asked = &self.specs.caches;
        let chosen = self.choose("cache", caches, |cache| (&cache.pools, cache.always), asked)?;
        let mut caches = Vec::new();
        for (name, cache) in chosen {
            let has_users = self.settings.has_user_namespaces();
            let directory = cache_directory(&self.settings.root, name, self.pool_id, has_users);
            mounts.push(MountRequest {
                id_mapping: has_users.then_some(IdMapping::Stored),
                ..bind_mount(&directory, &cache.target)
            });
            caches.push(directory);
        }
        Ok((mounts, caches))
    }

    /// Returns the mounts or caches of an instance: the `entries` that each instance of its pool has, and
    /// the requested ones, which must be available to the pool. `availability` returns `pools` and `always`
    /// of an entry.
    fn choose<'s, T>(
        &self,
        kind: &'static str,
        entries: &'s BTreeMap<String, T>,
        availability: impl Fn(&T) -> (&PoolIds, bool),
        asked: &[String],
    ) -> Result<Vec<(&'s String, &'s T)>, PlanError> {
        let of_pool =
            entries.iter().filter(|(_, it)| availability(it).0.contains_pool(self.pool_id));
        let of_pool: Vec<_> = of_pool.collect();
        for (at, name) in asked.iter().enumerate() {
            if !of_pool.iter().any(|(known, _)| *known == name) {
                let known = of_pool.into_iter().map(|(known, _)| known.clone()).collect();
                return Err(unknown(format!("/{kind}s/{at}"), kind, name, known));
            }
        }
        let is_chosen = |(name, it): &(&String, &T)| availability(it).1 || asked.contains(name);
        Ok(of_pool.into_iter().filter(is_chosen).collect())
    }

    /// Returns a mount of the settings. If this process can create idmapped mounts, files that instances create in a
    /// writable mount belong to the owner of its source.
    fn mount(&self, name: &str, settings: &MountSettings) -> Result<MountRequest, PlanError> {
        let mount = MountRequest {
            read_only: settings.read_only,
            ..bind_mount(&settings.source, &settings.target)
        };
        if settings.read_only || !self.settings.privilege.has_idmapped_mounts() {
            return Ok(mount);
        }
        let file = HostFile::open_trusted(&settings.source)
            .map_err(|source| PlanError::Mount { name: name.to_owned(), source })?;
        let (host_uid, host_gid) = file.owner();
        if host_uid == 0 || host_gid == 0 {
            // A set-user-ID root program in the mount would give root to all users of the host.
            let path = settings.source.clone();
            return Err(PlanError::MountOfRoot { name: name.to_owned(), path });
        }
        Ok(MountRequest {
            source: MountSource::Bind {
                file,
                propagation: MountPropagation::Private,
                recursive: true,
            },
            id_mapping: Some(IdMapping::User { host_uid, host_gid, user: None, is_required: true }),
            ..mount
        })
    }

    /// Returns whether nested containers can be run in the instance.
    fn can_nest(&self) -> Result<bool, PlanError> {
        let nests = self.resolve_privilege("nesting", self.specs.nesting, self.flavor.nesting)?;
        match self.settings.users {
            InstanceUserNamespace::Host if nests => Err(self.host_root("nesting", HOST_BY_SETTING)),
            InstanceUserNamespace::HostOnly if nests => {
                Err(self.host_root("nesting", HOST_BY_KERNEL))
            }
            _ => Ok(nests),
        }
    }

    /// Returns whether the instance has all privileges of root in its user namespace, which is the host's if the
    /// settings say so.
    fn is_privileged(&self) -> Result<bool, PlanError> {
        let asked = self.specs.privileged;
        let privileged = self.resolve_privilege("privileged", asked, self.flavor.privileged)?;
        match self.settings.users {
            InstanceUserNamespace::HostOnly if privileged => {
                Err(self.host_root("privileged", HOST_BY_KERNEL))
            }
            _ => Ok(privileged),
        }
    }

    fn host_root(&self, key: &'static str, reason: &'static str) -> PlanError {
        PlanError::HostRoot { key, flavor: self.flavor_name.to_owned(), reason }
    }

    /// Returns whether the instance has a privilege. Extra specs can drop a privilege of the flavor, but not add one.
    fn resolve_privilege(
        &self,
        key: &'static str,
        asked: Option<bool>,
        has: bool,
    ) -> Result<bool, PlanError> {
        match asked {
            Some(true) if !has => {
                Err(PlanError::Privilege { key, flavor: self.flavor_name.to_owned() })
            }
            asked => Ok(asked.unwrap_or(has)),
        }
    }

    /// Returns the limits of the cgroup and of the disk.
    fn resources(&self) -> Result<(ResourceLimits, Option<u64>), PlanError> {
        let PlanInputs { flavor, specs, settings: ProviderSettings { limits, .. }, .. } = self;
        let bytes = |size: Option<ByteSize>| size.map(|size| size.0);
        let size = |bytes: &u64| ByteSize(*bytes).to_string();
        let cpus = self.resolve_limit("cpus", [specs.cpus, limits.cpus, flavor.cpus], |cpus| {
            cpus.count().to_string()
        })?;
        let memory = self.resolve_limit(
            "memory",
            [specs.memory_bytes, bytes(limits.memory), bytes(flavor.memory)],
            size,
        )?;
        let disk = self.resolve_limit(
            "disk",
            [specs.disk_bytes, bytes(limits.disk), bytes(flavor.disk)],
            size,
        )?;
        if let Some(bytes) = disk.filter(|_| !self.settings.privilege.has_loop_devices()) {
            let asked_by = match specs.disk_bytes {
                Some(_) => "extra specs: \"/disk\"".to_owned(),
                None => format!("flavor {:?}", self.flavor_name),
            };
            return Err(PlanError::Disk { asked_by, size: size(&bytes) });
        }
        let pids = [specs.pids, limits.pids.map(NonZeroU32::get), Some(flavor.pids.get())];
        let pids = self.resolve_limit("pids", pids, u32::to_string)?;
        let resources = ResourceLimits {
            nano_cpus: cpus.map(Cpus::nanos),
            memory_bytes: memory,
            pids_limit: pids.map(i64::from),
            ..ResourceLimits::default()
        };
        Ok((resources, disk))
    }

    /// Returns the value of the extra specs, or else the flavor's. Fails if the extra specs exceed the limit, or the
    /// flavor's value if there is no limit.
    fn resolve_limit<T: PartialOrd>(
        &self,
        key: &'static str,
        [asked, limit, flavor]: [Option<T>; 3],
        show: impl Fn(&T) -> String,
    ) -> Result<Option<T>, PlanError> {
        let Some(asked) = asked else { return Ok(flavor) };
        let (highest, origin) = match limit {
            Some(limit) => (Some(limit), "[limits] of the settings".to_owned()),
            None => (flavor, format!("flavor {:?}", self.flavor_name)),
        };
        match highest {
            Some(highest) if asked > highest => Err(PlanError::OverLimit {
                key,
                asked: show(&asked),
                highest: show(&highest),
                origin,
            }),
            _ => Ok(Some(asked)),
        }
    }
}

fn platform(bootstrap: &Bootstrap) -> Result<Platform, PlanError> {
    let Bootstrap { os_type, arch, .. } = bootstrap;
    // GARM sends "unknown" for pools created by its first versions.
    if !matches!(os_type.as_str(), "linux" | "unknown" | "") {
        return Err(PlanError::OsType(shorten_text(os_type)));
    }
    match arch.as_str() {
        "" => Ok(Platform::host()),
        "amd64" | "i386" | "arm64" | "arm" => {
            Ok(format!("linux/{arch}").parse().expect("it is a platform"))
        }
        _ => Err(PlanError::Arch(shorten_text(arch))),
    }
}

fn flavor(settings: &ProviderSettings, name: &str) -> Result<Flavor, PlanError> {
    if settings.flavors.is_empty() {
        return Ok(Flavor::default());
    }
    settings.flavors.get(name).cloned().ok_or_else(|| PlanError::Flavor {
        name: shorten_text(name),
        known: settings.flavors.keys().cloned().collect::<Vec<_>>().join(", "),
    })
}

fn unknown(pointer: String, kind: &'static str, name: &str, known: Vec<String>) -> PlanError {
    PlanError::Unknown { pointer, kind, name: shorten_text(name), known }
}

fn expected_names(kind: &str, known: &[String]) -> String {
    match known {
        [] => format!("no [{kind}s.NAME] in the settings lists the pool in `pools`"),
        _ => format!("expected one of {}", known.join(", ")),
    }
}

/// Truncates a text for a message.
fn shorten_text(text: &str) -> String {
    text.chars().take(128).collect()
}

fn bind_mount(source: &Path, target: &Path) -> MountRequest {
    MountRequest {
        target: target.to_owned(),
        source: MountSource::Trusted {
            path: source.to_owned(),
            propagation: MountPropagation::Private,
            recursive: true,
        },
        subpath: None,
        read_only: false,
        id_mapping: None,
    }
}

/// Returns the directory of a pool's cache. Cache names and pool ids are arbitrary text, so the directory's name has a
/// digest of both, after the letters of the cache name for readability. Instances with user namespaces have other
/// owners on disk, and so other caches.
fn cache_directory(root: &Path, name: &str, pool_id: &str, has_users: bool) -> PathBuf {
    let digest = Digest::of(format!("{name}\0{pool_id}\0{has_users}").as_bytes());
    let letters = name.chars().filter(char::is_ascii_alphanumeric).take(32);
    root.join("garm/caches").join(format!(
        "{}-{}",
        letters.collect::<String>(),
        &digest.hex()[..32]
    ))
}

/// Truncates a name to the length of a valid host name.
fn hostname(name: &str) -> &str {
    let end = name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= 63);
    let start = &name[..end.last().unwrap_or_default()];
    start.trim_end_matches(['-', '.', '_'])
}

#[cfg(test)]
mod tests;
