//! Conversions to the types of the `oci-spec` crate, for runtimes that keep their configuration in them.
//!
//! These types cannot represent every `config.json`: they drop unknown fields and have no negative
//! timeouts. If the text is available, [`ConfigDocument`](super::ConfigDocument) preserves all of
//! it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_spec::runtime::{self, Spec};

use super::consumer::{BindMountRule, ConfigMount};
use super::{
    FilterError, FilterOptions, FilterRun, Hook, HookSelection, MatchTarget, OciStage,
    TargetCommand, filter,
};

impl From<&Hook> for runtime::Hook {
    /// A timeout of zero or less, which kills a hook at once in podman and is an error in runc,
    /// becomes `None`.
    fn from(hook: &Hook) -> Self {
        let mut typed = runtime::Hook::default();
        typed
            .set_path((&hook.path).into())
            .set_args((!hook.args.is_empty()).then(|| hook.args.clone()))
            .set_env(hook.env.clone())
            .set_timeout(hook.timeout.filter(|&timeout| timeout > 0));
        typed
    }
}

impl TryFrom<&runtime::Hook> for Hook {
    type Error = PathNotText;

    fn try_from(typed: &runtime::Hook) -> Result<Self, PathNotText> {
        let path = typed.path().to_str().ok_or_else(|| PathNotText(typed.path().clone()))?;
        Ok(Hook {
            path: path.to_owned(),
            args: typed.args().clone().unwrap_or_default(),
            env: typed.env().clone(),
            timeout: typed.timeout(),
        })
    }
}

/// The path of a typed hook is not UTF-8, so `config.json` cannot contain it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path {0:?} of the hook is not UTF-8")]
pub struct PathNotText(pub PathBuf);

/// Runs `precreate` hooks on a typed configuration, as [`filter`](super::filter()) does on its
/// text, and replaces the configuration with the result. The configuration is unchanged if a hook
/// fails or its output does not fit the types.
pub fn filter_spec(
    hooks: &[&Hook],
    spec: &mut Spec,
    options: &FilterOptions,
) -> Result<Vec<FilterRun>, FilterSpecError> {
    if hooks.is_empty() {
        return Ok(Vec::new());
    }
    let filtered = filter(hooks, serde_json::to_vec(spec)?, options)?;
    *spec = serde_json::from_slice(&filtered.config)?;
    Ok(filtered.runs)
}

/// Errors of [`filter_spec`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilterSpecError {
    #[error(transparent)]
    Filter(#[from] Box<FilterError>),
    #[error("cannot convert the configuration to or from JSON")]
    Json(#[from] serde_json::Error),
}

impl MatchTarget {
    /// Returns the values to match hooks against, with the annotations of the configuration.
    pub fn of_spec(spec: &Spec, rule: BindMountRule) -> Self {
        let command = match spec.process() {
            None => TargetCommand::NoProcess,
            Some(process) => match process.args().as_deref().and_then(<[String]>::first) {
                None => TargetCommand::NoArgs,
                Some(program) => TargetCommand::Program(program.clone()),
            },
        };
        let annotations: BTreeMap<_, _> =
            spec.annotations().clone().unwrap_or_default().into_iter().collect();
        let mut mounts = spec.mounts().iter().flatten();
        let has_bind_mounts = mounts.any(|mount| {
            let path = |path: &Path| path.to_string_lossy().into_owned();
            let options = mount.options().iter().flatten().map(String::as_str);
            let mount = ConfigMount {
                destination: &path(mount.destination()),
                kind: mount.typ().as_deref().unwrap_or_default(),
                source: &mount.source().as_deref().map(path).unwrap_or_default(),
                options: &options.collect::<Vec<_>>(),
            };
            rule.origin(&mount, &annotations).counts()
        });
        MatchTarget { command, annotations, has_bind_mounts }
    }
}

impl HookSelection<'_> {
    /// Adds the hooks for the stages of the runtime specification to a typed configuration.
    pub fn add_to_spec(&self, spec: &mut Spec) {
        if self.files.is_empty() {
            return;
        }
        let mut hooks = spec.hooks().clone().unwrap_or_default();
        for stage in OciStage::ALL {
            let added: Vec<runtime::Hook> = self.hooks_at(stage).map(runtime::Hook::from).collect();
            if !added.is_empty() {
                stage_of(&mut hooks, stage).get_or_insert_default().extend(added);
            }
        }
        spec.set_hooks(Some(hooks));
    }
}

fn stage_of(hooks: &mut runtime::Hooks, stage: OciStage) -> &mut Option<Vec<runtime::Hook>> {
    match stage {
        OciStage::Prestart => hooks.prestart_mut(),
        OciStage::CreateRuntime => hooks.create_runtime_mut(),
        OciStage::CreateContainer => hooks.create_container_mut(),
        OciStage::StartContainer => hooks.start_container_mut(),
        OciStage::Poststart => hooks.poststart_mut(),
        OciStage::Poststop => hooks.poststop_mut(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;
    use crate::hooks::consumer::PODMAN;
    use crate::hooks::{
        ConfigDocument, HookDefinition, HookFile, HookSet, InjectOptions, ParseOptions, PathCheck,
    };

    const CONFIG: &str = r#"{
        "ociVersion": "1.0.2",
        "root": {"path": "rootfs"},
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["/bin/sh"], "cwd": "/"},
        "annotations": {"a": "b"},
        "mounts": [{"destination": "/data", "type": "bind", "options": ["rbind"]}],
        "hooks": {"poststop": [{"path": "/old"}]}
    }"#;

    #[test]
    fn typed_and_textual_injection_agree() {
        let text = r#"{"version":"1.0.0","hook":{"path":"/h","args":["h"],"env":["A=b"],"timeout":5},
            "when":{"commands":["sh$"],"annotations":{"a":"b"},"hasBindMounts":true},
            "stages":["prestart","poststop"]}"#;
        let schema = ParseOptions { path_check: PathCheck::Skip, ..ParseOptions::default() };
        let definition = HookDefinition::parse(text.as_bytes(), schema).unwrap();
        let set: HookSet =
            [HookFile::new(PathBuf::from("h.json"), definition)].into_iter().collect();

        let mut spec: Spec = serde_json::from_str(CONFIG).unwrap();
        let target = MatchTarget::of_spec(&spec, PODMAN.bind_mounts);
        let config = ConfigDocument::parse(CONFIG.as_bytes()).unwrap();
        assert_eq!(target, config.target(PODMAN.bind_mounts).unwrap());

        let selection = set.select(&target, &PODMAN).unwrap();
        selection.add_to_spec(&mut spec);
        let injected = config.inject(&selection, InjectOptions::default()).unwrap();
        let injected: Spec = serde_json::from_slice(&injected).unwrap();
        assert_eq!(spec.hooks(), injected.hooks());
        assert!(spec.hooks().as_ref().unwrap().create_runtime().is_some());
    }

    #[test]
    fn a_hook_is_the_same_after_both_conversions() {
        for hook in [
            Hook { path: "/h".to_owned(), ..Hook::default() },
            Hook {
                path: "/h".to_owned(),
                args: vec!["h".to_owned(), "1".to_owned()],
                env: Some(Vec::new()),
                timeout: Some(5),
            },
        ] {
            assert_eq!(Hook::try_from(&runtime::Hook::from(&hook)).unwrap(), hook);
        }
    }

    #[test]
    fn a_path_that_is_not_text_is_rejected() {
        let mut typed = runtime::Hook::default();
        let path = PathBuf::from(OsStr::from_bytes(b"/\xff"));
        typed.set_path(path.clone());
        assert_eq!(Hook::try_from(&typed).unwrap_err(), PathNotText(path));
    }

    fn shell(script: &str) -> Hook {
        let args = ["sh", "-c", script].map(str::to_owned);
        Hook { path: "/bin/sh".to_owned(), args: args.into(), ..Hook::default() }
    }

    #[test]
    fn precreate_hooks_replace_a_typed_configuration_or_leave_it() {
        let mut spec: Spec = serde_json::from_str(CONFIG).unwrap();
        let before = spec.clone();
        let options = FilterOptions::new("/");

        for script in ["echo '{\"process\": {}}'", "exit 3"] {
            let error = filter_spec(&[&shell(script)], &mut spec, &options).unwrap_err();
            assert!(matches!(error, FilterSpecError::Filter(_)), "{script}: {error}");
        }
        assert_eq!(spec, before);

        let rename = Hook {
            env: Some(vec!["PATH=/usr/bin:/bin".to_owned()]),
            ..shell("sed 's/\"a\":\"b\"/\"a\":\"c\"/'")
        };
        let runs = filter_spec(&[&rename], &mut spec, &options).unwrap();
        assert_eq!(runs.len(), 1);
        assert_eq!(spec.annotations().as_ref().unwrap()["a"], "c");
    }
}
