//! Settings files: finding, trusting and reading them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};

use super::context::Context;
use super::mistake::Mistake;
use crate::hooks::trust::{self, TrustError, TrustOptions};
use crate::sys::fs::{PathError, ReadError, read_bounded};

/// The largest settings file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the settings file {} is relative to no directory: write its absolute path", path.display())]
    Absolute { path: PathBuf, source: io::Error },
    #[error("the settings are not trusted")]
    Trust { path: PathBuf, source: TrustError },
    #[error("{}:{mistake}", path.display())]
    Parse { path: PathBuf, mistake: Mistake },
}

/// The settings of a program, in TOML.
pub trait FileSettings: Default + DeserializeOwned + Serialize {
    /// A settings file with every default, each explained.
    const TEMPLATE: &'static str;

    /// Reads the file that is named, or that a variable names, or the usual one if it exists.
    fn load(named: Option<&Path>) -> Result<Loaded<Self>, SettingsError>;

    /// Returns where a value comes from that no line of a file says, if it is not a default.
    fn origin(&self, _key: &str) -> Option<String> {
        None
    }

    /// Returns what the settings name and that does not exist.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the settings as a settings file has them.
    fn to_toml(&self) -> String {
        toml::to_string(self).expect("tables of plain values")
    }
}

impl Context {
    /// Returns the settings in force for the command.
    pub fn settings<S: FileSettings>(&self) -> Result<Loaded<S>, SettingsError> {
        S::load(self.config.as_deref())
    }
}

/// Settings, and the file that they are from.
#[derive(Clone, Debug)]
pub struct Loaded<S> {
    pub settings: S,
    /// None if all are defaults.
    pub path: Option<PathBuf>,
    /// The line of each key that the file has, by its whole name.
    pub lines: BTreeMap<String, usize>,
}

impl<S: Default + DeserializeOwned> Loaded<S> {
    /// Reads the file that is named, or the usual one if it exists.
    pub fn read(named: Option<&Path>, usual: &Path) -> Result<Self, SettingsError> {
        match Loaded::from_file(named.unwrap_or(usual)) {
            Err(error) if named.is_none() && is_absent(&error) => {
                Ok(Loaded { settings: S::default(), path: None, lines: BTreeMap::new() })
            }
            result => result,
        }
    }

    /// Reads a file. The user who runs this may own it too: what they can do to the file they can
    /// do to this process. What runs containers is root, so then that is nobody else.
    fn from_file(path: &Path) -> Result<Self, SettingsError> {
        let path = std::path::absolute(path)
            .map_err(|source| SettingsError::Absolute { path: path.to_owned(), source })?;
        trust::check_path(&path, &TrustOptions::of_process_or_pod())
            .map_err(|source| SettingsError::Trust { path: path.clone(), source })?;
        let bytes = read_bounded(&path, MAX_BYTES)?;
        let settings = parse(&bytes, &path)?;
        let lines = lines(str::from_utf8(&bytes).unwrap_or_default());
        Ok(Loaded { settings, path: Some(path), lines })
    }
}

/// Returns the line of each key of a text in TOML, by its whole name; nothing of a text that is not.
pub(super) fn lines(text: &str) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    if let Ok(table) = DeTable::parse(text) {
        collect_lines(table.get_ref(), "", text, &mut lines);
    }
    lines
}

fn collect_lines(
    table: &DeTable<'_>,
    prefix: &str,
    text: &str,
    lines: &mut BTreeMap<String, usize>,
) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        match value.get_ref() {
            DeValue::Table(below) => collect_lines(below, &format!("{name}."), text, lines),
            _ => {
                let before = &text.as_bytes()[..key.span().start];
                lines.insert(name, before.iter().filter(|&&byte| byte == b'\n').count() + 1);
            }
        }
    }
}

fn is_absent(error: &SettingsError) -> bool {
    let not_found = |error: &PathError| error.source.kind() == io::ErrorKind::NotFound;
    match error {
        SettingsError::Read(ReadError::Path(error)) => not_found(error),
        SettingsError::Trust { source: TrustError::Lookup(error), .. } => not_found(error),
        _ => false,
    }
}

/// Reads the text of a settings file.
pub(super) fn parse<S: DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<S, SettingsError> {
    let fault = |mistake| SettingsError::Parse { path: path.to_owned(), mistake };
    let text = str::from_utf8(bytes).map_err(|error| {
        fault(Mistake::at(bytes, error.valid_up_to(), "this is not UTF-8".to_owned()))
    })?;
    toml::from_str(text).map_err(|error| fault(Mistake::of(text, &error)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use serde::Deserialize;

    use super::super::sections::Store;
    use super::*;
    use crate::sys::error::chain;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Settings {
        store: Store,
    }

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("settings.toml");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        (temp, path)
    }

    #[test]
    fn mistakes_name_file_line_and_column() {
        for (text, expected) in [
            ("[store]\nrot = []\n", ":2:1: unknown field, expected one of `root`"),
            ("[store]\npull = \"sometimes\"\n", ":2:8: unknown variant, expected one of `always`"),
            ("[store\n", ":1:7: unclosed table"),
            ("\"\u{fc}\" = 1", ":1:1: unknown field, expected `store`"),
        ] {
            let (_temp, path) = written(text);
            let error = chain(&Loaded::<Settings>::from_file(&path).unwrap_err());
            assert!(error.starts_with(&format!("{}{expected}", path.display())), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_rejected() {
        let (_temp, path) = written("[store]\nroot = \"/a\"\n");
        let loaded = Loaded::<Settings>::from_file(&path).unwrap();
        assert_eq!(loaded.settings.store.root, Path::new("/a"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let error = chain(&Loaded::<Settings>::from_file(&path).unwrap_err());
        assert!(error.starts_with("the settings are not trusted: "), "{error}");
    }

    #[test]
    fn a_file_that_is_named_must_exist() {
        let (temp, _) = written("");
        let other = temp.path().join("other");
        let read = |named| Loaded::<Settings>::read(named, &other);
        assert!(is_absent(&read(Some(&other)).unwrap_err()));
        assert!(read(None).unwrap().path.is_none());
    }
}
