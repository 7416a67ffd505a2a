//! Configuration files of git. They are written, not made by `git config`: URLs with tokens would be
//! arguments.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use super::super::error::BuiltinError;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::removal::remove_tree;

/// The text of a file.
#[derive(Debug, Default)]
pub(super) struct GitConfig(String);

impl GitConfig {
    /// Adds a value. A section may be `name` or have a subsection.
    pub(super) fn add(
        &mut self,
        section: &str,
        subsection: Option<&str>,
        key: &str,
        value: &str,
    ) -> Result<(), BuiltinError> {
        let is_bad = |text: &str| text.contains(['\n', '\r', '\0']);
        if subsection.is_some_and(is_bad) {
            return Err(BuiltinError::GitConfig("a URL for git"));
        }
        if is_bad(value) {
            return Err(BuiltinError::GitConfig("a value for git"));
        }
        let quote = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
        match subsection {
            None => self.0.push_str(&format!("[{section}]\n")),
            Some(name) => self.0.push_str(&format!("[{section} \"{}\"]\n", quote(name))),
        }
        self.0.push_str(&format!("\t{key} = \"{}\"\n", quote(value)));
        Ok(())
    }

    /// Includes another file.
    pub(super) fn include(&mut self, path: &Path) -> Result<(), BuiltinError> {
        self.add("include", None, "path", &path.to_string_lossy())
    }

    /// Writes the file, which only its owner may read, in place of whatever is there.
    pub(super) fn write(&self, path: &Path) -> Result<(), PathError> {
        remove_tree(path)?;
        let mut options = OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(path).at("make", path)?;
        file.write_all(self.0.as_bytes()).at("write", path)
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn git_reads_what_was_added() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let base = "https://x:to\"k\\en;#@host/";
        let mut config = GitConfig::default();
        config.add("url", Some(base), "insteadOf", " https://host/#;\t\\\" ").unwrap();
        config.add("http", None, "extraHeader", "A: b").unwrap();
        config.write(&path).unwrap();
        let get = |key: &str| {
            let mut git = Command::new("git");
            let out =
                git.args(["config", "--null", "--file"]).arg(&path).arg(key).output().unwrap();
            String::from_utf8(out.stdout).unwrap()
        };
        assert_eq!(get(&format!("url.{base}.insteadOf")), " https://host/#;\t\\\" \0");
        assert_eq!(get("http.extraHeader"), "A: b\0");
    }

    #[test]
    fn a_text_does_not_become_another_section() {
        let mut config = GitConfig::default();
        assert!(config.add("url", Some("a\n[core]"), "insteadOf", "b").is_err());
        assert!(config.add("http", None, "extraHeader", "a\n[core]").is_err());
        assert_eq!(config.0, "");
    }
}
