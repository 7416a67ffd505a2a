//! The file named by `GITLAB_ENV`: lines `NAME=VALUE` that scripts write for later stages.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathError, ReadError, create_private, read_bounded};
use oci_hooks_host::removal::remove_tree;

/// Name of the file in the project's directory for temporary files.
const FILE: &str = "gitlab_runner_env";

/// The environment variable with the path of the file.
const VARIABLE: &str = "GITLAB_ENV";

/// Size limit of the file in bytes. Commands get its whole content as environment variables, for
/// which the kernel has a limit too.
const MAX_BYTES: u64 = 8 << 20;

/// The `GITLAB_ENV` file of a job.
#[derive(Debug)]
pub struct GitlabEnv {
    path: PathBuf,
}

impl GitlabEnv {
    /// Returns a handle to the file in a directory.
    pub fn of(directory: &Path) -> Self {
        GitlabEnv { path: directory.join(FILE) }
    }

    /// Creates an empty file, and removes any file or directory of an earlier job at its path.
    pub fn create(&self) -> Result<(), PathError> {
        self.remove()?;
        create_private(&self.path).map(drop)
    }

    /// Removes the file.
    pub fn remove(&self) -> Result<(), PathError> {
        remove_tree(&self.path)
    }

    /// Returns the variables in the file, and `GITLAB_ENV` itself.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be read, is not a regular file, or is larger than 8 MiB.
    pub fn variables(&self) -> Result<BTreeMap<String, String>, ReadError> {
        let content = read_bounded(&self.path, MAX_BYTES)?;
        let mut variables = parse(&String::from_utf8_lossy(&content));
        variables.insert(VARIABLE.to_owned(), self.path.to_string_lossy().into_owned());
        Ok(variables)
    }

    /// Returns the variable `GITLAB_ENV` with the path of the file.
    pub fn file_variable(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(VARIABLE.to_owned(), self.path.to_string_lossy().into_owned())])
    }
}

/// Parses `NAME=VALUE` lines; other lines are ignored, as by GitLab's runner.
fn parse(text: &str) -> BTreeMap<String, String> {
    let pair = |line: &str| {
        let (name, value) = line.trim().split_once('=')?;
        let is_usable = !name.is_empty() && !name.contains('\0') && !value.contains('\0');
        is_usable.then(|| (name.to_owned(), value.to_owned()))
    };
    text.split('\n').filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_without_a_variable_are_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let file = GitlabEnv::of(directory.path());
        assert!(file.variables().is_err());
        file.create().unwrap();
        let path = directory.path().join(FILE);
        fs::write(&path, " A=1 \nB=a=b\nnothing\n=x\n\nC=x\0y\nA=2\nD=").unwrap();
        let own = (VARIABLE.to_owned(), path.to_string_lossy().into_owned());
        let pairs = [("A", "2"), ("B", "a=b"), ("D", "")];
        let mut expected: BTreeMap<_, _> =
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        expected.insert(own.0, own.1);
        assert_eq!(file.variables().unwrap(), expected);
    }

    #[test]
    fn leftovers_of_an_earlier_job_are_replaced_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        fs::create_dir_all(path.join("a/b")).unwrap();
        let file = GitlabEnv::of(directory.path());
        file.create().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"");
        file.remove().unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(matches!(file.variables(), Err(ReadError::NotAFile { .. })));
        fs::remove_file(&path).unwrap();
        fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        assert!(matches!(file.variables(), Err(ReadError::TooLarge { .. })));
    }
}
