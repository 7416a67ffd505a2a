//! GitLab's own program, which stores and restores caches and artifacts.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::super::super::gitlab_helper;
use super::super::error::{CommandError, Failure};
use super::super::program::find_program;
use super::context::JobContext;

/// Its names, the first one first.
const NAMES: [&str; 2] = ["gitlab-runner", "gitlab-runner-helper"];

impl JobContext<'_> {
    /// Runs GitLab's program. Where there is none, that is the error.
    pub(super) fn gitlab(
        &mut self,
        arguments: &[String],
        extra: &BTreeMap<String, String>,
    ) -> Result<(), CommandError> {
        let Some(program) = self.gitlab_program() else {
            let beside = self.host.executable().and_then(Path::parent).unwrap_or(Path::new("/"));
            let message = format!(
                "GitLab's own program, which does this, is missing: there is no gitlab-runner and no \
                 gitlab-runner-helper in PATH, and no gitlab-runner-helper{} in {}",
                gitlab_helper::SUFFIX,
                beside.display()
            );
            return Err(CommandError { failure: Failure::Exit, message, code: 1 });
        };
        let program = program.to_string_lossy().into_owned();
        let argv: Vec<_> = [program].into_iter().chain(arguments.iter().cloned()).collect();
        self.command(&argv, &self.tool_env(extra))
    }

    fn gitlab_program(&self) -> Option<PathBuf> {
        let own = self.host.executable();
        let in_path = |name| {
            find_program(name, &self.work_dir, self.variable("PATH"))
                // Ours has taken its place there.
                .filter(|path| !own.is_some_and(|own| is_same_file(path, own)))
        };
        let found = NAMES.into_iter().find_map(in_path);
        found.or_else(|| own.and_then(gitlab_helper::original))
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|meta| (meta.dev(), meta.ino())).ok();
    id(one).is_some() && id(one) == id(other)
}
