//! containers.conf(5): the files that podman reads, in its order, and what they come to.
//!
//! As podman 4 and 5 do it; `tests/engines` holds it against podman itself. podman 6 begins with the
//! user's file alone where there is one, else that of `/etc`, else that of `/usr/share`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::configured::{ConfigLine, ConfiguredDirs, DirsSource, MAX_FILE_BYTES};
use super::setting::{self, Attributes};
use super::{DirectoriesError, System};
use crate::hooks::consumer::{DEFAULT_DIR, EmptyList, OVERRIDE_DIR, UserFile};

/// Names the only file that is read.
const VARIABLE: &str = "CONTAINERS_CONF";
/// Names a file that is read after all others, since podman 4.5.
const OVERRIDE_VARIABLE: &str = "CONTAINERS_CONF_OVERRIDE";

/// Returns the directories that podman reads.
pub fn read(
    system: &System<'_>,
    user_file: UserFile,
    empty: EmptyList,
) -> Result<ConfiguredDirs, DirectoriesError> {
    let mut dirs = vec![PathBuf::from(DEFAULT_DIR)];
    let mut lines = Vec::new();
    let mut appends = false;
    for path in files(system, user_file)? {
        let Some(text) = system.root.read(&path, MAX_FILE_BYTES)? else { continue };
        let path = system.root.join(&path);
        let setting = setting::read(&text, &path, &["engine"], Attributes::Allowed)?;
        let Some(setting) = setting else { continue };
        // What a file says about appending goes for those after it as well.
        appends = setting.append.unwrap_or(appends);
        if !appends {
            dirs.clear();
            lines.clear();
        }
        dirs.extend(setting.dirs);
        lines.push(ConfigLine { path, line: setting.line });
    }
    let source = match (dirs.is_empty(), empty, lines.last()) {
        (true, EmptyList::Implicit, Some(line)) if !system.is_rootless() => {
            dirs = [DEFAULT_DIR, OVERRIDE_DIR].map(PathBuf::from).to_vec();
            DirsSource::Implicit(line.clone())
        }
        (_, _, None) => DirsSource::BuiltIn,
        _ => DirsSource::Lines(lines),
    };
    Ok(ConfiguredDirs { dirs, source })
}

/// Returns the files, those that decide last; they need not exist.
fn files(system: &System<'_>, user_file: UserFile) -> Result<Vec<PathBuf>, DirectoriesError> {
    let mut files = match system.variable(VARIABLE) {
        Some(path) => {
            let path = PathBuf::from(path);
            if system.root.read(&path, MAX_FILE_BYTES)?.is_none() {
                return Err(DirectoriesError::Missing { variable: VARIABLE, path });
            }
            vec![path]
        }
        None => system_files(system, user_file)?,
    };
    files.extend(system.variable(OVERRIDE_VARIABLE).map(PathBuf::from));
    Ok(files)
}

fn system_files(
    system: &System<'_>,
    user_file: UserFile,
) -> Result<Vec<PathBuf>, DirectoriesError> {
    let mut files = vec![PathBuf::from("/usr/share/containers/containers.conf")];
    let etc = Path::new("/etc/containers");
    with_drop_ins(system, &etc.join("containers.conf"), &mut files)?;
    if system.is_rootless() {
        // Since podman 5.7.
        let rootless = etc.join("containers.rootless.conf");
        with_drop_ins(system, &rootless, &mut files)?;
        let of_user = etc.join("containers.rootless.conf.d").join(system.user_id.to_string());
        drop_ins(system, &of_user, &mut files)?;
    }
    let has_own = system.is_rootless() || user_file == UserFile::Everyone;
    if let Some(dir) = system.user_config().filter(|_| has_own) {
        with_drop_ins(system, &dir.join("containers.conf"), &mut files)?;
    }
    Ok(files)
}

/// Adds a file, and those of the directory beside it.
fn with_drop_ins(
    system: &System<'_>,
    file: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<(), DirectoriesError> {
    files.push(file.to_owned());
    let mut dir = file.to_owned().into_os_string();
    dir.push(".d");
    drop_ins(system, Path::new(&dir), files)
}

/// Adds the files of a directory, but not those of directories in it.
fn drop_ins(
    system: &System<'_>,
    dir: &Path,
    files: &mut Vec<PathBuf>,
) -> Result<(), DirectoriesError> {
    let entries = system.root.list(dir)?.unwrap_or_default();
    let is_read = |name: &OsStr| name.as_bytes().ends_with(b".conf");
    let entries = entries.into_iter().filter(|entry| !entry.is_dir && is_read(&entry.name));
    files.extend(entries.map(|entry| dir.join(entry.name)));
    Ok(())
}
