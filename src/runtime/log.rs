//! The log that engines read a runtime's errors from.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::sys::fs::{PathContext, PathError};

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// As logrus writes it: `time="…" level=error msg="…"`.
    #[default]
    Text,
    /// One JSON object on a line, which containerd reads the last error from.
    Json,
}

/// How grave a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// For those who look for a fault.
    Debug,
    /// Something is not as it should be, but work goes on.
    Warning,
    Error,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Warning => "warning",
            Level::Error => "error",
        }
    }
}

/// A runtime's log, in the form runc writes.
#[derive(Clone, Debug)]
pub struct Log {
    /// The file to append to; none is standard error.
    pub path: Option<PathBuf>,
    pub format: LogFormat,
    /// Whether debug messages are written.
    pub debug: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    level: &'a str,
    msg: &'a str,
    time: String,
}

impl Log {
    /// Appends one line.
    pub fn write(&self, level: Level, message: &str) -> Result<(), PathError> {
        if level == Level::Debug && !self.debug {
            return Ok(());
        }
        let line = self.line(level, message);
        match &self.path {
            None => io::stderr().write_all(line.as_bytes()).at("write", "standard error".as_ref()),
            Some(path) => OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .and_then(|mut file| file.write_all(line.as_bytes()))
                .at("write", path),
        }
    }

    fn line(&self, level: Level, message: &str) -> String {
        let (level, msg, time) = (level.name(), message, format!("{:.3}", jiff::Timestamp::now()));
        match self.format {
            LogFormat::Json => {
                let line = serde_json::to_string(&Line { level, msg, time });
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
    fn lines_are_what_runc_writes() {
        let log = Log { path: None, format: LogFormat::Json, debug: false };
        let line: serde_json::Value =
            serde_json::from_str(&log.line(Level::Error, "a \"b\"\n")).unwrap();
        assert_eq!((&line["level"], &line["msg"]), (&"error".into(), &"a \"b\"\n".into()));
        assert!(line["time"].as_str().unwrap().ends_with('Z'));
        let text = Log { format: LogFormat::Text, ..log }.line(Level::Warning, "a \"b\"\n");
        assert!(text.ends_with("level=warning msg=\"a \\\"b\\\"\\n\"\n"), "{text}");
    }
}
