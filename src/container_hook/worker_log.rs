//! The names of the services, from the log of the runner's worker.
//!
//! A last resort that the admin has to ask for: the log is nobody's interface. The worker writes the
//! job's message to it, secrets masked, and there the services have their names.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::Dir;
use serde::Deserialize;
use serde_json::Value;

use super::runner_files::{RunnerFiles, RunnerFilesError};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::host_file::HostRoot;

/// The message is at the beginning of the log; what comes later can be long.
const MAX_BYTES: u64 = 16 << 20;

/// The name of the directory of a runner's logs.
const DIAG: &str = "_diag";

/// Returns where a runner with this work directory has its logs: beside it or, if the runner called by
/// sudo, in the nearest directory above that is recorded for it.
///
/// No process is asked: anybody can give one the name of a worker.
pub fn diag(files: &RunnerFiles, work: &Path) -> PathBuf {
    let beside = work.parent().unwrap_or(Path::new("/")).join(DIAG);
    let is_there = |diag: &PathBuf| files.open(diag).is_ok_and(|found| found.is_dir());
    if files.caller().is_none() || is_there(&beside) {
        return beside;
    }
    // Those that are not recorded cannot be opened.
    let above = work.ancestors().skip(2).map(|dir| dir.join(DIAG));
    above.into_iter().find(is_there).unwrap_or(beside)
}

/// Reads the names of the services of the job that the newest log in `_diag` is about.
///
/// None if there is no such log, if it cannot be understood, or if the job in it has not as many
/// services: then it is about another job.
///
/// # Errors
///
/// Fails if the directory or the log cannot be read.
pub fn service_names(
    files: &RunnerFiles,
    diag: &Path,
    services: usize,
) -> Result<Option<Vec<String>>, RunnerFilesError> {
    let dir = files.directory(diag)?;
    let Some(name) = newest(&dir, diag)? else { return Ok(None) };
    let path = diag.join(&name);
    let file = dir.read(Path::new(&name))?;
    if !file.metadata().at("look at", &path)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).at("read", &path)?;
    let names = names(&String::from_utf8_lossy(&bytes));
    Ok(names.filter(|names| names.len() == services))
}

/// Returns the name of the newest log of a worker, which has the time.
fn newest(dir: &HostRoot, path: &Path) -> Result<Option<String>, PathError> {
    let mut newest: Option<String> = None;
    for entry in Dir::new(dir.read(Path::new("."))?).at("list", path)? {
        let entry = entry.at("list", path)?;
        if let Ok(name) = entry.file_name().to_str()
            && name.starts_with("Worker_")
            && name.ends_with(".log")
            && newest.as_deref().is_none_or(|newest| newest < name)
        {
            newest = Some(name.to_owned());
        }
    }
    Ok(newest)
}

/// The part of a job's message that matters here.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobMessage {
    job_service_containers: Option<Mapping>,
}

/// A mapping in the runner's notation, which keeps the order.
#[derive(Deserialize)]
struct Mapping {
    #[serde(default)]
    map: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    #[serde(alias = "Key")]
    key: Value,
}

fn names(log: &str) -> Option<Vec<String>> {
    let (_, message) = log.split_once("Job message:")?;
    let json = &message[message.find('{')?..];
    let mut documents = serde_json::Deserializer::from_str(json).into_iter::<JobMessage>();
    let pairs = documents.next()?.ok()?.job_service_containers?.map;
    // Where the runner knows the line, it wraps the text up.
    let text = |key: &Value| key.get("lit").unwrap_or(key).as_str().map(str::to_owned);
    pairs.iter().map(|pair| text(&pair.key)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;
    use crate::sys::caller::{Caller, is_root, own_ids};

    const LOG: &str = r#"[2026-01-02 03:04:05Z INFO Worker] Version: 2.336.0
[2026-01-02 03:04:05Z INFO Worker] Job message:
 {
  "mask": [{"type": "regex", "value": "***"}],
  "jobDisplayName": "build {",
  "jobServiceContainers": {
    "type": 2, "file": 1, "line": 9, "col": 7,
    "map": [
      {"Key": {"type": 0, "file": 1, "line": 9, "col": 7, "lit": "cache"}, "Value": {"type": 2}},
      {"key": "db", "value": "postgres"}
    ]
  }
}
[2026-01-02 03:04:06Z INFO JobRunner] more {
"#;

    #[test]
    fn names_stand_in_the_order_of_the_workflow() {
        assert_eq!(names(LOG).unwrap(), ["cache", "db"]);
    }

    #[test]
    fn what_cannot_be_understood_names_nothing() {
        for log in ["", "Job message:", "Job message: {", "Job message: {}"] {
            assert_eq!(names(log), None, "{log}");
        }
        assert_eq!(names(r#"Job message: {"jobServiceContainers": null}"#), None);
        assert_eq!(names(r#"Job message: {"jobServiceContainers": {"map": [{"key": 1}]}}"#), None);
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir_all(path.join("runner/_work")).unwrap();
        fs::create_dir(path.join("runner/_diag")).unwrap();
        (dir, path)
    }

    #[test]
    fn the_newest_log_counts_if_it_has_as_many_services() {
        let (_dir, dir) = directory();
        let diag = dir.join("runner/_diag");
        let files = RunnerFiles::of_root(&dir.join("runner/_work")).unwrap();
        assert_eq!(service_names(&files, &diag, 2).unwrap(), None);
        for (name, text) in [
            ("Worker_20260101-000000-utc.log", ""),
            ("Worker_20260102-030405-utc.log", LOG),
            ("Runner_20260103-000000-utc.log", ""),
        ] {
            fs::write(diag.join(name), text).unwrap();
        }
        let names = service_names(&files, &diag, 2).unwrap().unwrap();
        assert_eq!(names, ["cache", "db"]);
        assert_eq!(service_names(&files, &diag, 1).unwrap(), None);
        assert!(service_names(&files, &diag.join("none"), 1).is_err());
    }

    #[test]
    fn a_log_is_a_file_and_nothing_behind_a_link() {
        let (_dir, dir) = directory();
        let diag = dir.join("runner/_diag");
        let files = RunnerFiles::of_root(&dir.join("runner/_work")).unwrap();
        fs::write(dir.join("log"), LOG).unwrap();
        fs::create_dir(diag.join("Worker_1.log")).unwrap();
        assert_eq!(service_names(&files, &diag, 2).unwrap(), None);
        symlink(dir.join("log"), diag.join("Worker_2.log")).unwrap();
        service_names(&files, &diag, 2).unwrap_err();
        let fifo = diag.join("Worker_3.log");
        mkfifoat(CWD, fifo, Mode::RWXU).unwrap();
        assert_eq!(service_names(&files, &diag, 2).unwrap(), None);
    }

    #[test]
    fn logs_are_beside_the_work_directory_or_in_what_is_recorded() {
        let (_dir, dir) = directory();
        let work = dir.join("runner/_work");
        let files = RunnerFiles::of_root(&work).unwrap();
        assert_eq!(diag(&files, &work), dir.join("runner/_diag"));
        let (uid, gid) = own_ids();
        if !is_root(uid) {
            // Only root may act as somebody.
            return;
        }
        let caller = Caller { uid, gid, groups: vec![gid] };
        let files = RunnerFiles::of_caller([dir.join("runner").as_path()], caller);
        let below = dir.join("runner/data/_work");
        fs::create_dir_all(&below).unwrap();
        assert_eq!(diag(&files, &below), dir.join("runner/_diag"));
        fs::create_dir(dir.join("_diag")).unwrap();
        fs::remove_dir(dir.join("runner/_diag")).unwrap();
        let beside = diag(&files, &work);
        assert_eq!(beside, dir.join("runner/_diag"));
        service_names(&files, &beside, 2).unwrap_err();
        service_names(&files, &dir.join("_diag"), 2).unwrap_err();
    }
}
