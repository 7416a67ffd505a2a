//! Unpacking in two threads: one checks and inflates the blob, the other makes files.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use flate2::bufread::MultiGzDecoder;

use super::archive::{Archive, Source};
use super::error::{Limit, Limits, RATIO_FREE_BYTES, UnpackError};
use super::extract::{Extractor, Rules, Unpacked};
use crate::image::Digest;
use crate::image::digest::Hasher;
use crate::sys::privilege::Privilege;

/// Small enough for the CPU's cache, large enough for the data of most files.
const CHUNK_BYTES: usize = 256 << 10;

/// How many chunks wait for the slower of the two threads.
const QUEUE: usize = 4;

/// Where something is unpacked.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The directory that is made for it.
    pub tree: &'a Path,
    /// Whose files can be in it.
    pub privilege: Privilege,
}

/// Unpacks a layer into a directory that it makes.
///
/// On an error the directory may hold anything; the caller removes it.
pub fn unpack(
    blob: Blob<'_, impl Read + Send>,
    diff_id: &Digest,
    limits: &Limits,
    target: Target<'_>,
) -> Result<Unpacked, UnpackError> {
    let Target { tree, privilege } = target;
    make_directory(tree)?;
    let hasher = Hasher::new(diff_id.algorithm());
    let inflate = |full: &_, empty: &_| inflate(blob, limits, full, empty);
    let (unpacked, hasher) = in_two_threads(inflate, Some(hasher), |archive| {
        Extractor::new(tree, limits, Rules::Layer, privilege)?.run(archive)
    })?;
    check(hasher, diff_id)?;
    Ok(unpacked)
}

/// Checks that a blob holds the archive with a digest, without making anything of it.
pub fn prove(
    blob: Blob<'_, impl Read + Send>,
    diff_id: &Digest,
    limits: &Limits,
) -> Result<(), UnpackError> {
    let hasher = Hasher::new(diff_id.algorithm());
    let inflate = |full: &_, empty: &_| inflate(blob, limits, full, empty);
    let ((), hasher) = in_two_threads(inflate, Some(hasher), |_| Ok(()))?;
    check(hasher, diff_id)
}

/// Compares what was hashed with what it should be.
fn check(hasher: Option<Hasher>, diff_id: &Digest) -> Result<(), UnpackError> {
    let actual = hasher.map(Hasher::finish).expect("it was given");
    if actual == *diff_id {
        return Ok(());
    }
    Err(UnpackError::Digest { what: "archive", expected: diff_id.clone(), actual })
}

/// Unpacks an archive that is no layer, compressed or not, into a directory that it makes. Returns
/// about how much of the disk it takes.
///
/// What overlays would take for a whiteout is a file or rejected. Everything gets this owner, if files
/// can have owners, and neither set-user-ID bits nor extended attributes are kept. On an error the
/// directory may hold anything; the caller removes it.
pub fn unpack_archive(
    reader: impl Read + Send,
    owner: (u32, u32),
    limits: &Limits,
    target: Target<'_>,
) -> Result<u64, UnpackError> {
    let Target { tree, privilege } = target;
    make_directory(tree)?;
    let inflate = |full: &_, empty: &_| match pump(reader, limits.bytes, full, empty) {
        Ok(End::Whole | End::Stopped) => Ok(()),
        Ok(End::TooLarge) => Err(UnpackError::Limit { limit: Limit::Bytes(limits.bytes) }),
        Err(DecoderError::Read(error)) => Err(UnpackError::Inflate(error)),
        Err(DecoderError::Unsupported(name)) => Err(UnpackError::Compression { name }),
    };
    let (unpacked, _) = in_two_threads(inflate, None, |archive| {
        Extractor::new(tree, limits, Rules::Plain { owner }, privilege)?.run(archive)
    })?;
    Ok(unpacked.size_bytes)
}

fn make_directory(tree: &Path) -> Result<(), UnpackError> {
    fs::DirBuilder::new().mode(0o755).create(tree).map_err(|source| UnpackError::File {
        action: "make",
        path: tree.to_owned(),
        source,
    })
}

/// Makes files in this thread of what another one inflates. Returns what that returns, and the
/// hasher when it has seen the whole archive.
fn in_two_threads<T>(
    inflate: impl FnOnce(&SyncSender<Vec<u8>>, &Receiver<Vec<u8>>) -> Result<(), UnpackError> + Send,
    hasher: Option<Hasher>,
    make: impl FnOnce(&mut Archive<Chunks>) -> Result<T, UnpackError>,
) -> Result<(T, Option<Hasher>), UnpackError> {
    let (full, chunks) = sync_channel(QUEUE);
    let (back, empty) = channel();
    thread::scope(|scope| {
        let inflating = scope.spawn(move || inflate(&full, &empty));
        let mut archive =
            Archive::new(Chunks { chunks, back, current: Vec::new(), position: 0, hasher });
        let made = make(&mut archive).and_then(|made| {
            archive.finish()?;
            Ok(made)
        });
        // Without a receiver the other thread stops.
        let hasher = archive.into_reader().hasher;
        match inflating.join() {
            // The archive looks as if it ended early, which is not the reason.
            Ok(Err(error)) => return Err(error),
            Ok(Ok(())) => {}
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok((made?, hasher))
    })
}

/// Inflates the blob and checks it, until its end or until nobody wants more.
fn inflate(
    blob: Blob<'_, impl Read>,
    limits: &Limits,
    full: &SyncSender<Vec<u8>>,
    empty: &Receiver<Vec<u8>>,
) -> Result<(), UnpackError> {
    // No archive grows when it is compressed, but nothing at all can be compressed to any size.
    if blob.size > limits.bytes {
        return Err(UnpackError::Limit { limit: Limit::Bytes(limits.bytes) });
    }
    let max_by_ratio = blob.size.saturating_mul(limits.ratio).max(RATIO_FREE_BYTES);
    let mut input = Checked::new(blob);
    match pump(&mut input, limits.bytes.min(max_by_ratio), full, empty) {
        Ok(End::Whole) => input.finish(),
        Ok(End::Stopped) => Ok(()),
        Ok(End::TooLarge) if limits.bytes < max_by_ratio => {
            Err(UnpackError::Limit { limit: Limit::Bytes(limits.bytes) })
        }
        Ok(End::TooLarge) => Err(UnpackError::Limit { limit: Limit::Ratio(limits.ratio) }),
        Err(DecoderError::Read(error)) => Err(input.failure(error)),
        Err(DecoderError::Unsupported(name)) => Err(UnpackError::Compression { name }),
    }
}

enum End {
    Whole,
    TooLarge,
    Stopped,
}

fn pump(
    input: impl Read,
    max_bytes: u64,
    full: &SyncSender<Vec<u8>>,
    empty: &Receiver<Vec<u8>>,
) -> Result<End, DecoderError> {
    let mut decoder = decoder(input)?;
    let mut inflated_bytes = 0_u64;
    loop {
        let mut chunk = empty.try_recv().unwrap_or_default();
        chunk.resize(CHUNK_BYTES, 0);
        let count = fill(&mut decoder, &mut chunk).map_err(DecoderError::Read)?;
        if count == 0 {
            return Ok(End::Whole);
        }
        chunk.truncate(count);
        inflated_bytes += count as u64;
        if inflated_bytes > max_bytes {
            return Ok(End::TooLarge);
        }
        if full.send(chunk).is_err() {
            return Ok(End::Stopped);
        }
    }
}

/// Reads until the chunk is full or there is no more.
fn fill(reader: &mut impl Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < chunk.len() {
        match reader.read(&mut chunk[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The inflated archive, as the other thread sends it.
struct Chunks {
    chunks: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
    current: Vec<u8>,
    position: usize,
    hasher: Option<Hasher>,
}

impl BufRead for Chunks {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.position == self.current.len()
            // The end, or an error that the other thread returns.
            && let Ok(next) = self.chunks.recv()
        {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&next);
            }
            // The other thread may have ended.
            drop(self.back.send(std::mem::replace(&mut self.current, next)));
            self.position = 0;
        }
        Ok(&self.current[self.position..])
    }

    fn consume(&mut self, count: usize) {
        self.position += count;
    }
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl Source for Chunks {
    fn pass(&mut self, mut bytes: u64) -> io::Result<()> {
        while bytes > 0 {
            let available = self.fill_buf()?.len();
            if available == 0 {
                break;
            }
            let count = usize::try_from(bytes).map_or(available, |bytes| bytes.min(available));
            self.consume(count);
            bytes -= count as u64;
        }
        Ok(())
    }
}

const READ_BYTES: usize = 128 << 10;

/// The largest zstd window, as a power of two: inflating needs that much memory. Only the levels
/// "ultra" and "long" of zstd make larger ones.
const MAX_WINDOW_LOG: u32 = 26;

/// A layer as it comes, and what is known of it.
pub struct Blob<'a, R> {
    pub reader: R,
    pub digest: Option<&'a Digest>,
    pub size: u64,
}

/// A blob that is hashed and measured while it is read.
struct Checked<'a, R> {
    blob: Blob<'a, R>,
    hasher: Option<Hasher>,
    bytes: u64,
    /// What the reader said, to tell it from what the decoder says.
    failure: Option<UnpackError>,
}

impl<'a, R: Read> Checked<'a, R> {
    pub(super) fn new(blob: Blob<'a, R>) -> Self {
        let hasher = blob.digest.map(|digest| Hasher::new(digest.algorithm()));
        Checked { blob, hasher, bytes: 0, failure: None }
    }

    /// Returns why inflating it failed.
    pub fn failure(&mut self, error: io::Error) -> UnpackError {
        self.failure.take().unwrap_or(UnpackError::Inflate(error))
    }

    /// Checks what can be checked only at the end.
    pub fn finish(self) -> Result<(), UnpackError> {
        let expected = self.blob.size;
        if self.bytes != expected {
            return Err(UnpackError::Size { expected, actual: self.bytes });
        }
        if let (Some(expected), Some(hasher)) = (self.blob.digest, self.hasher) {
            let actual = hasher.finish();
            if actual != *expected {
                let expected = expected.clone();
                return Err(UnpackError::Digest { what: "blob", expected, actual });
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Checked<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = loop {
            match self.blob.reader.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failure = Some(UnpackError::Read(error));
                    return Err(io::ErrorKind::Other.into());
                }
                Ok(count) => break count,
            }
        };
        self.bytes += count as u64;
        let expected = self.blob.size;
        if self.bytes > expected {
            self.failure = Some(UnpackError::Size { expected, actual: self.bytes });
            return Err(io::ErrorKind::Other.into());
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        Ok(count)
    }
}

/// Why data cannot be inflated.
pub enum DecoderError {
    Read(io::Error),
    /// With the name of the program that makes such data.
    Unsupported(&'static str),
}

/// Returns what inflates the data, by its first bytes: what manifests and file names say of the
/// compression is often wrong, and other engines go by the content too.
pub fn decoder<'a>(mut reader: impl Read + 'a) -> Result<Box<dyn Read + 'a>, DecoderError> {
    let mut magic = Vec::with_capacity(6);
    reader.by_ref().take(6).read_to_end(&mut magic).map_err(DecoderError::Read)?;
    let is = |start: &[u8]| magic.starts_with(start);
    let (is_gzip, is_zstd) = (is(b"\x1f\x8b"), is(b"\x28\xb5\x2f\xfd"));
    if is(b"BZh") {
        return Err(DecoderError::Unsupported("bzip2"));
    } else if is(b"\xfd7zXZ") {
        return Err(DecoderError::Unsupported("xz"));
    }
    let input = io::Cursor::new(magic).chain(reader);
    Ok(if is_gzip {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, input)))
    } else if is_zstd {
        let input = BufReader::with_capacity(READ_BYTES, input);
        let mut decoder = zstd::Decoder::with_buffer(input).map_err(DecoderError::Read)?;
        decoder.window_log_max(MAX_WINDOW_LOG).map_err(DecoderError::Read)?;
        Box::new(decoder)
    } else {
        Box::new(input)
    })
}
