//! Version 2 of git's protocol: commands and the parsing of responses.
//!
//! <https://git-scm.com/docs/protocol-v2>

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read};
use std::ops::ControlFlow;

use gix_hash::{Kind, ObjectId};
use gix_packetline::PacketLineRef;
use gix_packetline::blocking_io::StreamingPeekableIter;
use gix_packetline::blocking_io::encode::{delim_to_write, flush_to_write, text_to_write};

use super::super::options::GitFetcher;
use super::super::repository::GitRepository;
use super::exchange::AnswerBody;
use super::remote::GitRemote;
use super::transfer::{GitTransfer, TransferError, malformed_error, shorten_line};

/// Size limit of a list of refs, the same as for the program `git`.
const MAX_REFS_BYTES: u64 = 16 << 20;

/// Packets that end a section of a response.
const ENDS: &[PacketLineRef<'static>] =
    &[PacketLineRef::Flush, PacketLineRef::Delimiter, PacketLineRef::ResponseEnd];

/// A server that supports the protocol.
pub struct UploadPackServer<'a> {
    remote: GitRemote<'a>,
    transfer: &'a GitTransfer,
    hash: Kind,
    /// Set if the server can omit objects.
    filters: bool,
    max_bytes: u64,
}

/// Extent of a fetch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FetchExtent {
    /// The commits, without their history.
    Commits,
    /// The commits with their history, without files if the server can omit them.
    History,
    /// The commits with their history and all files.
    Everything,
}

impl<'a> UploadPackServer<'a> {
    /// Reads the capabilities of a server.
    pub(super) fn open(
        git: &'a GitFetcher<'a>,
        repository: &GitRepository,
        transfer: &'a GitTransfer,
    ) -> Result<Self, TransferError> {
        let (remote, body) = GitRemote::open(git, repository, transfer)?;
        let max_bytes = git.max_bytes;
        let mut server =
            UploadPackServer { remote, transfer, hash: Kind::Sha1, filters: false, max_bytes };
        let mut lines = PacketLines::new(body, transfer);
        let mut first = lines.next()?;
        if first.as_deref().is_some_and(|line| line.starts_with("# service=")) {
            while lines.next()?.is_some() {}
            first = lines.next()?;
        }
        if first.as_deref() != Some("version 2") {
            return Err(TransferError::Outdated);
        }
        while let Some(line) = lines.next()? {
            match line.split_once('=') {
                Some(("fetch", features)) => {
                    server.filters = features.split(' ').any(|name| name == "filter");
                }
                Some(("object-format", "sha1")) => {}
                Some(("object-format", "sha256")) => server.hash = Kind::Sha256,
                Some(("object-format", other)) => {
                    let other = shorten_line(other);
                    return Err(TransferError::Message(format!("unknown object format {other:?}")));
                }
                _ => {}
            }
        }
        Ok(server)
    }

    /// Returns the hash algorithm of object ids in the repository.
    pub(super) fn hash(&self) -> Kind {
        self.hash
    }

    /// Lists the refs that begin with one of these prefixes, or all refs. The commit of an annotated tag is
    /// listed under the name of the tag with the suffix `^{}`.
    pub(super) fn refs(
        &mut self,
        prefixes: &[&str],
    ) -> Result<BTreeMap<String, ObjectId>, TransferError> {
        let mut arguments = vec!["peel".to_owned()];
        arguments.extend(prefixes.iter().map(|prefix| format!("ref-prefix {prefix}")));
        let body = self.command("ls-refs", &arguments, MAX_REFS_BYTES)?;
        let mut lines = PacketLines::new(body, self.transfer);
        let mut refs = BTreeMap::new();
        while let Some(line) = lines.next()? {
            let mut words = line.split(' ');
            let (id, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            // A branch without a commit is `unborn`.
            if id.len() != self.hash.len_in_hex() {
                continue;
            }
            let id = ObjectId::from_hex(id.as_bytes()).map_err(malformed_error)?;
            if let Some(peeled) = words.find_map(|word| word.strip_prefix("peeled:")) {
                let peeled = ObjectId::from_hex(peeled.as_bytes()).map_err(malformed_error)?;
                refs.insert(format!("{name}^{{}}"), peeled);
            }
            refs.insert(name.to_owned(), id);
        }
        Ok(refs)
    }

    /// Fetches commits, and passes the pack to `read`.
    pub(super) fn fetch<T>(
        &mut self,
        wants: &BTreeSet<ObjectId>,
        extent: FetchExtent,
        read: impl FnOnce(&mut dyn BufRead) -> Result<T, TransferError>,
    ) -> Result<T, TransferError> {
        let mut arguments = vec!["no-progress".to_owned(), "ofs-delta".to_owned()];
        match extent {
            FetchExtent::Commits => arguments.push("deepen 1".to_owned()),
            FetchExtent::History if self.filters => arguments.push("filter tree:0".to_owned()),
            FetchExtent::History | FetchExtent::Everything => {}
        }
        arguments.extend(wants.iter().map(|id| format!("want {id}")));
        arguments.push("done".to_owned());
        let body = self.command("fetch", &arguments, self.max_bytes)?;
        let mut lines = PacketLines::new(body, self.transfer);
        loop {
            match lines.next()?.as_deref() {
                Some("packfile") => break,
                // Other sections are skipped, such as `shallow-info` after `deepen`.
                Some(_) => while lines.next()?.is_some() {},
                None => return Err(TransferError::Message("the server sends no pack".to_owned())),
            }
        }
        let mut rejection = None;
        let pack = {
            let on_message = |is_error: bool, text: &[u8]| {
                if !is_error {
                    return ControlFlow::Continue(());
                }
                rejection = Some(shorten_line(&String::from_utf8_lossy(text)));
                ControlFlow::Break(())
            };
            read(&mut lines.lines.as_read_with_sidebands(on_message))
        };
        match (pack, rejection) {
            (Err(TransferError::Stopped), _) => Err(TransferError::Stopped),
            (Err(_), Some(text)) => Err(TransferError::Rejected(text)),
            (pack, _) => pack,
        }
    }

    fn command(
        &mut self,
        name: &str,
        arguments: &[String],
        limit_bytes: u64,
    ) -> Result<AnswerBody, TransferError> {
        let mut body = Vec::new();
        let head = [format!("command={name}"), format!("object-format={}", self.hash)];
        let written = (|| {
            for line in &head {
                text_to_write(line.as_bytes(), &mut body)?;
            }
            delim_to_write(&mut body)?;
            for line in arguments {
                text_to_write(line.as_bytes(), &mut body)?;
            }
            flush_to_write(&mut body)
        })();
        written.map_err(malformed_error)?;
        self.remote.command(&body, limit_bytes)
    }
}

/// The lines of a response, which has sections.
struct PacketLines<'a, R: Read> {
    lines: StreamingPeekableIter<R>,
    transfer: &'a GitTransfer,
    is_over: bool,
}

impl<'a, R: Read> PacketLines<'a, R> {
    fn new(answer: R, transfer: &'a GitTransfer) -> Self {
        let mut lines = StreamingPeekableIter::new(answer, ENDS, false);
        lines.fail_on_err_lines(true);
        PacketLines { lines, transfer, is_over: false }
    }

    /// Returns the next line, or `None` at the end of a section and of the response. After the end of a
    /// section, the next call returns the first line of the next one.
    fn next(&mut self) -> Result<Option<String>, TransferError> {
        if self.is_over {
            return Ok(None);
        }
        let line = match self.lines.read_line() {
            None => {
                self.lines.reset();
                return Ok(None);
            }
            Some(Ok(Ok(line))) => line,
            Some(Ok(Err(error))) => return Err(malformed_error(error)),
            Some(Err(error)) => {
                self.is_over = true;
                let source = error.get_ref().and_then(|e| e.downcast_ref());
                let rejection = source.map(|gix_packetline::read::Error { message }| message);
                return Err(match rejection {
                    Some(text) => TransferError::Rejected(shorten_line(&text.to_string())),
                    None => self.transfer.failure(error),
                });
            }
        };
        let text = line.as_text().map(|text| text.as_slice()).unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(text).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_read_in_parts() {
        let transfer = GitTransfer::default();
        let text = b"000ahello\n00010008more0000";
        let mut lines = PacketLines::new(&text[..], &transfer);
        assert_eq!(lines.next().unwrap().as_deref(), Some("hello"));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(lines.next().unwrap().as_deref(), Some("more"));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn rejection_by_the_server_is_distinguished_from_malformed_data() {
        let transfer = GitTransfer::default();
        let read = |text: &[u8]| PacketLines::new(text, &transfer).next();
        let rejected = read(b"0014ERR not our \x1bref\n");
        assert!(matches!(rejected, Err(TransferError::Rejected(text)) if text == "not our ref"));
        for text in ["00", "zzzz", "0009a", "0003", "fffff"] {
            assert!(matches!(read(text.as_bytes()), Err(TransferError::Message(_))), "{text}");
        }
    }
}
