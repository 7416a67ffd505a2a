//! Creation of instances.

mod options;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use oci_hooks_engine::container::{ContainerRole, ContainerSpec, OutputMode, PreparedContainer};
use oci_hooks_engine::rootfs::{LayerStack, RootfsBacking};
use oci_hooks_files::fs::{PathContext as _, PathError, create_if_missing, make_private};
use oci_hooks_files::lock::LONG_LOCK_TIMEOUT;
use oci_hooks_files::record::NewerRecords;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::netns;
use oci_hooks_host::privilege::{MappedIds, outside};
use oci_hooks_host::thread::spawn_or_call;
use oci_hooks_host::userns::PrivateIds;
use oci_hooks_image::{Image, ProgressEvent, PullProgress, PullRequest, pull};

use super::boot::{BootSpec, GuestIds, OsRelease, RunnerSpec};
use super::error::ProviderError;
use super::guest_root::GuestRoot;
use super::http::{HttpClient, HttpOptions, ProxyUrls};
use super::instance::GarmInstance;
use super::plan::{InstancePlan, plan};
use super::provider::{self, GarmProvider};
use super::record::{InstanceFiles, InstanceRecord, NETWORK, OWNER, RunningDetails};
use super::runner::{self, LocatedRunner, RunnerCache, RunnerLayer, RunnerUser};
use super::site::InstanceSite;
use super::supervisor::SupervisorTask;
use super::{Bootstrap, logs, remove};

pub(super) fn create(
    provider: &GarmProvider<'_>,
    bootstrap: &Bootstrap,
) -> Result<GarmInstance, ProviderError> {
    let plan = plan(provider.settings, bootstrap)?;
    let name = &bootstrap.name;
    let files = provider.records().files(name);
    let files = files.ok_or_else(|| ProviderError::Unknown { name: name.clone() })?;
    let lock = files.lock(LONG_LOCK_TIMEOUT)?;
    let site = InstanceSite::of(provider.site.engine);
    let newer = NewerRecords::Remove;
    let parts = remove::parts(provider.site.engine, &provider.records(), &files, name, newer)?;
    for part in &parts {
        if is_alive(provider, &files, part)? {
            return Err(ProviderError::Duplicate { name: name.clone() });
        }
    }
    remove::remove_parts(provider.site, &files, &parts, newer)?;
    files.remove()?;
    sweep(provider)?;
    let mut record = record(provider, bootstrap);
    files.write_record(&record)?;
    match make(provider, bootstrap, &plan, &files, &mut record) {
        Ok(()) => provider::instance(&site, &files, record),
        Err(error) => {
            // If removal fails, a later call finds the rest by its record.
            let removed = remove::remove(provider.site, &files, &record, newer);
            if removed.is_ok() {
                let _ = files.forget(lock);
            }
            Err(error)
        }
    }
}

/// Returns whether an instance must not be replaced, because its runner is running or starting.
fn is_alive(
    provider: &GarmProvider<'_>,
    files: &InstanceFiles,
    record: &InstanceRecord,
) -> Result<bool, ProviderError> {
    let site = InstanceSite::of(provider.site.engine);
    Ok(record.info.is_some()
        && matches!(files.outcome(), Ok(None))
        && site.is_attended(files, record)?
        && site.is_running(record))
}

/// Interval between searches for old logs, of which there may be thousands.
const LOGS_EVERY: Duration = Duration::from_secs(3600);

/// Removes orphaned containers in the first call after a boot, and old logs at intervals.
fn sweep(provider: &GarmProvider<'_>) -> Result<(), ProviderError> {
    let log = &provider.settings.log;
    make_private(&log.directory)?;
    // Outside of the directory of controllers, where it would be taken for one.
    let marker = provider.site.engine.store.options().run.join("garm.swept");
    let swept = fs::metadata(&marker).and_then(|marker| marker.modified()).ok();
    if swept.is_none() {
        provider.site.engine.remove_orphans()?;
    }
    if swept.is_none_or(|at| at.elapsed().is_ok_and(|age| age > LOGS_EVERY)) {
        fs::write(&marker, "").with_path("write", &marker)?;
        logs::prune(&log.directory, log.keep_age.0)?;
    }
    Ok(())
}

/// Returns the record of an instance before any part of it is created.
fn record(provider: &GarmProvider<'_>, bootstrap: &Bootstrap) -> InstanceRecord {
    let container = provider.records().new_container_id(&bootstrap.name);
    let log = &provider.settings.log.directory;
    InstanceRecord {
        name: bootstrap.name.clone(),
        controller: provider.controller.to_owned(),
        pool: bootstrap.pool_id.clone(),
        network: format!("{NETWORK}{}", &container[..16]),
        log: log.join(logs::file_name(&bootstrap.name, &container)),
        container,
        created: Timestamp::now(),
        maker: ProcessIdentity::of(std::process::id()),
        image: bootstrap.image.clone(),
        flavor: bootstrap.flavor.clone(),
        arch: bootstrap.arch.clone(),
        ..InstanceRecord::default()
    }
}

fn make(
    provider: &GarmProvider<'_>,
    bootstrap: &Bootstrap,
    plan: &InstancePlan,
    files: &InstanceFiles,
    record: &mut InstanceRecord,
) -> Result<(), ProviderError> {
    thread::scope(|scope| {
        // The supervisor starts while the container is created. A supervisor without a task is killed with this
        // process.
        let supervisor = provider.supervisor.start(scope, provider.controller, &record.name)?;
        let creation = InstanceCreation { provider, bootstrap, plan };
        let task = creation.start(files, record).and_then(|(info, task)| {
            record.info = Some(info);
            files.write_record(record)?;
            Ok(task)
        });
        match task {
            Ok(task) => Ok(supervisor.hand_over(&task)?),
            Err(error) => {
                supervisor.cancel();
                Err(error)
            }
        }
    })
}

/// An instance that is being created.
struct InstanceCreation<'a> {
    provider: &'a GarmProvider<'a>,
    bootstrap: &'a Bootstrap,
    plan: &'a InstancePlan,
}

/// Progress of a pull that stores the warning for the instance's log.
struct WarningProgress<'a> {
    progress: &'a dyn PullProgress,
    warning: Mutex<Option<String>>,
}

impl PullProgress for WarningProgress<'_> {
    fn event(&self, event: ProgressEvent<'_>) {
        if let Some(text) = event.outdated_warning() {
            *self.warning.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
        self.progress.event(event);
    }
}

/// The runner of an instance.
struct InstanceRunner {
    located: LocatedRunner,
    user: RunnerUser,
    /// Layer with the runner, if the image does not have it.
    layer: Option<RunnerLayer>,
}

impl<'a> InstanceCreation<'a> {
    /// Creates and starts the container; returns the instance's info, and the task of its supervisor.
    fn start(
        &self,
        files: &InstanceFiles,
        record: &mut InstanceRecord,
    ) -> Result<(RunningDetails, SupervisorTask), ProviderError> {
        let (image, warning, runner, connected) = thread::scope(|scope| {
            let network = &record.network;
            let connected = spawn_or_call(scope, || self.connect(network));
            // Child processes must belong to a thread that lives until they have exited.
            let runner = outside::run(|| {
                let image = self.image()?;
                Ok::<_, ProviderError>((self.runner(&image.0)?, image))
            });
            let connected = connected.join();
            let (runner, (image, warning)) = runner?;
            Ok::<_, ProviderError>((image, warning, runner, connected?))
        })?;
        if let Some(layer) = runner.as_ref().and_then(|runner| runner.layer.as_ref()) {
            record.layer = Some(layer.key.clone());
            files.write_record(record)?;
        }
        // Without a runner of its own, the instance runs GARM's script as root.
        let user = runner
            .as_ref()
            .map(|InstanceRunner { user, .. }| GuestIds { uid: user.uid, gid: user.gid });
        let user = user.unwrap_or(GuestIds::ROOT);
        self.make_caches(user)?;
        let layers = runner.iter().filter_map(|runner| runner.layer.as_ref());
        let layers: Vec<_> = layers.map(|layer| layer.path.clone()).collect();
        let prepared = self.provider.site.engine.prepare(ContainerSpec {
            id: record.container.clone(),
            name: record.name.clone(),
            owner: format!("{OWNER}{}", record.controller),
            role: ContainerRole::Instance,
            image: &image,
            layers: layers.clone(),
            disk_bytes: self.plan.disk_bytes,
            options: self.options(record, &image, &connected, user)?,
            network: Some(record.network.clone()),
            group: None,
            output: OutputMode::Discard,
            runtime: None,
            stop: None,
            takes_steps: false,
        })?;
        if let Some(runner) = runner.as_ref().filter(|runner| !runner.user.exists) {
            let users = connected.user_namespace.as_deref().map(netns::open).transpose()?;
            let root = GuestRoot::open(&prepared.rootfs.path, users)?;
            add_user(&root, &image, &runner.user, &self.plan.boot.user)?;
        }
        let layers = [&image.layers[..], &layers].concat();
        let os =
            OsRelease::of(|path, limit| LayerStack::new(&layers).read(path, limit).ok().flatten());
        let mut notes = notes(&prepared);
        notes.extend(connected.warning);
        notes.extend(self.unenforced_limits_note());
        if runner.is_some() && !self.provider.site.engine.privilege.has_owners() {
            notes.push(format!(
                "the runner runs as root of the instance instead of {}: the user who runs GARM has no ids \
                 in /etc/subuid and /etc/subgid",
                self.plan.boot.user
            ));
        }
        prepared.start()?;
        let info = RunningDetails {
            os_name: os.id,
            os_version: os.version,
            addresses: connected.endpoint.addresses,
        };
        let log_bytes = self.provider.settings.log.size.0;
        let spec = self.boot_spec(runner, warning);
        Ok((info, SupervisorTask { spec, log: record.log.clone(), log_bytes, notes }))
    }

    /// Returns a note about limits that are not enforced because no cgroup controller is delegated for them.
    fn unenforced_limits_note(&self) -> Option<String> {
        let cgroups = self.provider.site.engine.cgroups();
        let names = self.plan.options.resources.clone().take_unenforced(&cgroups);
        (!names.is_empty()).then(|| {
            format!(
                "limits not enforced: {}: the cgroup of GARM's service is not delegated with the \
                 controllers for them: add Delegate=yes to the service",
                names.join(", ")
            )
        })
    }

    /// Pulls the image; returns it with a warning if it may be outdated.
    fn image(&self) -> Result<(Image, Option<String>), ProviderError> {
        let progress =
            WarningProgress { progress: self.provider.progress, warning: Mutex::default() };
        let request = PullRequest {
            reference: &self.plan.image,
            platform: &self.plan.platform,
            credentials: self.provider.credentials,
            policy: self.plan.pull,
            progress: &progress,
        };
        let pulled = pull(&self.provider.site.engine.store, self.provider.registries, &request);
        let image = pulled.map_err(Box::new)?;
        Ok((image, progress.warning.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Returns the runner, from the image or from a separate layer; none if GARM's script starts the runner.
    fn runner(&self, image: &Image) -> Result<Option<InstanceRunner>, ProviderError> {
        let boot = &self.plan.boot;
        if boot.use_garm_template {
            return Ok(None);
        }
        let user = self.user(image)?;
        let located = match &boot.runner_dir {
            Some(dir) => {
                let located = runner::locate_in(&image.layers, dir)?;
                Some(located.ok_or_else(|| ProviderError::NoRunner {
                    image: image.reference.to_string(),
                    dir: dir.clone(),
                })?)
            }
            None => {
                let token = self.bootstrap.instance_token.reveal();
                let forge = runner::forge_of_instance(token, &self.bootstrap.tools);
                runner::locate(&image.layers, forge)?
            }
        };
        if let Some(located) = located {
            return Ok(Some(InstanceRunner { located, user, layer: None }));
        }
        let tool = runner::choose(&self.bootstrap.tools, &self.bootstrap.arch)?;
        let http = HttpClient::new(&HttpOptions { ca_pem: self.ca_pem(), proxy: self.proxy() })?;
        let runners = RunnerCache::of(self.provider.site.engine);
        let layer = runners.prepare(tool, (user.uid, user.gid), &http)?;
        let located = LocatedRunner {
            dir: layer.dir.clone(),
            program: layer.program.clone(),
            forge: layer.forge,
        };
        Ok(Some(InstanceRunner { located, user, layer: Some(layer) }))
    }

    /// Returns the user of the runner.
    fn user(&self, image: &Image) -> Result<RunnerUser, ProviderError> {
        let privilege = self.provider.site.engine.privilege;
        // Without subordinate ids, root is the only user of an instance.
        let word = if privilege.has_owners() { &self.plan.boot.user } else { "root" };
        let user = runner::user(&image.layers, word)?;
        let (ids, others) = match self.provider.settings.has_user_namespaces() {
            true => (Some(MappedIds { uids: PrivateIds::COUNT, gids: PrivateIds::COUNT }), ""),
            false => (privilege.ids(), ", or have root add ids to /etc/subuid and /etc/subgid"),
        };
        match ids {
            Some(MappedIds { uids, gids }) if user.uid >= uids || user.gid >= gids => {
                Err(ProviderError::RunnerUser { uid: user.uid, gid: user.gid, uids, gids, others })
            }
            _ => Ok(user),
        }
    }

    /// Creates the directories of caches, writable by `owner`.
    fn make_caches(&self, owner: GuestIds) -> Result<(), PathError> {
        let has_users = self.provider.settings.has_user_namespaces();
        for path in &self.plan.caches {
            let parent = path.parent().unwrap_or(path);
            make_private(parent)?;
            // Jobs can leave set-user-ID programs in a cache, which no other user of the host may reach.
            let private = Permissions::from_mode(0o700);
            fs::set_permissions(parent, private).with_path("change the mode of", parent)?;
            create_if_missing(path, 0o755)?;
            let first = if has_users { PrivateIds::STORED.first } else { 0 };
            let [uid, gid] = [owner.uid, owner.gid].map(|id| Some(first + id));
            chown(path, uid, gid).with_path("change the owner of", path)?;
        }
        Ok(())
    }

    fn boot_spec(&self, runner: Option<InstanceRunner>, warning: Option<String>) -> BootSpec {
        let bootstrap = self.bootstrap;
        let boot = &self.plan.boot;
        BootSpec {
            callback_url: bootstrap.callback_url.clone(),
            metadata_url: bootstrap.metadata_url.clone(),
            token: bootstrap.instance_token.reveal().to_owned(),
            ca_pem: self.ca_pem(),
            proxy: self.proxy(),
            env: boot.env.clone(),
            packages: boot.packages.clone(),
            pre_install: boot.pre_install.clone(),
            runner: runner.map(|InstanceRunner { located, user, layer }| RunnerSpec {
                forge: located.forge,
                dir: located.dir,
                program: located.program,
                uid: user.uid,
                gid: user.gid,
                home: user.home,
                jit: bootstrap.jit,
                url: bootstrap.repo_url.clone(),
                name: bootstrap.name.clone(),
                labels: bootstrap.labels.clone(),
                group: bootstrap.runner_group.clone(),
                is_downloaded: layer.is_some(),
                install_dependencies: boot.install_dependencies,
            }),
            timeout: boot.timeout,
            warning,
        }
    }

    /// Returns the CA certificates of GARM and of the settings.
    fn ca_pem(&self) -> String {
        let own = &self.provider.settings.ca_pem;
        [self.bootstrap.ca_bundle.as_str(), own.as_str()].join("\n").trim().to_owned()
    }

    /// Returns GARM's proxies, or those of the settings if GARM sends none.
    fn proxy(&self) -> ProxyUrls {
        let sent = &self.bootstrap.proxy;
        if *sent == ProxyUrls::default() {
            (&self.provider.settings.proxy).into()
        } else {
            sent.clone()
        }
    }
}

/// Adds the runner's user to `/etc/passwd` and `/etc/group` of the container.
fn add_user(
    root: &GuestRoot,
    image: &Image,
    user: &RunnerUser,
    name: &str,
) -> Result<(), ProviderError> {
    let (passwd, group) = runner::passwd_with(&image.layers, user, name)?;
    root.write(Path::new("/etc/passwd"), &passwd, 0o644, GuestIds::ROOT)?;
    Ok(root.write(Path::new("/etc/group"), &group, 0o644, GuestIds::ROOT)?)
}

/// Returns notes for the log about a container that is about to start.
fn notes(prepared: &PreparedContainer<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if let RootfsBacking::Copy { reason } = &prepared.rootfs.backing {
        notes.push(format!(
            "overlayfs unavailable ({reason}): copying the image, which is slower and uses more disk"
        ));
    }
    let bundle = &prepared.bundle;
    notes.extend(bundle.warnings.iter().map(ToString::to_string));
    notes.extend(bundle.problems.iter().map(ToString::to_string));
    notes.extend(bundle.hook_stderr.iter().cloned());
    notes
}
