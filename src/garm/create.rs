//! Making an instance.

mod options;

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;

use super::boot::{BootSpec, Forge, OsRelease, Owner, RunnerSpec};
use super::error::ProviderError;
use super::guest_root::GuestRoot;
use super::http::{Http, HttpOptions, Proxy};
use super::instance::Instance;
use super::plan::{Plan, plan};
use super::provider::{self, Provider};
use super::record::{Files, InstanceInfo, InstanceRecord, NETWORK, OWNER};
use super::runner::{self, Located, RunnerLayer, RunnerUser, Runners};
use super::site::Site;
use super::supervisor::Task;
use super::{Bootstrap, logs, remove};
use crate::container::{Output, Prepared, Role, Spec, new_id};
use crate::image::{Image, Progress, ProgressEvent, PullRequest, pull};
use crate::rootfs::{Backing, Stack};
use crate::sys::fs::{PathContext as _, PathError, make_private};
use crate::sys::identity::Identity;
use crate::sys::lock::LONG;
use crate::sys::netns;
use crate::sys::privilege::{Ids, outside};
use crate::sys::record::NewerRecords;
use crate::sys::thread::beside;
use crate::sys::userns::PrivateIds;

pub(super) fn create(
    provider: &Provider<'_>,
    bootstrap: &Bootstrap,
) -> Result<Instance, ProviderError> {
    let plan = plan(provider.settings, bootstrap)?;
    let name = &bootstrap.name;
    let files = provider.records().files(name);
    let files = files.ok_or_else(|| ProviderError::Unknown { name: name.clone() })?;
    let lock = files.lock(LONG)?;
    let site = Site::of(provider.engine);
    let known = remove::record(&site, &provider.records(), &files, name, NewerRecords::Keep)?;
    if let Some(record) = known {
        if is_alive(provider, &files, &record)? {
            return Err(ProviderError::Duplicate { name: name.clone() });
        }
        remove::remove(provider.engine, provider.network, &files, &record)?;
    }
    sweep(provider)?;
    let mut record = record(provider, bootstrap);
    files.write_record(&record)?;
    match make(provider, bootstrap, &plan, &files, &mut record) {
        Ok(()) => provider::instance(&site, &files, record),
        Err(error) => {
            // What cannot be removed now is found by its record.
            if remove::remove(provider.engine, provider.network, &files, &record).is_ok() {
                let _ = files.forget(lock);
            }
            Err(error)
        }
    }
}

/// Returns whether there is an instance that must not be touched: one whose runner is up or comes up.
fn is_alive(
    provider: &Provider<'_>,
    files: &Files,
    record: &InstanceRecord,
) -> Result<bool, ProviderError> {
    let site = Site::of(provider.engine);
    Ok(record.info.is_some()
        && files.outcome()?.is_none()
        && site.is_attended(files, record)?
        && site.is_running(record))
}

/// How often old logs are looked for: there may be thousands.
const LOGS_EVERY: Duration = Duration::from_secs(3600);

/// Removes what nobody needs any more. The first call of a boot finds what the last one left.
fn sweep(provider: &Provider<'_>) -> Result<(), ProviderError> {
    let log = &provider.settings.log;
    make_private(&log.directory)?;
    // Not among the controllers.
    let marker = provider.engine.store.options().run.join("garm.swept");
    let swept = fs::metadata(&marker).and_then(|marker| marker.modified()).ok();
    if swept.is_none() {
        provider.engine.remove_orphans()?;
    }
    if swept.is_none_or(|at| at.elapsed().is_ok_and(|age| age > LOGS_EVERY)) {
        fs::write(&marker, "").at("write", &marker)?;
        logs::prune(&log.directory, log.keep_age.0)?;
    }
    Ok(())
}

/// Returns what is known of an instance before anything of it is made.
fn record(provider: &Provider<'_>, bootstrap: &Bootstrap) -> InstanceRecord {
    let container = new_id();
    let log = &provider.settings.log.directory;
    InstanceRecord {
        name: bootstrap.name.clone(),
        controller: provider.controller.to_owned(),
        pool: bootstrap.pool_id.clone(),
        network: format!("{NETWORK}{}", &container[..16]),
        log: log.join(logs::file_name(&bootstrap.name, &container)),
        container,
        created: Timestamp::now(),
        maker: Identity::of(std::process::id()),
        image: bootstrap.image.clone(),
        flavor: bootstrap.flavor.clone(),
        arch: bootstrap.arch.clone(),
        layer: None,
        info: None,
    }
}

fn make(
    provider: &Provider<'_>,
    bootstrap: &Bootstrap,
    plan: &Plan,
    files: &Files,
    record: &mut InstanceRecord,
) -> Result<(), ProviderError> {
    thread::scope(|scope| {
        // It comes up while the rest is made, and ends with us until it knows what to do.
        let supervisor = provider.supervisor.start(scope, provider.controller, &record.name)?;
        let creation = Creation { provider, bootstrap, plan };
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

/// An instance that is being made.
struct Creation<'a> {
    provider: &'a Provider<'a>,
    bootstrap: &'a Bootstrap,
    plan: &'a Plan,
}

/// Keeps what is to be told of a pull.
struct Warned<'a> {
    progress: &'a dyn Progress,
    warning: Mutex<Option<String>>,
}

impl Progress for Warned<'_> {
    fn event(&self, event: ProgressEvent<'_>) {
        if let Some(text) = event.outdated() {
            *self.warning.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
        self.progress.event(event);
    }
}

/// The runner of an instance.
struct Runner {
    located: Located,
    user: RunnerUser,
    /// What has it, if the image does not.
    layer: Option<RunnerLayer>,
}

impl<'a> Creation<'a> {
    /// Makes the container and starts it; returns what is known of it then, and what is left to do for
    /// its supervisor.
    fn start(
        &self,
        files: &Files,
        record: &mut InstanceRecord,
    ) -> Result<(InstanceInfo, Task), ProviderError> {
        let (image, warning, runner, connected) = thread::scope(|scope| {
            let network = &record.network;
            let connected = beside(scope, || self.connect(network));
            // Children must be a thread's that is there until all is done.
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
        // GARM's script runs as root.
        let user =
            runner.as_ref().map(|Runner { user, .. }| Owner { uid: user.uid, gid: user.gid });
        let user = user.unwrap_or(Owner::ROOT);
        self.make_caches(user)?;
        let layers = runner.iter().filter_map(|runner| runner.layer.as_ref());
        let layers: Vec<_> = layers.map(|layer| layer.path.clone()).collect();
        let prepared = self.provider.engine.prepare(Spec {
            id: record.container.clone(),
            name: record.name.clone(),
            owner: format!("{OWNER}{}", record.controller),
            role: Role::Instance,
            image: &image,
            layers: layers.clone(),
            disk_bytes: self.plan.disk_bytes,
            options: self.options(record, &image, &connected, user)?,
            network: Some(record.network.clone()),
            group: None,
            output: Output::Discard,
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
        let os = OsRelease::of(|path, limit| Stack::new(&layers).read(path, limit).ok().flatten());
        let mut notes = notes(&prepared);
        notes.extend(connected.warning);
        notes.extend(self.unkept_limits());
        if runner.is_some() && !self.provider.engine.privilege.has_owners() {
            notes.push(format!(
                "the runner runs as root of the instance and not as {}: the user who runs GARM has no ids \
                 in /etc/subuid and /etc/subgid",
                self.plan.boot.user
            ));
        }
        prepared.start()?;
        let info = InstanceInfo {
            os_name: os.id,
            os_version: os.version,
            addresses: connected.endpoint.addresses,
        };
        let log_bytes = self.provider.settings.log.size.0;
        let spec = self.boot_spec(runner, warning);
        Ok((info, Task { spec, log: record.log.clone(), log_bytes, notes }))
    }

    /// Returns which limits do not hold, as there are no cgroups for them, in a sentence.
    fn unkept_limits(&self) -> Option<String> {
        let cgroups = self.provider.engine.cgroups();
        let names = self.plan.options.resources.clone().take_unkept(&cgroups);
        (!names.is_empty()).then(|| {
            format!(
                "limits that do not hold: {}: the cgroup of GARM's service is not delegated with the \
                 controllers for them: add Delegate=yes to the service",
                names.join(", ")
            )
        })
    }

    /// Returns the image, and what people should know of it.
    fn image(&self) -> Result<(Image, Option<String>), ProviderError> {
        let progress = Warned { progress: self.provider.progress, warning: Mutex::default() };
        let request = PullRequest {
            reference: &self.plan.image,
            platform: &self.plan.platform,
            credentials: self.provider.credentials,
            policy: self.plan.pull,
            progress: &progress,
        };
        let pulled = pull(&self.provider.engine.store, self.provider.registries, &request);
        let image = pulled.map_err(Box::new)?;
        Ok((image, progress.warning.into_inner().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Returns the runner, from the image or from a layer of its own; none if GARM's script brings
    /// one up.
    fn runner(&self, image: &Image) -> Result<Option<Runner>, ProviderError> {
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
            return Ok(Some(Runner { located, user, layer: None }));
        }
        let tool = runner::choose(&self.bootstrap.tools, &self.bootstrap.arch)?;
        let http = Http::new(&HttpOptions { ca_pem: self.ca_pem(), proxy: self.proxy() })?;
        let runners = Runners::of(self.provider.engine);
        let layer = runners.prepare(tool, (user.uid, user.gid), &http, &|_| {})?;
        let located =
            Located { dir: layer.dir.clone(), program: layer.program.clone(), forge: layer.forge };
        Ok(Some(Runner { located, user, layer: Some(layer) }))
    }

    /// Returns the user that the runner runs as.
    fn user(&self, image: &Image) -> Result<RunnerUser, ProviderError> {
        let privilege = self.provider.engine.privilege;
        // Whoever else is asked for, there is nobody else.
        let word = if privilege.has_owners() { &self.plan.boot.user } else { "root" };
        let user = runner::user(&image.layers, word)?;
        let (ids, others) = match self.provider.settings.has_user_namespaces() {
            true => (Some(Ids { uids: PrivateIds::COUNT, gids: PrivateIds::COUNT }), ""),
            false => (privilege.ids(), ", or have root add ids to /etc/subuid and /etc/subgid"),
        };
        match ids {
            Some(Ids { uids, gids }) if user.uid >= uids || user.gid >= gids => {
                Err(ProviderError::RunnerUser { uid: user.uid, gid: user.gid, uids, gids, others })
            }
            _ => Ok(user),
        }
    }

    /// Makes the directories of caches, for their owner to write.
    fn make_caches(&self, owner: Owner) -> Result<(), PathError> {
        for path in &self.plan.caches {
            if !path.exists() {
                let parent = path.parent().unwrap_or(path);
                make_private(parent)?;
                match DirBuilder::new().mode(0o755).create(path) {
                    // Another instance makes it at the same time.
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                    made => made.at("make the directory", path)?,
                }
            }
            chown(path, Some(owner.uid), Some(owner.gid)).at("change the owner of", path)?;
        }
        Ok(())
    }

    fn boot_spec(&self, runner: Option<Runner>, warning: Option<String>) -> BootSpec {
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
            runner: runner.map(|Runner { located, user, layer }| RunnerSpec {
                forge: located.forge,
                // Gitea's writes to where it is run, which is not where images have it.
                dir: match located.forge {
                    Forge::Gitea if layer.is_none() => user.home.clone(),
                    _ => located.dir,
                },
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

    /// Returns the certificates of GARM and of the admin.
    fn ca_pem(&self) -> String {
        let own = &self.provider.settings.ca_pem;
        [self.bootstrap.ca_bundle.as_str(), own.as_str()].join("\n").trim().to_owned()
    }

    /// Returns GARM's proxies, or the admin's where GARM says nothing.
    fn proxy(&self) -> Proxy {
        let sent = &self.bootstrap.proxy;
        if *sent == Proxy::default() {
            (&self.provider.settings.proxy).into()
        } else {
            sent.clone()
        }
    }
}

/// Adds the runner's user to an image that does not have it.
fn add_user(
    root: &GuestRoot,
    image: &Image,
    user: &RunnerUser,
    name: &str,
) -> Result<(), ProviderError> {
    let (passwd, group) = runner::passwd_with(&image.layers, user, name)?;
    root.write(Path::new("/etc/passwd"), &passwd, 0o644, Owner::ROOT)?;
    Ok(root.write(Path::new("/etc/group"), &group, 0o644, Owner::ROOT)?)
}

/// Returns what people should know of a container that is about to start.
fn notes(prepared: &Prepared<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    if let Backing::Copy { reason } = &prepared.rootfs.backing {
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
