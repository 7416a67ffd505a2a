//! Fetches a revision into a scratch repository, and checks out its files.
//!
//! The scratch repository is removed after each fetch; only the checked out files of a commit stay
//! in the cache. So neither a killed git nor a renamed branch affects the next fetch.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use oci_hooks_files::fs::PathContext as _;
use oci_hooks_host::removal::remove_tree;

use super::error::GitError;
use super::program::GitRunner;
use super::repository::{is_abbreviation, is_commit, is_ref_name};

/// Ref of the fetched commit in the scratch repository.
const FETCHED: &str = "refs/step-runner/fetched";

/// Messages of servers that do not serve commits by id, only by branch or tag.
const NOT_BY_ID: [&str; 2] = ["not our ref", "unadvertised object"];

/// Returns the directory with the files of a revision. It is below `dir`, the cache directory of
/// the repository, which the caller has locked.
pub fn tree(git: GitRunner<'_>, dir: &Path, rev: &str) -> Result<PathBuf, GitError> {
    let fetch =
        ScratchFetch { git, dir, bare: dir.join("scratch.git"), partial: dir.join("partial") };
    // Left by a killed process.
    fetch.clear()?;
    let tree = fetch.tree(rev);
    fetch.clear()?;
    tree
}

/// A fetch into a scratch repository.
struct ScratchFetch<'a> {
    git: GitRunner<'a>,
    dir: &'a Path,
    bare: PathBuf,
    /// Directory in which the files of a commit are checked out; renamed once it is complete.
    partial: PathBuf,
}

struct ResolvedRevision {
    commit: String,
    /// Ref to fetch: a branch, a tag or the commit.
    name: String,
}

impl ScratchFetch<'_> {
    fn clear(&self) -> Result<(), GitError> {
        remove_tree(&self.bare)?;
        Ok(remove_tree(&self.partial)?)
    }

    /// Creates the scratch repository, with the hash algorithm (SHA-1 or SHA-256) of the commit
    /// `id`.
    fn init(&self, id: &str) -> Result<(), GitError> {
        remove_tree(&self.bare)?;
        let format = if id.len() == 64 { "sha256" } else { "sha1" };
        let format = format!("--object-format={format}");
        let arguments = ["init", "--quiet", "--bare", "--template=", &format, "--"];
        let arguments = arguments.map(OsStr::new);
        let arguments = [&arguments[..], &[self.bare.as_os_str()]].concat();
        self.git.run(self.dir, &arguments).map(drop)
    }

    /// Returns the directory with the files of a revision. Fetches them if they are not in the
    /// cache.
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
        let format = tips.first().cloned().ok_or_else(missing)?;
        let mut tips = tips.into_iter().filter(|tip| tip.starts_with(&commit));
        let commit = match (tips.next(), tips.next()) {
            (Some(commit), None) => commit,
            (Some(_), Some(_)) => return Err(missing()),
            (None, _) => {
                self.init(&format)?;
                self.fetch_history(&["--filter=tree:0"])?;
                self.commit(&commit)?.ok_or_else(missing)?
            }
        };
        Ok(ResolvedRevision { name: commit.clone(), commit })
    }

    /// Lists the commits of these refs of the remote by name, or those of all refs if `names` is
    /// empty.
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

    /// Fetches a ref, and returns the fetched commit, which differs from that in `target` if a
    /// branch has moved meanwhile.
    fn fetch(&self, target: &ResolvedRevision, rev: &str) -> Result<String, GitError> {
        let missing = || GitError::Version(rev.to_owned());
        self.init(&target.commit)?;
        let refspec = format!("+{}:{FETCHED}", target.name);
        match self.fetch_refs(&["--depth=1"], &[&refspec])? {
            Ok(()) => self.commit(FETCHED)?.ok_or_else(missing),
            Err(message) if NOT_BY_ID.iter().any(|words| message.contains(words)) => {
                self.fetch_history(&[])?;
                self.commit(&target.commit)?.ok_or_else(missing)
            }
            Err(message) => Err(self.git.command_error(message)),
        }
    }

    /// Fetches all branches and tags with their history.
    fn fetch_history(&self, options: &[&str]) -> Result<(), GitError> {
        let all = ["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"];
        let fetched = self.fetch_refs(options, &all)?;
        fetched.map_err(|message| self.git.command_error(message))
    }

    fn fetch_refs(
        &self,
        options: &[&str],
        refspecs: &[&str],
    ) -> Result<Result<(), String>, GitError> {
        let fetch = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"];
        let url = ["--", self.git.repository().url.as_str()];
        let arguments = [&fetch[..], options, &url, refspecs].concat();
        Ok(self.try_run(&arguments)?.map(drop))
    }

    /// Returns the commit of a ref, or of a full or abbreviated id, in the scratch repository;
    /// `None` if it does not exist.
    fn commit(&self, name: &str) -> Result<Option<String>, GitError> {
        let name = format!("{name}^{{commit}}");
        let found =
            self.try_run(&["rev-parse", "--verify", "--quiet", "--end-of-options", &name])?;
        Ok(found.ok().map(|commit| commit.trim().to_owned()).filter(|commit| is_commit(commit)))
    }

    /// Checks out the files of a commit to the directory `tree`.
    fn check_out(&self, commit: &str, tree: &Path) -> Result<(), GitError> {
        // A few objects can describe any number of files: the limit of git's output rejects them before the checkout.
        let listed = self.try_run(&["ls-tree", "-r", "--name-only", commit])?;
        listed.map_err(|message| self.git.command_error(message))?;
        DirBuilder::new().mode(0o700).create(&self.partial).with_path("make", &self.partial)?;
        let mut work_tree = OsStr::new("--work-tree=").to_owned();
        work_tree.push(&self.partial);
        let arguments = ["read-tree", "--reset", "-u", commit].map(OsStr::new);
        let git_dir = self.git_dir();
        let arguments = [&[&*git_dir, &work_tree], &arguments[..]].concat();
        self.git.run(&self.partial, &arguments)?;
        Ok(fs::rename(&self.partial, tree).with_path("rename", &self.partial)?)
    }

    /// Runs git in the scratch repository. Returns its output, or its error message if it fails.
    fn try_run(&self, arguments: &[&str]) -> Result<Result<String, String>, GitError> {
        let git_dir = self.git_dir();
        let arguments = arguments.iter().copied().map(OsStr::new);
        let arguments: Vec<_> = [&*git_dir].into_iter().chain(arguments).collect();
        self.git.try_run(self.dir, &arguments)
    }

    fn git_dir(&self) -> OsString {
        let mut option = OsStr::new("--git-dir=").to_owned();
        option.push(&self.bare);
        option
    }
}
