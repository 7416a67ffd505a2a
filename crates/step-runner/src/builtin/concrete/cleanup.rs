//! Cleanup of a repository, before and after a job.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use oci_hooks_host::removal::remove_tree;

use super::context::JobContext;
use super::sources::has_submodules;

/// Lock files left by a killed git.
const LOCKS: [&str; 4] = ["index.lock", "shallow.lock", "HEAD.lock", "config.lock"];

/// Maximum number of directories to search in a repository.
const MAX_DIRECTORIES: usize = 100_000;

impl JobContext<'_> {
    /// Cleans up after the job: cleans or removes the work tree if the job asks for it, and then
    /// cleans `.git`.
    pub(super) fn clean_up(&mut self) {
        let cleanup = &self.config.cleanup;
        let has_submodules = has_submodules(&cleanup.submodule_strategy);
        if cleanup.enable_job_cleanup {
            match cleanup.git_strategy.as_str() {
                "clone" | "empty" => {
                    if let Err(error) = remove_tree(&self.work_dir) {
                        self.print_uncolored(&format!("Cleanup failed: {error}: {}", error.source));
                    }
                }
                "fetch" => self.clean_work_tree(has_submodules),
                "none" => self.notice("Skipping build directory cleanup step"),
                _ => {}
            }
        }
        self.clean_repository(has_submodules, cleanup.clean_git_config);
    }

    fn clean_work_tree(&mut self, has_submodules: bool) {
        let cleanup = &self.config.cleanup;
        let none = BTreeMap::new();
        let flags = cleanup.git_clean_flags.iter().map(String::as_str);
        let clean: Vec<_> = ["clean"].into_iter().chain(flags).collect();
        let reset = ["reset", "--hard"];
        // Git reports its errors; the next job cleans up again.
        if clean.len() > 1 {
            let _ = self.git(&none, &clean);
        }
        let _ = self.git(&none, &reset);
        if !has_submodules {
            return;
        }
        let mut each = vec!["submodule", "foreach"];
        each.extend((cleanup.submodule_strategy == "recursive").then_some("--recursive"));
        each.push("git");
        if clean.len() > 1 {
            let _ = self.git(&none, &[each.as_slice(), &clean].concat());
        }
        let _ = self.git(&none, &[each.as_slice(), &reset].concat());
    }

    /// Removes lock files and the `post-checkout` hook from `.git`. If `removes_config` is set,
    /// also removes the configuration and all hooks, by which a job could affect the next one.
    pub(super) fn clean_repository(&mut self, has_submodules: bool, removes_config: bool) {
        let git = self.work_dir.join(".git");
        let modules = git.join("modules");
        for lock in LOCKS {
            // Usually missing.
            let _ = fs::remove_file(git.join(lock));
        }
        let _ = fs::remove_file(git.join("hooks/post-checkout"));
        if has_submodules {
            remove_below(&modules, |name| LOCKS.contains(&name) || name == "post-checkout");
        }
        remove_below(&git.join("refs"), |name| name.ends_with(".lock"));
        if !removes_config {
            return;
        }
        for directory in [&self.temp_dir.join("git-template"), &git] {
            let _ = fs::remove_file(directory.join("config"));
            let _ = remove_tree(&directory.join("hooks"));
        }
        if has_submodules {
            remove_below(&modules, |name| matches!(name, "config" | "hooks"));
        }
    }
}

/// Removes entries with a matching name below a directory, without following symlinks there. Races
/// with processes of the job are harmless, because they run as the same user.
fn remove_below(directory: &Path, is_meant: impl Fn(&str) -> bool) {
    let mut waiting = vec![directory.to_owned()];
    for _ in 0..MAX_DIRECTORIES {
        let Some(directory) = waiting.pop() else { return };
        let Ok(entries) = fs::read_dir(directory) else { continue };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(&is_meant) {
                // Git reports an error if a remaining entry is in its way.
                let _ = remove_tree(&entry.path());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_git_leftovers_are_removed_and_links_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for path in ["modules/a/hooks/x", "modules/b/c/hooks", "elsewhere/hooks"] {
            fs::create_dir_all(at(path)).unwrap();
        }
        fs::write(at("modules/a/kept"), "").unwrap();
        fs::write(at("modules/a/config"), "").unwrap();
        symlink(at("elsewhere"), at("modules/link")).unwrap();
        remove_below(&at("modules"), |name| matches!(name, "config" | "hooks"));
        assert!(at("modules/a/kept").exists() && at("elsewhere/hooks").exists());
        for path in ["modules/a/hooks", "modules/a/config", "modules/b/c/hooks"] {
            assert!(!at(path).exists(), "{path}");
        }
        remove_below(&at("nothing"), |_| true);
    }
}
