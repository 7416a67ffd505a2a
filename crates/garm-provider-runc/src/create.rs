//! Creation of instances.

mod options;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use oci_hooks_engine::container::{ContainerRole, ContainerSpec, PreparedContainer};
use oci_hooks_engine::rootfs::{LayerStack, RootfsBacking};
use oci_hooks_files::fs::{PathContext as _, PathError, create_if_missing, make_private};
use oci_hooks_files::lock::LONG_LOCK_TIMEOUT;
use oci_hooks_files::record::NewerRecords;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::netns;
use oci_hooks_host::privilege::{MappedIds, host_network};
use oci_hooks_host::thread::spawn_or_call;
use oci_hooks_host::userns::PrivateIds;
use oci_hooks_image::{Image, ProgressEvent, PullProgress, PullRequest, pull};

use self::options::ConnectedNetwork;
use super::access::InstanceProcesses;
use super::boot::{BootSpec, GuestIds, OsRelease, RunnerSpec};
use super::error::ProviderError;
use super::guest_root::GuestRoot;
use super::http::{HttpClient, HttpOptions, ProxyUrls};
use super::instance::GarmInstance;
use super::plan::{InstancePlan, plan};
use super::provider::{self, GarmProvider};
use super::record::{InstanceFiles, InstanceRecord, NETWORK, OWNER, RunningDetails};
use super::runner::{self, LocatedRunner, RunnerCache, RunnerLayer, RunnerUser};
use super::supervisor::SupervisorTask;
use super::{Bootstrap, logs, remove};

pub(super) fn create(
    provider: &GarmProvider<'_>,
    bootstrap: &Bootstrap,
) -> Result<GarmInstance, ProviderError> {
    let plan = plan(provider.settings, bootstrap)?;
    let unknown = || ProviderError::Unknown { name: bootstrap.name.clone() };
    let files = provider.records().files(&bootstrap.name).ok_or_else(unknown)?;
    let lock = files.lock(LONG_LOCK_TIMEOUT)?;
    remove_leftovers(provider, &files, &bootstrap.name)?;
    sweep(provider)?;
    let record = new_record(provider, bootstrap);
    files.write_record(&record)?;
    let outdated = OutdatedWarning::default();
    let mut creation = InstanceCreation { provider, bootstrap, plan, files, record, outdated };
    let created = creation.run();
    let InstanceCreation { files, record, .. } = creation;
    match created {
        Ok(()) => {
            provider::instance(&InstanceProcesses::of(provider.access.engine), &files, record)
        }
        Err(error) => {
            // If removal fails, a later call finds the rest by its record.
            if remove::remove(provider.access, &files, &record, NewerRecords::Remove).is_ok() {
                let _ = files.forget(lock);
            }
            Err(error)
        }
    }
}

/// Removes what is left of an earlier instance of the same name. Fails if its runner is running or starting.
fn remove_leftovers(
    provider: &GarmProvider<'_>,
    files: &InstanceFiles,
    name: &str,
) -> Result<(), ProviderError> {
    let (engine, newer) = (provider.access.engine, NewerRecords::Remove);
    let processes = InstanceProcesses::of(engine);
    let parts = remove::parts(engine, &provider.records(), files, name, newer)?;
    for part in &parts {
        let is_alive = part.info.is_some()
            && matches!(files.outcome(), Ok(None))
            && processes.is_attended(files, part)?
            && processes.is_running(part);
        if is_alive {
            return Err(ProviderError::Duplicate { name: name.to_owned() });
        }
    }
    remove::remove_parts(provider.access, files, &parts, newer)?;
    Ok(files.remove()?)
}

/// Marker file in the run directory of the store, created by the first instance after a boot.
pub const SWEEP_MARKER: &str = "garm.swept";

/// Interval between searches for old logs, of which there may be thousands.
const LOGS_EVERY: Duration = Duration::from_secs(3600);

/// Removes orphaned containers in the first call after a boot, and old logs at intervals.
fn sweep(provider: &GarmProvider<'_>) -> Result<(), ProviderError> {
    let log = &provider.settings.log;
    make_private(&log.directory)?;
    // Outside of the directory of controllers, where it would be taken for one.
    let marker = provider.access.engine.store.options().run.join(SWEEP_MARKER);
    let swept = fs::metadata(&marker).and_then(|marker| marker.modified()).ok();
    if swept.is_none() {
        provider.access.engine.remove_orphans()?;
    }
    if swept.is_none_or(|at| at.elapsed().is_ok_and(|age| age > LOGS_EVERY)) {
        fs::write(&marker, "").with_path("write", &marker)?;
        logs::prune(&log.directory, log.keep_age.0)?;
    }
    Ok(())
}

/// Returns the record of an instance before any part of it is created.
fn new_record(provider: &GarmProvider<'_>, bootstrap: &Bootstrap) -> InstanceRecord {
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
        creator: ProcessIdentity::of(std::process::id()),
        image: bootstrap.image.clone(),
        flavor: bootstrap.flavor.clone(),
        arch: bootstrap.arch.clone(),
        ..InstanceRecord::default()
    }
}

/// An instance that is being created.
struct InstanceCreation<'a> {
    provider: &'a GarmProvider<'a>,
    bootstrap: &'a Bootstrap,
    plan: InstancePlan,
    files: InstanceFiles,
    record: InstanceRecord,
    outdated: OutdatedWarning,
}

/// Receives the progress of a pull, and keeps the warning that the image may be outdated.
#[derive(Default)]
struct OutdatedWarning(OnceLock<String>);

impl PullProgress for OutdatedWarning {
    fn event(&self, event: ProgressEvent<'_>) {
        if let Some(warning) = event.outdated_warning() {
            // The image is pulled once.
            let _ = self.0.set(warning);
        }
    }
}

/// The runner of an instance, with its paths, its user and its layer.
struct InstanceRunner {
    located: LocatedRunner,
    user: RunnerUser,
    /// Layer with the runner, if the image does not have it.
    layer: Option<RunnerLayer>,
}

impl InstanceCreation<'_> {
    /// Creates and starts the container, and hands it over to its supervisor.
    fn run(&mut self) -> Result<(), ProviderError> {
        let GarmProvider { supervisor, controller, .. } = *self.provider;
        thread::scope(|scope| {
            // The supervisor starts while the container is created. A supervisor without a task is killed with this
            // process.
            let supervisor = supervisor.start(scope, controller, &self.record.name)?;
            match self.start_container() {
                Ok(task) => Ok(supervisor.hand_over(&task)?),
                Err(error) => {
                    supervisor.cancel();
                    Err(error)
                }
            }
        })
    }

    /// Creates and starts the container, and returns the task of its supervisor.
    fn start_container(&mut self) -> Result<SupervisorTask, ProviderError> {
        let (network, image, runner) = self.network_and_image()?;
        let layer = runner.as_ref().and_then(|runner| runner.layer.as_ref());
        if let Some(layer) = layer {
            self.record.layer = Some(layer.key.clone());
            self.files.write_record(&self.record)?;
        }
        // Without a runner of its own, the instance runs GARM's script as root.
        let user = runner.as_ref().map_or(GuestIds::ROOT, |InstanceRunner { user, .. }| GuestIds {
            uid: user.uid,
            gid: user.gid,
        });
        self.make_caches(user)?;
        let layers: Vec<_> = layer.map(|layer| layer.path.clone()).into_iter().collect();
        let owner = format!("{OWNER}{}", self.record.controller);
        let prepared = self.provider.access.engine.prepare(ContainerSpec {
            id: self.record.container.clone(),
            name: self.record.name.clone(),
            layers: layers.clone(),
            disk_bytes: self.plan.disk_bytes,
            options: self.options(&image, &network, user)?,
            network: Some(self.record.network.clone()),
            ..ContainerSpec::new(ContainerRole::Instance, owner, &image)
        })?;
        if let Some(runner) = runner.as_ref().filter(|runner| !runner.user.exists) {
            self.add_user(&prepared, &network, &image, &runner.user)?;
        }
        let notes = self.notes(&prepared, &network, runner.is_some());
        let layers = [&image.layers[..], &layers].concat();
        let os =
            OsRelease::of(|path, limit| LayerStack::new(&layers).read(path, limit).ok().flatten());
        prepared.start()?;
        self.record.info = Some(RunningDetails {
            os_name: os.id,
            os_version: os.version,
            addresses: network.endpoint.addresses,
        });
        self.files.write_record(&self.record)?;
        Ok(SupervisorTask {
            spec: self.boot_spec(runner),
            log: self.record.log.clone(),
            log_bytes: self.provider.settings.log.size.0,
            notes,
        })
    }

    /// Creates the network, and meanwhile pulls the image and provides its runner.
    fn network_and_image(
        &self,
    ) -> Result<(ConnectedNetwork, Image, Option<InstanceRunner>), ProviderError> {
        thread::scope(|scope| {
            let network = spawn_or_call(scope, || self.connect());
            // Child processes must belong to a thread that lives until they have exited.
            let image = host_network::run(|| {
                let image = self.image()?;
                let runner = self.runner(&image)?;
                Ok::<_, ProviderError>((image, runner))
            });
            let network = network.join();
            let (image, runner) = image?;
            Ok((network?, image, runner))
        })
    }

    /// Pulls the image.
    fn image(&self) -> Result<Image, ProviderError> {
        let GarmProvider { access, registries, credentials, .. } = *self.provider;
        let request = PullRequest {
            reference: &self.plan.image,
            platform: &self.plan.platform,
            credentials,
            policy: self.plan.pull,
            progress: &self.outdated,
        };
        Ok(pull(&access.engine.store, registries, &request).map_err(Box::new)?)
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
        let (located, layer) = match located {
            Some(located) => (located, None),
            None => {
                let arch = &self.plan.platform.architecture;
                let tool = runner::choose(&self.bootstrap.tools, arch)?;
                let http = HttpClient::new(&self.http())?;
                let runners = RunnerCache::of(self.provider.access.engine);
                let layer = runners.prepare(tool, (user.uid, user.gid), &http)?;
                (layer.runner.clone(), Some(layer))
            }
        };
        Ok(Some(InstanceRunner { located, user, layer }))
    }

    /// Returns the user of the runner; fails if the instance does not map its ids.
    fn user(&self, image: &Image) -> Result<RunnerUser, ProviderError> {
        let privilege = self.provider.access.engine.privilege;
        // Without subordinate ids, root is the only user of an instance.
        let word = if privilege.has_owners() { &self.plan.boot.user } else { "root" };
        let user = runner::user(&image.layers, word)?;
        let (ids, others) = match self.provider.settings.has_user_namespaces() {
            true => (Some(MappedIds { uids: PrivateIds::COUNT, gids: PrivateIds::COUNT }), ""),
            false => (
                privilege.ids(),
                ", or have root add ids of the user who runs GARM to /etc/subuid and /etc/subgid",
            ),
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

    /// Adds the runner's user to `/etc/passwd` and `/etc/group` of the container.
    fn add_user(
        &self,
        prepared: &PreparedContainer<'_>,
        network: &ConnectedNetwork,
        image: &Image,
        user: &RunnerUser,
    ) -> Result<(), ProviderError> {
        let user_namespace = network.user_namespace.as_deref().map(netns::open).transpose()?;
        let root = GuestRoot::open(&prepared.rootfs.path, user_namespace)?;
        let (passwd, group) = runner::passwd_with(&image.layers, user, &self.plan.boot.user)?;
        root.write(Path::new("/etc/passwd"), &passwd, 0o644, GuestIds::ROOT)?;
        Ok(root.write(Path::new("/etc/group"), &group, 0o644, GuestIds::ROOT)?)
    }

    /// Returns notes for the log about a container that is about to start.
    fn notes(
        &self,
        prepared: &PreparedContainer<'_>,
        network: &ConnectedNetwork,
        has_runner: bool,
    ) -> Vec<String> {
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
        notes.extend(network.warning.clone());
        let engine = self.provider.access.engine;
        let cgroups = engine.cgroups();
        let unenforced = self.plan.options.resources.clone().take_unenforced(&cgroups);
        if !unenforced.is_empty() {
            notes.push(format!(
                "limits not enforced: {}: GARM's service has no delegated cgroup with the controllers for \
                 them; `garm-provider-runc doctor` prints the reason and what to do",
                // Limits have the names of Docker's options, which differ from the setting only here.
                unenforced.join(", ").replace("pids-limit", "pids")
            ));
        }
        if has_runner && !engine.privilege.has_owners() {
            notes.push(format!(
                "the runner runs as root of the instance instead of {}: the user who runs GARM has no ids \
                 in /etc/subuid and /etc/subgid",
                self.plan.boot.user
            ));
        }
        notes
    }

    fn boot_spec(&self, runner: Option<InstanceRunner>) -> BootSpec {
        let (bootstrap, boot) = (self.bootstrap, &self.plan.boot);
        BootSpec {
            callback_url: bootstrap.callback_url.clone(),
            metadata_url: bootstrap.metadata_url.clone(),
            token: bootstrap.instance_token.reveal().to_owned(),
            http: self.http(),
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
            warning: self.outdated.0.get().cloned(),
        }
    }

    /// Returns the CA certificates of GARM and of the settings, and the proxies of GARM, or else of the settings.
    fn http(&self) -> HttpOptions {
        let (sent, settings) = (self.bootstrap, self.provider.settings);
        let ca_pem = [sent.ca_bundle.as_str(), settings.ca_pem.as_str()].join("\n");
        let proxy = match sent.proxy == ProxyUrls::default() {
            true => (&settings.proxy).into(),
            false => sent.proxy.clone(),
        };
        HttpOptions { ca_pem: ca_pem.trim().to_owned(), proxy }
    }
}
