//! The answer to the runner.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use super::runner_files::RunnerFiles;
use crate::sys::fs::{PathContext as _, PathError};

/// The answer to `prepare_job`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct PrepareJobResponse {
    /// An object that the runner sends with each later request of the job.
    pub state: Value,
    /// Whether the job container needs the programs built for Alpine. Never left out: the runner
    /// would fail the job.
    pub is_alpine: bool,
    /// What the workflow sees as `job.container` and `job.services`.
    pub context: JobContext,
}

/// What the workflow sees of the job's containers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JobContext {
    /// The job container. Left out if there is none: the runner would fail the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerContext>,
    /// The services, in the order of the request, and no more than there.
    pub services: Vec<ServiceContext>,
}

/// What the workflow sees of the job container.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ContainerContext {
    pub id: String,
    /// As the workflow has it.
    pub image: String,
    pub network: String,
    /// The port of the host for each published port of the container.
    pub ports: BTreeMap<String, String>,
}

/// What the workflow sees of a service.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ServiceContext {
    pub id: String,
    /// As the workflow has it.
    pub image: String,
    pub network: String,
    /// The name of the request, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_name: Option<String>,
    /// The port of the host for each published port of the container.
    pub ports: BTreeMap<String, String>,
}

/// The file that the runner reads the answer from.
#[derive(Debug)]
pub struct ResponseFile {
    path: PathBuf,
    file: File,
}

/// Why the answer has no place. Whatever is there, nothing of it was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResponseError {
    /// The file cannot be opened.
    #[error("cannot open the response file")]
    Open(#[source] PathError),
    /// The file cannot be looked at.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The file is another one too.
    #[error(
        "the response file {} is a hard link: remove it, the runner makes a file of its own",
        path.display()
    )]
    Linked { path: PathBuf },
}

impl ResponseFile {
    /// Opens the file, which the runner has made; to be done before anything is started.
    ///
    /// # Errors
    ///
    /// Fails if it could not be written to later, because its directory is missing for example, or if
    /// it may be something else than a file for the answer: jobs can put links in its place.
    pub fn open(files: &RunnerFiles, path: &Path) -> Result<Self, ResponseError> {
        let file = files.write(path).map_err(ResponseError::Open)?;
        let metadata = file.metadata().at("look at", path)?;
        if metadata.nlink() != 1 {
            return Err(ResponseError::Linked { path: path.to_owned() });
        }
        Ok(ResponseFile { path: path.to_owned(), file })
    }

    /// Writes the answer, in place of anything that is there.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written to.
    pub fn write(mut self, answer: &impl Serialize) -> Result<(), PathError> {
        let written = serde_json::to_vec(answer).map_err(io::Error::other).and_then(|json| {
            self.file.set_len(0)?;
            self.file.write_all(&json)
        });
        written.at("write the response file", &self.path)
    }
}

/// More than any of these files has.
pub(super) const MAX_RELEASE_BYTES: u64 = 64 << 10;

/// Where distributions say which they are, from the root on.
pub(super) const RELEASE_FILES: [&str; 3] =
    ["etc/os-release", "usr/lib/os-release", "etc/alpine-release"];

/// Returns whether the text of such a file says so.
pub(super) fn says_alpine(text: &str) -> bool {
    text.lines().any(|line| {
        let id = line.trim().to_ascii_lowercase();
        id.strip_prefix("id=").is_some_and(|id| id.trim_matches(['"', '\'']).starts_with("alpine"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_leaves_out_what_the_runner_cannot_read() {
        let service = ServiceContext {
            id: "s".to_owned(),
            image: "i".to_owned(),
            network: "n".to_owned(),
            context_name: None,
            ports: BTreeMap::new(),
        };
        let answer = PrepareJobResponse {
            state: json!({}),
            is_alpine: false,
            context: JobContext { container: None, services: vec![service] },
        };
        let service = json!({"id": "s", "image": "i", "network": "n", "ports": {}});
        let expected = json!({"state": {}, "isAlpine": false, "context": {"services": [service]}});
        assert_eq!(serde_json::to_value(answer).unwrap(), expected);
    }

    fn directory() -> (tempfile::TempDir, PathBuf, RunnerFiles) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        let files = RunnerFiles::new(&path).unwrap();
        (dir, path, files)
    }

    #[test]
    fn an_answer_replaces_what_is_in_the_file() {
        let (_dir, dir, files) = directory();
        let path = dir.join("response.json");
        fs::write(&path, "something longer than the answer").unwrap();
        ResponseFile::open(&files, &path).unwrap().write(&json!({"state": 1})).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"state":1}"#);
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_found_at_once() {
        let (_dir, dir, files) = directory();
        fs::write(dir.join("other"), "").unwrap();
        symlink(dir.join("other"), dir.join("link")).unwrap();
        for name in ["none/response.json", "link", "."] {
            let error = ResponseFile::open(&files, &dir.join(name)).unwrap_err();
            assert!(error.to_string().contains("response file"), "{error}");
        }
    }

    #[test]
    fn a_directory_that_became_a_link_leads_nowhere() {
        let (_dir, dir, files) = directory();
        fs::create_dir(dir.join("_temp")).unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("nologin"), "untouched").unwrap();
        let responses = dir.join("_temp/_runner_hook_responses");
        symlink(outside.path(), &responses).unwrap();
        for name in ["nologin", "new"] {
            ResponseFile::open(&files, &responses.join(name)).unwrap_err();
        }
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_hard_link_to_something_else_is_refused() {
        let (_dir, dir, files) = directory();
        fs::write(dir.join("other"), "untouched").unwrap();
        fs::hard_link(dir.join("other"), dir.join("response.json")).unwrap();
        let error = ResponseFile::open(&files, &dir.join("response.json")).unwrap_err();
        assert!(matches!(error, ResponseError::Linked { .. }), "{error}");
        assert_eq!(fs::read_to_string(dir.join("other")).unwrap(), "untouched");
    }

    #[test]
    fn the_id_counts_and_no_other_line() {
        assert!(says_alpine("NAME=\"Alpine Linux\"\nID=alpine\n"));
        assert!(says_alpine("ID=\"alpine\"\n"));
        assert!(!says_alpine("ID=debian\nID_LIKE=alpine\nNAME=alpine\n"));
    }
}
