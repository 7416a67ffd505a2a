//! Configuration files in TOML, with the line of each setting.

use std::fmt;
use std::path::{Path, PathBuf};

use oci_hooks::json::Location;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::host::Host;

/// A file that was read.
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

/// A setting, and where it is.
#[derive(Clone, Debug)]
pub struct Setting<T> {
    pub value: T,
    pub at: Place,
}

/// A line of a file, from one.
#[derive(Clone, Debug)]
pub struct Place {
    path: PathBuf,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

impl Place {
    /// Returns the line of an offset in a text.
    pub fn of(path: &Path, text: &str, at: usize) -> Self {
        let line = Location::of_span(text.as_bytes(), at..at).line;
        Place { path: path.to_owned(), line }
    }
}

impl ConfigFile {
    /// Reads a file, if there is one. An error says which file and line.
    pub fn read(path: &Path, host: &Host) -> Result<Option<Self>, String> {
        let Some(text) = host.read(path)? else { return Ok(None) };
        let file = ConfigFile { path: host.root.join(path), text };
        match DeTable::parse(&file.text) {
            Ok(_) => Ok(Some(file)),
            Err(error) => {
                let at = error.span().unwrap_or_default().start;
                let place = Place::of(&file.path, &file.text, at);
                Err(format!("{place}: {}", error.message().trim_end().replace('\n', " ")))
            }
        }
    }

    pub fn string(&self, keys: &[&str]) -> Option<Setting<String>> {
        self.get(keys, |value| Some(value.as_str()?.to_owned()))
    }

    pub fn boolean(&self, keys: &[&str]) -> Option<Setting<bool>> {
        self.get(keys, |value| value.as_bool())
    }

    /// Returns the version of a file, which is a number.
    pub fn number(&self, keys: &[&str]) -> Option<u64> {
        let number = |value: &DeValue<'_>| value.as_integer()?.as_str().parse().ok();
        self.get(keys, number).map(|setting| setting.value)
    }

    /// Returns a list; what is no string in it is left out.
    pub fn strings(&self, keys: &[&str]) -> Option<Setting<Vec<String>>> {
        self.get(keys, |value| {
            let items = value.as_array()?.iter();
            Some(items.filter_map(|item| Some(item.get_ref().as_str()?.to_owned())).collect())
        })
    }

    fn get<T>(
        &self,
        keys: &[&str],
        read: impl Fn(&DeValue<'_>) -> Option<T>,
    ) -> Option<Setting<T>> {
        let document = DeTable::parse(&self.text).ok()?;
        let (last, tables) = keys.split_last()?;
        let mut table = document.get_ref();
        for name in tables {
            table = member(table, name)?.get_ref().as_table()?;
        }
        let value = member(table, last)?;
        let at = Place::of(&self.path, &self.text, value.span().start);
        Some(Setting { value: read(value.get_ref())?, at })
    }
}

fn member<'t, 'i>(table: &'t DeTable<'i>, name: &str) -> Option<&'t Spanned<DeValue<'i>>> {
    table.iter().find(|(key, _)| key.get_ref() == name).map(|(_, value)| value)
}
