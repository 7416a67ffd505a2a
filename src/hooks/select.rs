//! The hooks that apply to a container, at the stages they go to.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::consumer::Consumer;
use super::{Hook, HookFile, HookSet, MatchError, OciStage, Reason, Stage, Target};

/// The hooks that apply to one container.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Selection<'a> {
    /// The hook files that match, in order.
    pub files: Vec<&'a HookFile>,
    /// The condition that decided for each of them.
    pub reasons: Vec<Reason<'a>>,
    /// One entry for each stage of each of them, in order.
    pub injections: Vec<Injection<'a>>,
}

/// One hook at one stage.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Injection<'a> {
    /// The file the hook comes from.
    pub file: &'a HookFile,
    /// The stage it goes to, which for a `prestart` hook is up to the consumer.
    pub stage: Stage,
    pub hook: Cow<'a, Hook>,
}

impl HookSet {
    /// Finds the hooks that apply to a container.
    ///
    /// An error of one hook keeps all from being injected, as in the reference.
    pub fn select<'a>(
        &'a self,
        target: &'a Target,
        consumer: &Consumer,
    ) -> Result<Selection<'a>, MatchError> {
        let (mut files, mut reasons) = (Vec::new(), Vec::new());
        for verdict in self.evaluate(target) {
            match verdict.outcome {
                Ok(outcome) if outcome.matched => {
                    files.push(verdict.file);
                    reasons.push(outcome.reason);
                }
                Ok(_) => {}
                Err(source) => return Err(MatchError { path: verdict.file.path.clone(), source }),
            }
        }
        let injections = files
            .iter()
            .flat_map(|&file| {
                file.definition.stages.iter().map(move |stage| Injection {
                    file,
                    stage: match stage {
                        Stage::Oci(OciStage::Prestart) => Stage::Oci(consumer.prestart),
                        stage => stage.clone(),
                    },
                    hook: Cow::Borrowed(&file.definition.hook),
                })
            })
            .collect();
        Ok(Selection { files, reasons, injections })
    }
}

impl<'a> Selection<'a> {
    /// Returns the hooks for one stage of the runtime specification.
    pub fn at(&self, stage: OciStage) -> impl Iterator<Item = &Hook> {
        let wanted = Stage::Oci(stage);
        self.injections.iter().filter(move |i| i.stage == wanted).map(|i| i.hook.as_ref())
    }

    /// Returns the hooks that the consumer runs by itself, by stage.
    pub fn extension_hooks(&self) -> BTreeMap<&str, Vec<&Hook>> {
        let mut hooks = BTreeMap::<_, Vec<_>>::new();
        for injection in &self.injections {
            if let Stage::Extension(name) = &injection.stage {
                hooks.entry(name.as_str()).or_default().push(injection.hook.as_ref());
            }
        }
        hooks
    }

    /// Gives hooks without an environment an empty one.
    ///
    /// Without this the runtime passes its own on, which at `createContainer` holds what the image
    /// set: `LD_PRELOAD` of an image then reaches a program of the host (CVE-2025-23266).
    pub fn set_missing_env(&mut self) {
        for injection in &mut self.injections {
            if injection.hook.env.is_none() {
                injection.hook.to_mut().env = Some(Vec::new());
            }
        }
    }
}
