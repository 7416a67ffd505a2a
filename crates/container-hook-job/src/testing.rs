//! A runner for tests.

use std::collections::BTreeMap;
use std::path::Path;

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
        workflow: None,
        defaults: RunnerDefaults::default(),
        job: BTreeMap::from([("GITHUB_REPOSITORY".into(), "octo/repo".into())]),
    }
}
