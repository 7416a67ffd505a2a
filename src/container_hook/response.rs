//! The answer to the runner.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::sys::fs::{PathContext as _, PathError};

/// The answer to `prepare_job`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
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
pub struct JobContext {
    /// The job container. Left out if there is none: the runner would fail the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerContext>,
    /// The services, in the order of the request, and no more than there.
    pub services: Vec<ServiceContext>,
}

/// What the workflow sees of the job container.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ContainerContext {
    /// The container.
    pub id: String,
    /// Its network.
    pub network: String,
}

/// What the workflow sees of a service.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServiceContext {
    /// The container.
    pub id: String,
    /// Its network.
    pub network: String,
    /// The port of the host for each published port of the container.
    pub ports: BTreeMap<String, String>,
}

/// The file that the runner reads the answer from.
#[derive(Debug)]
pub struct ResponseFile {
    path: PathBuf,
    file: File,
}

impl ResponseFile {
    /// Opens the file, which the runner has made; to be done before anything is started.
    ///
    /// # Errors
    ///
    /// Fails if it could not be written to later, because its directory is missing for example.
    pub fn open(path: &Path) -> Result<Self, PathError> {
        let no_follow = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        // The program may have more rights than the runner: another file behind a link is not its
        // answer's place.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(no_follow.bits().cast_signed())
            .open(path)
            .at("write the response file", path)?;
        if !file.metadata().at("read", path)?.is_file() {
            let error = io::Error::other("it is not a file");
            return Err(PathError::new("write the response file", path, error));
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_leaves_out_what_the_runner_cannot_read() {
        let service =
            ServiceContext { id: "s".to_owned(), network: "n".to_owned(), ports: BTreeMap::new() };
        let answer = PrepareJobResponse {
            state: json!({}),
            is_alpine: false,
            context: JobContext { container: None, services: vec![service] },
        };
        let service = json!({"id": "s", "network": "n", "ports": {}});
        let expected = json!({"state": {}, "isAlpine": false, "context": {"services": [service]}});
        assert_eq!(serde_json::to_value(answer).unwrap(), expected);
    }

    #[test]
    fn an_answer_replaces_what_is_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("response.json");
        fs::write(&path, "something longer than the answer").unwrap();
        ResponseFile::open(&path).unwrap().write(&json!({"state": 1})).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), r#"{"state":1}"#);
    }

    #[test]
    fn a_place_that_cannot_be_written_to_is_found_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        fs::write(&other, "").unwrap();
        symlink(&other, dir.path().join("link")).unwrap();
        for name in ["none/response.json", "link", "."] {
            let path = dir.path().join(name);
            let error = ResponseFile::open(&path).unwrap_err();
            assert!(error.to_string().contains("response file"), "{error}");
        }
    }
}
