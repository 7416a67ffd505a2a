//! What an instance is made of: what GARM asks for, within what the admin allows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use super::bootstrap::Bootstrap;
use super::extra_specs::{ExtraSpecs, ExtraSpecsError};
use super::settings::{
    Cpus, Flavor, ImageSettings, MountSettings, NetworkSettings, Settings, Users,
};
use crate::bundle::{self, IdMapping, Mount, MountSource, Propagation, Resources, Security};
use crate::container::allow_nesting;
use crate::image::{Digest, Platform, PullPolicy, Reference, ReferenceError};
use crate::sys::fs::PathError;
use crate::sys::host_file::HostFile;
use crate::sys::quantity::Size;

/// What an instance is made of.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    pub image: Reference,
    /// When the registry is asked for it.
    pub pull: PullPolicy,
    /// What the image is to be built for.
    pub platform: Platform,
    /// Resources, privileges, mounts, devices, host name and the variables of all its processes.
    /// Network, DNS files, annotations and hooks get filled in by the provider.
    pub options: bundle::Options,
    /// How much its root file system may hold.
    pub disk_bytes: Option<u64>,
    /// Directories of the host that keep caches, to be made if missing: the host's path of each
    /// bind among the mounts that is one.
    pub caches: Vec<PathBuf>,
    /// Whether it reaches services of the host.
    pub host_access: bool,
    /// Its resolvers, if not the host's.
    pub dns: Vec<IpAddr>,
    /// How its runner is brought up.
    pub boot: BootPlan,
}

/// How a runner is brought up.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BootPlan {
    /// Whether GARM's own script is run instead of what we know of runners.
    pub use_garm_template: bool,
    /// The user of the runner, a name or a number.
    pub user: String,
    /// Where the runner is in the image; none to look for it and download it if there is none.
    pub runner_dir: Option<PathBuf>,
    /// Whether `bin/installdependencies.sh` is run if the runner does not start without.
    pub install_dependencies: bool,
    pub packages: Vec<String>,
    /// Scripts to run first, as root, in the order of their names.
    pub pre_install: BTreeMap<String, Vec<u8>>,
    pub env: BTreeMap<String, String>,
    /// How long all of it may take.
    pub timeout: std::time::Duration,
}

/// Why there can be no such instance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// It cannot be a container.
    #[error("unsupported os_type {0:?}: expected linux")]
    OsType(String),
    /// There is no such processor.
    #[error("unknown arch {0:?}: expected amd64, i386, arm64 or arm")]
    Arch(String),
    /// The image is neither configured nor has a name.
    #[error("unknown image: not an alias in the settings and not a valid reference")]
    Image(#[source] ReferenceError),
    /// The flavor is not configured.
    #[error("unknown flavor {name:?}: expected one of {known}")]
    Flavor { name: String, known: String },
    /// The extra specs are wrong.
    #[error("extra specs")]
    ExtraSpecs(#[from] ExtraSpecsError),
    /// The extra specs ask for more than there may be.
    #[error("extra specs: \"/{key}\" is {asked}, over the limit of {highest} in {}", bound.name(flavor))]
    OverLimit { key: &'static str, asked: String, highest: String, bound: Bound, flavor: String },
    /// The extra specs ask for privileges that the flavor has not.
    #[error("extra specs: \"/{key}\": flavor {flavor:?} does not have it in the settings")]
    Privilege { key: &'static str, flavor: String },
    /// Root of the instance would be root of the host.
    #[error(
        "flavor {flavor:?} has `{key}`, which needs a user namespace for each instance: {reason}"
    )]
    HostRoot { key: &'static str, flavor: String, reason: &'static str },
    /// Files that instances make would be root's.
    #[error(
        "mount {name:?} is writable and {} belongs to root, as files that jobs make there would: give it to a \
         user and a group that are not root (chown USER:GROUP), or set `read-only = true`", path.display()
    )]
    MountOfRoot { name: String, path: PathBuf },
    /// What a mount shows cannot be opened.
    #[error("mount {name:?}")]
    Mount { name: String, source: PathError },
    /// A device for containers in the instance cannot be opened.
    #[error(transparent)]
    Device(#[from] PathError),
    /// The disk is to be limited, which this process cannot do.
    #[error(
        "{asked_by} limits the disk of the instance to {size}, which needs a loop device, and those are \
         root's: take `disk` out there, or run the provider as root"
    )]
    Disk { asked_by: String, size: String },
    /// The extra specs ask for what this pool cannot have.
    #[error("extra specs: {pointer:?}: unknown {kind} {name:?} for this pool{}", others(known))]
    Unknown {
        pointer: String,
        kind: &'static str,
        name: String,
        /// Those that there are for this pool.
        known: Vec<String>,
    },
}

/// What says how far extra specs can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Limits,
    /// The flavor, as there is no limit.
    Flavor,
}

impl Bound {
    fn name(self, flavor: &str) -> String {
        match self {
            Bound::Limits => "[limits] of the settings".to_owned(),
            Bound::Flavor => format!("flavor {flavor:?}"),
        }
    }
}

/// Returns what an instance is made of.
pub fn plan(settings: &Settings, bootstrap: &Bootstrap) -> Result<Plan, PlanError> {
    let platform = platform(bootstrap)?;
    let planning = Planning {
        settings,
        pool_id: &bootstrap.pool_id,
        flavor_name: &bootstrap.flavor,
        flavor: flavor(settings, &bootstrap.flavor)?,
        specs: ExtraSpecs::parse(&bootstrap.extra_specs)?,
    };
    let image = planning.image(&bootstrap.image)?;
    let (host_access, dns) = planning.network()?;
    let (mounts, caches) = planning.mounts()?;
    let privileged = planning.privileged()?;
    let nests = planning.nests()?;
    let (resources, disk_bytes) = planning.resources()?;
    let no_new_privileges = planning.flavor.no_new_privileges;
    let ExtraSpecs { env, pre_install_scripts, extra_packages, user, .. } = planning.specs;
    let mut options = bundle::Options {
        env: env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        mounts,
        security: Security { privileged, no_new_privileges, ..Security::default() },
        resources,
        hostname: Some(hostname(&bootstrap.name).to_owned()),
        ..bundle::Options::default()
    };
    // Of the host's devices a privileged instance with users of its own gets no others.
    if nests || privileged && settings.has_user_namespaces() {
        allow_nesting(&mut options)?;
    }
    let boot = &settings.boot;
    Ok(Plan {
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

/// Why root of an instance would be root of the host.
const HOST_BY_SETTING: &str = "`user-namespace = \"host\"` under [security] of the settings gives it none: \
     take one of them out";
const HOST_BY_KERNEL: &str = "this kernel gives it none, and root of the instance would be root of this machine: \
     `garm-provider-runc doctor` says what is missing";

/// What a plan is made of.
struct Planning<'a> {
    settings: &'a Settings,
    pool_id: &'a str,
    flavor_name: &'a str,
    flavor: Flavor,
    specs: ExtraSpecs,
}

impl Planning<'_> {
    fn image(&self, name: &str) -> Result<ImageSettings, PlanError> {
        if let Some(image) = self.settings.images.get(name) {
            return Ok(image.clone());
        }
        let reference = name.parse().map_err(PlanError::Image)?;
        Ok(ImageSettings { reference, runner_dir: None, user: None, pull: None })
    }

    /// Returns whether services of the host are reached, and the resolvers.
    fn network(&self) -> Result<(bool, Vec<IpAddr>), PlanError> {
        let Some(name) = &self.specs.network else {
            return Ok((self.settings.host_access, self.settings.dns.clone()));
        };
        let networks = &self.settings.networks;
        let pools = |network: &NetworkSettings| network.pools.contain(self.pool_id);
        let network = networks.get(name).filter(|network| pools(network)).ok_or_else(|| {
            let known = networks.iter().filter(|(_, network)| pools(network));
            let known = known.map(|(name, _)| name.clone()).collect();
            unknown("/network".to_owned(), "network", name, known)
        })?;
        let dns = if network.dns.is_empty() { &self.settings.dns } else { &network.dns };
        Ok((network.host_access, dns.clone()))
    }

    /// Returns what is mounted, and which of that are caches.
    fn mounts(&self) -> Result<(Vec<Mount>, Vec<PathBuf>), PlanError> {
        let all = self.settings.mounts.iter();
        let of_pool: Vec<_> = all.filter(|(_, m)| m.pools.contain(self.pool_id)).collect();
        let always = of_pool.iter().filter(|(_, mount)| mount.always).map(|(name, _)| *name);
        let names = of_pool.iter().map(|(name, _)| *name).collect();
        let named = chosen("mount", names, always, &self.specs.mounts)?;
        let of_pool = of_pool.into_iter().filter(|(name, _)| named.contains(name));
        let mounts = of_pool.map(|(name, mount)| self.mount(name, mount));
        let mut mounts = mounts.collect::<Result<Vec<_>, _>>()?;

        let all = self.settings.caches.iter();
        let of_pool: Vec<_> = all.filter(|(_, c)| c.pools.contain(self.pool_id)).collect();
        let always = of_pool.iter().filter(|(_, cache)| cache.always).map(|(name, _)| *name);
        let names = of_pool.iter().map(|(name, _)| *name).collect();
        let named = chosen("cache", names, always, &self.specs.caches)?;
        let mut caches = Vec::new();
        for (name, cache) in of_pool.into_iter().filter(|(name, _)| named.contains(name)) {
            let directory = cache_directory(&self.settings.root, name, self.pool_id);
            mounts.push(bind(&directory, &cache.target));
            caches.push(directory);
        }
        Ok((mounts, caches))
    }

    /// Returns a mount of the settings. What instances make in a writable one belongs to its owner, where the
    /// kernel maps that.
    fn mount(&self, name: &str, settings: &MountSettings) -> Result<Mount, PlanError> {
        let mount =
            Mount { read_only: settings.read_only, ..bind(&settings.source, &settings.target) };
        if settings.read_only || !self.settings.privilege.has_idmapped_mounts() {
            return Ok(mount);
        }
        let file = HostFile::open_trusted(&settings.source)
            .map_err(|source| PlanError::Mount { name: name.to_owned(), source })?;
        let (host_uid, host_gid) = file.owner();
        if host_uid == 0 || host_gid == 0 {
            // A set-user-ID program there would make any user of the host root.
            let path = settings.source.clone();
            return Err(PlanError::MountOfRoot { name: name.to_owned(), path });
        }
        Ok(Mount {
            source: MountSource::Bind { file, propagation: Propagation::Private, recursive: true },
            id_mapping: Some(IdMapping { host_uid, host_gid, user: None }),
            ..mount
        })
    }

    /// Returns whether containers can be run in the instance.
    fn nests(&self) -> Result<bool, PlanError> {
        let nests = self.allowed("nesting", self.specs.nesting, self.flavor.nesting)?;
        match self.settings.users {
            Users::Host if nests => Err(self.host_root("nesting", HOST_BY_SETTING)),
            Users::HostOnly if nests => Err(self.host_root("nesting", HOST_BY_KERNEL)),
            _ => Ok(nests),
        }
    }

    /// Returns whether the instance has all privileges of its users' root: those of the host's root if its
    /// administrator says so.
    fn privileged(&self) -> Result<bool, PlanError> {
        let asked = self.specs.privileged;
        let privileged = self.allowed("privileged", asked, self.flavor.privileged)?;
        match self.settings.users {
            Users::HostOnly if privileged => Err(self.host_root("privileged", HOST_BY_KERNEL)),
            _ => Ok(privileged),
        }
    }

    fn host_root(&self, key: &'static str, reason: &'static str) -> PlanError {
        PlanError::HostRoot { key, flavor: self.flavor_name.to_owned(), reason }
    }

    /// Returns whether instances have what the flavor has and extra specs can only do without.
    fn allowed(
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

    /// Returns limits of the control group and of the disk.
    fn resources(&self) -> Result<(Resources, Option<u64>), PlanError> {
        let Planning { flavor, specs, settings: Settings { limits, .. }, .. } = self;
        let bytes = |size: Option<Size>| size.map(|size| size.0);
        let size = |bytes: &u64| Size(*bytes).to_string();
        let cpus = self.within("cpus", [specs.cpus, limits.cpus, flavor.cpus], |cpus| {
            cpus.count().to_string()
        })?;
        let memory = self.within(
            "memory",
            [specs.memory_bytes, bytes(limits.memory), bytes(flavor.memory)],
            size,
        )?;
        let disk =
            self.within("disk", [specs.disk_bytes, bytes(limits.disk), bytes(flavor.disk)], size)?;
        if let Some(bytes) = disk.filter(|_| !self.settings.privilege.has_loop_devices()) {
            let asked_by = match specs.disk_bytes {
                Some(_) => "extra specs: \"/disk\"".to_owned(),
                None => format!("flavor {:?}", self.flavor_name),
            };
            return Err(PlanError::Disk { asked_by, size: size(&bytes) });
        }
        let pids = [specs.pids, limits.pids.map(NonZeroU32::get), Some(flavor.pids.get())];
        let pids = self.within("pids", pids, u32::to_string)?;
        let resources = Resources {
            nano_cpus: cpus.map(Cpus::nanos),
            memory_bytes: memory,
            pids_limit: pids.map(i64::from),
            ..Resources::default()
        };
        Ok((resources, disk))
    }

    /// Returns what extra specs ask for, if that is no more than the limit or, without one, than what
    /// the flavor has; what the flavor has if they ask for nothing.
    fn within<T: PartialOrd>(
        &self,
        key: &'static str,
        [asked, limit, flavor]: [Option<T>; 3],
        show: impl Fn(&T) -> String,
    ) -> Result<Option<T>, PlanError> {
        let Some(asked) = asked else { return Ok(flavor) };
        let (highest, bound) = match limit {
            Some(limit) => (Some(limit), Bound::Limits),
            None => (flavor, Bound::Flavor),
        };
        match highest {
            Some(highest) if asked > highest => Err(PlanError::OverLimit {
                key,
                asked: show(&asked),
                highest: show(&highest),
                bound,
                flavor: self.flavor_name.to_owned(),
            }),
            _ => Ok(Some(asked)),
        }
    }
}

fn platform(bootstrap: &Bootstrap) -> Result<Platform, PlanError> {
    let Bootstrap { os_type, arch, .. } = bootstrap;
    // GARM has "unknown" for pools of its first versions.
    if !matches!(os_type.as_str(), "linux" | "unknown" | "") {
        return Err(PlanError::OsType(short(os_type)));
    }
    match arch.as_str() {
        "" => Ok(Platform::host()),
        "amd64" | "i386" | "arm64" | "arm" => {
            Ok(format!("linux/{arch}").parse().expect("it is a platform"))
        }
        _ => Err(PlanError::Arch(short(arch))),
    }
}

fn flavor(settings: &Settings, name: &str) -> Result<Flavor, PlanError> {
    if settings.flavors.is_empty() {
        return Ok(Flavor::default());
    }
    settings.flavors.get(name).cloned().ok_or_else(|| PlanError::Flavor {
        name: short(name),
        known: settings.flavors.keys().cloned().collect::<Vec<_>>().join(", "),
    })
}

/// Returns the names that there always are and those that are asked for, none of them unknown.
fn chosen<'a>(
    kind: &'static str,
    of_pool: Vec<&'a String>,
    always: impl Iterator<Item = &'a String>,
    asked: &'a [String],
) -> Result<BTreeSet<&'a String>, PlanError> {
    for (at, name) in asked.iter().enumerate() {
        if !of_pool.contains(&name) {
            let known = of_pool.into_iter().cloned().collect();
            return Err(unknown(format!("/{kind}s/{at}"), kind, name, known));
        }
    }
    Ok(always.chain(asked).collect())
}

fn unknown(pointer: String, kind: &'static str, name: &str, known: Vec<String>) -> PlanError {
    PlanError::Unknown { pointer, kind, name: short(name), known }
}

fn others(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("; expected one of {}", known.join(", ")) }
}

/// Returns as much of a text as fits into a message.
fn short(text: &str) -> String {
    text.chars().take(128).collect()
}

fn bind(source: &Path, target: &Path) -> Mount {
    Mount {
        target: target.to_owned(),
        source: MountSource::Trusted {
            path: source.to_owned(),
            propagation: Propagation::Private,
            recursive: true,
        },
        subpath: None,
        read_only: false,
        id_mapping: None,
    }
}

/// Returns where the cache of a pool is: names of both can be any text, and that of the cache tells
/// people what it is.
fn cache_directory(root: &Path, name: &str, pool_id: &str) -> PathBuf {
    let digest = Digest::of(format!("{name}\0{pool_id}").as_bytes());
    let letters = name.chars().filter(char::is_ascii_alphanumeric).take(32);
    root.join("garm/caches").join(format!(
        "{}-{}",
        letters.collect::<String>(),
        &digest.hex()[..32]
    ))
}

/// Returns as much of a name as the kernel takes for a host.
fn hostname(name: &str) -> &str {
    let end = name.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|end| *end <= 63);
    let start = &name[..end.last().unwrap_or_default()];
    start.trim_end_matches(['-', '.', '_'])
}

#[cfg(test)]
mod tests;
