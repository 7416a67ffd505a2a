//! The names of the services, from the log of the runner's worker.
//!
//! A last resort that the admin has to ask for: the log is nobody's interface. The worker writes the
//! job's message to it, secrets masked, and there the services have their names.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::sys::fs::{PathContext as _, PathError};

/// The message is at the beginning of the log; what comes later can be long.
const MAX_BYTES: u64 = 16 << 20;

/// Reads the names of the services of the job that the newest log in `_diag` is about.
///
/// None if there is no such log, if it cannot be understood, or if the job in it has not as many
/// services: then it is about another job.
///
/// # Errors
///
/// Fails if the directory or the log cannot be read.
pub fn service_names(diag: &Path, services: usize) -> Result<Option<Vec<String>>, PathError> {
    let Some(path) = newest(diag)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let file = File::open(&path).at("open", &path)?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).at("read", &path)?;
    let names = names(&String::from_utf8_lossy(&bytes));
    Ok(names.filter(|names| names.len() == services))
}

/// Returns the newest log of a worker; its name has the time.
fn newest(diag: &Path) -> Result<Option<PathBuf>, PathError> {
    let mut newest: Option<String> = None;
    for entry in fs::read_dir(diag).at("list", diag)? {
        let name = entry.at("list", diag)?.file_name();
        if let Some(name) = name.to_str()
            && name.starts_with("Worker_")
            && name.ends_with(".log")
            && newest.as_deref().is_none_or(|newest| newest < name)
        {
            newest = Some(name.to_owned());
        }
    }
    Ok(newest.map(|name| diag.join(name)))
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
    use super::*;

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

    #[test]
    fn the_newest_log_counts_if_it_has_as_many_services() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(service_names(dir.path(), 2).unwrap(), None);
        for (name, text) in [
            ("Worker_20260101-000000-utc.log", ""),
            ("Worker_20260102-030405-utc.log", LOG),
            ("Runner_20260103-000000-utc.log", ""),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let names = service_names(dir.path(), 2).unwrap().unwrap();
        assert_eq!(names, ["cache", "db"]);
        assert_eq!(service_names(dir.path(), 1).unwrap(), None);
        assert!(service_names(&dir.path().join("none"), 1).is_err());
    }
}
