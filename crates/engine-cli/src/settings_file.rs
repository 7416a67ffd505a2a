//! Settings files: finding, checking permissions, and parsing.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::trust::{self, TrustError, TrustOptions};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::mistake::TomlError;
use oci_hooks_files::fs::{PathError, ReadError, read_bounded};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::sections::RegistrySection;

/// Size limit of a settings file.
const MAX_BYTES: u64 = 1 << 20;

/// Errors of reading settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot resolve the path of the settings file {}: write its absolute path", path.display())]
    Absolute { path: PathBuf, source: io::Error },
    #[error("the settings are not trusted")]
    Trust { path: PathBuf, source: TrustError },
    #[error("{}:{mistake}", path.display())]
    Parse { path: PathBuf, mistake: TomlError },
    #[error("{} and {} conflict: {message}", first.display(), second.display())]
    Together { first: PathBuf, second: PathBuf, message: String },
}

/// The settings of a program, in TOML.
pub trait FileSettings: Default + DeserializeOwned + Serialize {
    /// Settings file with all defaults, each explained.
    const TEMPLATE: &'static str;

    /// Reads the given file, or the file named by a variable, or the existing default files.
    fn load(named: Option<&Path>) -> Result<LoadedSettings<Self>, SettingsError>;

    /// Returns the origin of a value that is neither in a file nor a default, such as a value of a
    /// preset; `None` for other values.
    fn origin(&self, _key: &str) -> Option<String> {
        None
    }

    /// Returns the registries in the settings, by host.
    fn registries(&self) -> &BTreeMap<String, RegistrySection>;

    /// Returns the settings as TOML.
    fn to_toml(&self) -> String {
        toml::to_string(self).expect("tables of plain values")
    }
}

/// Returns the settings in force for a command.
pub fn load<S: FileSettings>(context: &CliContext) -> Result<LoadedSettings<S>, SettingsError> {
    S::load(context.config.as_deref())
}

/// Settings, and the files they were read from.
#[derive(Clone, Debug)]
pub struct LoadedSettings<S> {
    pub settings: S,
    /// Files that were read, highest precedence first; empty if all settings are defaults.
    pub files: Vec<PathBuf>,
    /// File to which the current user can add settings; may not exist.
    pub own: PathBuf,
    /// Origin of each key in the files, by its full name, such as `store.root`.
    pub lines: BTreeMap<String, SettingOrigin>,
}

/// File and line of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingOrigin {
    /// Index into [`LoadedSettings::files`].
    pub file: usize,
    /// Counted from 1.
    pub line: usize,
}

impl<S: Default + DeserializeOwned> LoadedSettings<S> {
    /// Reads the file `named`, or the existing files of `usual`.
    ///
    /// The first file wins, key by key: a later file only adds keys that the earlier ones do not have. So users cannot
    /// override keys that the admin set in the system's file. Tables are merged; a list is one value.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, is writable by users other than root and the current one, or is invalid; the
    /// error then has file, line and column.
    pub fn read(named: Option<&Path>, usual: &[PathBuf]) -> Result<Self, SettingsError> {
        let mut found = Vec::new();
        match named {
            Some(path) => found.push(SettingsFile::read::<S>(path)?),
            None => {
                for path in usual {
                    match SettingsFile::read::<S>(path) {
                        Err(error) if is_absent(&error) => {}
                        file => found.push(file?),
                    }
                }
            }
        }
        let own = named.map(Path::to_owned).or_else(|| usual.last().cloned()).unwrap_or_default();
        let mut lines = BTreeMap::new();
        for (number, file) in found.iter().enumerate() {
            for (key, line) in self::lines(&file.text) {
                lines.entry(key).or_insert(SettingOrigin { file: number, line });
            }
        }
        let settings = match found.as_slice() {
            [] => S::default(),
            [file] => file.parse()?,
            files => merge_files(files)?,
        };
        let files = found.into_iter().map(|file| file.path).collect();
        Ok(LoadedSettings { settings, files, own, lines })
    }
}

impl<S> LoadedSettings<S> {
    /// Returns the file with the highest precedence; none if all settings are defaults.
    pub fn path(&self) -> Option<&Path> {
        self.files.first().map(PathBuf::as_path)
    }

    /// Returns the file in which a section, such as `policy`, has to be changed to take effect: the first file with
    /// keys of the section, else [`LoadedSettings::own`].
    pub fn file_of(&self, section: &str) -> &Path {
        let is_of = |key: &str| key.strip_prefix(section).is_some_and(|key| key.starts_with('.'));
        let of_section = self.lines.iter().filter(|(key, _)| is_of(key));
        let first = of_section.map(|(_, origin)| origin.file).min();
        first.map_or(&self.own, |number| &self.files[number])
    }

    /// Returns the files joined with "and"; none if all settings are defaults.
    pub fn files_named(&self) -> Option<String> {
        let names: Vec<_> = self.files.iter().map(|file| file.display().to_string()).collect();
        (!names.is_empty()).then(|| names.join(" and "))
    }

    /// Returns whether a file has a key, given its full name.
    pub fn has_key(&self, key: &str) -> bool {
        self.lines.contains_key(key)
    }
}

/// A settings file that passed the permission check and was read.
struct SettingsFile {
    path: PathBuf,
    text: String,
}

impl SettingsFile {
    /// Reads a settings file, which must be valid on its own. The file may belong to the current user, who controls
    /// this process anyway. Programs that run containers as root are run by root, so then only root may own it.
    fn read<S: DeserializeOwned>(path: &Path) -> Result<Self, SettingsError> {
        let path = std::path::absolute(path)
            .map_err(|source| SettingsError::Absolute { path: path.to_owned(), source })?;
        trust::check_path(&path, &TrustOptions::of_process_or_pod())
            .map_err(|source| SettingsError::Trust { path: path.clone(), source })?;
        let bytes = read_bounded(&path, MAX_BYTES)?;
        parse::<S>(&bytes, &path)?;
        let text = String::from_utf8(bytes).expect("what was parsed is UTF-8");
        Ok(SettingsFile { path, text })
    }

    fn parse<S: DeserializeOwned>(&self) -> Result<S, SettingsError> {
        parse(self.text.as_bytes(), &self.path)
    }
}

/// Merges settings files, each of which is valid on its own.
fn merge_files<S: DeserializeOwned>(files: &[SettingsFile]) -> Result<S, SettingsError> {
    let mut all = Table::new();
    for file in files {
        add(&mut all, file.parse::<Table>()?);
    }
    let text = toml::to_string(&all).expect("tables of plain values");
    toml::from_str(&text).map_err(|error| SettingsError::Together {
        first: files[0].path.clone(),
        second: files[1].path.clone(),
        message: TomlError::of(&text, &error).message().to_owned(),
    })
}

/// Adds the keys of `more` that `all` does not have, and merges tables.
fn add(all: &mut Table, more: Table) {
    for (key, value) in more {
        match (all.get_mut(&key), value) {
            (Some(Value::Table(there)), Value::Table(below)) => add(there, below),
            (Some(_), _) => {}
            (None, value) => {
                all.insert(key, value);
            }
        }
    }
}

/// Returns the line of each key in a TOML document, by its full name; empty if the text is not TOML.
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

/// Parses the text of a settings file.
pub fn parse<S: DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<S, SettingsError> {
    let fault = |mistake| SettingsError::Parse { path: path.to_owned(), mistake };
    let text = str::from_utf8(bytes).map_err(|error| {
        fault(TomlError::at(bytes, error.valid_up_to(), "this is not UTF-8".to_owned()))
    })?;
    toml::from_str(text).map_err(|error| fault(TomlError::of(text, &error)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use oci_hooks_files::error::chain;
    use serde::Deserialize;

    use super::super::sections::StoreSection;
    use super::*;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct TestSettings {
        store: StoreSection,
        registry: BTreeMap<String, RegistrySection>,
    }

    /// Directory with two settings files, of which the first wins.
    struct TwoSettingsFiles(tempfile::TempDir);

    impl TwoSettingsFiles {
        fn new() -> Self {
            TwoSettingsFiles(tempfile::tempdir().unwrap())
        }

        fn paths(&self) -> [PathBuf; 2] {
            ["system.toml", "user.toml"].map(|name| self.0.path().join(name))
        }

        fn write(&self, number: usize, text: &str) -> PathBuf {
            let path = self.paths()[number].clone();
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            path
        }

        fn read(&self) -> Result<LoadedSettings<TestSettings>, SettingsError> {
            LoadedSettings::read(None, &self.paths())
        }
    }

    #[test]
    fn errors_name_file_line_and_column() {
        for number in [0, 1] {
            for (text, expected) in [
                ("[store]\nrot = []\n", ":2:1: unknown field, expected one of `root`"),
                (
                    "[store]\npull = \"sometimes\"\n",
                    ":2:8: unknown variant, expected one of `always`",
                ),
                ("[store\n", ":1:7: unclosed table"),
                ("\"\u{fc}\" = 1", ":1:1: unknown field, expected `store`"),
            ] {
                let files = TwoSettingsFiles::new();
                // The other file is valid.
                files.write(1 - number, "[store]\nroot = \"/a\"\npull = \"never\"\n");
                let path = files.write(number, text);
                let error = chain(&files.read().unwrap_err());
                assert!(error.starts_with(&format!("{}{expected}", path.display())), "{error}");
            }
        }
    }

    #[test]
    fn settings_file_writable_by_others_is_rejected() {
        for number in [0, 1] {
            let files = TwoSettingsFiles::new();
            let path = files.write(number, "[store]\nroot = \"/a\"\n");
            assert_eq!(files.read().unwrap().settings.store.root, Path::new("/a"));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            let error = chain(&files.read().unwrap_err());
            assert!(error.starts_with("the settings are not trusted: "), "{error}");
        }
    }

    #[test]
    fn named_file_must_exist_and_replaces_others() {
        let files = TwoSettingsFiles::new();
        files.write(0, "[store]\nroot = \"/a\"\n");
        let [_, other] = files.paths();
        let read = |named| LoadedSettings::<TestSettings>::read(named, &files.paths());
        assert!(is_absent(&read(Some(&other)).unwrap_err()));
        files.write(1, "");
        let loaded = read(Some(&other)).unwrap();
        assert_eq!((loaded.files, loaded.own), (vec![other.clone()], other));
        assert_eq!(loaded.settings.store, StoreSection::default());
    }

    #[test]
    fn missing_files_mean_defaults() {
        let files = TwoSettingsFiles::new();
        let loaded = files.read().unwrap();
        assert_eq!((loaded.path(), loaded.files_named()), (None, None));
        assert_eq!(loaded.own, files.paths()[1]);
        assert_eq!(loaded.file_of("store"), files.paths()[1]);
    }

    #[test]
    fn first_file_overrides_later_ones_key_by_key() {
        let files = TwoSettingsFiles::new();
        let system = files.write(
            0,
            "[store]\npull = \"never\"\nlogins = [\"/a\"]\n[registry.\"a.b:5\"]\nmirrors = [\"m\"]\n",
        );
        let user = files.write(
            1,
            "# mine\n[store]\nroot = \"/u\"\nlogins = [\"/b\", \"/c\"]\npull = \"always\"\n\
         [registry.\"a.b:5\"]\nmirrors = [\"n\"]\ninsecure = true\n[registry.\"c\"]\n",
        );
        let loaded = files.read().unwrap();
        let store = &loaded.settings.store;
        assert_eq!(
            (store.pull, store.root.as_path()),
            (super::super::sections::PullSetting::Never, "/u".as_ref())
        );
        assert_eq!(store.logins, [Path::new("/a")], "a list is one value");
        let registry = &loaded.settings.registry["a.b:5"];
        assert_eq!((registry.mirrors.as_slice(), registry.insecure), (&["m".to_owned()][..], true));
        assert!(loaded.settings.registry.contains_key("c"));

        assert_eq!(loaded.files, [system.clone(), user.clone()]);
        assert_eq!(loaded.own, user);
        assert_eq!(loaded.lines["store.pull"], SettingOrigin { file: 0, line: 2 });
        assert_eq!(loaded.lines["store.root"], SettingOrigin { file: 1, line: 3 });
        assert!(loaded.has_key("store.root") && !loaded.has_key("store.run"));
        assert_eq!(loaded.file_of("store"), system);
        assert_eq!(loaded.file_of("stor"), user);
        let named = loaded.files_named().unwrap();
        assert_eq!(named, format!("{} and {}", system.display(), user.display()));
    }
}
