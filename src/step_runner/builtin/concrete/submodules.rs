//! Submodules of the sources.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::error::{BuiltinError, CommandError, Within as _};
use super::config::GetSources;
use super::context::JobContext;

/// Flags of `git clean` in submodules if the job has none.
const CLEAN: &str = "-ffdx";

/// What all commands for submodules share.
struct Submodules<'a> {
    sources: &'a GetSources,
    env: &'a BTreeMap<String, String>,
    /// The setting with which submodules reach the server as their parent does.
    include: String,
    /// `--recursive`, if submodules of submodules are meant too.
    recursive: Option<&'static str>,
}

impl JobContext<'_> {
    /// Updates the submodules, if the job wants them.
    pub(super) fn update_submodules(
        &mut self,
        sources: &GetSources,
        external: &Path,
        env: &BTreeMap<String, String>,
    ) -> Result<(), BuiltinError> {
        let recursive = match sources.submodule_strategy.as_str() {
            "none" | "" => {
                self.notice("Skipping Git submodules setup");
                return Ok(());
            }
            "normal" => None,
            "recursive" => Some("--recursive"),
            value => {
                let value = value.to_owned();
                return Err(BuiltinError::Strategy { variable: "GIT_SUBMODULE_STRATEGY", value });
            }
        };
        let include = format!("include.path={}", external.display());
        Submodules { sources, env, include, recursive }.update(self, external)
    }
}

impl Submodules<'_> {
    fn update(&self, job: &mut JobContext<'_>, external: &Path) -> Result<(), BuiltinError> {
        let depth = self.sources.submodule_depth;
        let how = if self.recursive.is_some() { " recursively" } else { "" };
        let deep =
            if depth > 0 { format!(" with git depth set to {depth}") } else { String::new() };
        job.notice(&format!("Updating/initializing submodules{how}{deep}..."));

        job.git(self.env, &["submodule", "init"]).within("submodule init")?;
        self.sync(job).within("submodule sync")?;
        let mut clean = vec!["git", "clean"];
        let flags = &self.sources.git_clean_flags;
        clean.extend(flags.iter().map(String::as_str));
        if flags.is_empty() {
            clean.push(CLEAN);
        }
        // What an earlier job left may be in the way; if it is not, nothing is lost when these fail.
        let _ = self.each(job, false, &clean);
        let _ = self.each(job, false, &["git", "reset", "--hard"]);

        if self.check_out(job).is_ok() {
            job.notice("Updated submodules");
            let _ = self.sync(job);
        } else {
            job.warn("Updating submodules failed. Retrying...");
            if self
                .sources
                .submodule_update_flags
                .iter()
                .any(|f| f.eq_ignore_ascii_case("--remote"))
            {
                let refs = "+refs/heads/*:refs/remotes/origin/*";
                let _ = self.each(job, true, &["git", "fetch", "origin", refs]);
            }
            let _ = self.sync(job);
            self.check_out(job).within("submodule update (retry)")?;
            let _ = self.each(job, false, &["git", "reset", "--hard"]);
        }
        let _ = self.each(job, false, &clean);

        job.notice("Configuring submodules to use parent git credentials...");
        let external = external.to_string_lossy();
        let set = ["git", "config", "--replace-all", "include.path", &external];
        let all = ["submodule", "foreach", "--recursive"].iter().chain(&set).copied();
        let _ = job.git(self.env, &all.collect::<Vec<_>>());

        if !self.sources.lfs_disabled && job.has_lfs(self.env) {
            job.notice("Pulling LFS files for submodules...");
            let _ = self.each(job, true, &["git", "lfs", "pull"]);
        }
        Ok(())
    }

    fn sync(&self, job: &mut JobContext<'_>) -> Result<(), CommandError> {
        let mut arguments = vec!["submodule", "sync"];
        arguments.extend(self.recursive);
        arguments.extend(self.paths());
        job.git(self.env, &arguments)
    }

    fn check_out(&self, job: &mut JobContext<'_>) -> Result<(), CommandError> {
        let depth = self.sources.submodule_depth.to_string();
        let mut arguments = vec!["-c", &self.include, "submodule", "update", "--init"];
        arguments.extend(self.recursive);
        if self.sources.submodule_depth > 0 {
            arguments.extend(["--depth", &depth]);
        }
        arguments.extend(self.sources.submodule_update_flags.iter().map(String::as_str));
        arguments.extend(self.paths());
        job.git(self.env, &arguments)
    }

    /// Runs a command in each submodule. Its words are passed one by one: a single text would be read by a
    /// shell.
    fn each(
        &self,
        job: &mut JobContext<'_>,
        connects: bool,
        command: &[&str],
    ) -> Result<(), CommandError> {
        let mut arguments = Vec::new();
        if connects {
            arguments.extend(["-c", &self.include]);
        }
        arguments.extend(["submodule", "foreach"]);
        arguments.extend(self.recursive);
        arguments.extend(command);
        job.git(self.env, &arguments)
    }

    fn paths(&self) -> impl Iterator<Item = &str> {
        let paths = &self.sources.submodule_paths;
        let separator = (!paths.is_empty()).then_some("--");
        separator.into_iter().chain(paths.iter().map(String::as_str))
    }
}
