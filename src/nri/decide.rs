//! Which hooks a container gets, or why it is rejected.

use std::fmt;
use std::path::PathBuf;

use tracing::{debug, enabled};

use super::wire::nri::{Container, Hook as WireHook, Hooks, OptionalInt, PodSandbox};
use crate::hooks::consumer::{Consumer, NRI};
use crate::hooks::pipeline::{MissingProgram, listed, missing_required};
use crate::hooks::trust::{self, TrustError, TrustOptions};
use crate::hooks::{
    Command, Hook, HookError, Loaded, MatchError, OciStage, Problem, Selection, Stage, Target,
};
use crate::sys::error::chain;

/// The environment of hooks that are to have none: on the wire, no variable means the environment of the
/// OCI runtime.
const EMPTY_ENV: &str = "OCI_HOOKS_NRI=1";

/// Decides which hooks containers get.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Decider {
    /// The consumer whose rules apply.
    pub consumer: Consumer,
    /// Whose hooks are trusted: a container that a hook matches which others can change is rejected, and
    /// hooks without an environment get one of their own. `None` trusts everybody.
    pub trust: Option<TrustOptions>,
    /// Whether containers are rejected while there is a hook file that was never valid: nobody can tell
    /// for which of them it is. Otherwise it is left out.
    pub strict: bool,
    /// What becomes of hook files whose program does not exist.
    pub missing_program: MissingProgram,
    /// Hooks without which containers are rejected: names of hook files, or absolute paths.
    pub required_hooks: Vec<PathBuf>,
}

/// The hooks of a container.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// The hooks as they are sent to the runtime.
    pub hooks: Hooks,
    pub matched: Vec<Matched>,
}

/// A hook file that matches a container.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Matched {
    pub file: PathBuf,
    /// The stages that its hook goes to.
    pub stages: Vec<Stage>,
    /// The condition that decided, in words.
    pub reason: String,
}

/// Why a container is rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Rejection {
    #[error(transparent)]
    Match(#[from] MatchError),
    #[error("a hook is writable by non-root users{}", .0.hint_in_message())]
    Trust(#[from] TrustError),
    #[error("cannot decide which hooks apply: {problem}{}", more(*others))]
    Undecided {
        /// What is wrong with the first hook file, and where.
        problem: String,
        /// How many more hook files cannot be used.
        others: usize,
    },
    #[error("required hook {hook:?} {found}")]
    Required {
        hook: PathBuf,
        /// What is wrong with its file, or where none was found.
        found: String,
    },
}

impl fmt::Display for Matched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (", self.file.display())?;
        for (at, stage) in self.stages.iter().enumerate() {
            write!(f, "{}{stage}", if at == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

fn more(count: usize) -> String {
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
            missing_program: MissingProgram::Drop,
            required_hooks: Vec::new(),
        }
    }
}

impl Decider {
    /// Returns the hooks of a container.
    pub fn decide(
        &self,
        loaded: &Loaded,
        pod: Option<&PodSandbox>,
        container: &Container,
    ) -> Result<Decision, Rejection> {
        self.undecided(loaded)?;
        self.required(loaded)?;
        let target = self.target(pod, container);
        self.explain(loaded, &target);
        let mut selection = loaded.hooks.select(&target, &self.consumer)?;
        let matched = matched(&selection);
        if let Some(options) = &self.trust {
            for file in &selection.files {
                trust::check(file, options)?;
            }
            selection.set_missing_env();
        }
        let mut hooks = Hooks::default();
        for injection in &selection.injections {
            if let Stage::Oci(stage) = injection.stage {
                at(&mut hooks, stage).push(wire(&injection.hook));
            }
        }
        Ok(Decision { hooks, matched })
    }

    /// Returns an error if there are hook files of which nobody knows for which containers they are.
    fn undecided(&self, loaded: &Loaded) -> Result<(), Rejection> {
        let is_in_force = |problem: &Problem| {
            let mut files = loaded.hooks.iter().chain(&loaded.masked);
            files.any(|file| file.path == problem.path)
        };
        let counts = |problem: &&Problem| match problem.source {
            HookError::PathMissing { .. } => self.missing_program.rejects(problem),
            _ => self.strict && !is_in_force(problem),
        };
        let mut problems = loaded.problems.iter().filter(counts);
        let Some(first) = problems.next() else { return Ok(()) };
        Err(Rejection::Undecided { problem: with_hint(first), others: problems.count() })
    }

    /// Returns an error if a required hook is not in force.
    fn required(&self, loaded: &Loaded) -> Result<(), Rejection> {
        let Some((hook, at)) = missing_required(&self.required_hooks, loaded) else {
            return Ok(());
        };
        let found = match at {
            Some(at) => format!("is not in force: {}", with_hint(&loaded.problems[at])),
            None => format!("not found in {}", listed(&loaded.dirs)),
        };
        Err(Rejection::Required { hook: hook.to_owned(), found })
    }

    /// Returns the hook files that match a container that exists already, and whose hooks it does not
    /// have: it was created while there was no plugin, or before there were these files.
    pub fn missing(
        &self,
        loaded: &Loaded,
        pod: Option<&PodSandbox>,
        container: &Container,
    ) -> Vec<PathBuf> {
        let target = self.target(pod, container);
        // Such a container would be rejected now. What it has says nothing about that.
        let Ok(mut selection) = loaded.hooks.select(&target, &self.consumer) else {
            return Vec::new();
        };
        if self.trust.is_some() {
            selection.set_missing_env();
        }
        let mut existing = container.hooks.clone().unwrap_or_default();
        let mut files = Vec::new();
        for injection in &selection.injections {
            let Stage::Oci(stage) = injection.stage else { continue };
            if !at(&mut existing, stage).contains(&wire(&injection.hook)) {
                files.push(injection.file.path.clone());
            }
        }
        files.dedup();
        files
    }

    /// Returns what hooks are matched against.
    fn target(&self, pod: Option<&PodSandbox>, container: &Container) -> Target {
        let command =
            container.args.first().map_or(Command::NoArgs, |arg| Command::Program(arg.clone()));
        let mut annotations = container.annotations.clone();
        let of_pod = pod.into_iter().flat_map(|pod| &pod.annotations);
        annotations.extend(of_pod.map(|(key, value)| (key.clone(), value.clone())));
        let rule = self.consumer.bind_mounts;
        let mut mounts = container.mounts.iter();
        let has_bind_mounts = mounts.any(|mount| rule.counts(&mount.destination, &mount.r#type));
        Target { command, annotations, has_bind_mounts }
    }

    /// Logs of each hook whether it applies, and why.
    fn explain(&self, loaded: &Loaded, target: &Target) {
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

/// Returns how a container is called in messages: as `NAMESPACE/POD/CONTAINER`.
pub fn container_name(pod: Option<&PodSandbox>, container: &Container) -> String {
    let name = if container.name.is_empty() { &container.id } else { &container.name };
    match pod {
        Some(pod) => format!("{}/{}/{name}", pod.namespace, pod.name),
        None => name.clone(),
    }
}

fn with_hint(problem: &Problem) -> String {
    match problem.source.hint() {
        Some(hint) => format!("{} (hint: {hint})", chain(problem)),
        None => chain(problem),
    }
}

fn matched(selection: &Selection<'_>) -> Vec<Matched> {
    let mut injections = selection.injections.iter();
    let files = selection.files.iter().zip(&selection.reasons);
    let entry = |(file, reason): (&&crate::hooks::HookFile, &crate::hooks::Reason<'_>)| {
        let own = injections.by_ref().take(file.definition.stages.len());
        Matched {
            file: file.path.clone(),
            stages: own.map(|injection| injection.stage.clone()).collect(),
            reason: reason.to_string(),
        }
    };
    files.map(entry).collect()
}

fn at(hooks: &mut Hooks, stage: OciStage) -> &mut Vec<WireHook> {
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
