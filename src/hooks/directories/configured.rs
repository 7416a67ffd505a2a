//! The hook directories that a consumer reads, and the setting that names them.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{ConsumerSystem, DirectoriesError, containers_conf, crio_conf};
use crate::hooks::Consumer;
use crate::hooks::consumer::DirsConfig;
use crate::json::TextLocation;

/// Size limit of a configuration file.
pub const MAX_FILE_BYTES: u64 = 4 << 20;

/// The hook directories that a consumer reads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfiguredDirs {
    /// Hook directories, in order of increasing precedence.
    pub dirs: Vec<PathBuf>,
    pub source: DirsSource,
}

/// The place where the directories are configured.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirsSource {
    /// The default: no file sets the directories.
    BuiltIn,
    /// Name of the environment variable that sets the directories.
    Variable(&'static str),
    /// `hooks_dir` in these lines; each appends to the ones before.
    Lines(Vec<ConfigLine>),
    /// An empty `hooks_dir`. Podman 5 and later, run as root, then reads the default and the
    /// override directory separately.
    Implicit(ConfigLine),
    /// Name of a source other than the consumer's own files, such as the output of `crio config`.
    External(String),
}

/// A line of a configuration file, counted from one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigLine {
    pub path: PathBuf,
    pub line: usize,
}

/// Reads the configuration of a consumer.
///
/// ```no_run
/// use oci_hooks::hooks::consumer::PODMAN;
/// use oci_hooks::hooks::directories::{ConsumerSystem, SystemRoot, read_configured};
///
/// # fn main() -> Result<(), oci_hooks::hooks::directories::DirectoriesError> {
/// let variable = |name: &str| std::env::var_os(name);
/// let system = ConsumerSystem { root: SystemRoot::host(), user_id: 0, variable: &variable };
/// let configured = read_configured(&PODMAN, &system)?;
/// println!("{:?}: {}", configured.dirs, configured.source);
/// # Ok(())
/// # }
/// ```
pub fn read_configured(
    consumer: &Consumer,
    system: &ConsumerSystem<'_>,
) -> Result<ConfiguredDirs, DirectoriesError> {
    let built_in = |dirs: &[&str]| ConfiguredDirs {
        dirs: dirs.iter().map(PathBuf::from).collect(),
        source: DirsSource::BuiltIn,
    };
    match consumer.config {
        DirsConfig::ContainersConf { files, empty } => containers_conf::read(system, files, empty),
        DirsConfig::CrioConf => crio_conf::read(system),
        DirsConfig::RootOnly if system.is_rootless() => Ok(built_in(&[])),
        DirsConfig::RootOnly | DirsConfig::Options => Ok(built_in(consumer.dirs)),
    }
}

impl ConfiguredDirs {
    /// Returns directories from a source other than the consumer's own files; `source` is its name
    /// for messages.
    pub fn external(dirs: Vec<PathBuf>, source: String) -> Self {
        ConfiguredDirs { dirs, source: DirsSource::External(source) }
    }

    /// Returns the last line that sets the directories; `None` if no configuration file sets them.
    pub fn line(&self) -> Option<&ConfigLine> {
        match &self.source {
            DirsSource::Lines(lines) => lines.last(),
            DirsSource::Implicit(line) => Some(line),
            DirsSource::BuiltIn | DirsSource::Variable(_) | DirsSource::External(_) => None,
        }
    }

    /// Returns instructions that make the consumer also read `dir`, with the highest precedence:
    /// the file and line to write, the variable to set, or the option to pass.
    pub fn to_read(&self, dir: &Path, consumer: &Consumer, system: &ConsumerSystem<'_>) -> String {
        let mut dirs = self.dirs.clone();
        dirs.push(dir.to_owned());
        let quoted = dirs.iter().map(|dir| format!("{:?}", dir.to_string_lossy()));
        let list = format!("hooks_dir = [{}]", quoted.collect::<Vec<_>>().join(", "));
        if let DirsSource::Variable(variable) = self.source {
            let dirs: Vec<_> = dirs.iter().map(|dir| dir.to_string_lossy()).collect();
            return format!("set {variable}={}", dirs.join(","));
        }
        let (section, usual) = match consumer.config {
            DirsConfig::ContainersConf { .. } => ("[engine]", system.own_containers_conf()),
            DirsConfig::CrioConf => {
                ("[crio.runtime]", "/etc/crio/crio.conf.d/10-hooks.conf".into())
            }
            DirsConfig::RootOnly | DirsConfig::Options => {
                return format!("pass --hooks-dir {} to {}", dir.display(), consumer.about);
            }
        };
        match self.line() {
            Some(ConfigLine { path, line }) if can_be_edited(path, system) => {
                format!("in {}, line {line}, write {list}", path.display())
            }
            _ => {
                format!("in {}, under {section}, write {list}", system.root.join(&usual).display())
            }
        }
    }
}

/// Returns whether the user who runs the consumer may edit this file: files below `/usr` belong to
/// packages, files below `/etc` to root.
fn can_be_edited(path: &Path, system: &ConsumerSystem<'_>) -> bool {
    let of_package = path.starts_with(system.root.join(Path::new("/usr")));
    let of_root = path.starts_with(system.root.join(Path::new("/etc")));
    !(of_package || of_root && system.is_rootless())
}

impl ConfigLine {
    /// Returns the line of an offset in the text of a file.
    pub fn of(path: &Path, text: &str, at: usize) -> Self {
        let line = TextLocation::of_span(text.as_bytes(), at..at).line;
        ConfigLine { path: path.to_owned(), line }
    }
}

impl fmt::Display for ConfigLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

impl fmt::Display for DirsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirsSource::BuiltIn => f.write_str("the built-in default"),
            DirsSource::Variable(name) => write!(f, "the variable {name}"),
            DirsSource::Lines(lines) => {
                f.write_str("hooks_dir in ")?;
                for (at, line) in lines.iter().enumerate() {
                    write!(f, "{}{line}", if at > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            DirsSource::Implicit(line) => write!(f, "the empty hooks_dir in {line}"),
            DirsSource::External(source) => f.write_str(source),
        }
    }
}
