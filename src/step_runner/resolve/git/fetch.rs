//! From a repository and a revision to a directory with the files.

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

/// How many digits of a commit are enough to name it.
const MIN_DIGITS: usize = 8;

/// How many digits commits have.
const DIGITS: [usize; 2] = [40, 64];

/// What was fetched last, in the mirror.
const FETCHED: &str = "refs/step-runner/fetched";

/// The file that says that the mirror is whole: nobody was killed while working on it, and left
/// locks and halves behind.
const WHOLE: &str = "whole";

/// How repositories are fetched.
#[derive(Clone, Debug)]
pub struct Git<'a> {
    /// A directory of this user's alone; it is made if need be.
    pub cache: &'a Path,
    /// The environment: `PATH` has git in it, `HOME` the user's `.netrc` and SSH keys.
    pub env: &'a BTreeMap<String, String>,
    /// Who we are to one host; a name and a password in a URL go before it.
    pub credential: Option<Credential>,
    /// Whether repositories on this machine, `file://…`, are fine.
    pub files: bool,
    /// How long it may take.
    pub timeout: Duration,
}

impl Git<'_> {
    /// Returns a directory with the files of a revision: a tag, a branch, a commit or its first
    /// eight digits or more. It stays as it is, and others use it as well.
    ///
    /// # Errors
    ///
    /// Fails if there is no such repository or revision, or it takes too long.
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

/// The part of a repository that is here. Its lock is held.
struct Mirror<'a> {
    git: Runner<'a>,
    dir: &'a Path,
    bare: PathBuf,
}

/// What a revision stands for.
struct Target {
    /// The commit.
    commit: String,
    /// What to ask for: a branch, a tag or the commit.
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

    /// Says that the mirror can be used again.
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

    /// Finds out what a revision stands for: a tag, else a branch, else a commit.
    fn find(&self, rev: &str) -> Result<Target, GitError> {
        let commit = rev.to_ascii_lowercase();
        if is_commit(&commit) {
            return Ok(Target { name: commit.clone(), commit });
        }
        if is_ref_name(rev) {
            let (tag, branch) = (format!("refs/tags/{rev}"), format!("refs/heads/{rev}"));
            // What a tag with a message stands for comes in a line of its own.
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

    /// Asks for branches and tags; for all if none are named.
    fn list(&self, names: &[&str]) -> Result<BTreeMap<String, String>, GitError> {
        let url = self.git.repository().url.as_str();
        let arguments = [&["ls-remote", "--quiet", "--", url], names].concat();
        let arguments: Vec<_> = arguments.into_iter().map(OsStr::new).collect();
        let refs = self.git.run(self.dir, &arguments)?;
        let refs = refs.lines().filter_map(|line| line.split_once('\t'));
        // A name stands for whatever ends in it.
        let refs = refs.filter(|(commit, name)| {
            is_commit(commit) && (names.is_empty() || names.contains(name))
        });
        Ok(refs.map(|(commit, name)| (name.to_owned(), commit.to_owned())).collect())
    }

    /// Fetches a commit and returns it; a branch may have moved in the meantime.
    fn fetch(&self, target: &Target, rev: &str) -> Result<String, GitError> {
        let missing = || GitError::Version(rev.to_owned());
        let refspec = format!("+{}:{FETCHED}", target.name);
        match self.fetch_refs("--depth=1", &[&refspec])? {
            Ok(()) => self.commit(FETCHED)?.ok_or_else(missing),
            // Old servers tell commits only by the branches that they are on.
            Err(_) if is_commit(&target.name) => {
                self.fetch_history()?;
                self.commit(&target.name)?.ok_or_else(missing)
            }
            Err(message) => Err(self.git.failed(message)),
        }
    }

    /// Fetches all there is.
    fn fetch_history(&self) -> Result<(), GitError> {
        let all = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
        // As deep as it goes: what was fetched before has no history.
        let fetched = self.fetch_refs("--depth=2147483647", &all)?;
        fetched.map_err(|message| self.git.failed(message))
    }

    fn fetch_refs(&self, depth: &str, refspecs: &[&str]) -> Result<Result<(), String>, GitError> {
        let url = self.git.repository().url.as_str();
        let options = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", depth, "--", url];
        let arguments = [&options, refspecs].concat();
        let arguments: Vec<_> = arguments.into_iter().map(OsStr::new).collect();
        Ok(self.git.asked(&self.bare, &arguments)?.map(drop))
    }

    /// Returns the commit that a name in the mirror stands for.
    fn commit(&self, name: &str) -> Result<Option<String>, GitError> {
        let name = format!("{name}^{{commit}}");
        let arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options", &name];
        let found = self.git.asked(&self.bare, &arguments.map(OsStr::new))?;
        Ok(found.ok().map(|commit| commit.trim().to_owned()).filter(|commit| is_commit(commit)))
    }

    /// Writes the files of a commit.
    fn check_out(&self, commit: &str, tree: &Path) -> Result<(), GitError> {
        let (half, index) = (self.dir.join("half"), self.bare.join("index"));
        // Of somebody who was killed.
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

/// Makes a directory, which must be ours alone.
fn private_dir(dir: &Path) -> Result<(), GitError> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).at("make", dir)?;
    let found = fs::symlink_metadata(dir).at("look at", dir)?;
    let is_ours = found.is_dir() && found.uid() == rustix::process::geteuid().as_raw();
    if is_ours && found.mode() & 0o022 == 0 {
        Ok(())
    } else {
        Err(GitError::NotPrivate(dir.to_owned()))
    }
}

/// Tells if a text is a whole commit.
fn is_commit(text: &str) -> bool {
    DIGITS.contains(&text.len())
        && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Tells if a text could be the name of a branch or a tag. Those that could not would mean more than
/// one thing to git.
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
