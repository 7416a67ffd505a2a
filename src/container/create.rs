//! Making a container: its record, its root file system, its bundle, and then the runtime's part.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use jiff::Timestamp;
use rustix::fs::{Access as FileAccess, access};
use tracing::{debug, info_span};

use super::disk;
use super::engine::Engine;
use super::error::ContainerError;
use super::limits::LimitHit;
use super::monitor;
use super::record::{Directory, Record, Role, Stop, TakesSteps};
use crate::bundle::{self, Access, Bundle, Device, Init};
use crate::image::Image;
use crate::rootfs::{self, Rootfs};
use crate::runtime::{Action, Runtime};
use crate::sys::cgroup::{self, Cgroups, Group};
use crate::sys::fs::{PathContext as _, PathError, make_private, random_u64};
use crate::sys::host_file::HostFile;
use crate::sys::lock::{BRIEF, FileLock};
use crate::sys::spawn;

/// A container to be made.
#[derive(Debug)]
#[non_exhaustive]
pub struct Spec<'a> {
    /// Its id: see [`new_id`].
    pub id: String,
    pub name: String,
    pub owner: String,
    pub role: Role,
    pub image: &'a Image,
    /// Further layers, above those of the image, bottom to top. Who names them keeps them there.
    pub layers: Vec<PathBuf>,
    /// How much all it writes to its root file system and its volumes may take; without a limit, it
    /// is as much as there is.
    pub disk_bytes: Option<u64>,
    /// What else it is given. The cgroup, the record and where volumes are get filled in.
    pub options: bundle::Options,
    /// The network it is in, if it is one of ours.
    pub network: Option<String>,
    /// The cgroup that it is in with others, if it is.
    pub group: Option<Group>,
    /// Where what it writes goes.
    pub output: Output,
    /// What runs it instead of the engine's own runtime.
    pub runtime: Option<Runtime>,
    /// How it is ended; killed at once if nobody says how.
    pub stop: Option<Stop>,
    /// Whether its first process starts steps. It has to be our own and to have [`STEPS_ARGS`].
    pub takes_steps: bool,
}

impl<'a> Spec<'a> {
    /// Returns a container with a new id, which is its name too, and what the image gives it: without
    /// limits and network, its output discarded.
    pub fn new(role: Role, owner: impl Into<String>, image: &'a Image) -> Self {
        let id = new_id();
        Spec {
            name: id.clone(),
            id,
            owner: owner.into(),
            role,
            image,
            layers: Vec::new(),
            disk_bytes: None,
            options: bundle::Options::default(),
            network: None,
            group: None,
            output: Output::Discard,
            runtime: None,
            stop: None,
            takes_steps: false,
        }
    }
}

/// What our first process is told to take steps from the one descriptor that it gets.
pub const STEPS_ARGS: [&str; 2] = [Init::STEPS, "3"];

/// Where what a container writes goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Discard,
    /// To a log, of which this many bytes are kept.
    Log {
        bytes: u64,
    },
}

/// A container that is made but for the runtime's part. Nothing of it is left if it is dropped.
#[derive(Debug)]
pub struct Prepared<'a> {
    engine: &'a Engine,
    record: Record,
    output: Output,
    /// The root file system, while it is ours to look at.
    pub rootfs: Rootfs,
    /// The bundle, with what there is to say about it.
    pub bundle: Bundle,
    is_kept: bool,
}

/// How a container went that was run to its end.
#[derive(Clone, Debug)]
pub struct Ran {
    pub status: ExitStatus,
    /// The limits that it met.
    pub limits_hit: Vec<LimitHit>,
}

/// What a container is made of.
struct Parts<'a> {
    image: &'a Image,
    layers: &'a [PathBuf],
    disk_bytes: Option<u64>,
    options: &'a bundle::Options,
}

/// Returns an id that no other container has.
pub fn new_id() -> String {
    (0..4).map(|_| format!("{:016x}", random_u64())).collect()
}

impl Engine {
    /// Makes the record, the root file system and the bundle of a container.
    pub fn prepare(&self, spec: Spec<'_>) -> Result<Prepared<'_>, ContainerError> {
        let _span = info_span!("prepare", container = spec.id, name = spec.name).entered();
        let Spec { id, name, owner, role, image, layers, disk_bytes, .. } = spec;
        let Spec { mut options, network, group, output, runtime, stop, takes_steps, .. } = spec;
        let layers = [&image.layers[..], &layers].concat();
        let runtime = runtime.unwrap_or_else(|| self.runtime.clone());
        let cgroups = self.cgroups();
        let mut runtime = runtime;
        // It makes cgroups of its own, and not in what it gave away.
        runtime.systemd_cgroup &= cgroups == Cgroups::Host;
        let is_of_systemd = runtime.systemd_cgroup;
        options.resources.take_unkept(&cgroups);
        let group = group.filter(|_| cgroups.are_there()).map(|mut group| {
            group.limits.take_unkept(&cgroups);
            group
        });
        let cgroup = match &group {
            _ if !cgroups.are_there() => String::new(),
            Some(group) => group.cgroup_of(&id, is_of_systemd),
            None if is_of_systemd => format!("system.slice:oci-hooks:{id}"),
            None => format!("{}/{id}", cgroup::PARENT),
        };
        let disk = self.disk_of(&id);
        // Of what runs to its end the runtime removes the cgroup: one above it remembers what happened.
        let is_kept = role == Role::Step && !runtime.systemd_cgroup;
        options.cgroups_path =
            Some(if is_kept { format!("{cgroup}/step") } else { cgroup.clone() });
        options.keeps_cgroup = !cgroups.are_there();
        options.volume_root = Some(disk.join("volumes"));
        // What the runtime needs besides must not be hidden by it.
        let has_run = self.run.starts_with(&self.disk);
        options.stage = Some(if has_run { self.disks() } else { self.disk.clone() });
        options.record = Some(self.directory(&id).path().to_owned());
        options.privilege = self.privilege;
        let record = Record {
            id,
            name,
            owner,
            role,
            image: image.reference.to_string(),
            digest: image.digest.to_string(),
            created: Timestamp::now(),
            runtime,
            cgroup,
            network,
            disk,
            log_bytes: if let Output::Log { bytes } = output { bytes } else { 0 },
            process: None,
            stop,
            steps: takes_steps.then(TakesSteps::of_this_version),
        };
        let directory = self.directory(&record.id);
        {
            let _no_orphan = FileLock::shared(&self.orphans_lock(), BRIEF)?;
            directory.create(&record)?;
        }
        let parts = Parts { image, layers: &layers, disk_bytes, options: &options };
        let grouped = group.map_or(Ok(()), |group| group.make(is_of_systemd));
        let made = grouped.map_err(ContainerError::from);
        match made.and_then(|()| self.make(&record, &directory, &parts)) {
            Ok((rootfs, bundle)) => {
                Ok(Prepared { engine: self, record, output, rootfs, bundle, is_kept: false })
            }
            Err(error) => {
                // What cannot be removed now is found by its record.
                let _ = self.remove(&record);
                Err(error)
            }
        }
    }

    fn make(
        &self,
        record: &Record,
        directory: &Directory,
        parts: &Parts<'_>,
    ) -> Result<(Rootfs, Bundle), ContainerError> {
        self.store.lease(&record.id, parts.image)?;
        make_private(&record.disk)?;
        if let Some(bytes) = parts.disk_bytes {
            self.check_limit("the disk of a container", bytes)?;
            disk::make(&record.disk, bytes)?;
        }
        let (path, ids) = (&parts.options.user_namespace, parts.options.private_ids);
        let user_namespace = path.as_deref().map(|path| rootfs::UserNamespace { path, ids });
        let rootfs = rootfs::mount(&rootfs::Request {
            layers: parts.layers,
            dir: &record.disk,
            read_only: false,
            user_namespace,
            privilege: self.privilege,
        })?;
        let dir = directory.bundle();
        make_private(&dir)?;
        let bundle = bundle::write(&parts.image.config, &rootfs.path, parts.options, &dir)?;
        Ok((rootfs, bundle))
    }
}

impl Prepared<'_> {
    /// Returns the container's record, as it is on disk.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Starts the container; it lives until it is removed or ends by itself.
    pub fn start(mut self) -> Result<Record, ContainerError> {
        let _span = info_span!("start", container = self.record.id).entered();
        let directory = self.engine.directory(&self.record.id);
        match self.output {
            Output::Discard => {
                let null = self.engine.null()?;
                let other = null.try_clone().at("open", directory.path())?;
                let (record, mounts) = (&self.record, &self.bundle.mounts);
                let (stdout, stderr) = (null.into(), other.into());
                monitor::start_with(record, &directory, mounts, stdout, stderr)?;
            }
            Output::Log { .. } => {
                let (engine, mounts) = (self.engine, &self.bundle.mounts);
                engine.monitor.start(&engine.run, &self.record.id, mounts)?;
            }
        }
        self.record.process = directory.process(&self.record.id);
        directory.write(&self.record)?;
        self.is_kept = true;
        Ok(self.record.clone())
    }

    /// Runs the container to its end, with our standard streams, and removes it.
    ///
    /// While it runs, `pass_on` is called with the runtime's process id: signals sent to that reach
    /// the container.
    pub fn run(mut self, pass_on: impl FnOnce(u32)) -> Result<Ran, ContainerError> {
        let directory = self.engine.directory(&self.record.id);
        let runtime = &self.record.runtime;
        let (id, log) = (&self.record.id, directory.runtime_log());
        let mut command = runtime.run(id, &directory.bundle(), &directory.pid_file(), &log);
        spawn::die_with_us(&mut command);
        self.bundle.mounts.enter(&mut command).at("enter the mounts of", directory.path())?;
        let _parents = self.record.keep_parents();
        debug!(runtime = %runtime.program.display(), id, "run the container");
        let mut child = command.spawn().at("execute", &runtime.program)?;
        pass_on(child.id());
        let status = child.wait().at("wait for", &runtime.program)?;
        if !directory.pid_file().exists() && !status.success() {
            return Err(runtime.logged_error(Action::Run, id, &log).into());
        }
        let limits_hit = self.engine.limits_hit(&self.record);
        self.is_kept = true;
        self.engine.take_apart(&self.record)?;
        Ok(Ran { status, limits_hit })
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.engine.remove(&self.record);
        }
    }
}

/// What overlays in user space and networks in user space are made with.
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

/// Gives a container what it takes to run others in it. Its root must be nobody on the host: what is
/// hidden from others in `/proc` is what root of the host could change there.
pub fn allow_nesting(options: &mut bundle::Options) -> Result<(), PathError> {
    options.security.nesting = true;
    for path in DEVICES.map(Path::new) {
        let is_given = options.devices.iter().any(|device| device.container == path);
        // Without one there are other ways, which programs find by themselves.
        if is_given || access(path, FileAccess::READ_OK | FileAccess::WRITE_OK).is_err() {
            continue;
        }
        let host = HostFile::open_trusted(path)?;
        options.devices.push(Device { host, container: path.into(), access: Access::all() });
    }
    Ok(())
}
