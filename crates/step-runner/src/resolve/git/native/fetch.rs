//! Finds a revision and writes its files.

use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::time::Instant;

use gix_hash::ObjectId;
use oci_hooks_host::removal::remove_tree;

use super::super::error::GitError;
use super::super::options::GitFetcher;
use super::super::repository::{GitRepository, is_abbreviation, is_commit, is_ref_name};
use super::checkout::{Pack, check_out};
use super::protocol::{FetchExtent, UploadPackServer};
use super::transfer::{GitTransfer, TransferError};

/// Returns the directory with the files of a revision, below the directory of its repository, which is
/// locked.
pub fn tree(
    git: &GitFetcher<'_>,
    repository: &GitRepository,
    dir: &Path,
    rev: &str,
    deadline: Instant,
) -> Result<PathBuf, GitError> {
    let scratch = dir.join("pack");
    let tree = GitTransfer::run(git.interrupt, deadline, |transfer| {
        let server = UploadPackServer::open(git, repository, transfer)?;
        let max_bytes = git.max_bytes;
        let mut fetch = Fetch { server, transfer, dir, scratch: &scratch, max_bytes };
        fetch.tree(rev)
    });
    // Also after a failed fetch. Files that cannot be removed are removed before the next fetch.
    let removed = remove_tree(&scratch);
    let url = || repository.url.clone();
    match tree {
        Ok(Some(tree)) => Ok(removed.map(|()| tree)?),
        Ok(None) => Err(GitError::Version(rev.to_owned())),
        Err(TransferError::Stopped) if git.interrupt.is_set() => Err(GitError::Interrupted),
        Err(TransferError::Stopped) => Err(git.timeout_error(&repository.url)),
        Err(TransferError::Outdated) => Err(GitError::Outdated { url: url() }),
        Err(TransferError::Rejected(message)) => {
            Err(GitError::Failed { url: url(), message: format!("the server says: {message}") })
        }
        Err(TransferError::Message(message)) => Err(GitError::Failed { url: url(), message }),
        Err(TransferError::Path(error)) => Err(error.into()),
    }
}

struct Fetch<'a> {
    server: UploadPackServer<'a>,
    transfer: &'a GitTransfer,
    dir: &'a Path,
    scratch: &'a Path,
    max_bytes: u64,
}

impl Fetch<'_> {
    /// Returns the directory of a revision, if the revision exists.
    fn tree(&mut self, rev: &str) -> Result<Option<PathBuf>, TransferError> {
        let Some(id) = self.find(rev)? else { return Ok(None) };
        let tree = self.dir.join(id.to_string());
        if tree.exists() {
            return Ok(Some(tree));
        }
        let mut pack = match self.pack(&BTreeSet::from([id]), FetchExtent::Commits) {
            Ok(pack) => pack,
            // Some servers serve only the tips of branches and tags, not every commit.
            Err(TransferError::Rejected(_)) => {
                match self.history(FetchExtent::History)?.commit(&id)? {
                    Some(_) => self.history(FetchExtent::Everything)?,
                    None => return Ok(None),
                }
            }
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
    fn find(&mut self, rev: &str) -> Result<Option<ObjectId>, TransferError> {
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
            (None, _) => self.history(FetchExtent::History)?.find_abbreviated(&digits),
        }
    }

    /// Fetches the history of all branches and tags.
    fn history(&mut self, extent: FetchExtent) -> Result<Pack, TransferError> {
        let refs = self.server.refs(&["refs/heads/", "refs/tags/"])?;
        self.pack(&refs.into_values().collect(), extent)
    }

    fn pack(
        &mut self,
        wants: &BTreeSet<ObjectId>,
        extent: FetchExtent,
    ) -> Result<Pack, TransferError> {
        let hash = self.server.hash();
        let Fetch { scratch, transfer, max_bytes, .. } = *self;
        let read =
            |input: &mut dyn BufRead| Pack::receive(input, scratch, hash, transfer, max_bytes);
        self.server.fetch(wants, extent, read)
    }
}
