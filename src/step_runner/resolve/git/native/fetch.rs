//! Finds a revision and writes its files.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gix_hash::ObjectId;

use super::super::error::GitError;
use super::super::options::Git;
use super::super::repository::{Repository, is_abbreviation, is_commit, is_ref_name};
use super::checkout::{Pack, check_out};
use super::protocol::{Extent, Server};
use super::transfer::{Failure, Transfer};
use crate::sys::removal::remove_tree;

/// Returns the directory with the files of a revision, below that of its repository, which is locked.
pub fn tree(
    git: &Git<'_>,
    repository: &Repository,
    dir: &Path,
    rev: &str,
    deadline: Instant,
) -> Result<PathBuf, GitError> {
    let scratch = dir.join("pack");
    let tree = Transfer::run(git.interrupt, deadline, |transfer| {
        let server = Server::open(git, repository, transfer)?;
        let max_bytes = git.max_bytes;
        let mut fetch = Fetch { server, transfer, dir, scratch: &scratch, max_bytes };
        fetch.tree(rev)
    });
    // Of a fetch that failed too; what cannot be removed is removed before the next one.
    let removed = remove_tree(&scratch);
    let url = || repository.url.clone();
    match tree {
        Ok(Some(tree)) => Ok(removed.map(|()| tree)?),
        Ok(None) => Err(GitError::Version(rev.to_owned())),
        Err(Failure::Stopped) if git.interrupt.is_set() => Err(GitError::Interrupted),
        Err(Failure::Stopped) => Err(git.timed_out(&repository.url)),
        Err(Failure::Outdated) => Err(GitError::Outdated { url: url() }),
        Err(Failure::Rejected(message)) => {
            Err(GitError::Failed { url: url(), message: format!("the server says: {message}") })
        }
        Err(Failure::Message(message)) => Err(GitError::Failed { url: url(), message }),
        Err(Failure::Path(error)) => Err(error.into()),
    }
}

struct Fetch<'a> {
    server: Server<'a>,
    transfer: &'a Transfer,
    dir: &'a Path,
    /// Directory for a pack.
    scratch: &'a Path,
    max_bytes: u64,
}

impl Fetch<'_> {
    /// Returns the directory of a revision, if there is one.
    fn tree(&mut self, rev: &str) -> Result<Option<PathBuf>, Failure> {
        let Some(id) = self.find(rev)? else { return Ok(None) };
        let tree = self.dir.join(id.to_string());
        if tree.exists() {
            return Ok(Some(tree));
        }
        let mut pack = match self.pack(&BTreeSet::from([id]), Extent::Commits) {
            Ok(pack) => pack,
            // Some servers send branches and tags only, not every commit of them.
            Err(Failure::Rejected(_)) => match self.history(Extent::History)?.commit(&id)? {
                Some(_) => self.history(Extent::Everything)?,
                None => return Ok(None),
            },
            Err(error) => return Err(error),
        };
        let Some((commit, root)) = pack.commit(&id)? else { return Ok(None) };
        let tree = self.dir.join(commit.to_string());
        if !tree.exists() {
            check_out(&mut pack, root, &self.dir.join("half"), &tree, self.transfer)?;
        }
        Ok(Some(tree))
    }

    /// Finds a revision: a tag, or else a branch, or else a commit.
    fn find(&mut self, rev: &str) -> Result<Option<ObjectId>, Failure> {
        let digits = rev.to_ascii_lowercase();
        if is_commit(&digits) {
            let is_fitting = digits.len() == self.server.hash().len_in_hex();
            return Ok(ObjectId::from_hex(digits.as_bytes()).ok().filter(|_| is_fitting));
        }
        if is_ref_name(rev) {
            let (tag, branch) = (format!("refs/tags/{rev}"), format!("refs/heads/{rev}"));
            let refs = self.server.refs(&[&tag, &branch])?;
            for name in [&format!("{tag}^{{}}"), &tag, &branch] {
                if let Some(id) = refs.get(name) {
                    return Ok(Some(*id));
                }
            }
        }
        if !is_abbreviation(&digits) {
            return Ok(None);
        }
        let tips: BTreeSet<_> = self.server.refs(&[])?.into_values().collect();
        let mut tips = tips.into_iter().filter(|tip| tip.to_string().starts_with(&digits));
        match (tips.next(), tips.next()) {
            (Some(commit), None) => Ok(Some(commit)),
            (Some(_), Some(_)) => Ok(None),
            (None, _) => self.history(Extent::History)?.abbreviated(&digits),
        }
    }

    /// Fetches what leads to all branches and tags.
    fn history(&mut self, extent: Extent) -> Result<Pack, Failure> {
        let refs = self.server.refs(&["refs/heads/", "refs/tags/"])?;
        self.pack(&refs.into_values().collect(), extent)
    }

    fn pack(&mut self, wants: &BTreeSet<ObjectId>, extent: Extent) -> Result<Pack, Failure> {
        let hash = self.server.hash();
        let Fetch { scratch, transfer, max_bytes, .. } = *self;
        let read =
            |input: &mut dyn BufRead| Pack::receive(input, scratch, hash, transfer, max_bytes);
        self.server.fetch(wants, extent, read)
    }
}
