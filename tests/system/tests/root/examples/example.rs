//! One example, prepared to run from this repository.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::consumer::PODMAN;
use oci_hooks::hooks::{
    self, ConfigDocument, FilterOptions, HookSelection, HookSet, InjectOptions, LoadOptions,
};
use oci_hooks_testsupport::bundle::BusyboxBundle;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::{RuntimeContainer, TestRuntime};
use serde_json::{Value, json};

/// Installation directory of the hook programs in the examples.
const INSTALLED: &str = "/usr/libexec/oci/hooks.d/";

/// A hook file.
pub(crate) struct HookExample {
    pub(crate) file: PathBuf,
    pub(crate) json: Value,
}

impl HookExample {
    /// Reads the example with this name, such as `50-hello` or `more/50-cpu-pin`.
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
    pub(crate) fn read_all() -> Vec<Self> {
        let directory = program::repository("hooks.d-examples");
        let mut files = Vec::new();
        for directory in [directory.join("more"), directory.join("podman"), directory] {
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

    /// Replaces an environment variable of the hook.
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

    /// Makes the hook run the program in this repository instead of the installed one.
    pub(crate) fn with_uninstalled_program(self) -> Self {
        let mut example = self.with_program_dir(&program::repository("hooks.d-examples/bin"));
        // The example's ten seconds may not suffice on a machine that runs other tests.
        example.json["hook"]["timeout"] = json!(program::DEADLINE.as_secs());
        example
    }

    /// Makes the hook run the program in this directory.
    pub(crate) fn with_program_dir(mut self, directory: &Path) -> Self {
        let path = self.json["hook"]["path"].as_str().expect("examples have a path");
        if let Some(name) = path.strip_prefix(INSTALLED) {
            let program = directory.join(name);
            let mode = fs::metadata(&program)
                .unwrap_or_else(|error| panic!("{}: {error}", program.display()))
                .permissions()
                .mode();
            // The group's write permission depends on the umask of the checkout.
            assert_eq!(mode & 0o755, 0o755, "{}", program.display());
            self.json["hook"]["path"] = json!(program);
        }
        self
    }

    /// Returns the names of the stages.
    pub(crate) fn stages(&self) -> Vec<&str> {
        let stages = self.json["stages"].as_array().expect("examples have stages");
        stages.iter().map(|stage| stage.as_str().expect("a stage is a name")).collect()
    }

    /// Adds the hook to the bundle's configuration, which it must match.
    #[track_caller]
    pub(crate) fn inject(self, bundle: &BusyboxBundle) {
        self.change(bundle, |config, selection| {
            config.inject(selection, InjectOptions::default()).expect("hooks can be added")
        });
    }

    /// Runs the hook as a `precreate` filter on the bundle's configuration, which it must match.
    #[track_caller]
    pub(crate) fn filter(self, bundle: &BusyboxBundle) {
        self.change(bundle, |config, selection| {
            let hooks = selection.extension_hooks().remove("precreate").expect("it is a filter");
            let text = config.document().text().to_vec();
            let filtered = hooks::filter(&hooks, text, &FilterOptions::new(bundle.path()));
            filtered.unwrap_or_else(|error| panic!("{error}: {}", error.failure)).config
        });
    }

    #[track_caller]
    fn change(
        self,
        bundle: &BusyboxBundle,
        change: impl FnOnce(&ConfigDocument<'_>, &HookSelection<'_>) -> Vec<u8>,
    ) {
        let hooks = self.load();
        let path = bundle.path().join("config.json");
        let text = fs::read(&path).expect("the bundle has a config.json");
        let config = ConfigDocument::parse(&text).expect("runc wrote it");
        let target = config.target(PODMAN.bind_mounts).expect("runc wrote it");
        let selection = hooks.select(&target, &PODMAN).expect("there is a command");
        assert_eq!(selection.files.len(), 1, "the example does not match");
        fs::write(&path, change(&config, &selection)).expect("the bundle is ours");
    }

    /// Loads the example from a directory of its own.
    #[track_caller]
    fn load(self) -> HookSet {
        let directory = program::temporary_directory();
        let example = self.with_uninstalled_program();
        fs::write(directory.path().join(example.name()), example.json.to_string())
            .expect("the directory is ours");
        let mut options = LoadOptions::for_consumer(&PODMAN);
        options.dirs = vec![directory.path().to_owned()];
        // Here the runtime runs poststop hooks.
        options.extension_stages.retain(|stage| stage == "precreate");
        let loaded = hooks::load(&options);
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        loaded.hooks
    }
}

/// Returns the number of a CPU that this process, and so a container, may use.
pub(crate) fn processor() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
    let list = list.expect("the kernel says it");
    list.chars().take_while(char::is_ascii_digit).collect()
}

/// Sets an annotation of the bundle's container.
pub(crate) fn annotate(bundle: &BusyboxBundle, key: &str, value: &str) {
    bundle.edit(|config| config["annotations"][key] = json!(value));
}

/// Runs a container that a hook must stop, and returns the error output. Only runc repeats the hook's output;
/// crun writes it to a file if an annotation requests that.
#[track_caller]
pub(crate) fn refusal(runtime: TestRuntime, bundle: &BusyboxBundle) -> String {
    let file = bundle.path().join("hook.stderr");
    fs::write(&file, "").expect("the bundle is ours");
    annotate(bundle, "run.oci.hooks.stderr", file.to_str().expect("a plain name"));
    let message = RuntimeContainer::new(runtime, bundle).run().failure();
    message + &fs::read_to_string(&file).expect("the file is there")
}
