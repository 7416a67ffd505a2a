//! Selects the hooks of a container, or rejects the container.

use std::path::PathBuf;

use oci_hooks::hooks::consumer::{ConfigMount, Consumer, NRI};
use oci_hooks::hooks::pipeline::{
    MatchedHook, MissingProgramPolicy, format_directories, matched_hooks, missing_required,
};
use oci_hooks::hooks::trust::{self, TrustError, TrustOptions};
use oci_hooks::hooks::{
    Hook, HookError, HookStage, LoadProblem, LoadedHooks, MatchError, MatchTarget, OciStage,
    TargetCommand,
};
use oci_hooks_files::error::chain;
use tracing::{debug, enabled};

use super::wire::nri::{Container, Hook as WireHook, Hooks, OptionalInt, PodSandbox};

/// Environment of hooks whose `env` is empty: on the wire, an empty list means the environment of the OCI
/// runtime.
const EMPTY_ENV: &str = "OCI_HOOKS_NRI=1";

/// Selects the hooks of containers.
#[derive(Clone, Debug)]
pub struct Decider {
    pub consumer: Consumer,
    /// Trusted owners of hooks: a container with a matching hook that other users can change is rejected, and
    /// hooks without an environment do not get the runtime's. `None` trusts every user.
    pub trust: Option<TrustOptions>,
    /// If set, all containers are rejected while a hook directory cannot be listed, or a hook file
    /// is invalid and no earlier valid version of it is loaded: any container might match an
    /// unknown hook. Otherwise the directory or file is skipped.
    pub strict: bool,
    /// Treatment of hook files whose program does not exist.
    pub missing_program: MissingProgramPolicy,
    /// Hooks without which containers are rejected: names of hook files, or absolute paths.
    pub required_hooks: Vec<PathBuf>,
}

/// The hooks that a [`Decider`] selected for a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Hooks in the form of the wire protocol.
    pub hooks: Hooks,
    pub matched: Vec<MatchedHook>,
}

/// Reasons to reject a container.
#[derive(Debug, thiserror::Error)]
pub enum RejectionError {
    #[error(transparent)]
    Match(#[from] MatchError),
    #[error("cannot trust a hook, which non-root users must not be able to change{}", .0.hint_in_message())]
    Trust(#[from] TrustError),
    #[error("cannot decide which hooks apply: {problem}{}", format_more(*others))]
    Undecided {
        /// Problem and position in the first hook file.
        problem: String,
        /// Number of further hook files that cannot be used.
        others: usize,
    },
    #[error("required hook {hook:?} {found}")]
    Required {
        hook: PathBuf,
        /// Reason why the hook is not in force: the problem of its file, or the directories that do
        /// not have the file.
        found: String,
    },
}

fn format_more(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => " (and 1 more hook file)".to_owned(),
        _ => format!(" (and {count} more hook files)"),
    }
}

impl Default for Decider {
    fn default() -> Self {
        Decider {
            consumer: NRI,
            trust: Some(TrustOptions::of_process()),
            strict: false,
            missing_program: MissingProgramPolicy::Drop,
            required_hooks: Vec::new(),
        }
    }
}

impl Decider {
    /// Returns the hooks of a container.
    pub fn decide(
        &self,
        loaded: &LoadedHooks,
        pod: Option<&PodSandbox>,
        container: &Container,
    ) -> Result<Decision, RejectionError> {
        self.check_undecided(loaded)?;
        self.check_required(loaded)?;
        let target = self.target(pod, container);
        self.explain(loaded, &target);
        let mut selection = loaded.hooks.select(&target, &self.consumer)?;
        let matched = matched_hooks(&selection);
        if let Some(options) = &self.trust {
            for file in &selection.files {
                trust::check(file, options)?;
            }
            selection.set_missing_env();
        }
        let mut hooks = Hooks::default();
        for injection in &selection.injections {
            if let HookStage::Oci(stage) = injection.stage {
                stage_hooks(&mut hooks, stage).push(wire(&injection.hook));
            }
        }
        Ok(Decision { hooks, matched })
    }

    /// Returns an error if broken hook files might match the container.
    fn check_undecided(&self, loaded: &LoadedHooks) -> Result<(), RejectionError> {
        let is_in_force = |problem: &LoadProblem| {
            let mut files = loaded.hooks.iter().chain(&loaded.masked);
            files.any(|file| file.path == problem.path)
        };
        let counts = |problem: &&LoadProblem| match problem.source {
            HookError::PathMissing { .. } => self.missing_program.rejects_container(problem),
            _ => self.strict && !is_in_force(problem),
        };
        let mut problems = loaded.problems.iter().filter(counts);
        let Some(first) = problems.next() else { return Ok(()) };
        Err(RejectionError::Undecided {
            problem: describe_with_hint(first),
            others: problems.count(),
        })
    }

    /// Returns an error if a required hook is not in force.
    fn check_required(&self, loaded: &LoadedHooks) -> Result<(), RejectionError> {
        let Some((hook, at)) = missing_required(&self.required_hooks, loaded) else {
            return Ok(());
        };
        let found = match at {
            Some(at) => format!("is not in force: {}", describe_with_hint(&loaded.problems[at])),
            None => {
                format!("is not among the hooks in force in {}", format_directories(&loaded.dirs))
            }
        };
        Err(RejectionError::Required { hook: hook.to_owned(), found })
    }

    /// Returns the hook files that match an existing container but whose hooks it lacks: it was created before
    /// the plugin registered or the files existed.
    pub fn missing(
        &self,
        loaded: &LoadedHooks,
        pod: Option<&PodSandbox>,
        container: &Container,
    ) -> Vec<PathBuf> {
        let target = self.target(pod, container);
        // The container would be rejected now, which says nothing about its hooks.
        let Ok(mut selection) = loaded.hooks.select(&target, &self.consumer) else {
            return Vec::new();
        };
        if self.trust.is_some() {
            selection.set_missing_env();
        }
        let mut existing = container.hooks.clone().unwrap_or_default();
        let mut files = Vec::new();
        for injection in &selection.injections {
            let HookStage::Oci(stage) = injection.stage else { continue };
            if !stage_hooks(&mut existing, stage).contains(&wire(&injection.hook)) {
                files.push(injection.file.path.clone());
            }
        }
        files.dedup();
        files
    }

    /// Returns the properties against which hooks are matched.
    fn target(&self, pod: Option<&PodSandbox>, container: &Container) -> MatchTarget {
        let command = container
            .args
            .first()
            .map_or(TargetCommand::NoArgs, |arg| TargetCommand::Program(arg.clone()));
        let mut annotations = container.annotations.clone();
        let of_pod = pod.into_iter().flat_map(|pod| &pod.annotations);
        annotations.extend(of_pod.map(|(key, value)| (key.clone(), value.clone())));
        let rule = self.consumer.bind_mounts;
        let mut mounts = container.mounts.iter();
        let has_bind_mounts = mounts.any(|mount| {
            // NRI's rule needs no more.
            let (destination, kind) = (&mount.destination, &mount.r#type);
            let mount = ConfigMount { destination, kind, ..ConfigMount::default() };
            rule.origin(&mount, &annotations).counts()
        });
        MatchTarget { command, annotations, has_bind_mounts }
    }

    /// Logs for each hook whether it matches, and the reason.
    fn explain(&self, loaded: &LoadedHooks, target: &MatchTarget) {
        if !enabled!(tracing::Level::DEBUG) {
            return;
        }
        for verdict in loaded.hooks.evaluate(target) {
            let file = verdict.file.path.display();
            match verdict.outcome {
                // Quoted, since annotations may hold line breaks.
                Ok(found) => {
                    let reason = found.reason.to_string();
                    debug!(%file, matches = found.matched, ?reason, "explain");
                }
                Err(error) => debug!(%file, %error, "explain"),
            }
        }
    }
}

/// Returns a container's name for messages: `NAMESPACE/POD/CONTAINER`.
pub fn container_name(pod: Option<&PodSandbox>, container: &Container) -> String {
    let name = if container.name.is_empty() { &container.id } else { &container.name };
    match pod {
        Some(pod) => format!("{}/{}/{name}", pod.namespace, pod.name),
        None => name.clone(),
    }
}

fn describe_with_hint(problem: &LoadProblem) -> String {
    match problem.source.hint() {
        Some(hint) => format!("{} (hint: {hint})", chain(problem)),
        None => chain(problem),
    }
}

fn stage_hooks(hooks: &mut Hooks, stage: OciStage) -> &mut Vec<WireHook> {
    match stage {
        OciStage::Prestart => &mut hooks.prestart,
        OciStage::CreateRuntime => &mut hooks.create_runtime,
        OciStage::CreateContainer => &mut hooks.create_container,
        OciStage::StartContainer => &mut hooks.start_container,
        OciStage::Poststart => &mut hooks.poststart,
        OciStage::Poststop => &mut hooks.poststop,
    }
}

fn wire(hook: &Hook) -> WireHook {
    let env = match hook.env.as_deref() {
        None => Vec::new(),
        Some([]) => vec![EMPTY_ENV.to_owned()],
        Some(env) => env.to_vec(),
    };
    WireHook {
        path: hook.path.clone(),
        args: hook.args.clone(),
        env,
        timeout: hook.timeout.map(|value| OptionalInt { value }),
    }
}

#[cfg(test)]
mod tests;
