//! Implements the calls that the runtime makes to a plugin.

use std::time::Instant;

use oci_hooks::hooks::monitor::{ChangeKind, FileChange, Monitor, MonitorError, MonitorOptions};
use oci_hooks::hooks::{LoadProblem, LoadedHooks};
use oci_hooks_files::error::chain;
use oci_hooks_nri::wire::nri::{
    ConfigureRequest, Container, ContainerAdjustment, CreateContainerRequest, PodSandbox,
    SynchronizeRequest,
};
use oci_hooks_nri::{ContainerOutcome, Decider, Decision, Metrics, PluginService, container_name};
use tracing::{error, info, warn};

use crate::error::PluginError;
use crate::log;
use crate::metrics_file::MetricsFile;
use crate::settings::PluginSettings;

/// State of the plugin: hook directories, rules, and metrics.
pub struct HookPlugin {
    /// Settings of the command line.
    flags: PluginSettings,
    decider: Decider,
    following: Option<FollowedHooks>,
    metrics: Metrics,
    metrics_file: MetricsFile,
    /// Existing pods and containers, collected while the runtime sends them in several parts.
    existing: SynchronizeRequest,
    /// Error in the plugin's part of the runtime's configuration, until
    /// [`HookPlugin::take_failure`].
    failure: Option<PluginError>,
}

/// The followed hook directories.
struct FollowedHooks {
    settings: PluginSettings,
    monitor: Monitor,
    /// Reason why the directories can no longer be read, while the last hooks stay in force; `None`
    /// if they can be read.
    trouble: Option<String>,
}

impl HookPlugin {
    /// Returns a plugin that waits for the runtime's configuration.
    pub fn new(flags: PluginSettings) -> Self {
        HookPlugin {
            decider: flags.decider(),
            flags,
            following: None,
            metrics: Metrics::default(),
            metrics_file: MetricsFile::default(),
            existing: SynchronizeRequest::default(),
            failure: None,
        }
    }

    /// Starts logging and following the hook directories, unless already started with these settings.
    pub fn start(&mut self, settings: PluginSettings) -> Result<(), PluginError> {
        match &self.following {
            Some(following) if following.settings == settings => return Ok(()),
            // The log keeps its first destination.
            Some(_) => {}
            None => log::start(settings.log_level, settings.log_file.as_deref())?,
        }
        self.decider = settings.decider();
        self.metrics_file.path.clone_from(&settings.metrics);
        let options = MonitorOptions { load: settings.load_options(), ..MonitorOptions::default() };
        let monitor = Monitor::new(options)?;
        let loaded = monitor.snapshot();
        let LoadedHooks { dirs, missing_dirs, hooks, .. } = &*loaded;
        info!(?dirs, ?missing_dirs, hooks = hooks.len(), "hook files loaded");
        for problem in &loaded.problems {
            warn_of(problem);
        }
        self.following = Some(FollowedHooks { settings, monitor, trouble: None });
        self.note_loaded(&loaded);
        Ok(())
    }

    /// Returns the error of the runtime's configuration, if any.
    pub fn take_failure(&mut self) -> Option<PluginError> {
        self.failure.take()
    }

    /// Returns a descriptor that is readable when [`HookPlugin::poll`] has work to do; `None` before the start.
    pub fn monitor(&self) -> Option<&Monitor> {
        self.following.as_ref().map(|following| &following.monitor)
    }

    /// Returns the time at which [`HookPlugin::poll`] has to be called at the latest; `None` if
    /// there is nothing to do.
    pub fn due_time(&self) -> Option<Instant> {
        let load = self.monitor().and_then(Monitor::due_time);
        [load, self.metrics_file.due_time()].into_iter().flatten().min()
    }

    /// Loads changed hook files, and writes the metrics.
    pub fn poll(&mut self) {
        self.reload(Monitor::poll);
        self.metrics_file.write_if_due(&self.metrics);
    }

    /// Sets whether the plugin is registered with a runtime.
    pub fn set_connected(&mut self, is_connected: bool) {
        self.metrics.set_connected(is_connected);
        self.metrics_file.set_stale();
    }

    /// Writes the metrics for the last time.
    pub fn end(&mut self) {
        self.set_connected(false);
        self.metrics_file.write(&self.metrics);
    }

    fn reload(&mut self, load: impl FnOnce(&mut Monitor) -> Result<Vec<FileChange>, MonitorError>) {
        let Some(FollowedHooks { monitor, trouble, .. }) = &mut self.following else { return };
        match load(monitor) {
            Ok(changes) => {
                *trouble = None;
                if !changes.is_empty() {
                    let loaded = monitor.snapshot();
                    log_changes(&changes, &loaded);
                    self.note_loaded(&loaded);
                }
            }
            Err(problem) => {
                let problem = chain(&problem);
                if trouble.as_ref() != Some(&problem) {
                    error!(error = %problem, "cannot watch the hook directories");
                }
                *trouble = Some(problem);
            }
        }
    }

    fn note_loaded(&mut self, loaded: &LoadedHooks) {
        self.metrics.set_loaded(loaded);
        self.metrics_file.set_stale();
    }

    fn decide(
        &mut self,
        pod: Option<&PodSandbox>,
        container: &Container,
    ) -> Result<Decision, String> {
        // A hook file installed before the container is in force, even if the monitor still waits for more
        // changes.
        self.reload(Monitor::poll);
        if self.monitor().and_then(Monitor::due_time).is_some() {
            self.reload(Monitor::rescan);
        }
        let Some(following) = &self.following else {
            return Err("the plugin has no valid configuration from the runtime".to_owned());
        };
        if let Some(trouble) = following.trouble.as_ref().filter(|_| self.decider.strict) {
            return Err(format!("cannot watch the hook directories: {trouble}"));
        }
        let loaded = following.monitor.snapshot();
        let decision = self.decider.decide(&loaded, pod, container);
        decision.map_err(|rejection| chain(&rejection))
    }
}

impl PluginService for HookPlugin {
    fn configure(&mut self, request: &ConfigureRequest) -> Result<(), String> {
        // A runtime that was disconnected sends its list again.
        self.existing = SynchronizeRequest::default();
        let settings = self.flags.with_config(&request.config).map_err(PluginError::from);
        if let Err(problem) = settings.and_then(|settings| self.start(settings)) {
            let message = chain(&problem);
            error!(error = %message, "cannot use the configuration of this plugin");
            self.failure = Some(problem);
            return Err(message);
        }
        let ConfigureRequest { runtime_name, runtime_version, .. } = request;
        info!(runtime = ?runtime_name, version = ?runtime_version, "configured");
        Ok(())
    }

    fn synchronize(&mut self, request: &SynchronizeRequest) {
        self.existing.pods.extend_from_slice(&request.pods);
        self.existing.containers.extend_from_slice(&request.containers);
        let containers = request.containers.len();
        info!(containers, more = request.more, "synchronized with the runtime");
        if request.more {
            return;
        }
        // A pod may be in a later part than its containers.
        let SynchronizeRequest { pods, containers, .. } = std::mem::take(&mut self.existing);
        let Some(monitor) = self.monitor() else { return };
        let loaded = monitor.snapshot();
        let mut without_hooks = 0;
        for container in &containers {
            let pod = pods.iter().find(|pod| pod.id == container.pod_sandbox_id);
            let files = self.decider.missing(&loaded, pod, container);
            if !files.is_empty() {
                let name = container_name(pod, container);
                warn!(container = ?name, id = ?container.id, ?files, "this existing container lacks hooks of files that match it");
                without_hooks += 1;
            }
        }
        self.metrics.set_without_hooks(without_hooks);
        self.metrics_file.set_stale();
    }

    fn create_container(
        &mut self,
        request: &CreateContainerRequest,
    ) -> Result<ContainerAdjustment, String> {
        let start = Instant::now();
        let pod = request.pod.as_ref();
        let container = request.container.as_ref().ok_or("the request has no container")?;
        let name = container_name(pod, container);
        let result = self.decide(pod, container);
        let took = start.elapsed();
        self.metrics_file.set_stale();
        match result {
            Ok(decision) => {
                self.metrics.count(ContainerOutcome::Decided(&decision), took);
                let hooks: Vec<_> = decision.matched.iter().map(ToString::to_string).collect();
                info!(container = ?name, id = ?container.id, ?hooks, ?took, "hooks of a container");
                Ok(decision.hooks.into())
            }
            Err(problem) => {
                self.metrics.count(ContainerOutcome::Rejected, took);
                error!(container = ?name, id = ?container.id, error = %problem, "container rejected");
                Err(format!("oci-hooks-nri: {problem}"))
            }
        }
    }

    fn shutdown(&mut self) {
        info!("the runtime is shutting down");
    }
}

/// Logs the changes in the hook directories.
fn log_changes(changes: &[FileChange], loaded: &LoadedHooks) {
    for FileChange { path, kind } in changes {
        match kind {
            ChangeKind::Broken { in_force } => {
                warn!(file = %path.display(), in_force, "a hook file is broken");
                let problems = loaded.problems.iter();
                problems.filter(|problem| problem.path == *path).for_each(warn_of);
            }
            ChangeKind::Altered => {
                warn!(path = %path.display(), "the owner, permissions, content or link target of a hook file, a program, or a directory above one changed");
            }
            kind => info!(file = %path.display(), "hook file {}", kind.name()),
        }
    }
}

fn warn_of(problem: &LoadProblem) {
    let hint = problem.source.hint();
    let what_nri_does = match hint {
        Some(_) if is_precreate(problem) => {
            Some("remove the stage precreate: NRI plugins cannot rewrite a configuration")
        }
        _ => None,
    };
    let hint = what_nri_does.map(str::to_owned).or(hint).unwrap_or_default();
    warn!(problem = %chain(problem), hint = %hint, "the content of this hook file is not used");
}

fn is_precreate(problem: &LoadProblem) -> bool {
    use oci_hooks::hooks::HookError;

    matches!(&problem.source, HookError::UnknownStage { stage } if stage == "precreate")
}
