//! Bundles: a busybox root file system and the `config.json` that `runc spec` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{program, rootfs};

/// A bundle in a temporary directory.
pub struct BusyboxBundle {
    directory: TempDir,
}

impl BusyboxBundle {
    /// Creates a bundle whose container runs a shell script, without a terminal, on a writable root.
    pub fn new(script: &str) -> Self {
        Self::new_in(&std::env::temp_dir(), script)
    }

    /// Creates such a bundle below a directory.
    pub fn new_in(directory: &Path, script: &str) -> Self {
        let directory = program::temporary_directory_in(directory);
        let root = directory.path().join("rootfs");
        fs::create_dir(&root).expect("the directory is empty");
        rootfs::fill(&root);
        let runc = program::find("runc");
        program::run(Command::new(runc).arg("spec").arg("--bundle").arg(directory.path()))
            .success();
        let bundle = Self { directory };
        bundle.edit(|config| {
            config["process"]["terminal"] = json!(false);
            config["process"]["args"] = json!(["/bin/sh", "-c", script]);
            config["root"]["readonly"] = json!(false);
        });
        bundle
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the path as a command-line argument.
    pub fn path_str(&self) -> &str {
        self.path().to_str().expect("temporary directories have plain names")
    }

    /// Returns the host path of a file in the container.
    pub fn inside(&self, path: &str) -> PathBuf {
        self.path().join("rootfs").join(path.trim_start_matches('/'))
    }

    pub fn config(&self) -> Value {
        let text = fs::read(self.path().join("config.json")).expect("the bundle has a config.json");
        serde_json::from_slice(&text).expect("config.json is JSON")
    }

    /// Changes `config.json`.
    pub fn edit(&self, change: impl FnOnce(&mut Value)) {
        let mut config = self.config();
        change(&mut config);
        self.write_config(&config);
    }

    pub fn write_config(&self, config: &Value) {
        let text = serde_json::to_vec_pretty(config).expect("a value can be written");
        fs::write(self.path().join("config.json"), text).expect("the bundle can be written to");
    }
}
