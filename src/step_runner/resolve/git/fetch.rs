//! Fetches a revision of a repository into a directory.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::credential::Credential;
use super::error::GitError;
use super::program::Runner;
use super::repository::Repository;
use crate::sys::fs::PathContext as _;
use crate::sys::lock::FileLock;
use crate::sys::removal::remove_tree;

/// Minimum length of an abbreviated commit.
const MIN_DIGITS: usize = 8;

/// Length of SHA-1 and SHA-256 commits.
const DIGITS: [usize; 2] = [40, 64];

/// Ref of the last fetched commit in the mirror.
const FETCHED: &str = "refs/step-runner/fetched";

/// Marker file of a consistent mirror, without locks and partial files of a crashed process.
const WHOLE: &str = "whole";

/// Fetches git repositories.
#[derive(Clone, Debug)]
pub struct Git<'a> {
    /// Private cache directory, created if missing.
    pub cache: &'a Path,
    /// Environment of git, with `PATH` and `HOME` (for `.netrc` and SSH keys).
    pub env: &'a BTreeMap<String, String>,
    /// Credentials for one host; those in a URL take precedence.
    pub credential: Option<Credential>,
    /// Whether local repositories, `file://…`, are allowed.
    pub files: bool,
    /// Timeout of one fetch, with all calls of git.
    pub timeout: Duration,
}

impl Git<'_> {
    /// Returns a directory with the files of a revision: a tag, a branch, a commit, or at least eight
    /// digits of one. The directory is shared, and must not be changed.
    ///
    /// # Errors
    ///
    /// Fails if the repository or revision does not exist, or the fetch times out.
    pub fn fetch(&self, url: &str, rev: &str) -> Result<PathBuf, GitError> {
        if rev == ".git" {
            return Err(GitError::DotGit);
        }
        let repository = Repository::parse(url, self.files)?;
        private_dir(self.cache)?;
        let dir = self.cache.join(repository.directory());
        private_dir(&dir)?;
        let commit = rev.to_ascii_lowercase();
        let tree = dir.join(&commit);
        if is_commit(&commit) && tree.exists() {
            return Ok(tree);
        }
        let git = Runner::new(&repository, self.credential.as_ref(), self.env, self.timeout)?;
        let _lock = FileLock::exclusive(&dir.join("lock"))?;
        let mirror = Mirror::open(git, &dir)?;
        let tree = mirror.tree(rev);
        if matches!(tree, Ok(_) | Err(GitError::Version(_) | GitError::Failed { .. })) {
            mirror.close()?;
        }
        tree
    }
}

/// The local mirror of a repository, locked.
struct Mirror<'a> {
    git: Runner<'a>,
    dir: &'a Path,
    bare: PathBuf,
}

/// A resolved revision.
struct Target {
    commit: String,
    /// Ref to fetch: a branch, a tag or the commit.
    name: String,
}

impl<'a> Mirror<'a> {
    fn open(git: Runner<'a>, dir: &'a Path) -> Result<Self, GitError> {
        let (bare, whole) = (dir.join("mirror.git"), dir.join(WHOLE));
        if whole.exists() {
            fs::remove_file(&whole).at("remove", &whole)?;
        } else {
            remove_tree(&bare)?;
            let arguments = ["init", "--quiet", "--bare", "--template=", "--"].map(OsStr::new);
            git.run(dir, &[&arguments[..], &[bare.as_os_str()]].concat())?;
        }
        Ok(Mirror { git, dir, bare })
    }

    /// Marks the mirror as consistent.
    fn close(self) -> Result<(), GitError> {
        let whole = self.dir.join(WHOLE);
        Ok(fs::write(&whole, "").at("write", &whole)?)
    }

    /// Returns the directory with the files of a revision.
    fn tree(&self, rev: &str) -> Result<PathBuf, GitError> {
        let target = self.find(rev)?;
        let tree = self.dir.join(&target.commit);
        if tree.exists() {
            return Ok(tree);
        }
        let commit = self.fetch(&target, rev)?;
        let tree = self.dir.join(&commit);
        if !tree.exists() {
            self.check_out(&commit, &tree)?;
        }
        Ok(tree)
    }

    /// Resolves a revision: a tag, or else a branch, or else a commit.
    fn find(&self, rev: &str) -> Result<Target, GitError> {
        let commit = rev.to_ascii_lowercase();
        if is_commit(&commit) {
            return Ok(Target { name: commit.clone(), commit });
        }
        if is_ref_name(rev) {
            let (tag, branch) = (format!("refs/tags/{rev}"), format!("refs/heads/{rev}"));
            // The commit of an annotated tag is listed as a peeled ref.
            let peeled = format!("{tag}^{{}}");
            let refs = self.list(&[&peeled, &tag, &branch])?;
            for (listed, name) in [(&peeled, &tag), (&tag, &tag), (&branch, &branch)] {
                if let Some(commit) = refs.get(listed) {
                    return Ok(Target { commit: commit.clone(), name: name.clone() });
                }
            }
        }
        let missing = || GitError::Version(rev.to_owned());
        let is_prefix = commit.len() >= MIN_DIGITS
            && commit.len() < DIGITS[1]
            && commit.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !is_prefix {
            return Err(missing());
        }
        let tips: BTreeSet<_> = self.list(&[])?.into_values().collect();
        let mut tips = tips.into_iter().filter(|tip| tip.starts_with(&commit));
        match (tips.next(), tips.next()) {
            (Some(commit), None) => Ok(Target { name: commit.clone(), commit }),
            (Some(_), Some(_)) => Err(missing()),
            (None, _) => {
                self.fetch_history()?;
                let commit = self.commit(&commit)?.ok_or_else(missing)?;
                Ok(Target { name: commit.clone(), commit })
            }
        }
    }

    /// Lists these refs of the remote, or all refs if none are given.
    fn list(&self, names: &[&str]) -> Result<BTreeMap<String, String>, GitError> {
        let url = self.git.repository().url.as_str();
        let arguments = [&["ls-remote", "--quiet", "--", url], names].concat();
        let arguments: Vec<_> = arguments.into_iter().map(OsStr::new).collect();
        let refs = self.git.run(self.dir, &arguments)?;
        let refs = refs.lines().filter_map(|line| line.split_once('\t'));
        // git matches names by their suffix.
        let refs = refs.filter(|(commit, name)| {
            is_commit(commit) && (names.is_empty() || names.contains(name))
        });
        Ok(refs.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect())
    }

    /// Fetches a ref and returns its commit; a branch may have moved meanwhile.
    fn fetch(&self, target: &Target, rev: &str) -> Result<String, GitError> {
        let missing = || GitError::Version(rev.to_owned());
        let refspec = format!("+{}:{FETCHED}", target.name);
        match self.fetch_refs("--depth=1", &[&refspec])? {
            Ok(()) => self.commit(FETCHED)?.ok_or_else(missing),
            // Old servers do not serve commits by id, only by branch or tag.
            Err(_) if is_commit(&target.name) => {
                self.fetch_history()?;
                self.commit(&target.name)?.ok_or_else(missing)
            }
            Err(message) => Err(self.git.failed(message)),
        }
    }

    /// Fetches all branches and tags with their history.
    fn fetch_history(&self) -> Result<(), GitError> {
        let all = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
        // Full depth: earlier fetches were shallow.
        let fetched = self.fetch_refs("--depth=2147483647", &all)?;
        fetched.map_err(|message| self.git.failed(message))
    }

    fn fetch_refs(&self, depth: &str, refspecs: &[&str]) -> Result<Result<(), String>, GitError> {
        let url = self.git.repository().url.as_str();
        let options = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", depth, "--", url];
        let arguments = [&options, refspecs].concat();
        let arguments: Vec<_> = arguments.into_iter().map(OsStr::new).collect();
        Ok(self.git.try_run(&self.bare, &arguments)?.map(drop))
    }

    /// Returns the commit of a ref in the mirror.
    fn commit(&self, name: &str) -> Result<Option<String>, GitError> {
        let name = format!("{name}^{{commit}}");
        let arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", &name];
        let found = self.git.try_run(&self.bare, &arguments.map(OsStr::new))?;
        Ok(found.ok().map(|commit| commit.trim().to_owned()).filter(|commit| is_commit(commit)))
    }

    /// Checks out the files of a commit.
    fn check_out(&self, commit: &str, tree: &Path) -> Result<(), GitError> {
        let (half, index) = (self.dir.join("half"), self.bare.join("index"));
        // Left by a crash.
        remove_tree(&half)?;
        DirBuilder::new().mode(0o700).create(&half).at("make", &half)?;
        // Git writes only what is not in its index.
        if index.exists() {
            fs::remove_file(&index).at("remove", &index)?;
        }
        let mut git_dir = OsStr::new("--git-dir=").to_owned();
        git_dir.push(&self.bare);
        let mut work_tree = OsStr::new("--work-tree=").to_owned();
        work_tree.push(&half);
        let arguments = ["read-tree", "--reset", "-u", commit].map(OsStr::new);
        let arguments = [&[git_dir.as_os_str(), &work_tree], &arguments[..]].concat();
        self.git.run(&half, &arguments)?;
        Ok(fs::rename(&half, tree).at("rename", &half)?)
    }
}

/// Creates a private directory, or checks that an existing one is private.
fn private_dir(dir: &Path) -> Result<(), GitError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).at("make", dir)?;
    let found = fs::symlink_metadata(dir).at("inspect", dir)?;
    let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if is_ours && found.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(GitError::NotPrivate(dir.to_owned()))
    }
}

/// Returns whether a text is a full commit id.
fn is_commit(text: &str) -> bool {
    DIGITS.contains(&text.len())
        && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether a text is a valid name of a branch or tag. Others could have a special meaning to git.
fn is_ref_name(text: &str) -> bool {
    let is_bad = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
    !text.is_empty()
        && !text.contains(is_bad)
        && !text.contains("..")
        && !text.contains("@{")
        && !text.contains("//")
        && !text.starts_with(['-', '/', '.'])
        && !text.ends_with(['/', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_git_would_take_for_more_than_a_name_is_none() {
        for name in ["v1", "feature/x", "1.2.3", "a-b_c", "é", "@"] {
            assert!(is_ref_name(name), "{name}");
        }
        for name in [
            "", "-v1", "--all", "a b", "a\n", "a..b", "a^{}", "a:b", "*", "v?", "[a]", "/a", "a/",
            "x@{1}",
        ] {
            assert!(!is_ref_name(name), "{name}");
        }
        assert!(is_commit(&"0a".repeat(20)) && is_commit(&"0a".repeat(32)));
        assert!(!is_commit(&"0A".repeat(20)) && !is_commit(&"0a".repeat(19)));
    }

    #[test]
    fn a_cache_that_others_may_write_to_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("cache");
        private_dir(&dir).unwrap();
        fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert!(matches!(private_dir(&dir), Err(GitError::NotPrivate(_))));
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(parent.path(), &link).unwrap();
        assert!(matches!(private_dir(&link), Err(GitError::NotPrivate(_))));
    }
}
