//! The names of the services, from the log of the runner's worker.
//!
//! The worker writes the job's message to it, secrets masked, and there the services have their names. The
//! log is nobody's interface, so what is not found or understood is no error of the job: services have
//! other names then.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use rustix::fs::Dir;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::named_services::NamedService;
use super::runner_files::RunnerFiles;
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::host_file::HostRoot;
use crate::sys::identity::Identity;

/// The message is at the beginning of the log; what comes later can be long.
const MAX_BYTES: u64 = 16 << 20;

/// The name of the directory of a runner's logs.
pub const DIAG: &str = "_diag";

/// Returns where a runner with this work directory has its logs: beside it, or in [the directory](directory_of)
/// that its worker's program is of.
pub fn diag(files: &RunnerFiles, work: &Path, of_worker: Option<&Path>) -> PathBuf {
    let beside = work.parent().unwrap_or(Path::new("/")).join(DIAG);
    let of_worker = of_worker.map(|dir| dir.join(DIAG));
    let is_there = |diag: &PathBuf| files.open(diag).is_ok_and(|found| found.is_dir());
    [beside.clone()].into_iter().chain(of_worker).find(is_there).unwrap_or(beside)
}

/// Returns the directory of a runner of which a process is: its programs are in `bin` there.
pub fn directory_of(pid: u32) -> Option<PathBuf> {
    Some(Identity::of(pid)?.program()?.parent()?.parent()?.to_owned())
}

/// Reads the services of the job that the newest log in `_diag` is about, which has this id in the
/// workflow and is of this run.
///
/// None if there is no such log, if it cannot be understood, or if it is about another job.
///
/// # Errors
///
/// Fails if the directory or the log cannot be read.
pub fn services(
    files: &RunnerFiles,
    diag: &Path,
    job: [Option<&str>; 2],
) -> Result<Option<Vec<NamedService>>, PathError> {
    let dir = files.directory(diag)?;
    let Some(name) = newest(&dir, diag)? else { return Ok(None) };
    let path = diag.join(&name);
    let file = dir.read(Path::new(&name))?;
    if !file.metadata().at("look at", &path)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).at("read", &path)?;
    Ok(of_log(&String::from_utf8_lossy(&bytes), job))
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
    #[serde(default)]
    variables: Map<String, Value>,
    #[serde(default)]
    context_data: Value,
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
    #[serde(default, alias = "Value")]
    value: Value,
}

impl JobMessage {
    /// Returns whether what it says of the job, if it does, is this.
    fn is_about(&self, [job, run]: [Option<&str>; 2]) -> bool {
        let own_job = self.variables.get("system.github.job").and_then(|v| v["value"].as_str());
        let github = self.context_data["github"]["d"].as_array();
        let own_run = github.and_then(|all| all.iter().find(|pair| pair["k"] == "run_id"));
        let own_run = own_run.and_then(|pair| pair["v"].as_str());
        let differ = |own: Option<&str>, other| own.zip(other).is_some_and(|(own, o)| own != o);
        !differ(own_job, job) && !differ(own_run, run)
    }
}

fn of_log(log: &str, job: [Option<&str>; 2]) -> Option<Vec<NamedService>> {
    let (_, message) = log.split_once("Job message:")?;
    let json = &message[message.find('{')?..];
    let mut documents = serde_json::Deserializer::from_str(json).into_iter::<JobMessage>();
    let message = documents.next()?.ok().filter(|message| message.is_about(job))?;
    let pairs = message.job_service_containers?.map;
    let named =
        |pair: &Pair| Some(NamedService::new(text(&pair.key)?, image(&pair.value).as_deref()));
    pairs.iter().map(named).collect()
}

/// Returns a text, which the runner wraps up where it knows the line; none for an expression.
fn text(token: &Value) -> Option<&str> {
    token.get("lit").unwrap_or(token).as_str()
}

/// Returns the image of a service, which may be all that the workflow says of it.
fn image(service: &Value) -> Option<String> {
    let of_field = || {
        let fields = Mapping::deserialize(service).ok()?.map;
        let image = fields.iter().find(|field| text(&field.key) == Some("image"))?;
        text(&image.value).map(str::to_owned)
    };
    text(service).map(str::to_owned).or_else(of_field)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    const NO_JOB: [Option<&str>; 2] = [None; 2];

    const LOG: &str = r#"[2026-01-02 03:04:05Z INFO Worker] Version: 2.336.0
[2026-01-02 03:04:05Z INFO Worker] Job message:
 {
  "mask": [{"type": "regex", "value": "***"}],
  "jobDisplayName": "build {",
  "jobServiceContainers": {
    "type": 2, "file": 1, "line": 9, "col": 7,
    "map": [
      {"Key": {"type": 0, "file": 1, "line": 9, "col": 7, "lit": "cache"}, "Value": {"type": 2, "map": [
        {"Key": "ports", "Value": {"type": 1, "seq": ["6379"]}},
        {"Key": {"type": 0, "file": 1, "line": 10, "col": 9, "lit": "image"}, "Value": {"type": 0, "lit": "redis:7"}}
      ]}},
      {"key": "db", "value": "postgres"},
      {"key": "any", "value": {"map": [{"key": "image", "value": {"type": 3, "expr": "matrix.image"}}]}}
    ]
  },
  "variables": {"system.github.job": {"value": "build"}},
  "contextData": {"github": {"t": 2, "d": [{"k": "ref", "v": "x"}, {"k": "run_id", "v": "42"}]}}
}
[2026-01-02 03:04:06Z INFO JobRunner] more {
"#;

    #[test]
    fn names_and_images_stand_in_the_order_of_the_workflow() {
        let named = of_log(LOG, NO_JOB).unwrap();
        let all: Vec<_> = named.iter().map(|s| (s.name.as_str(), s.image.as_deref())).collect();
        assert_eq!(all, [("cache", Some("redis:7")), ("db", Some("postgres")), ("any", None)]);
    }

    #[test]
    fn what_is_about_another_job_names_nothing() {
        for (job, run, is_it) in
            [("build", "42", true), ("test", "42", false), ("build", "43", false)]
        {
            assert_eq!(of_log(LOG, [Some(job), Some(run)]).is_some(), is_it, "{job} {run}");
        }
    }

    #[test]
    fn what_cannot_be_understood_names_nothing() {
        for log in ["", "Job message:", "Job message: {", "Job message: {}"] {
            assert_eq!(of_log(log, NO_JOB), None, "{log}");
        }
        assert_eq!(of_log(r#"Job message: {"jobServiceContainers": null}"#, NO_JOB), None);
        assert_eq!(
            of_log(r#"Job message: {"jobServiceContainers": {"map": [{"key": 1}]}}"#, NO_JOB),
            None
        );
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir_all(path.join("runner/_work")).unwrap();
        fs::create_dir(path.join("runner/_diag")).unwrap();
        (dir, path)
    }

    #[test]
    fn the_newest_log_counts() {
        let (_dir, dir) = directory();
        let diag = dir.join("runner/_diag");
        let files = RunnerFiles::new(&dir.join("runner/_work")).unwrap();
        assert_eq!(services(&files, &diag, NO_JOB).unwrap(), None);
        for (name, text) in [
            ("Worker_20260101-000000-utc.log", ""),
            ("Worker_20260102-030405-utc.log", LOG),
            ("Runner_20260103-000000-utc.log", ""),
        ] {
            fs::write(diag.join(name), text).unwrap();
        }
        assert_eq!(services(&files, &diag, NO_JOB).unwrap().unwrap().len(), 3);
        assert!(services(&files, &diag.join("none"), NO_JOB).is_err());
    }

    #[test]
    fn a_log_is_a_file_and_nothing_behind_a_link() {
        let (_dir, dir) = directory();
        let diag = dir.join("runner/_diag");
        let files = RunnerFiles::new(&dir.join("runner/_work")).unwrap();
        fs::write(dir.join("log"), LOG).unwrap();
        fs::create_dir(diag.join("Worker_1.log")).unwrap();
        assert_eq!(services(&files, &diag, NO_JOB).unwrap(), None);
        symlink(dir.join("log"), diag.join("Worker_2.log")).unwrap();
        services(&files, &diag, NO_JOB).unwrap_err();
        let fifo = diag.join("Worker_3.log");
        mkfifoat(CWD, fifo, Mode::RWXU).unwrap();
        assert_eq!(services(&files, &diag, NO_JOB).unwrap(), None);
    }

    #[test]
    fn logs_are_beside_the_work_directory_or_in_the_directory_of_the_worker() {
        let (_dir, dir) = directory();
        let work = dir.join("runner/_work");
        let files = RunnerFiles::new(&work).unwrap();
        let beside = dir.join("runner/_diag");
        fs::create_dir_all(dir.join("program/_diag")).unwrap();
        let of_worker = dir.join("program");
        assert_eq!(diag(&files, &work, Some(&of_worker)), beside);
        fs::remove_dir(&beside).unwrap();
        assert_eq!(diag(&files, &work, Some(&of_worker)), of_worker.join("_diag"));
        assert_eq!(diag(&files, &work, None), beside);
    }
}
