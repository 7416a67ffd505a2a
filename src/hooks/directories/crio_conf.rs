//! crio.conf(5): the files that CRI-O reads, in its order.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::configured::{ConfigLine, ConfiguredDirs, DirsSource, MAX_FILE_BYTES};
use super::setting::{self, ListAttributes};
use super::{ConsumerSystem, DirectoriesError};
use crate::hooks::consumer::DEFAULT_DIR;

/// Environment variable with a comma-separated list of directories, which overrides all files.
const DIRS_VARIABLE: &str = "CONTAINER_HOOKS_DIR";
/// Environment variable that overrides [`FILE`]; the file must exist.
const FILE_VARIABLE: &str = "CONTAINER_CONFIG";
/// Environment variable that overrides [`DROP_INS`].
const DROP_INS_VARIABLE: &str = "CONTAINER_CONFIG_DIR";
const FILE: &str = "/etc/crio/crio.conf";
const DROP_INS: &str = "/etc/crio/crio.conf.d";

/// Depth limit of the search for drop-ins.
const MAX_DEPTH: usize = 32;

/// Returns the directories that CRI-O reads.
pub fn read(system: &ConsumerSystem<'_>) -> Result<ConfiguredDirs, DirectoriesError> {
    if let Some(value) = system.variable(DIRS_VARIABLE) {
        let dirs = value.as_bytes().split(|&byte| byte == b',');
        let dirs = dirs.map(|dir| PathBuf::from(OsStr::from_bytes(dir.trim_ascii())));
        return Ok(ConfiguredDirs {
            dirs: dirs.collect(),
            source: DirsSource::Variable(DIRS_VARIABLE),
        });
    }
    let mut configured =
        ConfiguredDirs { dirs: vec![PathBuf::from(DEFAULT_DIR)], source: DirsSource::BuiltIn };
    for path in files(system)? {
        let Some(text) = system.root.read(&path, MAX_FILE_BYTES)? else { continue };
        let path = system.root.join(&path);
        let tables = ["crio", "runtime"];
        if let Some(setting) = setting::read(&text, &path, &tables, ListAttributes::Rejected)? {
            let line = ConfigLine { path, line: setting.line };
            configured =
                ConfiguredDirs { dirs: setting.dirs, source: DirsSource::Lines(vec![line]) };
        }
    }
    Ok(configured)
}

/// Returns the files in order of increasing precedence.
fn files(system: &ConsumerSystem<'_>) -> Result<Vec<PathBuf>, DirectoriesError> {
    let named = system.variable(FILE_VARIABLE).map(PathBuf::from);
    if let Some(path) = &named
        && system.root.read(path, MAX_FILE_BYTES)?.is_none()
    {
        return Err(DirectoriesError::Missing { variable: FILE_VARIABLE, path: path.clone() });
    }
    let mut files = vec![named.unwrap_or_else(|| PathBuf::from(FILE))];
    let drop_ins = system.variable(DROP_INS_VARIABLE).map(PathBuf::from);
    walk(system, &drop_ins.unwrap_or_else(|| PathBuf::from(DROP_INS)), 0, &mut files)?;
    Ok(files)
}

/// Adds all files below a directory, regardless of their names; subdirectories sort among the files.
fn walk(
    system: &ConsumerSystem<'_>,
    dir: &Path,
    depth: usize,
    files: &mut Vec<PathBuf>,
) -> Result<(), DirectoriesError> {
    if depth == MAX_DEPTH {
        return Err(DirectoriesError::TooDeep { path: dir.to_owned(), limit: MAX_DEPTH });
    }
    for entry in system.root.list(dir)?.unwrap_or_default() {
        let path = dir.join(&entry.name);
        if entry.is_dir {
            walk(system, &path, depth + 1, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
