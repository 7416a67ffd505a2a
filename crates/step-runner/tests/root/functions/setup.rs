//! A job with the files of a function, and calls of the functions for it.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex};

use oci_hooks_image::{ClientOptions, RegistryClient};
use oci_hooks_testsupport::program;
use serde_json::{Value as Json, json};
use step_runner::ExprValue;
use step_runner::function_oci::{FunctionCall, FunctionError, OciFunction};
use step_runner::resolve::{Interrupt, RemoteAccess};
use tempfile::TempDir;

pub(crate) const ARCHIVE: &str = "function-image.tar";

/// The architecture of this machine.
pub(crate) const HOST: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// The step file of the job's function.
pub(crate) const FUNCTION: &str = "spec: {}\n---\nexec: {command: ['${{ func_dir }}/bin/run']}\n";

/// A job with its directory.
pub(crate) struct FunctionJob {
    pub(crate) dir: TempDir,
    pub(crate) vars: BTreeMap<String, String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) options: ClientOptions,
}

/// Outputs or error of a function, and its log.
pub(crate) struct FunctionRun {
    pub(crate) result: Result<BTreeMap<String, ExprValue>, FunctionError>,
    pub(crate) log: String,
}

impl FunctionJob {
    pub(crate) fn new() -> Self {
        let (vars, env) = (BTreeMap::new(), BTreeMap::new());
        let mut options = ClientOptions::default();
        options.retry.delay = std::time::Duration::from_millis(1);
        let job = FunctionJob { dir: program::temporary_directory(), vars, env, options };
        job.write("func.yml", FUNCTION, 0o644);
        job.write("bin/amd64/run", "#!/bin/sh\necho on amd64\n", 0o755);
        job.write("bin/arm64/run", "#!/bin/sh\necho on arm64\n", 0o755);
        job
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>, mode: u32) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }

    pub(crate) fn call(&self, function: OciFunction, inputs: Json) -> FunctionCall {
        let ExprValue::Object(inputs) = inputs.into() else { panic!("inputs are an object") };
        let registries = RegistryClient::new(self.options.clone()).unwrap();
        FunctionCall {
            function,
            inputs,
            work_dir: self.path().to_owned(),
            vars: self.vars.clone(),
            env: self.env.clone(),
            remote: Some(Arc::new(RemoteAccess::new(self.path().join(".cache"), registries))),
        }
    }

    pub(crate) fn run(&self, function: OciFunction, inputs: Json) -> FunctionRun {
        let log = Mutex::new(String::new());
        let interrupt = Interrupt::new().unwrap();
        let write = |_, line: &str| {
            let mut log = log.lock().unwrap();
            log.push_str(line);
            log.push('\n');
        };
        let result = self.call(function, inputs).run(&interrupt, &write);
        FunctionRun { result, log: log.into_inner().unwrap() }
    }

    /// Builds the function of the job.
    #[track_caller]
    pub(crate) fn build(&self, version: &str) -> BTreeMap<String, ExprValue> {
        self.run(OciFunction::Build, inputs(version)).success()
    }

    /// Publishes the archive to a repository.
    pub(crate) fn publish(&self, repository: &str) -> FunctionRun {
        let inputs = json!({"archive": ARCHIVE, "to_repository": repository});
        self.run(OciFunction::Publish, inputs)
    }
}

impl FunctionRun {
    #[track_caller]
    pub(crate) fn success(self) -> BTreeMap<String, ExprValue> {
        self.result.unwrap_or_else(|error| panic!("{}\n{}", chain(&error), self.log))
    }

    /// Returns the error with its causes.
    #[track_caller]
    pub(crate) fn failure(self) -> String {
        chain(&self.result.expect_err(&self.log))
    }
}

/// Returns the inputs to build a job's function.
pub(crate) fn inputs(version: &str) -> Json {
    json!({
        "version": version,
        "common": {"files": {"func.yml": "func.yml"}},
        "platforms": {
            "linux/amd64": {"files": {"bin/run": "bin/amd64/run"}},
            "linux/arm64": {"files": {"bin/run": "bin/arm64/run"}},
        },
    })
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
