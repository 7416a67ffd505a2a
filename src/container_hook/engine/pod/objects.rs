//! Config maps and secrets, which on one host are directories of the admin: a file for each key.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use crate::container_hook::template::TemplateSettings;
use crate::container_hook::template::{Fault, FieldPath};
use crate::sys::error::chain;
use crate::sys::fs::read_bounded;

/// The most that one key may hold, as on Kubernetes.
const MAX_BYTES: u64 = 1 << 20;

/// What kind of object is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    ConfigMap,
    Secret,
}

/// An object: what it holds by key.
pub type Object = BTreeMap<String, Vec<u8>>;

/// A reference to an object, or to a key of one.
#[derive(Clone, Copy, Debug)]
pub struct Reference<'a> {
    pub kind: Kind,
    pub name: &'a str,
    pub optional: Option<bool>,
}

impl Kind {
    fn directory(self, settings: &TemplateSettings) -> &Path {
        match self {
            Kind::ConfigMap => &settings.config_maps,
            Kind::Secret => &settings.secrets,
        }
    }

    fn key_of_settings(self) -> &'static str {
        match self {
            Kind::ConfigMap => "config-maps",
            Kind::Secret => "secrets",
        }
    }
}

impl Reference<'_> {
    /// Reads the whole object; none if it is missing and may be.
    pub(super) fn object(
        self,
        settings: &TemplateSettings,
        place: &FieldPath,
    ) -> Result<Option<Object>, Fault> {
        if !is_name(self.name) {
            return Err(place
                .fault(format!("{:?} is not a valid name of a config map or secret", self.name)));
        }
        let dir = self.kind.directory(settings).join(self.name);
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.missing(place, &format!("there is no directory {}", dir.display()));
            }
            entries => entries
                .map_err(|error| place.fault(format!("cannot list {}: {error}", dir.display())))?,
        };
        let mut object = Object::new();
        for entry in entries.flatten() {
            // What is no key: directories, and files that begin with two dots.
            let Ok(key) = entry.file_name().into_string() else { continue };
            if !is_name(&key) || !entry.path().is_file() {
                continue;
            }
            let content = read_bounded(&entry.path(), MAX_BYTES);
            object.insert(key, content.map_err(|error| place.fault(chain(&error)))?);
        }
        Ok(Some(object))
    }

    /// Reads a key of the object; none if it is missing and may be.
    pub(super) fn key(
        self,
        key: &str,
        settings: &TemplateSettings,
        place: &FieldPath,
    ) -> Result<Option<Vec<u8>>, Fault> {
        let Some(mut object) = self.object(settings, place)? else { return Ok(None) };
        match object.remove(key) {
            Some(content) => Ok(Some(content)),
            None => {
                let path = self.kind.directory(settings).join(self.name).join(key);
                self.missing(place, &format!("there is no file {}", path.display()))
            }
        }
    }

    fn missing<T>(self, place: &FieldPath, what: &str) -> Result<Option<T>, Fault> {
        if self.optional == Some(true) {
            return Ok(None);
        }
        let settings = self.kind.key_of_settings();
        Err(place.fault(format!(
            "{what}: make it, set `{settings}` under [template] of the settings to where it is, or \
             write `optional: true`"
        )))
    }
}

/// Returns whether a text can be the name of an object or a key, and of a file.
fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text != "." && !text.starts_with("..") && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container_hook::template::fault::tests::merged;

    #[test]
    fn objects_are_directories_with_a_file_for_each_key() {
        let dir = tempfile::tempdir().unwrap();
        let settings = TemplateSettings {
            config_maps: dir.path().to_owned(),
            secrets: dir.path().join("none"),
            ..TemplateSettings::default()
        };
        fs::create_dir_all(dir.path().join("app/..data")).unwrap();
        fs::write(dir.path().join("app/color"), "red").unwrap();
        let place = merged(&serde_json::json!({})).1;
        let object =
            |kind, name, optional| Reference { kind, name, optional }.object(&settings, &place);
        let expected = Object::from([("color".to_owned(), b"red".to_vec())]);
        assert_eq!(object(Kind::ConfigMap, "app", None).unwrap(), Some(expected));
        assert_eq!(object(Kind::Secret, "app", Some(true)).unwrap(), None);
        let fault = object(Kind::Secret, "app", None).unwrap_err().to_string();
        assert!(fault.contains("none/app: make it, set `secrets` under"), "{fault}");
        for name in ["", ".", "..", "../x", "a/b"] {
            assert!(object(Kind::ConfigMap, name, Some(true)).is_err(), "{name}");
        }
        let app = Reference { kind: Kind::ConfigMap, name: "app", optional: None };
        assert_eq!(app.key("color", &settings, &place).unwrap().unwrap(), b"red");
        assert!(app.key("size", &settings, &place).is_err());
    }
}
