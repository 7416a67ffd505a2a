//! The `hooks_dir` setting of a TOML file, and the errors of reading a consumer's configuration.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathError, ReadError};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::json::TextLocation;

/// Errors of reading a consumer's configuration. The consumer does not start with such a
/// configuration either.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoriesError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    List(#[from] PathError),
    /// The file is not TOML, or `hooks_dir` is of the wrong type. Line and column count from one.
    #[error("{}:{line}:{column}: {message}", path.display())]
    Parse { path: PathBuf, line: usize, column: usize, message: String },
    /// A variable names a file that does not exist.
    #[error("{variable} names {}, which does not exist", path.display())]
    Missing { variable: &'static str, path: PathBuf },
    #[error("{} is nested more than {limit} directories deep", path.display())]
    TooDeep { path: PathBuf, limit: usize },
}

impl DirectoriesError {
    /// Returns the file or directory of the error.
    pub fn path(&self) -> Option<&Path> {
        Some(match self {
            DirectoriesError::Read(ReadError::Path(error)) | DirectoriesError::List(error) => {
                &error.path
            }
            DirectoriesError::Read(
                ReadError::TooLarge { path, .. } | ReadError::NotAFile { path, .. },
            )
            | DirectoriesError::Parse { path, .. }
            | DirectoriesError::Missing { path, .. }
            | DirectoriesError::TooDeep { path, .. } => path,
        })
    }

    /// Returns a hint for fixing the error.
    pub fn hint(&self) -> &'static str {
        let is_denied = |error: &PathError| error.source.kind() == io::ErrorKind::PermissionDenied;
        match self {
            DirectoriesError::Read(ReadError::Path(error)) | DirectoriesError::List(error)
                if is_denied(error) =>
            {
                "run as root"
            }
            DirectoriesError::Missing { .. } => "unset the variable, or name an existing file",
            DirectoriesError::Read(ReadError::TooLarge { .. })
            | DirectoriesError::TooDeep { .. } => {
                "only oci-hooks has this limit, not the consumer: make the configuration smaller"
            }
            _ => "fix the file: the consumer does not start with it",
        }
    }
}

/// `hooks_dir` of one file.
#[derive(Debug, PartialEq, Eq)]
pub struct DirsSetting {
    pub dirs: Vec<PathBuf>,
    /// Value of `{append = …}` in the list, which only containers.conf supports; `None` if it is
    /// missing.
    pub append: Option<bool>,
    /// The line of the key, from one.
    pub line: usize,
}

/// Support for `{append = …}` in a list, which containers.conf has since podman 4.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListAttributes {
    Allowed,
    Rejected,
}

/// Reads `hooks_dir` from nested tables, outermost first in `tables`; `None` if it is not set.
/// Other settings are not checked.
pub fn read(
    text: &[u8],
    path: &Path,
    tables: &[&str],
    attributes: ListAttributes,
) -> Result<Option<DirsSetting>, DirectoriesError> {
    let file = TomlFile { text, path };
    let text = str::from_utf8(text).map_err(|error| {
        file.fault(error.valid_up_to()..error.valid_up_to(), "the file is not UTF-8")
    })?;
    let document = DeTable::parse(text).map_err(|error| {
        file.fault(error.span().unwrap_or_default(), error.message().trim_end())
    })?;
    let mut table = document.get_ref();
    for name in tables {
        let Some((_, value)) = member(table, name) else { return Ok(None) };
        table = value.get_ref().as_table().ok_or_else(|| {
            file.fault(value.span(), &format!("expected the table [{}]", tables.join(".")))
        })?;
    }
    let Some((key, value)) = member(table, "hooks_dir") else { return Ok(None) };
    let items = value.get_ref().as_array().ok_or_else(|| {
        file.fault(value.span(), "expected a list of directories, such as hooks_dir = [\"/a\"]")
    })?;
    let line = TextLocation::of_span(file.text, key).line;
    let mut setting = DirsSetting { dirs: Vec::new(), append: None, line };
    for item in items.iter() {
        match (item.get_ref(), attributes) {
            (DeValue::String(dir), _) => setting.dirs.push(PathBuf::from(dir.as_ref())),
            (DeValue::Table(table), ListAttributes::Allowed) => {
                setting.append = append(&file, table)?.or(setting.append);
            }
            _ => return Err(file.fault(item.span(), "expected a directory in quotes")),
        }
    }
    Ok(Some(setting))
}

/// Finds a key as Go's TOML library does: by its exact name, else in another case.
fn member<'t, 'i>(
    table: &'t DeTable<'i>,
    name: &str,
) -> Option<(Range<usize>, &'t Spanned<DeValue<'i>>)> {
    let is_exact = |key: &str| key == name;
    let found = table.iter().find(|(key, _)| is_exact(key.get_ref()));
    let found =
        found.or_else(|| table.iter().find(|(key, _)| key.get_ref().eq_ignore_ascii_case(name)));
    found.map(|(key, value)| (key.span(), value))
}

/// Reads `append` from the attributes of a list.
fn append(file: &TomlFile<'_>, table: &DeTable<'_>) -> Result<Option<bool>, DirectoriesError> {
    let mut append = None;
    for (key, value) in table.iter() {
        append = match (key.get_ref().as_ref(), value.get_ref()) {
            ("append", DeValue::Boolean(append)) => Some(*append),
            ("append", _) => return Err(file.fault(value.span(), "expected true or false")),
            _ => return Err(file.fault(key.span(), "unknown attribute: expected append")),
        };
    }
    Ok(append)
}

/// Text and path of a TOML file, from which errors get their position.
struct TomlFile<'a> {
    text: &'a [u8],
    path: &'a Path,
}

impl TomlFile<'_> {
    fn fault(&self, span: Range<usize>, message: &str) -> DirectoriesError {
        let TextLocation { line, column, .. } = TextLocation::of_span(self.text, span);
        let message = message.replace('\n', " ");
        DirectoriesError::Parse { path: self.path.to_owned(), line, column, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine(text: &str) -> Result<Option<DirsSetting>, String> {
        let path = Path::new("/c.conf");
        read(text.as_bytes(), path, &["engine"], ListAttributes::Allowed).map_err(|e| e.to_string())
    }

    #[test]
    fn setting_key_is_case_insensitive_like_in_go() {
        for text in [
            "[engine]\nhooks_dir = [\"/a\"]",
            "\n[Engine]\nHooks_Dir = ['/a']",
            "x = 1\nengine.hooks_dir = [\"/a\"]",
            "\nengine = {hooks_dir = [\"/a\",]}",
        ] {
            let setting = engine(text).unwrap().unwrap();
            assert_eq!(setting.dirs, [Path::new("/a")], "{text}");
            assert_eq!((setting.line, setting.append), (text.lines().count(), None), "{text}");
        }
        for text in ["", "[engine]", "hooks_dir = [\"/a\"]", "[containers]\nhooks_dir = 1"] {
            assert_eq!(engine(text), Ok(None), "{text}");
        }
        let exact = "[engine]\nHOOKS_DIR = []\nhooks_dir = [\"/a\"]";
        assert_eq!(engine(exact).unwrap().unwrap().line, 3);
    }

    #[test]
    fn list_attributes_are_parsed() {
        let setting = engine("[engine]\nhooks_dir = [\"/a\", {append=true}]").unwrap().unwrap();
        assert_eq!((setting.dirs.len(), setting.append), (1, Some(true)));
        let text = "[crio.runtime]\nhooks_dir = [\"/a\", {append=true}]";
        let tables = ["crio", "runtime"];
        let error =
            read(text.as_bytes(), Path::new("/crio.conf"), &tables, ListAttributes::Rejected);
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "/crio.conf:2:20: expected a directory in quotes");
    }

    #[test]
    fn errors_have_a_position() {
        for (text, expected) in [
            ("[engine]\nhooks_dir = \"/a\"", "/c.conf:2:13: expected a list of directories"),
            ("[engine]\nhooks_dir = [1]", "/c.conf:2:14: expected a directory in quotes"),
            ("[engine]\nhooks_dir = [{append=1}]", "/c.conf:2:22: expected true or false"),
            ("[engine]\nhooks_dir = [{x=true}]", "/c.conf:2:15: unknown attribute"),
            ("engine = 1", "/c.conf:1:10: expected the table [engine]"),
            ("[engine\n", "/c.conf:1:8: "),
        ] {
            let error = engine(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let error =
            read(b"a = \"\xff\"", Path::new("/c"), &[], ListAttributes::Allowed).unwrap_err();
        assert_eq!(error.to_string(), "/c:1:6: the file is not UTF-8");
    }
}
