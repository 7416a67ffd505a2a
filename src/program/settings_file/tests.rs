//! Settings files that are missing, wrong, or on top of each other.

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
            ("[store]\npull = \"sometimes\"\n", ":2:8: unknown variant, expected one of `always`"),
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
