//! Values for the tests of backends.

use std::collections::BTreeMap;
use std::path::Path;

use oci_hooks_image::{ClientOptions, RegistryClient, RegistryOptions};

use crate::runner::{CallingRunner, RunnerDefaults};
use crate::runner_files::RunnerFiles;

/// Returns a runner whose directories need not exist.
pub fn runner() -> CallingRunner {
    CallingRunner {
        name: "runner-1".into(),
        temp: "/home/runner/_work/_temp".into(),
        workspace: "/home/runner/_work/repo/repo".into(),
        files: RunnerFiles::new(Path::new("/")).expect("/ is a directory"),
        user: (1000, 1000),
        worker: None,
        diag: None,
        defaults: RunnerDefaults::default(),
        job: BTreeMap::from([("GITHUB_REPOSITORY".into(), "octo/repo".into())]),
    }
}

/// Returns a client of Docker Hub with two mirrors, the first of which is insecure.
pub fn mirrored_client() -> RegistryClient {
    let mirrors = vec!["mirror.example/hub".to_owned(), "localhost:5000".to_owned()];
    let hub = RegistryOptions { mirrors, ..RegistryOptions::default() };
    let insecure = RegistryOptions { insecure: true, ..RegistryOptions::default() };
    let mut options = ClientOptions::default();
    options.registries = [("docker.io", hub), ("mirror.example", insecure)]
        .map(|(name, options)| (name.to_owned(), options))
        .into();
    RegistryClient::new(options).expect("the options are valid")
}
