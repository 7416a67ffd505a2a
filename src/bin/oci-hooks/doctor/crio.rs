//! CRI-O's configuration, as CRI-O itself prints it.

use std::path::PathBuf;

use oci_hooks::hooks::consumer::CRIO;
use oci_hooks::hooks::directories::{ConfiguredDirs, DirectoriesError, read_configured};

use super::config_file::ConfigFile;
use super::host::DoctorHost;

/// Command that prints the effective configuration: the built-in defaults, the files and the variables.
const COMMAND: &str = "crio config";

/// The output of `crio config`. Some versions comment out settings that have their default value, and some
/// omit them.
pub struct CrioConfig {
    text: String,
}

impl CrioConfig {
    /// Runs `crio config`. Returns `None` if CRI-O cannot be run, and its error message if it rejects its
    /// configuration.
    pub fn query(host: &DoctorHost) -> Result<Option<Self>, String> {
        let Some(crio) = host.program("crio") else { return Ok(None) };
        match host.output(&crio, &["config"]) {
            Some(Ok(text)) => Ok(Some(CrioConfig { text })),
            Some(Err(error)) => Err(format!("{COMMAND}: {error}")),
            None => Ok(None),
        }
    }

    /// Returns a string setting; `None` if it is not printed.
    pub fn string(&self, key: &str) -> Option<String> {
        Some(self.setting(key)?.string(&[key])?.value)
    }

    /// Returns `hooks_dir`; `None` if it is not printed.
    fn hooks_dir(&self) -> Option<Vec<PathBuf>> {
        let key = "hooks_dir";
        let dirs = self.setting(key)?.strings(&[key])?.value;
        Some(dirs.into_iter().map(PathBuf::from).collect())
    }

    /// Returns the lines of a setting as TOML, uncommented.
    fn setting(&self, key: &str) -> Option<ConfigFile> {
        let sets_key = |line: &&str| {
            let rest = line.strip_prefix(key).map(str::trim_start);
            rest.is_some_and(|rest| rest.starts_with('='))
        };
        let lines = self.text.lines().map(|line| line.trim_start_matches(['#', ' ', '\t']));
        let mut lines = lines.skip_while(|line| !sets_key(line));
        let mut text = lines.next()?.to_owned();
        let is_list = text.trim_end().ends_with('[');
        for line in lines.take_while(|_| is_list) {
            text.push('\n');
            text.push_str(line);
            if line.starts_with(']') {
                break;
            }
        }
        ConfigFile::parse(COMMAND.into(), text).ok()
    }
}

/// Returns the hook directories that `crio config` prints, or else those of the configuration files. If both agree,
/// the `source` of the result is that of the files.
pub fn directories(
    config: Option<&CrioConfig>,
    host: &DoctorHost,
) -> Result<ConfiguredDirs, DirectoriesError> {
    let of_files = host.system(|system| read_configured(&CRIO, system));
    match (config.and_then(CrioConfig::hooks_dir), of_files) {
        (Some(printed), Ok(files)) if files.dirs == printed => Ok(files),
        (Some(printed), _) => Ok(ConfiguredDirs::external(printed, format!("`{COMMAND}`"))),
        (None, of_files) => of_files,
    }
}

#[test]
fn settings_are_read_with_and_without_comments() {
    for mark in ["", "# ", "#"] {
        let text = format!(
            "[crio]\n# The root directory. root = of all.\n{mark}root = \"/r\"\n\n[crio.runtime]\n\
             {mark}hooks_dir = [\n{mark}\t\"/a\",\n{mark}\t\"/b\",\n{mark}]\nruntime_root = \"/x\"\n"
        );
        let config = CrioConfig { text };
        assert_eq!(config.string("root").as_deref(), Some("/r"));
        assert_eq!(config.hooks_dir(), Some(vec!["/a".into(), "/b".into()]));
        assert_eq!(config.string("runroot"), None);
    }
    let config = CrioConfig { text: "hooks_dir = [\"/a\"]\nx = 1\n".to_owned() };
    assert_eq!(config.hooks_dir(), Some(vec!["/a".into()]));
}
