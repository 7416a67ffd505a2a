//! Config maps and secrets, which on a single host are directories of the admin with a file for each key.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::read_bounded;

use container_hook_job::template::{FieldPath, TemplateFault, TemplateSettings};

/// Maximum size of a key's content, as on Kubernetes.
const MAX_BYTES: u64 = 1 << 20;

/// The contents of an object, by key.
pub type ObjectData = BTreeMap<String, Vec<u8>>;

/// A reference to a config map or secret.
#[derive(Clone, Copy, Debug)]
pub struct ObjectRef<'a> {
    /// Directory of all objects of its kind.
    directory: &'a Path,
    /// Name of the setting under `[template]` that sets `directory`.
    setting: &'static str,
    pub name: &'a str,
    pub optional: Option<bool>,
}

impl<'a> ObjectRef<'a> {
    /// Refers to a ConfigMap, kept in the directory of the setting `config-maps`.
    pub fn config_map(
        settings: &'a TemplateSettings,
        name: &'a str,
        optional: Option<bool>,
    ) -> Self {
        ObjectRef { directory: &settings.config_maps, setting: "config-maps", name, optional }
    }

    /// Refers to a Secret, kept in the directory of the setting `secrets`.
    pub fn secret(settings: &'a TemplateSettings, name: &'a str, optional: Option<bool>) -> Self {
        ObjectRef { directory: &settings.secrets, setting: "secrets", name, optional }
    }

    /// Reads the whole object; returns none if it is optional and missing.
    pub(super) fn object(self, place: &FieldPath) -> Result<Option<ObjectData>, TemplateFault> {
        if !is_name(self.name) {
            return Err(place
                .fault(format!("{:?} is not a valid name of a config map or secret", self.name)));
        }
        let dir = self.directory.join(self.name);
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.missing(place, &format!("there is no directory {}", dir.display()));
            }
            entries => entries
                .map_err(|error| place.fault(format!("cannot list {}: {error}", dir.display())))?,
        };
        let mut object = ObjectData::new();
        for entry in entries.flatten() {
            // Skips directories, and names that are not keys, such as those that begin with two dots.
            let Ok(key) = entry.file_name().into_string() else { continue };
            if !is_name(&key) || !entry.path().is_file() {
                continue;
            }
            let content = read_bounded(&entry.path(), MAX_BYTES);
            object.insert(key, content.map_err(|error| place.fault(chain(&error)))?);
        }
        Ok(Some(object))
    }

    /// Reads a key of the object; returns none if it is optional and missing.
    pub(super) fn key(
        self,
        key: &str,
        place: &FieldPath,
    ) -> Result<Option<Vec<u8>>, TemplateFault> {
        let Some(mut object) = self.object(place)? else { return Ok(None) };
        match object.remove(key) {
            Some(content) => Ok(Some(content)),
            None => {
                let path = self.directory.join(self.name).join(key);
                self.missing(place, &format!("there is no file {}", path.display()))
            }
        }
    }

    fn missing<T>(self, place: &FieldPath, what: &str) -> Result<Option<T>, TemplateFault> {
        if self.optional == Some(true) {
            return Ok(None);
        }
        let setting = self.setting;
        Err(place.fault(format!(
            "{what}: create it, set `{setting}` under [template] of the settings to another \
             directory, or write `optional: true`"
        )))
    }
}

/// Returns whether a text is a valid name of an object or key, and of a file.
fn is_name(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !text.is_empty() && text != "." && !text.starts_with("..") && text.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::testing::merge_template;

    #[test]
    fn objects_are_directories_with_one_file_per_key() {
        let dir = tempfile::tempdir().unwrap();
        let settings = TemplateSettings {
            config_maps: dir.path().to_owned(),
            secrets: dir.path().join("none"),
            ..TemplateSettings::default()
        };
        fs::create_dir_all(dir.path().join("app/..data")).unwrap();
        fs::write(dir.path().join("app/color"), "red").unwrap();
        let place = merge_template(&serde_json::json!({})).1;
        let map = |name, optional| ObjectRef::config_map(&settings, name, optional);
        let secret = |optional| ObjectRef::secret(&settings, "app", optional).object(&place);
        let expected = ObjectData::from([("color".to_owned(), b"red".to_vec())]);
        assert_eq!(map("app", None).object(&place).unwrap(), Some(expected));
        assert_eq!(secret(Some(true)).unwrap(), None);
        let fault = secret(None).unwrap_err().to_string();
        assert!(fault.contains("none/app: create it, set `secrets` under"), "{fault}");
        for name in ["", ".", "..", "../x", "a/b"] {
            assert!(map(name, Some(true)).object(&place).is_err(), "{name}");
        }
        let app = map("app", None);
        assert_eq!(app.key("color", &place).unwrap().unwrap(), b"red");
        assert!(app.key("size", &place).is_err());
    }
}
