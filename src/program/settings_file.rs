//! Settings files: finding, trusting and reading them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

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
    #[error("{} and {} do not go together: {message}", first.display(), second.display())]
    Together { first: PathBuf, second: PathBuf, message: String },
}

/// The settings of a program, in TOML.
pub trait FileSettings: Default + DeserializeOwned + Serialize {
    /// A settings file with every default, each explained.
    const TEMPLATE: &'static str;

    /// Reads the file that is named, or that a variable names, or the usual ones that exist.
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

/// Settings, and the files that they are from.
#[derive(Clone, Debug)]
pub struct Loaded<S> {
    pub settings: S,
    /// The files that were read, that one first whose values win; none if all are defaults.
    pub files: Vec<PathBuf>,
    /// The file that whoever runs this can add settings to: it need not exist.
    pub own: PathBuf,
    /// Where each key is from that a file has, by its whole name, such as `store.root`.
    pub lines: BTreeMap<String, Origin>,
}

/// Where a value is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The number of the file in [`Loaded::files`].
    pub file: usize,
    /// Counted from 1.
    pub line: usize,
}

impl<S: Default + DeserializeOwned> Loaded<S> {
    /// Reads the file that is named, or those of the usual ones that exist.
    ///
    /// Of these the first wins, key by key: a later one supplies what the earlier do not say. So an admin
    /// has the last word on what is in the system's file, and a user on all else. Tables are put together;
    /// a list is one value.
    ///
    /// # Errors
    ///
    /// Fails if a file cannot be read, can be changed by others than root and the user who runs this, or
    /// has a mistake: then it is named with line and column, whichever file it is in.
    pub fn read(named: Option<&Path>, usual: &[PathBuf]) -> Result<Self, SettingsError> {
        let mut found = Vec::new();
        match named {
            Some(path) => found.push(File::read::<S>(path)?),
            None => {
                for path in usual {
                    match File::read::<S>(path) {
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
                lines.entry(key).or_insert(Origin { file: number, line });
            }
        }
        let settings = match found.as_slice() {
            [] => S::default(),
            [file] => file.parse()?,
            files => together(files)?,
        };
        let files = found.into_iter().map(|file| file.path).collect();
        Ok(Loaded { settings, files, own, lines })
    }
}

impl<S> Loaded<S> {
    /// Returns the file whose values win; none if there is none.
    pub fn path(&self) -> Option<&Path> {
        self.files.first().map(PathBuf::as_path)
    }

    /// Returns the file in which a section, such as `policy`, has to be changed to have effect: the first
    /// that says something of it, else the one that whoever runs this can write.
    pub fn file_of(&self, section: &str) -> &Path {
        let is_of = |key: &str| key.strip_prefix(section).is_some_and(|key| key.starts_with('.'));
        let of_section = self.lines.iter().filter(|(key, _)| is_of(key));
        let first = of_section.map(|(_, origin)| origin.file).min();
        first.map_or(&self.own, |number| &self.files[number])
    }

    /// Returns the files in a sentence; none if all are defaults.
    pub fn files_named(&self) -> Option<String> {
        let names: Vec<_> = self.files.iter().map(|file| file.display().to_string()).collect();
        (!names.is_empty()).then(|| names.join(" and "))
    }

    /// Returns whether a file has a key, by its whole name.
    pub fn says(&self, key: &str) -> bool {
        self.lines.contains_key(key)
    }
}

/// A file that was read and may be believed.
struct File {
    path: PathBuf,
    text: String,
}

impl File {
    /// Reads a file, which is one of settings by itself. The user who runs this may own it too: what they
    /// can do to the file they can do to this process. What runs containers of root is root, so then that
    /// is nobody else.
    fn read<S: DeserializeOwned>(path: &Path) -> Result<Self, SettingsError> {
        let path = std::path::absolute(path)
            .map_err(|source| SettingsError::Absolute { path: path.to_owned(), source })?;
        trust::check_path(&path, &TrustOptions::of_process_or_pod())
            .map_err(|source| SettingsError::Trust { path: path.clone(), source })?;
        let bytes = read_bounded(&path, MAX_BYTES)?;
        parse::<S>(&bytes, &path)?;
        let text = String::from_utf8(bytes).expect("what was parsed is UTF-8");
        Ok(File { path, text })
    }

    fn parse<S: DeserializeOwned>(&self) -> Result<S, SettingsError> {
        parse(self.text.as_bytes(), &self.path)
    }
}

/// Puts files together that are settings each by itself.
fn together<S: DeserializeOwned>(files: &[File]) -> Result<S, SettingsError> {
    let mut all = Table::new();
    for file in files {
        add(&mut all, file.parse::<Table>()?);
    }
    let text = toml::to_string(&all).expect("tables of plain values");
    toml::from_str(&text).map_err(|error| SettingsError::Together {
        first: files[0].path.clone(),
        second: files[1].path.clone(),
        message: Mistake::of(&text, &error).message().to_owned(),
    })
}

/// Adds what a table does not have.
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

    use super::super::sections::{Registry, Store};
    use super::*;
    use crate::sys::error::chain;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Settings {
        store: Store,
        registry: BTreeMap<String, Registry>,
    }

    /// Directories with files of settings, the first of which wins.
    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            Files(tempfile::tempdir().unwrap())
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

        fn read(&self) -> Result<Loaded<Settings>, SettingsError> {
            Loaded::read(None, &self.paths())
        }
    }

    #[test]
    fn mistakes_name_file_line_and_column() {
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
                let files = Files::new();
                // Whatever is right beside it.
                files.write(1 - number, "[store]\nroot = \"/a\"\npull = \"never\"\n");
                let path = files.write(number, text);
                let error = chain(&files.read().unwrap_err());
                assert!(error.starts_with(&format!("{}{expected}", path.display())), "{error}");
            }
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_rejected() {
        for number in [0, 1] {
            let files = Files::new();
            let path = files.write(number, "[store]\nroot = \"/a\"\n");
            assert_eq!(files.read().unwrap().settings.store.root, Path::new("/a"));
            fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
            let error = chain(&files.read().unwrap_err());
            assert!(error.starts_with("the settings are not trusted: "), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_named_must_exist_and_is_the_only_one() {
        let files = Files::new();
        files.write(0, "[store]\nroot = \"/a\"\n");
        let [_, other] = files.paths();
        let read = |named| Loaded::<Settings>::read(named, &files.paths());
        assert!(is_absent(&read(Some(&other)).unwrap_err()));
        files.write(1, "");
        let loaded = read(Some(&other)).unwrap();
        assert_eq!((loaded.files, loaded.own), (vec![other.clone()], other));
        assert_eq!(loaded.settings.store, Store::default());
    }

    #[test]
    fn without_files_all_are_defaults_and_the_last_is_the_one_to_write() {
        let files = Files::new();
        let loaded = files.read().unwrap();
        assert_eq!((loaded.path(), loaded.files_named()), (None, None));
        assert_eq!(loaded.own, files.paths()[1]);
        assert_eq!(loaded.file_of("store"), files.paths()[1]);
    }

    #[test]
    fn the_first_file_wins_key_by_key() {
        let files = Files::new();
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
            (super::super::sections::Pull::Never, "/u".as_ref())
        );
        assert_eq!(store.logins, [Path::new("/a")], "a list is one value");
        let registry = &loaded.settings.registry["a.b:5"];
        assert_eq!((registry.mirrors.as_slice(), registry.insecure), (&["m".to_owned()][..], true));
        assert!(loaded.settings.registry.contains_key("c"));

        assert_eq!(loaded.files, [system.clone(), user.clone()]);
        assert_eq!(loaded.own, user);
        assert_eq!(loaded.lines["store.pull"], Origin { file: 0, line: 2 });
        assert_eq!(loaded.lines["store.root"], Origin { file: 1, line: 3 });
        assert!(loaded.says("store.root") && !loaded.says("store.run"));
        assert_eq!(loaded.file_of("store"), system);
        assert_eq!(loaded.file_of("stor"), user);
        let named = loaded.files_named().unwrap();
        assert_eq!(named, format!("{} and {}", system.display(), user.display()));
    }
}
