//! The log from which engines read a runtime's errors.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use oci_hooks_files::fs::{PathContext, PathError};
use serde::Serialize;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// The text format of logrus: `time="…" level=error msg="…"`.
    #[default]
    Text,
    /// One JSON object per line, from which containerd reads the last error.
    Json,
}

/// Severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeLogLevel {
    Debug,
    /// A problem that does not stop the call.
    Warning,
    Error,
}

impl RuntimeLogLevel {
    fn name(self) -> &'static str {
        match self {
            RuntimeLogLevel::Debug => "debug",
            RuntimeLogLevel::Warning => "warning",
            RuntimeLogLevel::Error => "error",
        }
    }
}

/// A runtime's log, in the form runc writes.
#[derive(Clone, Debug)]
pub struct RuntimeLog {
    /// File to append to; `None` for standard error.
    pub path: Option<PathBuf>,
    pub format: LogFormat,
    /// If set, debug messages are written.
    pub debug: bool,
}

#[derive(Serialize)]
struct WrapperLogLine<'a> {
    level: &'a str,
    msg: &'a str,
    time: String,
}

impl RuntimeLog {
    /// Appends one line.
    pub fn write(&self, level: RuntimeLogLevel, message: &str) -> Result<(), PathError> {
        if level == RuntimeLogLevel::Debug && !self.debug {
            return Ok(());
        }
        let line = self.line(level, message);
        match &self.path {
            None => io::stderr()
                .write_all(line.as_bytes())
                .with_path("write", "standard error".as_ref()),
            Some(path) => OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(line.as_bytes()))
                .with_path("write", path),
        }
    }

    fn line(&self, level: RuntimeLogLevel, message: &str) -> String {
        let (level, msg, time) = (level.name(), message, format!("{:.3}", jiff::Timestamp::now()));
        match self.format {
            LogFormat::Json => {
                let line = serde_json::to_string(&WrapperLogLine { level, msg, time });
                line.expect("strings") + "\n"
            }
            LogFormat::Text => format!("time=\"{time}\" level={level} msg={msg:?}\n"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_match_those_of_runc() {
        let log = RuntimeLog { path: None, format: LogFormat::Json, debug: false };
        let line: serde_json::Value =
            serde_json::from_str(&log.line(RuntimeLogLevel::Error, "a \"b\"\n")).unwrap();
        assert_eq!((&line["level"], &line["msg"]), (&"error".into(), &"a \"b\"\n".into()));
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
        let text = RuntimeLog { format: LogFormat::Text, ..log }
            .line(RuntimeLogLevel::Warning, "a \"b\"\n");
        assert!(text.ends_with("level=warning msg=\"a \\\"b\\\"\\n\"\n"), "{text}");
    }
}
