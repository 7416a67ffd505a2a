//! Fetches a revision by the program `git`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::PathContext as _;
use oci_hooks_host::removal::remove_tree;

use super::error::GitError;
use super::program::GitRunner;
use super::repository::{is_abbreviation, is_commit, is_ref_name};

/// Ref of the last fetched commit in the mirror.
const FETCHED: &str = "refs/step-runner/fetched";

/// Marker file of a consistent mirror, without locks and partial files of a crashed process.
const WHOLE: &str = "whole";

/// Returns the directory with the files of a revision, below the directory of its repository, which is
/// locked.
pub fn tree(git: GitRunner<'_>, dir: &Path, rev: &str) -> Result<PathBuf, GitError> {
    let mirror = Mirror::open(git, dir)?;
    let tree = mirror.tree(rev);
    if matches!(tree, Ok(_) | Err(GitError::Version(_) | GitError::Failed { .. })) {
        mirror.close()?;
    }
    tree
}

/// The local mirror of a repository, locked.
struct Mirror<'a> {
    git: GitRunner<'a>,
    dir: &'a Path,
    bare: PathBuf,
}

struct ResolvedRevision {
    commit: String,
    /// Ref to fetch: a branch, a tag or the commit.
    name: String,
}

impl<'a> Mirror<'a> {
    fn open(git: GitRunner<'a>, dir: &'a Path) -> Result<Self, GitError> {
        let (bare, whole) = (dir.join("mirror.git"), dir.join(WHOLE));
        if whole.exists() {
            fs::remove_file(&whole).with_path("remove", &whole)?;
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
        Ok(fs::write(&whole, "").with_path("write", &whole)?)
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
    fn find(&self, rev: &str) -> Result<ResolvedRevision, GitError> {
        let commit = rev.to_ascii_lowercase();
        if is_commit(&commit) {
            return Ok(ResolvedRevision { name: commit.clone(), commit });
        }
        if is_ref_name(rev) {
            let (tag, branch) = (format!("refs/tags/{rev}"), format!("refs/heads/{rev}"));
            // The commit of an annotated tag is listed as a peeled ref.
            let peeled = format!("{tag}^{{}}");
            let refs = self.list(&[&peeled, &tag, &branch])?;
            for (listed, name) in [(&peeled, &tag), (&tag, &tag), (&branch, &branch)] {
                if let Some(commit) = refs.get(listed) {
                    return Ok(ResolvedRevision { commit: commit.clone(), name: name.clone() });
                }
            }
        }
        let missing = || GitError::Version(rev.to_owned());
        if !is_abbreviation(&commit) {
            return Err(missing());
        }
        let tips: BTreeSet<_> = self.list(&[])?.into_values().collect();
        let mut tips = tips.into_iter().filter(|tip| tip.starts_with(&commit));
        match (tips.next(), tips.next()) {
            (Some(commit), None) => Ok(ResolvedRevision { name: commit.clone(), commit }),
            (Some(_), Some(_)) => Err(missing()),
            (None, _) => {
                self.fetch_history()?;
                let commit = self.commit(&commit)?.ok_or_else(missing)?;
                Ok(ResolvedRevision { name: commit.clone(), commit })
            }
        }
    }

    /// Lists these refs of the remote, or all refs if `names` is empty.
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
    fn fetch(&self, target: &ResolvedRevision, rev: &str) -> Result<String, GitError> {
        let missing = || GitError::Version(rev.to_owned());
        let refspec = format!("+{}:{FETCHED}", target.name);
        match self.fetch_refs("--depth=1", &[&refspec])? {
            Ok(()) => self.commit(FETCHED)?.ok_or_else(missing),
            // Old servers do not serve commits by id, only by branch or tag.
            Err(_) if is_commit(&target.name) => {
                self.fetch_history()?;
                self.commit(&target.name)?.ok_or_else(missing)
            }
            Err(message) => Err(self.git.command_error(message)),
        }
    }

    /// Fetches all branches and tags with their history.
    fn fetch_history(&self) -> Result<(), GitError> {
        let all = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
        // Full depth: earlier fetches were shallow.
        let fetched = self.fetch_refs("--depth=2147483647", &all)?;
        fetched.map_err(|message| self.git.command_error(message))
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
        DirBuilder::new().mode(0o700).create(&half).with_path("make", &half)?;
        // Git writes only files that are not in its index.
        if index.exists() {
            fs::remove_file(&index).with_path("remove", &index)?;
        }
        let mut git_dir = OsStr::new("--git-dir=").to_owned();
        git_dir.push(&self.bare);
        let mut work_tree = OsStr::new("--work-tree=").to_owned();
        work_tree.push(&half);
        let arguments = ["read-tree", "--reset", "-u", commit].map(OsStr::new);
        let arguments = [&[git_dir.as_os_str(), &work_tree], &arguments[..]].concat();
        self.git.run(&half, &arguments)?;
        Ok(fs::rename(&half, tree).with_path("rename", &half)?)
    }
}
