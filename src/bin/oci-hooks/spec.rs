//! Checks a configuration with hooks against the runtime specification. Runtimes may be more tolerant.

use oci_hooks::hooks::OciStage;
use oci_spec::runtime::Spec;
use semver::Version;

/// The first version with createRuntime, createContainer and startContainer.
const NEW_STAGES: Version = Version::new(1, 0, 2);

/// A configuration as the runtime specification describes it.
pub struct TypedConfig(Spec);

impl TypedConfig {
    /// Reads a configuration. Runtimes may accept configurations that the specification does not describe.
    pub fn parse(config: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(config).map(TypedConfig)
    }

    /// Describes the problem with `ociVersion`; `None` if there is no problem.
    pub fn version_fault(&self) -> Option<String> {
        let text = self.0.version();
        let Ok(version) = Version::parse(text) else {
            return Some(format!("ociVersion {text:?} is not a semantic version such as 1.0.2"));
        };
        if version.major != 1 {
            return Some(format!("ociVersion {version} is not supported: expected 1.x"));
        }
        let stages: Vec<_> = self.new_stages().map(OciStage::name).collect();
        // For years, engines wrote 1.0.2-dev for 1.0.2.
        let release = Version::new(version.major, version.minor, version.patch);
        (release < NEW_STAGES && !stages.is_empty()).then(|| {
            let stages = stages.join(", ");
            format!(
                "ociVersion {version} has no {stages} (new in {NEW_STAGES}): a runtime may ignore these hooks"
            )
        })
    }

    /// Returns the stages with hooks that are new in [`NEW_STAGES`].
    fn new_stages(&self) -> impl Iterator<Item = OciStage> {
        let hooks = self.0.hooks().as_ref();
        let stages = [
            (OciStage::CreateRuntime, hooks.and_then(|hooks| hooks.create_runtime().as_deref())),
            (
                OciStage::CreateContainer,
                hooks.and_then(|hooks| hooks.create_container().as_deref()),
            ),
            (OciStage::StartContainer, hooks.and_then(|hooks| hooks.start_container().as_deref())),
        ];
        let has_hooks =
            stages.into_iter().filter(|(_, hooks)| !hooks.unwrap_or_default().is_empty());
        has_hooks.map(|(stage, _)| stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(version: &str, stage: &str) -> Option<String> {
        let text = format!(
            r#"{{"ociVersion": "{version}", "x": 1e999, "hooks": {{"{stage}": [{{"path": "/h"}}]}}}}"#
        );
        TypedConfig::parse(text.as_bytes()).unwrap().version_fault()
    }

    #[test]
    fn versions_before_a_stage_are_detected() {
        for (version, stage, expected) in [
            ("1.0.2", "createRuntime", None),
            ("1.3.0", "startContainer", None),
            ("1.0.0", "prestart", None),
            ("1.0.2-dev", "poststop", None),
            ("1.0.1", "createRuntime", Some("ociVersion 1.0.1 has no createRuntime")),
            ("1.0.2-dev", "createContainer", None),
            ("1.0.1-dev", "createContainer", Some("ociVersion 1.0.1-dev has no createContainer")),
            ("1.0", "poststop", Some("ociVersion \"1.0\" is not a semantic version")),
            ("2.0.0", "poststop", Some("ociVersion 2.0.0 is not supported")),
        ] {
            let fault = fault(version, stage);
            let begins = |expected| fault.as_ref().is_some_and(|fault| fault.starts_with(expected));
            assert!(expected.map_or(fault.is_none(), begins), "{version} {stage}: {fault:?}");
        }
    }

    #[test]
    fn configuration_that_contradicts_the_specification_is_an_error() {
        for text in [r#"{"ociVersion": "1.0.2", "process": {"args": "sh"}}"#, "1"] {
            assert!(TypedConfig::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
