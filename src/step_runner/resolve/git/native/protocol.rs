//! Version 2 of git's protocol: what is asked, and how answers are read.
//!
//! <https://git-scm.com/docs/protocol-v2>

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read};
use std::ops::ControlFlow;

use gix_hash::{Kind, ObjectId};
use gix_packetline::PacketLineRef;
use gix_packetline::blocking_io::StreamingPeekableIter;
use gix_packetline::blocking_io::encode::{delim_to_write, flush_to_write, text_to_write};

use super::super::options::Git;
use super::super::repository::Repository;
use super::exchange::Body;
use super::remote::Remote;
use super::transfer::{Failure, Transfer, malformed, shown};

/// How much a server may list of branches and tags, as much as the program `git` may print.
const MAX_REFS_BYTES: u64 = 16 << 20;

/// What ends a part of an answer.
const ENDS: &[PacketLineRef<'static>] =
    &[PacketLineRef::Flush, PacketLineRef::Delimiter, PacketLineRef::ResponseEnd];

/// A server that speaks the protocol.
pub struct Server<'a> {
    remote: Remote<'a>,
    transfer: &'a Transfer,
    hash: Kind,
    /// Whether it can leave objects out.
    filters: bool,
    max_bytes: u64,
}

/// What is fetched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The commits, without those before them.
    Commits,
    /// All commits up to these, without files if the server can leave them out.
    History,
    /// All commits up to these, with all files.
    Everything,
}

impl<'a> Server<'a> {
    /// Asks a server what it can.
    pub(super) fn open(
        git: &'a Git<'a>,
        repository: &Repository,
        transfer: &'a Transfer,
    ) -> Result<Self, Failure> {
        let (remote, body) = Remote::open(git, repository, transfer)?;
        let max_bytes = git.max_bytes;
        let mut server = Server { remote, transfer, hash: Kind::Sha1, filters: false, max_bytes };
        let mut lines = Lines::new(body, transfer);
        let mut first = lines.next()?;
        if first.as_deref().is_some_and(|line| line.starts_with("# service=")) {
            while lines.next()?.is_some() {}
            first = lines.next()?;
        }
        if first.as_deref() != Some("version 2") {
            return Err(Failure::Outdated);
        }
        while let Some(line) = lines.next()? {
            match line.split_once('=') {
                Some(("fetch", features)) => {
                    server.filters = features.split(' ').any(|name| name == "filter");
                }
                Some(("object-format", "sha1")) => {}
                Some(("object-format", "sha256")) => server.hash = Kind::Sha256,
                Some(("object-format", other)) => {
                    let other = shown(other);
                    return Err(Failure::Message(format!("unknown object format {other:?}")));
                }
                _ => {}
            }
        }
        Ok(server)
    }

    /// Returns the kind of hash that names the objects of the repository.
    pub(super) fn hash(&self) -> Kind {
        self.hash
    }

    /// Lists the branches and tags that begin with one of these, or all refs. The commit of an annotated
    /// tag is at the name of the tag with `^{}` behind it.
    pub(super) fn refs(
        &mut self,
        prefixes: &[&str],
    ) -> Result<BTreeMap<String, ObjectId>, Failure> {
        let mut arguments = vec!["peel".to_owned()];
        arguments.extend(prefixes.iter().map(|prefix| format!("ref-prefix {prefix}")));
        let body = self.command("ls-refs", &arguments, MAX_REFS_BYTES)?;
        let mut lines = Lines::new(body, self.transfer);
        let mut refs = BTreeMap::new();
        while let Some(line) = lines.next()? {
            let mut words = line.split(' ');
            let (id, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            // A branch without a commit is `unborn`.
            if id.len() != self.hash.len_in_hex() {
                continue;
            }
            let id = ObjectId::from_hex(id.as_bytes()).map_err(malformed)?;
            if let Some(peeled) = words.find_map(|word| word.strip_prefix("peeled:")) {
                let peeled = ObjectId::from_hex(peeled.as_bytes()).map_err(malformed)?;
                refs.insert(format!("{name}^{{}}"), peeled);
            }
            refs.insert(name.to_owned(), id);
        }
        Ok(refs)
    }

    /// Fetches commits, and has a function read the pack.
    pub(super) fn fetch<T>(
        &mut self,
        wants: &BTreeSet<ObjectId>,
        extent: Extent,
        read: impl FnOnce(&mut dyn BufRead) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut arguments = vec!["no-progress".to_owned(), "ofs-delta".to_owned()];
        match extent {
            Extent::Commits => arguments.push("deepen 1".to_owned()),
            Extent::History if self.filters => arguments.push("filter tree:0".to_owned()),
            Extent::History | Extent::Everything => {}
        }
        arguments.extend(wants.iter().map(|id| format!("want {id}")));
        arguments.push("done".to_owned());
        let body = self.command("fetch", &arguments, self.max_bytes)?;
        let mut lines = Lines::new(body, self.transfer);
        loop {
            match lines.next()?.as_deref() {
                Some("packfile") => break,
                // Such as `shallow-info`, which is known: it was asked for.
                Some(_) => while lines.next()?.is_some() {},
                None => return Err(Failure::Message("the server sends no pack".to_owned())),
            }
        }
        let mut rejection = None;
        let pack = {
            let on_message = |is_error: bool, text: &[u8]| {
                if !is_error {
                    return ControlFlow::Continue(());
                }
                rejection = Some(shown(&String::from_utf8_lossy(text)));
                ControlFlow::Break(())
            };
            read(&mut lines.lines.as_read_with_sidebands(on_message))
        };
        match (pack, rejection) {
            (Err(Failure::Stopped), _) => Err(Failure::Stopped),
            (Err(_), Some(text)) => Err(Failure::Rejected(text)),
            (pack, _) => pack,
        }
    }

    fn command(
        &mut self,
        name: &str,
        arguments: &[String],
        limit_bytes: u64,
    ) -> Result<Body, Failure> {
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
        written.map_err(malformed)?;
        self.remote.command(&body, limit_bytes)
    }
}

/// The lines of an answer, in parts.
struct Lines<'a, R: Read> {
    lines: StreamingPeekableIter<R>,
    transfer: &'a Transfer,
    is_over: bool,
}

impl<'a, R: Read> Lines<'a, R> {
    fn new(answer: R, transfer: &'a Transfer) -> Self {
        let mut lines = StreamingPeekableIter::new(answer, ENDS, false);
        lines.fail_on_err_lines(true);
        Lines { lines, transfer, is_over: false }
    }

    /// Returns the next line; none at the end of a part, after which the next part begins, and of the
    /// answer.
    fn next(&mut self) -> Result<Option<String>, Failure> {
        if self.is_over {
            return Ok(None);
        }
        let line = match self.lines.read_line() {
            None => {
                self.lines.reset();
                return Ok(None);
            }
            Some(Ok(Ok(line))) => line,
            Some(Ok(Err(error))) => return Err(malformed(error)),
            Some(Err(error)) => {
                self.is_over = true;
                let source = error.get_ref().and_then(|e| e.downcast_ref());
                let rejection = source.map(|gix_packetline::read::Error { message }| message);
                return Err(match rejection {
                    Some(text) => Failure::Rejected(shown(&text.to_string())),
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
    fn answers_are_read_in_parts() {
        let transfer = Transfer::default();
        let text = b"000ahello\n00010008more0000";
        let mut lines = Lines::new(&text[..], &transfer);
        assert_eq!(lines.next().unwrap().as_deref(), Some("hello"));
        assert_eq!(lines.next().unwrap(), None);
        assert_eq!(lines.next().unwrap().as_deref(), Some("more"));
        assert_eq!(lines.next().unwrap(), None);
    }

    #[test]
    fn what_a_server_rejects_is_told_from_what_is_malformed() {
        let transfer = Transfer::default();
        let read = |text: &[u8]| Lines::new(text, &transfer).next();
        let rejected = read(b"0014ERR not our \x1bref\n");
        assert!(matches!(rejected, Err(Failure::Rejected(text)) if text == "not our ref"));
        for text in ["00", "zzzz", "0009a", "0003", "fffff"] {
            assert!(matches!(read(text.as_bytes()), Err(Failure::Message(_))), "{text}");
        }
    }
}
