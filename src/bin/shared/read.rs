//! Finding, trusting and reading the file of settings.

use std::io;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::trust::{self, TrustError, TrustOptions};
use oci_hooks::sys::fs::{PathError, ReadError, read_bounded};
use serde::de::DeserializeOwned;

use super::mistake::Mistake;

/// The most a file of settings may hold.
const MAX_BYTES: u64 = 1 << 20;

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("settings are relative to no directory: write the absolute path of {}", path.display())]
    Absolute { path: PathBuf, source: io::Error },
    #[error("others than root can change the settings")]
    Trust { path: PathBuf, source: TrustError },
    #[error("{}:{mistake}", path.display())]
    Parse { path: PathBuf, mistake: Mistake },
}

/// The settings, and where they are from.
#[derive(Clone, Debug)]
pub(crate) struct Loaded<S> {
    pub(crate) settings: S,
    /// None if all are defaults.
    pub(crate) path: Option<PathBuf>,
}

impl<S: Default + DeserializeOwned> Loaded<S> {
    /// Reads the file that is named, or the usual one if it exists.
    pub(crate) fn read(named: Option<&Path>, usual: &Path) -> Result<Self, SettingsError> {
        match Loaded::from_file(named.unwrap_or(usual)) {
            Err(error) if named.is_none() && is_absent(&error) => {
                Ok(Loaded { settings: S::default(), path: None })
            }
            result => result,
        }
    }

    /// Reads a file. The user who runs this may own it too: what they can do to the file they can
    /// do to this process. What runs containers is root, so then that is nobody else.
    fn from_file(path: &Path) -> Result<Self, SettingsError> {
        let path = std::path::absolute(path)
            .map_err(|source| SettingsError::Absolute { path: path.to_owned(), source })?;
        trust::check_path(&path, &TrustOptions::of_process())
            .map_err(|source| SettingsError::Trust { path: path.clone(), source })?;
        let bytes = read_bounded(&path, MAX_BYTES)?;
        let settings = parse(&bytes, &path)?;
        Ok(Loaded { settings, path: Some(path) })
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

fn parse<S: DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<S, SettingsError> {
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

    use oci_hooks::sys::error::chain;

    use super::*;
    use crate::settings::Settings;

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
            ("[runtime]\nordr = []\n", ":2:1: unknown field, expected one of `order`"),
            ("[log]\nsize = \"20XB\"\n", ":2:8: this is no size: write 20GB"),
            ("[store]\npull = \"sometimes\"\n", ":2:8: unknown variant, expected one of `always`"),
            ("[network]\ndns = [\"1.1.1.1\", \"x\"]\n", ":2:19: invalid IP address syntax"),
            ("[store\n", ":1:7: unclosed table"),
            ("\"\u{fc}\" = 1", ":1:1: unknown field, expected one of"),
        ] {
            let (_temp, path) = written(text);
            let error = chain(&Loaded::<Settings>::from_file(&path).unwrap_err());
            assert!(error.starts_with(&format!("{}{expected}", path.display())), "{error}");
        }
    }

    #[test]
    fn mistakes_do_not_say_what_the_file_holds() {
        let shadow = "root:$y$s3cret:20000:0:99999:7:::\ns3cret:*:20000:0:99999:7:::\n";
        for text in [
            shadow,
            "s3cret",
            "s3cret = 1",
            "[s3cret]",
            "s3cret = {",
            "[store]\npull = \"s3cret\"",
            "[store]\nroot = [\"s3cret\"]",
            "[store]\nmax-layer-size = \"s3cret\"",
            "[store]\nmax-layer-files = \"s3cret\"",
            "[store]\nkeep-age = \"s3cret\"",
            "[store]\ns3cret = 1",
            "[network]\npool = \"s3cret\"",
            "[network]\ndns = [\"s3cret\"]",
            "[network]\ndns = \"s3cret\"",
            "[runtime]\norder = \"s3cret\"",
            "[runtime]\norder = [\"s3cret\", 7]",
            "[registry.\"s3cret\"]\ninsecure = \"s3cret\"",
            "runtime = \"s3cret\"",
        ] {
            let (_temp, path) = written(text);
            let error = chain(&Loaded::<Settings>::from_file(&path).unwrap_err());
            assert!(!error.contains("s3cret"), "{error}");
            assert!(error.starts_with(&format!("{}:", path.display())), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_can_write_is_refused() {
        let (_temp, path) = written("");
        Loaded::<Settings>::from_file(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let error = Loaded::<Settings>::from_file(&path).unwrap_err();
        assert!(chain(&error).starts_with("others than root can change the settings: "), "{error}");
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
