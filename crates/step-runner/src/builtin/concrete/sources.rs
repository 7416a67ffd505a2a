//! The sources of a job: cloned, or fetched into an existing repository.

use std::collections::BTreeMap;
use std::path::Path;

use oci_hooks_host::removal::remove_tree;

use super::super::error::{BuiltinError, CommandError, JobPartContext as _};
use super::config::{SourceOptions, remove_user};
use super::context::{JobContext, attempts, make_directories};
use super::git_config::{GitConfigPaths, has_helper};

/// First version (major, minor) of git with `git clone --revision`, which accepts any ref.
const CLONES_REFS: [u32; 2] = [2, 49];

/// Number of digits of a commit id in messages.
const SHORT_SHA: usize = 8;

/// Paths that are removed on drop.
struct RemovedPaths<'a>(Vec<&'a Path>);

impl Drop for RemovedPaths<'_> {
    fn drop(&mut self) {
        for path in &self.0 {
            // Remaining files are removed by the next job.
            let _ = remove_tree(path);
        }
    }
}

impl JobContext<'_> {
    pub(super) fn get_sources(&mut self) -> Result<(), BuiltinError> {
        let sources = &self.config.get_sources;
        match sources.git_strategy.as_str() {
            "none" => {
                self.notice("Skipping Git repository setup");
                return Ok(make_directories(&self.work_dir)?);
            }
            "empty" => {
                self.notice("Skipping Git repository setup and creating an empty build directory");
                remove_tree(&self.work_dir)?;
                return Ok(make_directories(&self.work_dir)?);
            }
            "fetch" | "clone" => {}
            value => {
                let value = value.to_owned();
                return Err(BuiltinError::Strategy { variable: "GIT_STRATEGY", value });
            }
        }
        if !sources.is_shared_env {
            self.trust_server()?;
        }
        self.run_script(&sources.pre_clone_step).with_part("pre_clone_script")?;
        self.clean_repository(
            has_submodules(&sources.submodule_strategy),
            sources.clean_git_config,
        );

        let count = attempts(sources.max_attempts);
        let mut attempt = 1;
        loop {
            if attempt > 1 {
                if sources.use_exponential_backoff_stage_retry {
                    self.pause(attempt);
                }
                self.warn(&format!("Retrying git fetch (attempt {attempt}/{count})..."));
                if sources.clear_worktree_on_retry && attempt == 2 {
                    self.clear_worktree();
                }
            }
            let got = self.get_once(sources);
            attempt += 1;
            match got {
                Ok(()) => break,
                Err(error) if attempt > count || !self.is_running() => return Err(error),
                // Git has reported the error.
                Err(_) => {}
            }
        }
        self.run_script(&sources.post_clone_step)
    }

    fn get_once(&mut self, sources: &SourceOptions) -> Result<(), BuiltinError> {
        if sources.git_strategy == "clone" {
            remove_tree(&self.work_dir).with_part("removing project dir for clone")?;
            make_directories(&self.work_dir).with_part("recreating project dir")?;
        }
        make_directories(&self.temp_dir)?;
        let files = GitConfigPaths::of(self);
        let mut removed = RemovedPaths(vec![&files.template]);
        let mut env = git_env(sources);
        env.insert("GIT_CONFIG_GLOBAL".to_owned(), files.user.to_string_lossy().into_owned());
        if !has_helper(sources) {
            removed.0.extend([files.user.as_path(), &files.external]);
            self.user_config(&files, false)?.write(&files.user)?;
        }
        if sources.safe_directory_checkout {
            // Git ignores this setting in repositories.
            let directory = self.work_dir.to_string_lossy().into_owned();
            self.git(&env, &["config", "--global", "--add", "safe.directory", &directory])?;
        }
        self.external_config()?.write(&files.external)?;
        self.make_template(&files)?;

        let url = remove_user(&sources.repo_url);
        let clones = sources.git_strategy == "clone" && sources.use_native_clone;
        if clones && self.git_is_at_least(CLONES_REFS) {
            self.clone(sources, &files, &url, &env)?;
        } else {
            self.init(sources, &files, &url, &env)?;
            self.fetch(sources, &env)?;
        }
        if sources.checkout {
            self.check_out(sources, &env)?;
            if !sources.lfs_disabled && self.has_lfs(&env) {
                self.git(&env, &["lfs", "pull"])?;
            }
        } else {
            self.notice("Skipping Git checkout");
        }
        self.update_submodules(sources, &files.external, &env)
    }

    fn init(
        &mut self,
        sources: &SourceOptions,
        files: &GitConfigPaths,
        url: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<(), BuiltinError> {
        let template = files.template.to_string_lossy();
        let mut arguments = vec!["init", ".", "--template", &template];
        if !matches!(sources.object_format.as_str(), "" | "sha1") {
            arguments.extend(["--object-format", &sources.object_format]);
        }
        self.git(env, &arguments).with_part("git init")?;
        // Without output, as an existing remote is expected in a reused repository.
        if self.git_output(env, &["remote", "add", "origin", url]).is_some() {
            self.notice("Created fresh repository.");
            return Ok(());
        }
        self.git(env, &["remote", "set-url", "origin", url]).with_part("setting remote URL")?;
        // The template applies only to new repositories.
        let external = files.external.to_string_lossy();
        let config = self.work_dir.join(".git/config");
        let pattern = r"\.gitlab-runner\.ext\.conf$";
        let arguments = [
            "config",
            "--file",
            &config.to_string_lossy(),
            "--replace-all",
            "include.path",
            &external,
            pattern,
        ];
        if let Err(error) = self.git(env, &arguments) {
            self.warn(&format!("Failed to configure include.path for existing repo: {error}"));
        }
        Ok(())
    }

    fn fetch(
        &mut self,
        sources: &SourceOptions,
        env: &BTreeMap<String, String>,
    ) -> Result<(), BuiltinError> {
        let depth = sources.depth.to_string();
        match sources.depth > 0 {
            true => self.notice(&format!("Fetching changes with git depth set to {depth}...")),
            false => self.notice("Fetching changes..."),
        }
        let settings = settings(sources);
        let mut arguments: Vec<&str> = settings.iter().map(String::as_str).collect();
        arguments.extend(["fetch", "origin", "--no-recurse-submodules"]);
        arguments.extend(sources.refspecs.iter().map(String::as_str));
        if sources.depth > 0 {
            arguments.extend(["--depth", &depth]);
        }
        arguments.extend(sources.git_fetch_flags.iter().map(String::as_str));
        if sources.depth <= 0 && self.work_dir.join(".git/shallow").exists() {
            let whole: Vec<_> = arguments.iter().copied().chain(["--unshallow"]).collect();
            if self.git(env, &whole).is_ok() {
                return Ok(());
            }
        }
        Ok(self.git(env, &arguments)?)
    }

    fn clone(
        &mut self,
        sources: &SourceOptions,
        files: &GitConfigPaths,
        url: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<(), BuiltinError> {
        let (reference, depth) = (&sources.reference, sources.depth.to_string());
        let of = if reference.is_empty() { String::new() } else { format!(" for {reference}") };
        match sources.depth > 0 {
            true => {
                self.notice(&format!("Cloning repository{of} with git depth set to {depth}..."));
            }
            false => self.notice(&format!("Cloning repository{of}...")),
        }
        let settings = settings(sources);
        let template = files.template.to_string_lossy();
        let mut arguments: Vec<&str> = settings.iter().map(String::as_str).collect();
        arguments.extend(["clone", "--no-checkout", url, ".", "--template", &template]);
        if sources.depth > 0 {
            arguments.extend(["--depth", &depth]);
        }
        if reference.starts_with("refs/") {
            arguments.extend(["--revision", reference]);
        } else if !reference.is_empty() {
            arguments.extend(["--branch", reference]);
        }
        arguments.extend(sources.git_clone_flags.iter().map(String::as_str));
        self.git(env, &arguments).with_part("git clone")
    }

    fn check_out(
        &mut self,
        sources: &SourceOptions,
        env: &BTreeMap<String, String>,
    ) -> Result<(), BuiltinError> {
        let short = sources.sha.get(..SHORT_SHA).unwrap_or(&sources.sha);
        let reference = &sources.reference;
        self.notice(&format!("Checking out {short} as detached HEAD (ref is {reference})..."));
        let settings = settings(sources);
        let mut arguments: Vec<&str> = settings.iter().map(String::as_str).collect();
        arguments.extend(["-c", "submodule.recurse=false", "checkout", "-f", "-q", &sources.sha]);
        self.git(env, &arguments).with_part("git checkout")?;
        if !sources.git_clean_flags.is_empty() {
            let flags = sources.git_clean_flags.iter().map(String::as_str);
            let arguments: Vec<_> = ["clean"].into_iter().chain(flags).collect();
            self.git(env, &arguments).with_part("git clean")?;
        }
        Ok(())
    }

    fn has_lfs(&mut self, env: &BTreeMap<String, String>) -> bool {
        self.git_output(env, &["lfs", "version"]).is_some()
    }

    fn git_is_at_least(&mut self, version: [u32; 2]) -> bool {
        let output = self.git_output(&BTreeMap::new(), &["--version"]).unwrap_or_default();
        parse_version(&output).is_some_and(|found| found >= version)
    }

    /// Removes the files of the work tree, tracked or not, which may have caused the failure of the first
    /// attempt.
    fn clear_worktree(&mut self) {
        self.notice("Deleting tracked and untracked files...");
        let none = BTreeMap::new();
        let cleared = self
            .git(&none, &["rm", "-rf", "--ignore-unmatch", "--quiet", "."])
            .and_then(|()| self.git(&none, &["clean", "-ffdx", "-q"]));
        if let Err(error) = cleared {
            self.warn(&format!("Failed to clear worktree: {error}"));
        }
    }
}

/// Returns environment variables for git, which disable password prompts and the early download of
/// LFS files.
pub fn git_env(sources: &SourceOptions) -> BTreeMap<String, String> {
    let mut env = vec![("GIT_TERMINAL_PROMPT", "0"), ("GCM_INTERACTIVE", "Never")];
    if !sources.lfs_disabled {
        // LFS files are fetched together, after the checkout.
        env.push(("GIT_LFS_SKIP_SMUDGE", "1"));
    }
    env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

pub(super) fn has_submodules(strategy: &str) -> bool {
    matches!(strategy, "normal" | "recursive")
}

/// Returns the `-c` options for git commands that connect to the server.
fn settings(sources: &SourceOptions) -> Vec<String> {
    let mut arguments = Vec::new();
    let mut set = |setting: String| arguments.extend(["-c".to_owned(), setting]);
    if !sources.user_agent.is_empty() {
        set(format!("http.userAgent={}", sources.user_agent));
    }
    if sources.use_proactive_auth {
        // Only for this host: git passes settings to processes that fetch bundles from other hosts.
        match sources.remote_host.as_str() {
            "" => set("http.proactiveAuth=basic".to_owned()),
            host => set(format!("http.{host}.proactiveAuth=basic")),
        }
    }
    arguments
}

/// Parses the first two numbers of a version: 2 and 47 for `git version 2.47.3`.
fn parse_version(text: &str) -> Option<[u32; 2]> {
    let version =
        text.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut numbers = version.split('.').map(|number| number.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

/// Default flags of `git clean` in submodules.
const CLEAN: &str = "-ffdx";

/// Options of the commands for submodules.
struct Submodules<'a> {
    sources: &'a SourceOptions,
    env: &'a BTreeMap<String, String>,
    /// Value of `git -c` that makes submodules use the connection settings of their parent.
    include: String,
    /// `--recursive`, if nested submodules are included.
    recursive: Option<&'static str>,
}

impl JobContext<'_> {
    /// Updates the submodules, unless `submodule_strategy` is `none` or empty.
    fn update_submodules(
        &mut self,
        sources: &SourceOptions,
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

        job.git(self.env, &["submodule", "init"]).with_part("submodule init")?;
        self.sync(job).with_part("submodule sync")?;
        let mut clean = vec!["git", "clean"];
        let flags = &self.sources.git_clean_flags;
        clean.extend(flags.iter().map(String::as_str));
        if flags.is_empty() {
            clean.push(CLEAN);
        }
        // Leftovers of an earlier job may be in the way; otherwise failures of these commands are harmless.
        let _ = self.run_in_each(job, false, &clean);
        let _ = self.run_in_each(job, false, &["git", "reset", "--hard"]);

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
                let _ = self.run_in_each(job, true, &["git", "fetch", "origin", refs]);
            }
            let _ = self.sync(job);
            self.check_out(job).with_part("submodule update (retry)")?;
            let _ = self.run_in_each(job, false, &["git", "reset", "--hard"]);
        }
        let _ = self.run_in_each(job, false, &clean);

        job.notice("Configuring submodules to use parent git credentials...");
        let external = external.to_string_lossy();
        let set = ["git", "config", "--replace-all", "include.path", &external];
        let all = ["submodule", "foreach", "--recursive"].iter().chain(&set).copied();
        let _ = job.git(self.env, &all.collect::<Vec<_>>());

        if !self.sources.lfs_disabled && job.has_lfs(self.env) {
            job.notice("Pulling LFS files for submodules...");
            let _ = self.run_in_each(job, true, &["git", "lfs", "pull"]);
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

    /// Runs a command in each submodule, and if `connects` is set, with the connection settings of
    /// the parent. The words are passed as separate arguments: a shell would parse a single text.
    fn run_in_each(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_numerically() {
        for (text, version) in [
            ("git version 2.47.3\n", Some([2, 47])),
            ("git version 2.9.0.windows.1", Some([2, 9])),
            ("git version 2.50-rc1", None),
            ("no", None),
        ] {
            assert_eq!(parse_version(text), version, "{text}");
        }
        assert!([2, 100] >= CLONES_REFS && [2, 9] < CLONES_REFS);
    }
}
