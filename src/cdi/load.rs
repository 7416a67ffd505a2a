//! Loading the CDI directories, and selecting devices.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use oci_hooks_files::fs::{DirectoryReader, PathContext as _};

use super::edit;
use super::read::CdiSpecError;
use super::spec::{CdiSpec, ContainerEdits, DeviceDefinition};
use crate::hooks::trust::{TrustChecker, TrustError, TrustOptions};
use crate::hooks::{ConfigError, OciStage};

/// The CDI directories that engines read by default, in order of increasing precedence.
pub const DEFAULT_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// Size limit of a specification; on machines with many GPUs it takes some hundred kilobytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The CDI specifications of some directories, and the devices that they define.
#[derive(Debug, Default)]
pub struct DeviceRegistry {
    specs: Vec<SpecFile>,
    /// By qualified device name: the index of the device's specification in `specs`, and the index
    /// of the device in the `devices` of that specification.
    devices: BTreeMap<String, (usize, usize)>,
    conflicts: BTreeMap<String, BTreeSet<PathBuf>>,
    problems: Vec<DeviceProblem>,
}

#[derive(Debug)]
struct SpecFile {
    path: PathBuf,
    /// Index of the file's directory in the list of directories. The highest index takes
    /// precedence.
    priority: usize,
    spec: CdiSpec,
}

/// A device of a [`DeviceRegistry`] that can be selected.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeviceEntry<'r> {
    /// Qualified name: `vendor.com/class=name`.
    pub name: &'r str,
    pub path: &'r Path,
    pub spec: &'r CdiSpec,
    pub device: &'r DeviceDefinition,
}

/// A file or directory that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}{}", path.display(), source.position().map_or_else(String::new, |at| format!(":{at}")))]
#[non_exhaustive]
pub struct DeviceProblem {
    pub path: PathBuf,
    pub source: CdiSpecError,
}

impl DeviceRegistry {
    /// Loads the specifications of directories in order of increasing precedence: a device of a
    /// later directory replaces the device of the same name of an earlier one. If two files of one
    /// directory define a device, it is not available, even if a later directory defines it too.
    ///
    /// Missing directories are no error. A directory that cannot be listed ends the loading, as in
    /// the CDI Go package: later directories are not read.
    pub fn load(dirs: &[PathBuf]) -> Self {
        let mut registry = DeviceRegistry::default();
        for (priority, dir) in dirs.iter().enumerate() {
            match registry.load_dir(dir, priority) {
                Err(CdiSpecError::List(error)) if is_not_found(&error.source) => {}
                Err(source) => {
                    registry.problems.push(DeviceProblem { path: dir.clone(), source });
                    break;
                }
                Ok(()) => {}
            }
        }
        registry.devices.retain(|name, _| !registry.conflicts.contains_key(name));
        registry
    }

    fn load_dir(&mut self, dir: &Path, priority: usize) -> Result<(), CdiSpecError> {
        let mut directory = DirectoryReader::open(dir)?;
        for name in directory.names().with_path("list", dir)? {
            let path = dir.join(&name);
            if !is_spec_name(&name) || path.is_dir() {
                continue;
            }
            let text = directory.read(&name, &path, MAX_FILE_BYTES);
            match text.map_err(CdiSpecError::from).and_then(CdiSpec::parse) {
                Ok(spec) => self.add(SpecFile { path, priority, spec }),
                // The file was removed after the directory was listed.
                Err(_) if fs::symlink_metadata(&path).is_err_and(|error| is_not_found(&error)) => {}
                Err(source) => self.problems.push(DeviceProblem { path, source }),
            }
        }
        Ok(())
    }

    fn add(&mut self, file: SpecFile) {
        let index = self.specs.len();
        for (device, definition) in file.spec.devices.iter().enumerate() {
            let name = format!("{}={}", file.spec.kind, definition.name);
            if let Some((other, _)) = self.devices.get(&name) {
                let other = &self.specs[*other];
                if other.priority == file.priority {
                    let files = self.conflicts.entry(name).or_default();
                    files.extend([other.path.clone(), file.path.clone()]);
                    continue;
                }
            }
            self.devices.insert(name, (index, device));
        }
        self.specs.push(file);
    }

    /// Returns the files and directories that cannot be used.
    pub fn problems(&self) -> &[DeviceProblem] {
        &self.problems
    }

    /// Returns the specifications that can be used, in the order of the directories.
    pub fn specs(&self) -> impl Iterator<Item = (&Path, &CdiSpec)> {
        self.specs.iter().map(|file| (file.path.as_path(), &file.spec))
    }

    /// Returns the names of devices that several files of one directory define, each with these
    /// files.
    pub fn conflicts(&self) -> &BTreeMap<String, BTreeSet<PathBuf>> {
        &self.conflicts
    }

    /// Returns the devices that can be selected, sorted by name.
    pub fn devices(&self) -> impl Iterator<Item = DeviceEntry<'_>> {
        self.devices.iter().map(|(name, at)| self.entry(name, *at))
    }

    /// Finds a device by its qualified name.
    pub fn get(&self, name: &str) -> Result<DeviceEntry<'_>, DeviceError> {
        if let Some((name, at)) = self.devices.get_key_value(name) {
            return Ok(self.entry(name, *at));
        }
        Err(match self.conflicts.get(name) {
            Some(files) => DeviceError::Conflict {
                name: name.to_owned(),
                files: files.iter().cloned().collect(),
            },
            None => DeviceError::Unknown { name: name.to_owned() },
        })
    }

    fn entry<'r>(&'r self, name: &'r str, (spec, device): (usize, usize)) -> DeviceEntry<'r> {
        let file = &self.specs[spec];
        let device = &file.spec.devices[device];
        DeviceEntry { name, path: &file.path, spec: &file.spec, device }
    }

    /// Selects devices by their qualified names; fails if a name is unknown or in conflict.
    pub fn select(&self, names: &[String]) -> Result<DeviceSelection, DeviceError> {
        let mut selection = DeviceSelection::default();
        for name in names {
            let entry = self.get(name)?;
            if !selection.files.iter().any(|file| file == entry.path) {
                selection.files.push(entry.path.to_owned());
                selection.edits.append(&entry.spec.container_edits);
            }
            selection.edits.append(&entry.device.container_edits);
        }
        Ok(selection)
    }
}

fn is_not_found(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// Returns whether a file of this name is read as a specification: it ends in `.json` or `.yaml`.
pub fn is_spec_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.ends_with(b".json") || name.ends_with(b".yaml")
}

/// The devices of one container.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DeviceSelection {
    /// The files that define the devices.
    pub files: Vec<PathBuf>,
    /// The edits of all devices, in order.
    pub edits: ContainerEdits,
    /// If set, hooks without an environment get an empty one instead of the runtime's.
    pub empty_env: bool,
}

impl DeviceSelection {
    /// Checks that only trusted users can change the specifications and the programs of their hooks.
    pub fn check_trust(&self, options: &TrustOptions) -> Result<(), TrustError> {
        let mut checker = TrustChecker::new(options.clone());
        for file in &self.files {
            checker.check_path(&std::path::absolute(file).with_path("look up", file)?)?;
        }
        // Programs of startContainer are in the container.
        let in_container = OciStage::StartContainer.name();
        for hook in self.edits.hooks.iter().filter(|hook| hook.hook_name != in_container) {
            let path = hook.env.iter().rev().find_map(|entry| entry.strip_prefix("PATH="));
            checker.check_program(Path::new(&hook.path), path.map(OsStr::new))?;
        }
        Ok(())
    }

    /// Returns the text of a configuration with the edits; everything else is preserved.
    pub fn apply(&self, config: &[u8]) -> Result<Vec<u8>, DeviceError> {
        edit::apply(self, config)
    }
}

/// Errors of selecting CDI devices and adding them to the configuration of a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    #[error("unknown device {name:?}")]
    Unknown { name: String },
    /// Several files of one directory define the device.
    #[error("several files define device {name:?}: {}", FileNames(files))]
    Conflict { name: String, files: Vec<PathBuf> },
    /// The specification does not fully describe a device node, and the host has no such node.
    #[error("cannot look up device node {path:?} of the host")]
    Node { path: String, source: io::Error },
    /// A path on the host is no device, or a device of another type.
    #[error(
        "{path:?} of the host is {}, but the CDI specification expects {}",
        kind(found),
        kind(expected)
    )]
    NodeType { path: String, expected: String, found: &'static str },
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Describes a type of device nodes for messages; other texts are returned unchanged.
fn kind(name: &str) -> &str {
    match name {
        "b" => "a block device (b)",
        "c" => "a character device (c)",
        "u" => "an unbuffered character device (u)",
        "p" => "a FIFO (p)",
        "" => "a device",
        other => other,
    }
}

struct FileNames<'f>(&'f [PathBuf]);

impl fmt::Display for FileNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, file) in self.0.iter().enumerate() {
            write!(f, "{}{}", if index == 0 { "" } else { ", " }, file.display())?;
        }
        Ok(())
    }
}
