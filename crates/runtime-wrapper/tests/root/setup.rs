//! A bundle, hooks, and a fake runtime that records its arguments.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use oci_hooks_testsupport::program;
use serde_json::json;

use crate::hooks_dir::HooksDir;

pub(crate) const CONFIG: &str =
    r#"{"ociVersion": "1.0.2", "process": {"args": ["/bin/sh"]}, "x": 1e400}"#;

/// A bundle, a hook directory, and a runtime that exits with 7.
pub(crate) struct WrapperSetup {
    pub(crate) hooks: HooksDir,
    pub(crate) place: tempfile::TempDir,
}

impl WrapperSetup {
    pub(crate) fn new() -> Self {
        let setup = WrapperSetup { hooks: HooksDir::new(), place: program::temporary_directory() };
        setup.write("config.json", CONFIG);
        setup.fake(
            "for arg; do printf '%s\\0' \"$arg\"; done >argv; { cat <&3 || true; } >fd3 2>/dev/null; exit 7",
        );
        setup
    }

    /// Replaces the fake runtime by a script that runs in the bundle.
    pub(crate) fn fake(&self, script: &str) {
        let script = format!("#!/bin/sh\ncd \"${{0%/*}}\"\n{script}\n");
        program::write_program(&self.path("fake"), &script);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn config(&self) -> String {
        fs::read_to_string(self.path("config.json")).unwrap()
    }

    pub(crate) fn command(&self, args: &[&OsStr]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks-runtime"));
        command
            .env_clear()
            .env("OCI_HOOKS_DIRS", self.hooks.path())
            .env("OCI_HOOKS_RUNTIME", self.path("fake"))
            .current_dir(self.place.path())
            .args(args);
        command
    }

    /// Returns the wrapper's command with these settings.
    pub(crate) fn with_settings(&self, settings: &str, line: &str) -> Command {
        self.write("settings.toml", settings);
        let args: Vec<_> = line.split(' ').map(OsStr::new).collect();
        let mut command = self.command(&args);
        command.env("OCI_HOOKS_RUNTIME_CONFIG", self.path("settings.toml"));
        command
    }

    pub(crate) fn run(&self, line: &str) -> Output {
        let args: Vec<_> = line.split(' ').map(OsStr::new).collect();
        self.command(&args).output().unwrap()
    }

    pub(crate) fn was_called(&self) -> bool {
        self.path("argv").exists()
    }

    /// Adds a matching hook, and returns the path of its file.
    pub(crate) fn add_matching_hook(&self) -> PathBuf {
        self.hooks.hook("a.json", "true", json!({"commands": ["/sh$"]}), &["createRuntime"]);
        self.hooks.path().join("a.json")
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
