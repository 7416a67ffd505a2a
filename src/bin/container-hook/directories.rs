//! The directories of a runner that calls by sudo, recorded in root's settings.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::hooks::trust::{self, TrustError, TrustOptions};
use oci_hooks::sys::caller::is_root;
use oci_hooks::sys::fs::{
    Expected, FileAt, PathContext as _, PathError, ReadError, ReplaceError, ReplaceOptions,
    Symlinks, make_directories,
};
use oci_hooks::sys::host_file::HostFile;
use oci_hooks::sys::users::ids_by_name;
use serde::Serialize;
use toml_edit::{Array, DocumentMut, Item, TomlError, Value};

/// More than any file of settings has.
const MAX_BYTES: u64 = 1 << 20;

/// Why the directories of a runner are not recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectoriesError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("unknown user {user:?}: --runner-user names the user that the runner runs as")]
    UnknownUser { user: String },
    #[error("cannot look up user {user:?}")]
    LookUpUser { user: String, source: io::Error },
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error(
        "{} belongs to user {owner}, expected {expected}: a runner that calls by sudo may only use \
         its own directories", path.display()
    )]
    Foreign { path: PathBuf, owner: u32, expected: String },
    #[error("{path:?} cannot be written in TOML: expected a path in UTF-8 other than /")]
    Unwritable { path: PathBuf },
    #[error("the settings are not trusted")]
    Trust(#[source] TrustError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("invalid settings file {}", path.display())]
    Parse { path: PathBuf, source: TomlError },
    #[error("invalid settings file {}: {key} is not a list", path.display())]
    NotAList { path: PathBuf, key: &'static str },
    #[error(transparent)]
    Replace(#[from] ReplaceError),
}

/// The runner that calls by sudo, and its directories, as the command line has them.
#[derive(Debug, Args)]
pub(crate) struct RunnerArgs {
    /// The user of the runner, for sudo
    #[arg(long, value_name = "USER", default_value = "runner", value_parser = user_name)]
    pub(crate) runner_user: String,

    /// Record a directory of the runner, which belongs to its user (can be repeated)
    #[arg(long, value_name = "DIR", requires = "sudo")]
    pub(crate) runner_dir: Vec<PathBuf>,

    /// Record a tool cache outside of the runner's directories, of its user or root (can be repeated)
    #[arg(long, value_name = "DIR", requires = "sudo")]
    tool_dir: Vec<PathBuf>,
}

impl RunnerArgs {
    /// Returns whether there is nothing to record.
    pub(crate) fn is_empty(&self) -> bool {
        self.runner_dir.is_empty() && self.tool_dir.is_empty()
    }
}

/// What was recorded, and where; for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Recorded {
    pub(crate) settings: PathBuf,
    pub(crate) directories: Vec<PathBuf>,
    pub(crate) tool_directories: Vec<PathBuf>,
}

/// Directories that exist and belong to whom they should, by their canonical paths.
#[derive(Debug, Default)]
pub(crate) struct Directories {
    runner: Vec<PathBuf>,
    tool: Vec<PathBuf>,
}

impl Directories {
    /// Checks those that the arguments name.
    pub(crate) fn find(args: &RunnerArgs) -> Result<Self, DirectoriesError> {
        if args.is_empty() {
            return Ok(Directories::default());
        }
        let user = || args.runner_user.clone();
        let (uid, _) = ids_by_name(&args.runner_user)
            .map_err(|source| DirectoriesError::LookUpUser { user: user(), source })?
            .ok_or_else(|| DirectoriesError::UnknownUser { user: user() })?;
        let own = format!("{} ({uid})", args.runner_user);
        let shared = format!("{own} or root");
        let check = |path: &PathBuf| checked(path, &own, |owner| owner == uid);
        let check_tool = |path: &PathBuf| checked(path, &shared, |id| id == uid || is_root(id));
        Ok(Directories {
            runner: args.runner_dir.iter().map(check).collect::<Result<_, _>>()?,
            tool: args.tool_dir.iter().map(check_tool).collect::<Result<_, _>>()?,
        })
    }

    /// Returns what was given by another path than the one that is recorded, with that one.
    pub(crate) fn renamed<'a>(
        &'a self,
        args: &'a RunnerArgs,
    ) -> impl Iterator<Item = (&'a Path, &'a Path)> {
        let given = args.runner_dir.iter().chain(&args.tool_dir);
        let found = self.runner.iter().chain(&self.tool);
        given
            .zip(found)
            .filter(|(given, found)| given.is_absolute() && given != found)
            .map(|(given, found)| (given.as_path(), found.as_path()))
    }

    /// Adds them to a file of settings, whose comments and order stay. What is there already stays
    /// there once.
    pub(crate) fn record(self, settings: &Path) -> Result<Recorded, DirectoriesError> {
        let path = std::path::absolute(settings).at("look up", settings)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        let exists = path.symlink_metadata().is_ok();
        let there = path.ancestors().find(|path| path.symlink_metadata().is_ok());
        // Looked at before anything is made there.
        trust::check_path(there.unwrap_or(parent), &TrustOptions::of_process())
            .map_err(DirectoriesError::Trust)?;
        make_directories(parent, 0o755)?;
        let file = FileAt::open(&path, Symlinks::Follow)?;
        let (text, expected) = match exists {
            true => {
                let (bytes, id) = file.read(MAX_BYTES)?;
                // What is not UTF-8 is found by reading the settings before.
                (String::from_utf8_lossy(&bytes).into_owned(), Expected::Unchanged(id))
            }
            false => (String::new(), Expected::Absent),
        };
        let text = added(&text, &path, &self)?;
        if let Some(text) = text {
            let options = ReplaceOptions { expected, mode: Some(0o644), ..Default::default() };
            file.replace(text.as_bytes(), &options)?;
        }
        let Directories { runner, tool } = self;
        Ok(Recorded { settings: path, directories: runner, tool_directories: tool })
    }
}

/// Returns the canonical path of a directory whose owner is as expected.
fn checked(
    path: &Path,
    expected: &str,
    is_expected: impl Fn(u32) -> bool,
) -> Result<PathBuf, DirectoriesError> {
    let real = fs::canonicalize(path).at("look up", path)?;
    let dir = HostFile::open_trusted(&real)?;
    if !dir.is_dir() {
        return Err(DirectoriesError::NotADirectory { path: real });
    }
    let (owner, _) = dir.owner();
    if !is_expected(owner) {
        return Err(DirectoriesError::Foreign { path: real, owner, expected: expected.to_owned() });
    }
    // Everything is beneath the root directory: nothing would be kept from anybody.
    if real == Path::new("/") || real.to_str().is_none() {
        return Err(DirectoriesError::Unwritable { path: real });
    }
    Ok(real)
}

/// Returns the text of settings with the directories; none if it has them.
fn added(
    text: &str,
    path: &Path,
    directories: &Directories,
) -> Result<Option<String>, DirectoriesError> {
    let parse = |source| DirectoriesError::Parse { path: path.to_owned(), source };
    let mut document: DocumentMut = text.parse().map_err(parse)?;
    let mut changed = false;
    for (key, add) in
        [("directories", &directories.runner), ("tool-directories", &directories.tool)]
    {
        if add.is_empty() {
            continue;
        }
        let other = || DirectoriesError::NotAList { path: path.to_owned(), key };
        let section = document.entry("runner").or_insert_with(toml_edit::table);
        let section = section.as_table_like_mut().ok_or_else(other)?;
        let list = section.entry(key).or_insert(Item::Value(Value::Array(Array::new())));
        let list = list.as_array_mut().ok_or_else(other)?;
        for directory in add {
            let directory = directory.to_str().expect("it was checked");
            if !list.iter().any(|listed| listed.as_str() == Some(directory)) {
                list.push(directory);
                changed = true;
            }
        }
    }
    Ok(changed.then(|| document.to_string()))
}

fn user_name(text: &str) -> Result<String, &'static str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(is_plain) {
        return Err("a user's name has letters, digits, `.`, `_` and `-`");
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use oci_hooks::program::settings_file::FileSettings as _;

    fn directories(runner: &[&str], tool: &[&str]) -> Directories {
        let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
        Directories { runner: paths(runner), tool: paths(tool) }
    }

    #[test]
    fn comments_and_order_of_the_admin_stay() {
        let path = Path::new("/settings.toml");
        let text = "# mine\n[runner] # theirs\ndirectories = [\n    \"/a\", # first\n]\n\n[log]\nsize = \"1MiB\"\n# end\n";
        let two = directories(&["/a", "/b"], &["/opt/tools"]);
        let found = added(text, path, &two).unwrap().unwrap();
        for kept in
            ["# mine\n[runner] # theirs\n", "# first", "\n\n[log]\nsize = \"1MiB\"\n# end\n"]
        {
            assert!(found.contains(kept), "{kept} is not in {found}");
        }
        let settings: Settings = toml::from_str(&found).unwrap();
        assert_eq!(settings.runner.directories, two.runner);
        assert_eq!(settings.runner.tool_directories, two.tool);
        assert_eq!(added(&found, path, &two).unwrap(), None);
    }

    #[test]
    fn a_file_with_all_defaults_or_nothing_gets_the_section() {
        for text in
            [Settings::TEMPLATE, "", "runner = {}\n", "[log]\n[registry.\"a\"]\ninsecure = true"]
        {
            let one = directories(&["/home/runner"], &[]);
            let found = added(text, Path::new("/s"), &one).unwrap().unwrap();
            let settings: Settings = toml::from_str(&found).unwrap();
            assert_eq!(settings.runner.directories, one.runner, "{found}");
            let without = found.replace("directories = [\"/home/runner\"]\n", "");
            assert!(text != Settings::TEMPLATE || without == Settings::TEMPLATE, "{found}");
        }
    }

    #[test]
    fn what_is_no_list_is_not_replaced() {
        for text in ["runner = 1", "[runner]\ndirectories = \"/a\"", "[runner"] {
            added(text, Path::new("/s"), &directories(&["/b"], &[])).unwrap_err();
        }
    }
}
