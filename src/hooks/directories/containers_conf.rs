//! containers.conf(5): the files that podman reads, in its order, and the resulting directories.
//!
//! `tests/engines-newer` compares podman 4 and 5 with podman itself; the rules of podman 6 follow
//! `storage/pkg/configfile` of container-libs.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::configured::{ConfigLine, ConfiguredDirs, DirsSource, MAX_FILE_BYTES};
use super::setting::{self, ListAttributes};
use super::{ConsumerSystem, DirectoriesError};
use crate::hooks::consumer::{ContainersConfFiles, DEFAULT_DIR, EmptyDirsRule, OVERRIDE_DIR};

const USR: &str = "/usr/share/containers";
const ETC: &str = "/etc/containers";

/// Environment variable that names the only file to read, besides [`OVERRIDE_VARIABLE`].
const VARIABLE: &str = "CONTAINERS_CONF";
/// Environment variable that names a file to read after all others, since podman 4.5.
const OVERRIDE_VARIABLE: &str = "CONTAINERS_CONF_OVERRIDE";

/// Returns the directories that podman reads.
pub fn read(
    system: &ConsumerSystem<'_>,
    which: ContainersConfFiles,
    empty: EmptyDirsRule,
) -> Result<ConfiguredDirs, DirectoriesError> {
    let mut dirs = vec![PathBuf::from(DEFAULT_DIR)];
    let mut lines = Vec::new();
    let mut appends = false;
    for path in files(system, which)? {
        let Some(text) = system.root.read(&path, MAX_FILE_BYTES)? else { continue };
        let path = system.root.join(&path);
        let setting = setting::read(&text, &path, &["engine"], ListAttributes::Allowed)?;
        let Some(setting) = setting else { continue };
        // `append` in one file also applies to later files.
        appends = setting.append.unwrap_or(appends);
        if !appends {
            dirs.clear();
            lines.clear();
        }
        dirs.extend(setting.dirs);
        lines.push(ConfigLine { path, line: setting.line });
    }
    let source = match (dirs.is_empty(), empty, lines.last()) {
        (true, EmptyDirsRule::Implicit, Some(line)) if !system.is_rootless() => {
            dirs = [DEFAULT_DIR, OVERRIDE_DIR].map(PathBuf::from).to_vec();
            DirsSource::Implicit(line.clone())
        }
        (_, _, None) => DirsSource::BuiltIn,
        _ => DirsSource::Lines(lines),
    };
    Ok(ConfiguredDirs { dirs, source })
}

/// Returns the files in order of increasing precedence; they need not exist.
fn files(
    system: &ConsumerSystem<'_>,
    which: ContainersConfFiles,
) -> Result<Vec<PathBuf>, DirectoriesError> {
    let is_first_only = which == ContainersConfFiles::FirstThenDropIns;
    let mut files = match named(system, VARIABLE, MissingFile::Rejected)? {
        Some(path) => vec![path],
        None if is_first_only => first_then_drop_ins(system)?,
        None => all_files(system, which)?,
    };
    let missing = if is_first_only { MissingFile::Rejected } else { MissingFile::Ignored };
    files.extend(named(system, OVERRIDE_VARIABLE, missing)?);
    Ok(files)
}

/// Reaction to a variable that names a file that does not exist.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MissingFile {
    Ignored,
    Rejected,
}

/// Returns the file that an environment variable names; `None` if the variable is not set.
fn named(
    system: &ConsumerSystem<'_>,
    variable: &'static str,
    missing: MissingFile,
) -> Result<Option<PathBuf>, DirectoriesError> {
    let Some(path) = system.variable(variable).map(PathBuf::from) else { return Ok(None) };
    if missing == MissingFile::Rejected && system.root.read(&path, MAX_FILE_BYTES)?.is_none() {
        return Err(DirectoriesError::Missing { variable, path });
    }
    Ok(Some(path))
}

/// Returns the `containers.conf` file and drop-ins that podman 6 reads.
fn first_then_drop_ins(system: &ConsumerSystem<'_>) -> Result<Vec<PathBuf>, DirectoriesError> {
    let user = system.user_config();
    let mut files = Vec::new();
    for dir in user.iter().map(PathBuf::as_path).chain([ETC, USR].map(Path::new)) {
        let path = dir.join("containers.conf");
        if system.root.read(&path, MAX_FILE_BYTES)?.is_some() {
            files.push(path);
            break;
        }
    }
    let mut dirs = Vec::new();
    for dir in [USR, ETC].map(Path::new) {
        dirs.push(dir.join("containers.conf.d"));
        if system.is_rootless() {
            let rootless = dir.join("containers.rootless.conf.d");
            let of_user = rootless.join(system.user_id.to_string());
            dirs.extend([rootless, of_user]);
        } else {
            dirs.push(dir.join("containers.rootful.conf.d"));
        }
    }
    dirs.extend(user.map(|dir| dir.join("containers.conf.d")));
    let mut by_name = BTreeMap::new();
    for dir in dirs {
        for entry in system.root.list(&dir)?.unwrap_or_default() {
            // A symlink is not read, and masks no drop-in.
            if entry.is_file && is_drop_in(&entry.name) {
                by_name.insert(entry.name.clone(), dir.join(entry.name));
            }
        }
    }
    files.extend(by_name.into_values());
    Ok(files)
}

/// Returns the `containers.conf` files and drop-ins that podman 4 and 5 read.
fn all_files(
    system: &ConsumerSystem<'_>,
    which: ContainersConfFiles,
) -> Result<Vec<PathBuf>, DirectoriesError> {
    let mut files = vec![Path::new(USR).join("containers.conf")];
    let etc = Path::new(ETC);
    add_with_drop_ins(system, &etc.join("containers.conf"), &mut files)?;
    if system.is_rootless() {
        // Since podman 5.7.
        let rootless = etc.join("containers.rootless.conf");
        add_with_drop_ins(system, &rootless, &mut files)?;
        let of_user = etc.join("containers.rootless.conf.d").join(system.user_id.to_string());
        drop_ins(system, &of_user, &mut files)?;
    }
    let has_own = system.is_rootless() || which == ContainersConfFiles::All;
    if let Some(dir) = system.user_config().filter(|_| has_own) {
        add_with_drop_ins(system, &dir.join("containers.conf"), &mut files)?;
    }
    Ok(files)
}

/// Adds a file and its drop-ins in `FILE.d`.
fn add_with_drop_ins(
    system: &ConsumerSystem<'_>,
    file: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<(), DirectoriesError> {
    files.push(file.to_owned());
    let mut dir = file.to_owned().into_os_string();
    dir.push(".d");
    drop_ins(system, Path::new(&dir), files)
}

/// Adds the `.conf` files of a directory, without its subdirectories.
fn drop_ins(
    system: &ConsumerSystem<'_>,
    dir: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<(), DirectoriesError> {
    let entries = system.root.list(dir)?.unwrap_or_default();
    let entries = entries.into_iter().filter(|entry| !entry.is_dir && is_drop_in(&entry.name));
    files.extend(entries.map(|entry| dir.join(entry.name)));
    Ok(())
}

fn is_drop_in(name: &OsStr) -> bool {
    name.as_bytes().ends_with(b".conf")
}
