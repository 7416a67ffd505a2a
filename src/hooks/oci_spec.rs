//! The types of the `oci-spec` crate, for runtimes that keep their configuration in them.
//!
//! They hold less than `config.json` may: unknown fields are gone, and a negative timeout cannot be
//! said. Where the text is at hand, [`Config`](super::Config) keeps all of it.

use std::collections::BTreeMap;

use oci_spec::runtime::{self, Spec};

use super::consumer::BindMountRule;
use super::{Command, Hook, OciStage, Selection, Target};

impl From<&Hook> for runtime::Hook {
    /// A timeout of zero or less, which ends a hook at once in podman and is an error in runc,
    /// becomes none.
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

impl Target {
    /// Returns what hooks are matched against, with the annotations of the configuration itself.
    pub fn of_spec(spec: &Spec, rule: BindMountRule) -> Self {
        let command = match spec.process() {
            None => Command::NoProcess,
            Some(process) => match process.args().as_deref().and_then(<[String]>::first) {
                None => Command::NoArgs,
                Some(program) => Command::Program(program.clone()),
            },
        };
        let annotations: BTreeMap<_, _> =
            spec.annotations().clone().unwrap_or_default().into_iter().collect();
        let mut mounts = spec.mounts().iter().flatten();
        let has_bind_mounts = mounts.any(|mount| {
            let kind = mount.typ().as_deref().unwrap_or_default();
            rule.counts(&mount.destination().to_string_lossy(), kind)
        });
        Target { command, annotations, has_bind_mounts }
    }
}

impl Selection<'_> {
    /// Adds the hooks for the stages of the runtime specification to a typed configuration.
    pub fn add_to_spec(&self, spec: &mut Spec) {
        if self.files.is_empty() {
            return;
        }
        let mut hooks = spec.hooks().clone().unwrap_or_default();
        for stage in OciStage::ALL {
            let added: Vec<runtime::Hook> = self.at(stage).map(runtime::Hook::from).collect();
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
    use std::path::PathBuf;

    use super::*;
    use crate::hooks::consumer::PODMAN;
    use crate::hooks::{
        Config, Definition, HookFile, HookSet, InjectOptions, PathCheck, SchemaOptions,
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
        let schema = SchemaOptions { path_check: PathCheck::Skip, ..SchemaOptions::default() };
        let definition = Definition::parse(text.as_bytes(), schema).unwrap();
        let set: HookSet =
            [HookFile::new(PathBuf::from("h.json"), definition)].into_iter().collect();

        let mut spec: Spec = serde_json::from_str(CONFIG).unwrap();
        let target = Target::of_spec(&spec, PODMAN.bind_mounts);
        let config = Config::parse(CONFIG.as_bytes()).unwrap();
        assert_eq!(target, config.target(PODMAN.bind_mounts).unwrap());

        let selection = set.select(&target, &PODMAN).unwrap();
        selection.add_to_spec(&mut spec);
        let injected = config.inject(&selection, InjectOptions::default()).unwrap();
        let injected: Spec = serde_json::from_slice(&injected).unwrap();
        assert_eq!(spec.hooks(), injected.hooks());
        assert!(spec.hooks().as_ref().unwrap().create_runtime().is_some());
    }
}
