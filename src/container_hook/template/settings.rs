//! What the admin says of templates in the file of settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The template, and where what it names is found.
#[derive(Clone, Debug)]
pub struct TemplateSettings {
    /// The template; none leaves the containers of jobs as they are.
    pub file: Option<PathBuf>,
    /// Where config maps are, each a directory with a file for each key.
    pub config_maps: PathBuf,
    /// Where secrets are, in the same way.
    pub secrets: PathBuf,
    /// Where the profiles of `seccompProfile` with the type `Localhost` are.
    pub seccomp_profiles: PathBuf,
    /// The runtime of each `runtimeClassName`.
    pub runtime_classes: BTreeMap<String, PathBuf>,
}

impl Default for TemplateSettings {
    fn default() -> Self {
        TemplateSettings {
            file: None,
            config_maps: "/etc/oci-hooks/config-maps".into(),
            secrets: "/etc/oci-hooks/secrets".into(),
            seccomp_profiles: "/etc/oci-hooks/seccomp".into(),
            runtime_classes: BTreeMap::new(),
        }
    }
}
