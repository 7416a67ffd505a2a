//! Configuration files in TOML, with the line of each setting.

use std::path::{Path, PathBuf};

use oci_hooks::hooks::directories::ConfigLine;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::host::DoctorHost;

/// A configuration file.
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

/// A setting and its position.
#[derive(Clone, Debug)]
pub struct FileSetting<T> {
    pub value: T,
    pub at: ConfigLine,
}

impl ConfigFile {
    /// Reads a file, if it exists. Errors name the file and line.
    pub fn read(path: &Path, host: &DoctorHost) -> Result<Option<Self>, String> {
        let Some(text) = host.read(path)? else { return Ok(None) };
        Self::parse(host.root.join(path), text).map(Some)
    }

    /// Checks that a text is valid TOML. Errors name the path and line.
    pub fn parse(path: PathBuf, text: String) -> Result<Self, String> {
        let file = ConfigFile { path, text };
        match DeTable::parse(&file.text) {
            Ok(_) => Ok(file),
            Err(error) => {
                let at = error.span().unwrap_or_default().start;
                let place = ConfigLine::of(&file.path, &file.text, at);
                Err(format!("{place}: {}", error.message().trim_end().replace('\n', " ")))
            }
        }
    }

    pub fn string(&self, keys: &[&str]) -> Option<FileSetting<String>> {
        self.get(keys, |value| Some(value.as_str()?.to_owned()))
    }

    pub fn boolean(&self, keys: &[&str]) -> Option<FileSetting<bool>> {
        self.get(keys, |value| value.as_bool())
    }

    /// Returns a number, such as the version of the file.
    pub fn number(&self, keys: &[&str]) -> Option<u64> {
        let number = |value: &DeValue<'_>| value.as_integer()?.as_str().parse().ok();
        self.get(keys, number).map(|setting| setting.value)
    }

    /// Returns a list of strings; other items are skipped.
    pub fn strings(&self, keys: &[&str]) -> Option<FileSetting<Vec<String>>> {
        self.get(keys, |value| {
            let items = value.as_array()?.iter();
            Some(items.filter_map(|item| Some(item.get_ref().as_str()?.to_owned())).collect())
        })
    }

    fn get<T>(
        &self,
        keys: &[&str],
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Option<FileSetting<T>> {
        let document = DeTable::parse(&self.text).ok()?;
        let (last, tables) = keys.split_last()?;
        let mut table = document.get_ref();
        for name in tables {
            table = member(table, name)?.get_ref().as_table()?;
        }
        let value = member(table, last)?;
        let at = ConfigLine::of(&self.path, &self.text, value.span().start);
        Some(FileSetting { value: read(value.get_ref())?, at })
    }
}

fn member<'t, 'i>(table: &'t DeTable<'i>, name: &str) -> Option<&'t Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
}
