//! The response to the runner.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::{PathContext as _, PathError};
use serde::Serialize;
use serde_json::Value;

use super::runner_files::RunnerFiles;

/// The response to `prepare_job`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PrepareJobResponse {
    /// Object that the runner sends with each later request of the job.
    pub state: Value,
    /// Set if the job container needs the programs built for Alpine. Never omitted: the runner would fail the
    /// job.
    pub is_alpine: bool,
    /// `job.container` and `job.services` of the workflow.
    pub context: JobContext,
}

/// The job's containers in the `job` context of the workflow.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct JobContext {
    /// Job container. Omitted if none: the runner would fail the job on null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerContext>,
    /// Services, in the order and number of the request.
    pub services: Vec<ContainerContext>,
}

/// A container in the `job` context of the workflow.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerContext {
    pub id: String,
    /// Image name as written in the workflow.
    pub image: String,
    pub network: String,
    /// `contextName` of a service in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_name: Option<String>,
    /// Host port of each published container port.
    pub ports: BTreeMap<String, String>,
}

/// The file from which the runner reads the response.
#[derive(Debug)]
pub struct ResponseFile {
    path: PathBuf,
    file: File,
}

/// Errors of opening the response file. The file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ResponseError {
    #[error("cannot open the response file")]
    Open(#[source] PathError),
    /// The file's metadata cannot be read.
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "the response file {} has other hard links: remove the file, and the runner creates a new one",
        path.display()
    )]
    Linked { path: PathBuf },
}

impl ResponseFile {
    /// Opens the response file, which the runner has created. Call it before a container is started.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written, for example because its directory is missing, or if it is a link,
    /// which jobs can put in its place.
    pub fn open(files: &RunnerFiles, path: &Path) -> Result<Self, ResponseError> {
        let file = files.write(path).map_err(ResponseError::Open)?;
        let metadata = file.metadata().with_path("inspect", path)?;
        if metadata.nlink() != 1 {
            return Err(ResponseError::Linked { path: path.to_owned() });
        }
        Ok(ResponseFile { path: path.to_owned(), file })
    }

    /// Replaces the content of the file with the response.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written.
    pub fn write(mut self, answer: &impl Serialize) -> Result<(), PathError> {
        let written = serde_json::to_vec(answer).map_err(io::Error::other).and_then(|json| {
            self.file.set_len(0)?;
            self.file.write_all(&json)
        });
        written.with_path("write the response file", &self.path)
    }
}

/// Maximum size that is read of a [release file](RELEASE_FILES); real files are smaller.
pub const MAX_RELEASE_BYTES: u64 = 64 << 10;

/// Files that identify the distribution, relative to the root directory.
pub const RELEASE_FILES: [&str; 3] = ["etc/os-release", "usr/lib/os-release", "etc/alpine-release"];

/// Returns whether the text of a release file has the id of Alpine.
pub fn is_alpine_release(text: &str) -> bool {
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
    fn response_omits_fields_unknown_to_the_runner() {
        let service = ContainerContext {
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
    fn response_replaces_the_content_of_the_file() {
        let (_dir, dir, files) = directory();
        let path = dir.join("response.json");
        fs::write(&path, "something longer than the answer").unwrap();
        ResponseFile::open(&files, &path).unwrap().write(&json!({"state": 1})).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"state":1}"#);
    }

    #[test]
    fn unwritable_response_path_is_detected_at_once() {
        let (_dir, dir, files) = directory();
        fs::write(dir.join("other"), "").unwrap();
        symlink(dir.join("other"), dir.join("link")).unwrap();
        for name in ["none/response.json", "link", "."] {
            let error = ResponseFile::open(&files, &dir.join(name)).unwrap_err();
            assert!(error.to_string().contains("response file"), "{error}");
        }
    }

    #[test]
    fn directory_replaced_by_a_link_is_not_followed() {
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
    fn hard_link_to_another_file_is_rejected() {
        let (_dir, dir, files) = directory();
        fs::write(dir.join("other"), "untouched").unwrap();
        fs::hard_link(dir.join("other"), dir.join("response.json")).unwrap();
        let error = ResponseFile::open(&files, &dir.join("response.json")).unwrap_err();
        assert!(matches!(error, ResponseError::Linked { .. }), "{error}");
        assert_eq!(fs::read_to_string(dir.join("other")).unwrap(), "untouched");
    }

    #[test]
    fn only_the_id_line_identifies_alpine() {
        assert!(is_alpine_release("NAME=\"Alpine Linux\"\nID=alpine\n"));
        assert!(is_alpine_release("ID=\"alpine\"\n"));
        assert!(!is_alpine_release("ID=debian\nID_LIKE=alpine\nNAME=alpine\n"));
    }
}
