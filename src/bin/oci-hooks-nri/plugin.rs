//! What the plugin does when the runtime calls it.

use std::time::Instant;

use oci_hooks::hooks::monitor::{Change, ChangeKind, Monitor, MonitorError, MonitorOptions};
use oci_hooks::hooks::{Loaded, Problem};
use oci_hooks::nri::wire::nri::{
    ConfigureRequest, Container, CreateContainerRequest, Hooks, PodSandbox, SynchronizeRequest,
};
use oci_hooks::nri::{Decider, Decision, Metrics, Outcome, Service, container_name};
use oci_hooks::sys::error::chain;
use tracing::{error, info, warn};

use crate::error::Error;
use crate::log;
use crate::metrics_file::MetricsFile;
use crate::settings::Settings;

/// The hook directories, how hooks are judged, and what is written about it.
pub struct Plugin {
    /// What the command line says.
    flags: Settings,
    decider: Decider,
    following: Option<Following>,
    metrics: Metrics,
    metrics_file: MetricsFile,
    /// Containers that lack hooks, of a list that comes in several parts.
    without_hooks: usize,
    /// Why the configuration that the runtime passed on cannot be used.
    failure: Option<Error>,
}

/// The hook directories as they change.
struct Following {
    settings: Settings,
    monitor: Monitor,
    /// Why they cannot be read any more. The hooks are those of before then.
    trouble: Option<String>,
}

impl Plugin {
    /// Returns a plugin that waits for what the runtime passes on.
    pub fn new(flags: Settings) -> Self {
        Plugin {
            decider: flags.decider(),
            flags,
            following: None,
            metrics: Metrics::default(),
            metrics_file: MetricsFile::default(),
            without_hooks: 0,
            failure: None,
        }
    }

    /// Starts to log and to follow the hook directories, unless it does with these settings.
    pub fn start(&mut self, settings: Settings) -> Result<(), Error> {
        match &self.following {
            Some(following) if following.settings == settings => return Ok(()),
            // The log stays where it is: it is chosen once.
            Some(_) => {}
            None => log::start(settings.log_level, settings.log_file.as_deref())?,
        }
        self.decider = settings.decider();
        self.metrics_file.path.clone_from(&settings.metrics);
        let options = MonitorOptions { load: settings.load_options(), ..MonitorOptions::default() };
        let monitor = Monitor::new(options)?;
        let loaded = monitor.snapshot();
        let Loaded { dirs, missing_dirs, hooks, .. } = &*loaded;
        info!(?dirs, ?missing_dirs, hooks = hooks.len(), "hook files loaded");
        for problem in &loaded.problems {
            warn_of(problem);
        }
        self.following = Some(Following { settings, monitor, trouble: None });
        self.note_loaded(&loaded);
        Ok(())
    }

    /// Returns why the configuration that the runtime passed on could not be used.
    pub fn take_failure(&mut self) -> Option<Error> {
        self.failure.take()
    }

    /// Returns what is readable when [`Plugin::poll`] has something to do, once it was started.
    pub fn monitor(&self) -> Option<&Monitor> {
        self.following.as_ref().map(|following| &following.monitor)
    }

    /// Returns when [`Plugin::poll`] has something to do at the latest.
    pub fn due(&self) -> Option<Instant> {
        let load = self.monitor().and_then(Monitor::due);
        [load, self.metrics_file.due()].into_iter().flatten().min()
    }

    /// Loads hook files that changed, and writes the metrics.
    pub fn poll(&mut self) {
        self.reload(Monitor::poll);
        self.metrics_file.write_if_due(&self.metrics);
    }

    /// Notes whether a runtime has accepted the plugin.
    pub fn set_connected(&mut self, is_connected: bool) {
        self.metrics.set_connected(is_connected);
        self.metrics_file.set_stale();
    }

    /// Writes the metrics for the last time.
    pub fn end(&mut self) {
        self.set_connected(false);
        self.metrics_file.write(&self.metrics);
    }

    fn reload(&mut self, load: impl FnOnce(&mut Monitor) -> Result<Vec<Change>, MonitorError>) {
        let Some(Following { monitor, trouble, .. }) = &mut self.following else { return };
        match load(monitor) {
            Ok(changes) => {
                *trouble = None;
                if !changes.is_empty() {
                    let loaded = monitor.snapshot();
                    tell(&changes, &loaded);
                    self.note_loaded(&loaded);
                }
            }
            Err(problem) => {
                let problem = chain(&problem);
                if trouble.as_ref() != Some(&problem) {
                    error!(error = %problem, "cannot follow the hook directories");
                }
                *trouble = Some(problem);
            }
        }
    }

    fn note_loaded(&mut self, loaded: &Loaded) {
        self.metrics.set_loaded(loaded);
        self.metrics_file.set_stale();
    }

    fn decide(
        &mut self,
        pod: Option<&PodSandbox>,
        container: &Container,
    ) -> Result<Decision, String> {
        // A file that was installed before the container is in force, though it is not quiet yet.
        self.reload(Monitor::poll);
        if self.monitor().and_then(Monitor::due).is_some() {
            self.reload(Monitor::rescan);
        }
        let Some(following) = &self.following else {
            return Err("the plugin is not configured".to_owned());
        };
        if let Some(trouble) = following.trouble.as_ref().filter(|_| self.decider.strict) {
            return Err(format!("cannot follow the hook directories: {trouble}"));
        }
        let loaded = following.monitor.snapshot();
        let decision = self.decider.decide(&loaded, pod, container);
        decision.map_err(|rejection| chain(&rejection))
    }
}

impl Service for Plugin {
    fn configure(&mut self, request: &ConfigureRequest) -> Result<(), String> {
        let settings = self.flags.with_config(&request.config).map_err(Error::from);
        if let Err(problem) = settings.and_then(|settings| self.start(settings)) {
            let message = chain(&problem);
            error!(error = %message, "cannot use the configuration");
            self.failure = Some(problem);
            return Err(message);
        }
        let ConfigureRequest { runtime_name, runtime_version, .. } = request;
        info!(runtime = ?runtime_name, version = ?runtime_version, "configured");
        Ok(())
    }

    fn synchronize(&mut self, request: &SynchronizeRequest) {
        let Some(monitor) = self.monitor() else { return };
        let loaded = monitor.snapshot();
        for container in &request.containers {
            let is_its = |pod: &&PodSandbox| pod.id == container.pod_sandbox_id;
            let pod = request.pods.iter().find(is_its);
            let files = self.decider.missing(&loaded, pod, container);
            if !files.is_empty() {
                let name = container_name(pod, container);
                warn!(container = ?name, id = ?container.id, ?files, "this container exists without hooks that match it");
                self.without_hooks += 1;
            }
        }
        let containers = request.containers.len();
        info!(containers, more = request.more, "synchronized with the runtime");
        if !request.more {
            self.metrics.set_without_hooks(std::mem::take(&mut self.without_hooks));
            self.metrics_file.set_stale();
        }
    }

    fn create_container(&mut self, request: &CreateContainerRequest) -> Result<Hooks, String> {
        let start = Instant::now();
        let pod = request.pod.as_ref();
        let container = request.container.as_ref().ok_or("the request has no container")?;
        let name = container_name(pod, container);
        let result = self.decide(pod, container);
        let took = start.elapsed();
        self.metrics_file.set_stale();
        match result {
            Ok(decision) => {
                self.metrics.count(Outcome::Decided(&decision), took);
                let hooks: Vec<_> = decision.matched.iter().map(ToString::to_string).collect();
                info!(container = ?name, id = ?container.id, ?hooks, ?took, "hooks of a container");
                Ok(decision.hooks)
            }
            Err(problem) => {
                self.metrics.count(Outcome::Rejected, took);
                error!(container = ?name, id = ?container.id, error = %problem, "container rejected");
                Err(format!("oci-hooks-nri: {problem}"))
            }
        }
    }

    fn shutdown(&mut self) {
        info!("the runtime is shutting down");
    }
}

/// Logs what changed in the hook directories.
fn tell(changes: &[Change], loaded: &Loaded) {
    for Change { path, kind } in changes {
        match kind {
            ChangeKind::Broken { in_force } => {
                warn!(file = %path.display(), in_force, "a hook file is broken");
                let problems = loaded.problems.iter();
                problems.filter(|problem| problem.path == *path).for_each(warn_of);
            }
            kind => info!(file = %path.display(), "hook file {}", kind.name()),
        }
    }
}

fn warn_of(problem: &Problem) {
    let hint = problem.source.hint();
    let what_nri_does = match hint {
        Some(_) if is_precreate(problem) => Some("NRI plugins cannot rewrite a configuration"),
        _ => None,
    };
    let hint = what_nri_does.map(str::to_owned).or(hint).unwrap_or_default();
    warn!(problem = %chain(problem), hint = %hint, "this hook file is not used as it is");
}

fn is_precreate(problem: &Problem) -> bool {
    use oci_hooks::hooks::HookError;

    matches!(&problem.source, HookError::UnknownStage { stage } if stage == "precreate")
}
