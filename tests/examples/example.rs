//! One example, made ready to run from this repository.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::bundle::Bundle;
use crate::support::program;
use crate::support::runtime::{Container, Runtime};

/// Where the examples expect the programs that come with them.
const INSTALLED: &str = "/usr/libexec/oci/hooks.d/";

/// A hook file.
pub(crate) struct Example {
    pub(crate) file: PathBuf,
    pub(crate) json: Value,
}

impl Example {
    /// Reads the example of this name, such as `50-cpu-pin` or `podman/50-proxy-env`.
    pub(crate) fn read(name: &str) -> Self {
        Self::from_file(program::repository("hooks.d-examples").join(format!("{name}.json")))
    }

    fn from_file(file: PathBuf) -> Self {
        let text = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let json = serde_json::from_slice(&text)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        Self { file, json }
    }

    /// Reads all examples.
    pub(crate) fn all() -> Vec<Self> {
        let directory = program::repository("hooks.d-examples");
        let mut files = Vec::new();
        for directory in [directory.join("podman"), directory] {
            for entry in fs::read_dir(directory).expect("the examples are there") {
                let path = entry.expect("the directory can be read").path();
                if path.extension().is_some_and(|extension| extension == "json") {
                    files.push(path);
                }
            }
        }
        assert!(files.len() >= 10, "only {} examples", files.len());
        files.into_iter().map(Self::from_file).collect()
    }

    pub(crate) fn name(&self) -> &str {
        self.file.file_name().and_then(|name| name.to_str()).expect("examples have plain names")
    }

    /// Replaces a variable of the hook's environment.
    pub(crate) fn with_env(mut self, name: &str, value: &Path) -> Self {
        let prefix = format!("{name}=");
        let variables = self.json["hook"]["env"].as_array_mut().expect("examples set env");
        let variable = variables
            .iter_mut()
            .find(|variable| variable.as_str().is_some_and(|text| text.starts_with(&prefix)))
            .unwrap_or_else(|| panic!("the example has no {name}"));
        *variable = json!(format!("{prefix}{}", value.display()));
        self
    }

    /// Makes the hook run the program in this repository in place of the installed one.
    pub(crate) fn uninstalled(mut self) -> Self {
        let path = self.json["hook"]["path"].as_str().expect("examples have a path");
        if let Some(name) = path.strip_prefix(INSTALLED) {
            let program = program::repository("hooks.d-examples/bin").join(name);
            let mode = fs::metadata(&program)
                .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o755, "{}", program.display());
            self.json["hook"]["path"] = json!(program);
        }
        self
    }

    /// Returns the stages, as their names.
    pub(crate) fn stages(&self) -> Vec<&str> {
        let stages = self.json["stages"].as_array().expect("examples have stages");
        stages.iter().map(|stage| stage.as_str().expect("a stage is a name")).collect()
    }

    /// Adds the hook to the bundle's configuration at each of its stages.
    pub(crate) fn inject(self, bundle: &Bundle) {
        let example = self.uninstalled();
        bundle.edit(|config| {
            for stage in example.stages() {
                let list = &mut config["hooks"][stage];
                if list.is_null() {
                    *list = json!([]);
                }
                list.as_array_mut().expect("a stage is a list").push(example.json["hook"].clone());
            }
        });
    }

    /// Runs the hook as a `precreate` filter on the bundle's configuration.
    #[track_caller]
    pub(crate) fn filter(self, bundle: &Bundle) {
        let example = self.uninstalled();
        let hook = &example.json["hook"];
        let strings = |key: &str| -> Vec<String> {
            let strings = hook[key].as_array().expect("examples set args and env");
            strings.iter().map(|text| text.as_str().expect("text").to_owned()).collect()
        };
        let mut command = Command::new(hook["path"].as_str().expect("examples have a path"));
        command.args(&strings("args")[1..]).env_clear();
        for variable in strings("env") {
            let (name, value) = variable.split_once('=').expect("NAME=value");
            command.env(name, value);
        }
        let config = serde_json::to_vec(&bundle.config()).expect("a value can be written");
        let output = program::run_with_input(&mut command, &config).success();
        bundle.write_config(&serde_json::from_str(&output).expect("the filter writes JSON"));
    }
}

/// Sets an annotation of the bundle's container.
pub(crate) fn annotate(bundle: &Bundle, key: &str, value: &str) {
    bundle.edit(|config| config["annotations"][key] = json!(value));
}

/// Runs a container that a hook must stop, and returns what is said about it. Only runc repeats
/// what a hook says; crun writes it to a file if an annotation asks for it.
#[track_caller]
pub(crate) fn refusal(runtime: Runtime, bundle: &Bundle) -> String {
    let file = bundle.path().join("hook.stderr");
    fs::write(&file, "").expect("the bundle is ours");
    annotate(bundle, "run.oci.hooks.stderr", file.to_str().expect("a plain name"));
    let message = Container::new(runtime, bundle).run().failure();
    message + &fs::read_to_string(&file).expect("the file is there")
}
