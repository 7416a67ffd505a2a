//! Creates a container: its record, root file system and bundle, and then calls the runtime.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use jiff::Timestamp;
use oci_hooks_files::fs::{PathContext as _, PathError, make_private, random_u64};
use oci_hooks_files::lock::{FileLock, LOCK_TIMEOUT};
use oci_hooks_files::spawn;
use oci_hooks_host::cgroup::{self, AvailableCgroups, ContainerGroup};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::thread::spawn_or_call;
use oci_hooks_image::Image;
use rustix::fs::{Access as FileAccess, access};
use tracing::{debug, info_span};

use super::disk;
use super::engine::Engine;
use super::error::ContainerError;
use super::limits::LimitHit;
use super::monitor;
use super::record::{ContainerRecord, ContainerRole, RecordDirectory, StepSupport, StopPolicy};
use crate::bundle::{self, Bundle, ContainerInit, DeviceAccess, HostDevice};
use crate::rootfs::{self, Rootfs};
use crate::runtime::{OciRuntime, RuntimeAction};

/// A container to create.
#[derive(Debug)]
pub struct ContainerSpec<'a> {
    /// Id from [`new_id`].
    pub id: String,
    pub name: String,
    pub owner: String,
    pub role: ContainerRole,
    pub image: &'a Image,
    /// Additional layers above those of the image, bottom to top. The caller keeps them in place.
    pub layers: Vec<PathBuf>,
    /// Limit of all files in the root file system and volumes; `None` for no limit.
    pub disk_bytes: Option<u64>,
    /// Options of the bundle. The engine sets the cgroup, the record and the directory of volumes.
    pub options: bundle::BundleOptions,
    /// Id of the network, if the engine created it.
    pub network: Option<String>,
    /// Cgroup shared with other containers, if any.
    pub group: Option<ContainerGroup>,
    pub output: OutputMode,
    /// Runtime to use instead of the engine's.
    pub runtime: Option<OciRuntime>,
    /// Way to stop the container; `None` to kill it at once.
    pub stop: Option<StopPolicy>,
    /// If set, the first process starts steps. It must be the engine's init with [`STEPS_ARGS`].
    pub takes_steps: bool,
}

impl<'a> ContainerSpec<'a> {
    /// Creates the specification of a container with a new id, which is its name too, and the image's
    /// defaults: without limits and network, with discarded output.
    pub fn new(role: ContainerRole, owner: impl Into<String>, image: &'a Image) -> Self {
        let id = new_id();
        ContainerSpec {
            name: id.clone(),
            id,
            owner: owner.into(),
            role,
            image,
            layers: Vec::new(),
            disk_bytes: None,
            options: bundle::BundleOptions::default(),
            network: None,
            group: None,
            output: OutputMode::Discard,
            runtime: None,
            stop: None,
            takes_steps: false,
        }
    }
}

/// Arguments with which the engine's init listens on descriptor 3, and starts steps.
pub const STEPS_ARGS: [&str; 2] = [ContainerInit::STEPS, "3"];

/// Destination of a container's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    Discard,
    /// A log that keeps this many bytes.
    Log {
        bytes: u64,
    },
}

/// A container that is complete except for the call of the runtime. Dropping it removes the container.
#[derive(Debug)]
pub struct PreparedContainer<'a> {
    engine: &'a Engine,
    record: ContainerRecord,
    output: OutputMode,
    /// Root file system, which the caller may examine before the start.
    pub rootfs: Rootfs,
    pub bundle: Bundle,
    is_kept: bool,
}

/// Result of a container that ran to its end.
#[derive(Clone, Debug)]
pub struct RunResult {
    pub status: ExitStatus,
    /// Limits that the container reached.
    pub limits_hit: Vec<LimitHit>,
}

/// Inputs for creating a container.
struct CreationInputs<'a> {
    image: &'a Image,
    layers: &'a [PathBuf],
    disk_bytes: Option<u64>,
    options: &'a bundle::BundleOptions,
}

/// Returns a random id.
pub fn new_id() -> String {
    (0..4).map(|_| format!("{:016x}", random_u64())).collect()
}

impl Engine {
    /// Creates the record, the root file system and the bundle of a container.
    pub fn prepare(
        &self,
        spec: ContainerSpec<'_>,
    ) -> Result<PreparedContainer<'_>, ContainerError> {
        let _span = info_span!("prepare", container = spec.id, name = spec.name).entered();
        let ContainerSpec { id, name, owner, role, image, layers, disk_bytes, .. } = spec;
        let ContainerSpec {
            mut options, network, group, output, runtime, stop, takes_steps, ..
        } = spec;
        let layers = [&image.layers[..], &layers].concat();
        let runtime = runtime.unwrap_or_else(|| self.runtime.clone());
        let cgroups = self.cgroups();
        let mut runtime = runtime;
        runtime.check(self.privilege, &cgroups)?;
        // systemd creates cgroups of its own, but not in a delegated cgroup.
        runtime.systemd_cgroup &= cgroups == AvailableCgroups::Host;
        let is_of_systemd = runtime.systemd_cgroup;
        options.resources.take_unenforced(&cgroups);
        let group = group.filter(|_| cgroups.are_usable()).map(|mut group| {
            group.limits.take_unenforced(&cgroups);
            group
        });
        let cgroup = match &group {
            _ if !cgroups.are_usable() => String::new(),
            Some(group) => group.cgroup_of(&id, is_of_systemd),
            None if is_of_systemd => format!("system.slice:oci-hooks:{id}"),
            None => format!("{}/{id}", cgroup::PARENT),
        };
        let disk = self.disk_of(&id);
        // The runtime removes the cgroup of a step that ends: a parent cgroup keeps its events.
        let is_kept = role == ContainerRole::Step && !runtime.systemd_cgroup;
        options.cgroups_path =
            Some(if is_kept { format!("{cgroup}/step") } else { cgroup.clone() });
        options.keeps_cgroup = !cgroups.are_usable();
        options.volume_root = Some(disk.join("volumes"));
        // The stage must not hide other files that the runtime needs.
        let has_run = self.run.starts_with(&self.disk);
        options.stage = Some(if has_run { self.disks() } else { self.disk.clone() });
        options.record = Some(self.directory(&id).path().to_owned());
        options.privilege = self.privilege;
        let record = ContainerRecord {
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
            log_bytes: if let OutputMode::Log { bytes } = output { bytes } else { 0 },
            process: None,
            stop,
            steps: takes_steps.then(StepSupport::of_this_version),
        };
        let directory = self.directory(&record.id);
        {
            let _no_orphan = FileLock::acquire_shared(&self.orphans_lock(), LOCK_TIMEOUT)?;
            directory.create(&record)?;
        }
        let parts = CreationInputs { image, layers: &layers, disk_bytes, options: &options };
        let grouped = group.map_or(Ok(()), |group| group.make(is_of_systemd));
        let made = grouped.map_err(ContainerError::from);
        match made.and_then(|()| self.make(&record, &directory, &parts)) {
            Ok((rootfs, bundle)) => Ok(PreparedContainer {
                engine: self,
                record,
                output,
                rootfs,
                bundle,
                is_kept: false,
            }),
            Err(error) => {
                // Anything that cannot be removed now is found by its record later.
                let _ = self.remove(&record);
                Err(error)
            }
        }
    }

    fn make(
        &self,
        record: &ContainerRecord,
        directory: &RecordDirectory,
        parts: &CreationInputs<'_>,
    ) -> Result<(Rootfs, Bundle), ContainerError> {
        self.store.lease(&record.id, parts.image)?;
        make_private(&record.disk)?;
        if let Some(bytes) = parts.disk_bytes {
            self.check_limit("the disk of a container", bytes)?;
            disk::make(&record.disk, bytes)?;
        }
        let (path, ids) = (&parts.options.user_namespace, parts.options.private_ids);
        let user_namespace = path.as_deref().map(|path| rootfs::UserNamespace { path, ids });
        let rootfs = rootfs::mount(&rootfs::RootfsRequest {
            layers: parts.layers,
            dir: &record.disk,
            read_only: false,
            user_namespace,
            privilege: self.privilege,
        })?;
        let dir = directory.bundle();
        make_private(&dir)?;
        let mut bundle = bundle::write(&parts.image.config, &rootfs.path, parts.options, &dir)?;
        bundle.warnings.extend(unmapped_owners_warning(parts));
        Ok((rootfs, bundle))
    }
}

/// Returns a warning if files of the image belong to users or groups that the container does not have.
fn unmapped_owners_warning(parts: &CreationInputs<'_>) -> Option<String> {
    let (highest, count) = (parts.image.highest_owner, parts.options.private_ids.count);
    let is_unmapped = parts.options.user_namespace.is_some() && highest >= count;
    is_unmapped.then(|| {
        format!(
            "files of {} belong to users or groups up to {highest}, and the container has only 0 to {}: it cannot \
             change files of higher ids, nor read them unless all users may",
            parts.image.reference.familiar_name(),
            count - 1
        )
    })
}

impl PreparedContainer<'_> {
    /// Returns the container's record, as it is on disk.
    pub fn record(&self) -> &ContainerRecord {
        &self.record
    }

    /// Starts the container, which lives until it is removed or ends.
    pub fn start(mut self) -> Result<ContainerRecord, ContainerError> {
        let _span = info_span!("start", container = self.record.id).entered();
        let directory = self.engine.directory(&self.record.id);
        let mounts = &self.bundle.mounts;
        let started = match self.output {
            OutputMode::Discard => {
                let null = self.engine.null()?;
                let other = null.try_clone().with_path("open", directory.path())?;
                let (stdout, stderr) = (null.into(), other.into());
                monitor::start_with(&self.record, &directory, mounts, stdout, stderr)
            }
            OutputMode::Log { .. } => {
                self.engine.monitor.start(&self.engine.run, &self.record.id, mounts)
            }
        };
        started.map_err(|error| error.with_hooks(&self.bundle.hooks))?;
        self.record.process = directory.process(&self.record.id);
        directory.write(&self.record)?;
        self.is_kept = true;
        Ok(self.record.clone())
    }

    /// Runs the container to its end, with our standard streams, and removes it.
    ///
    /// Meanwhile, `pass_on` is called with the runtime's PID: signals to that process reach the container.
    pub fn run(self, pass_on: impl FnOnce(u32)) -> Result<RunResult, ContainerError> {
        Ok(self.run_then(pass_on, |_| ())?.0)
    }

    /// Runs the container as [`run`](Self::run) does. Once its processes have ended, calls `next` in parallel to the
    /// removal, with the exit status.
    pub fn run_then<T: Send>(
        self,
        pass_on: impl FnOnce(u32),
        next: impl FnOnce(ExitStatus) -> T + Send,
    ) -> Result<(RunResult, T), ContainerError> {
        self.finish(None, pass_on, next)
    }

    /// Runs the container as [`run`](Self::run) does; fails if it does not end within the timeout after its start.
    pub fn run_within(self, timeout: Duration) -> Result<RunResult, ContainerError> {
        Ok(self.finish(Some(timeout), |_| (), |_| ())?.0)
    }

    fn finish<T: Send>(
        mut self,
        timeout: Option<Duration>,
        pass_on: impl FnOnce(u32),
        next: impl FnOnce(ExitStatus) -> T + Send,
    ) -> Result<(RunResult, T), ContainerError> {
        let directory = self.engine.directory(&self.record.id);
        let runtime = &self.record.runtime;
        let (id, log) = (&self.record.id, directory.runtime_log());
        let mut command = runtime.run(id, &directory.bundle(), &directory.pid_file(), &log);
        spawn::die_with_us(&mut command);
        self.bundle
            .mounts
            .enter(&mut command)
            .with_path("enter the mount namespace of", directory.path())?;
        let _parents = cgroup::keep_parents_of(&self.record.cgroup);
        debug!(runtime = %runtime.program.display(), id, "run the container");
        let pid_file = directory.pid_file();
        let files = (&*directory.bundle(), &*pid_file);
        let status = runtime.finish_run(&mut command, id, files, timeout, pass_on)?;
        // A sandbox has a PID before its program starts; its runtime logs only errors.
        let is_started = pid_file.exists()
            && !(runtime.capabilities().is_sandbox
                && fs::metadata(&log).is_ok_and(|log| log.len() > 0));
        if !is_started && !status.success() {
            let error = ContainerError::from(runtime.logged_error(RuntimeAction::Run, id, &log));
            return Err(error.with_hooks(&self.bundle.hooks));
        }
        let limits_hit = self.engine.limits_hit(&self.record);
        self.is_kept = true;
        let (removed, next) = std::thread::scope(|scope| {
            let next = spawn_or_call(scope, || next(status));
            (self.engine.tear_down(&self.record), next.join())
        });
        removed?;
        Ok((RunResult { status, limits_hit }, next))
    }
}

impl Drop for PreparedContainer<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = self.engine.remove(&self.record);
        }
    }
}

/// Devices of overlays and networks in user space.
const DEVICES: [&str; 2] = ["/dev/fuse", "/dev/net/tun"];

/// Gives a container the options and devices for running nested containers. Root in the container
/// must have an unused id on the host: `/proc` is not masked, so root of the host could change
/// files in it.
pub fn allow_nesting(options: &mut bundle::BundleOptions) -> Result<(), PathError> {
    options.security.nesting = true;
    for path in DEVICES.map(Path::new) {
        let is_given = options.devices.iter().any(|device| device.container == path);
        // Programs find another way without a device.
        if is_given || access(path, FileAccess::READ_OK | FileAccess::WRITE_OK).is_err() {
            continue;
        }
        let host = HostFile::open_trusted(path)?;
        options.devices.push(HostDevice {
            host,
            container: path.into(),
            access: DeviceAccess::all(),
        });
    }
    Ok(())
}
