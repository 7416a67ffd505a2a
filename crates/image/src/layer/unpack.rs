//! Unpacking in two threads: one checks and decompresses the blob, the other creates files.

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use flate2::bufread::MultiGzDecoder;
use oci_hooks_host::privilege::Privilege;

use super::archive::{ArchiveInput, TarArchive};
use super::error::{LayerLimit, LayerLimits, RATIO_FREE_BYTES, UnpackError};
use super::extract::{ExtractRules, Extractor, UnpackSummary};
use crate::Digest;
use crate::digest::Hasher;

/// Size of the chunks that one thread passes to the other: they fit the CPU's cache, and have room
/// for the data of most files.
const CHUNK_BYTES: usize = 256 << 10;

/// Maximum number of decompressed chunks between the two threads.
const QUEUE: usize = 4;

/// Destination of unpacking.
#[derive(Clone, Copy, Debug)]
pub struct UnpackTarget<'a> {
    pub tree: &'a Path,
    /// Privilege that decides which owners files can have.
    pub privilege: Privilege,
}

/// Unpacks a layer into a directory that it creates.
///
/// After an error, the caller removes the incomplete directory.
pub fn unpack(
    blob: LayerBlob<'_, impl Read + Send>,
    diff_id: &Digest,
    limits: &LayerLimits,
    target: UnpackTarget<'_>,
) -> Result<UnpackSummary, UnpackError> {
    let UnpackTarget { tree, privilege } = target;
    make_directory(tree)?;
    let hasher = Hasher::new(diff_id.algorithm());
    let inflate = |full: &_, empty: &_| inflate(blob, limits, full, empty);
    let (unpacked, hasher) = unpack_in_two_threads(inflate, Some(hasher), |archive| {
        Extractor::new(tree, limits, ExtractRules::Layer, privilege)?.run(archive)
    })?;
    check(hasher, diff_id)?;
    Ok(unpacked)
}

/// Checks that a blob contains the archive with a digest, without extracting it.
pub fn verify_blob(
    blob: LayerBlob<'_, impl Read + Send>,
    diff_id: &Digest,
    limits: &LayerLimits,
) -> Result<(), UnpackError> {
    let hasher = Hasher::new(diff_id.algorithm());
    let inflate = |full: &_, empty: &_| inflate(blob, limits, full, empty);
    let ((), hasher) = unpack_in_two_threads(inflate, Some(hasher), |_| Ok(()))?;
    check(hasher, diff_id)
}

/// Compares the digest of the archive with the expected one.
fn check(hasher: Option<Hasher>, diff_id: &Digest) -> Result<(), UnpackError> {
    let actual = hasher.map(Hasher::finish).expect("it was given");
    if actual == *diff_id {
        return Ok(());
    }
    Err(UnpackError::Digest { what: "archive", expected: diff_id.clone(), actual })
}

/// Unpacks an archive that is not a layer, compressed or not, into a directory that it creates.
/// Returns the approximate disk usage.
///
/// Entries that overlays would take for whiteouts become files or are rejected. All files get this
/// owner, if files can have owners, and lose set-user-ID bits and extended attributes. After an
/// error, the caller removes the incomplete directory.
pub fn unpack_archive(
    reader: impl Read + Send,
    owner: (u32, u32),
    limits: &LayerLimits,
    target: UnpackTarget<'_>,
) -> Result<u64, UnpackError> {
    let UnpackTarget { tree, privilege } = target;
    make_directory(tree)?;
    let limit = LayerLimit::Bytes(limits.bytes);
    let inflate = |full: &_, empty: &_| pump(reader, limits.bytes, limit, full, empty).map(|_| ());
    let (unpacked, _) = unpack_in_two_threads(inflate, None, |archive| {
        Extractor::new(tree, limits, ExtractRules::Plain { owner }, privilege)?.run(archive)
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

/// Creates files in this thread from the output of `inflate` in another one. Returns the result of
/// `make`, and the hasher after the whole archive.
fn unpack_in_two_threads<T>(
    inflate: impl FnOnce(&SyncSender<Vec<u8>>, &Receiver<Vec<u8>>) -> Result<(), UnpackError> + Send,
    hasher: Option<Hasher>,
    make: impl FnOnce(&mut TarArchive<ChunkReader>) -> Result<T, UnpackError>,
) -> Result<(T, Option<Hasher>), UnpackError> {
    let (full, chunks) = sync_channel(QUEUE);
    let (back, empty) = channel();
    thread::scope(|scope| {
        let inflating = scope.spawn(move || inflate(&full, &empty));
        let mut archive =
            TarArchive::new(ChunkReader { chunks, back, current: Vec::new(), position: 0, hasher });
        let made = make(&mut archive).and_then(|made| {
            archive.drain()?;
            Ok(made)
        });
        // Without a receiver the other thread stops.
        let hasher = archive.into_reader().hasher;
        match inflating.join() {
            // A decompression error truncates the archive, but is the actual cause.
            Ok(Err(error)) => return Err(error),
            Ok(Ok(())) => {}
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok((made?, hasher))
    })
}

/// Decompresses the blob and checks it, until its end or until the receiver is gone.
fn inflate(
    blob: LayerBlob<'_, impl Read>,
    limits: &LayerLimits,
    full: &SyncSender<Vec<u8>>,
    empty: &Receiver<Vec<u8>>,
) -> Result<(), UnpackError> {
    // Archives do not grow by compression, but an empty stream can be compressed to any size.
    if blob.size > limits.bytes {
        return Err(UnpackError::Limit { limit: LayerLimit::Bytes(limits.bytes) });
    }
    let max_by_ratio = blob.size.saturating_mul(limits.ratio).max(RATIO_FREE_BYTES);
    let (max_bytes, limit) = match limits.bytes < max_by_ratio {
        true => (limits.bytes, LayerLimit::Bytes(limits.bytes)),
        false => (max_by_ratio, LayerLimit::Ratio(limits.ratio)),
    };
    let mut input = CheckedBlob::new(blob);
    match pump(&mut input, max_bytes, limit, full, empty) {
        Ok(true) => input.verify(),
        Ok(false) => Ok(()),
        // An error of the reader is the cause of the decoder's.
        Err(error) => Err(input.failure.unwrap_or(error)),
    }
}

/// Decompresses the input, until its end or until the receiver is gone. Returns whether the end was reached.
fn pump(
    input: impl Read,
    max_bytes: u64,
    limit: LayerLimit,
    full: &SyncSender<Vec<u8>>,
    empty: &Receiver<Vec<u8>>,
) -> Result<bool, UnpackError> {
    let mut decoder = decoder(input)?;
    let mut inflated_bytes = 0_u64;
    loop {
        let mut chunk = empty.try_recv().unwrap_or_default();
        chunk.resize(CHUNK_BYTES, 0);
        let count = fill(&mut decoder, &mut chunk).map_err(UnpackError::Inflate)?;
        if count == 0 {
            return Ok(true);
        }
        chunk.truncate(count);
        inflated_bytes += count as u64;
        if inflated_bytes > max_bytes {
            return Err(UnpackError::Limit { limit });
        }
        if full.send(chunk).is_err() {
            return Ok(false);
        }
    }
}

/// Reads until the chunk is full or the input ends.
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

/// Reader of a decompressed archive, which another thread sends in chunks.
struct ChunkReader {
    chunks: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
    current: Vec<u8>,
    position: usize,
    hasher: Option<Hasher>,
}

impl BufRead for ChunkReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.position == self.current.len()
            // Fails at the end, and after an error, which the other thread returns.
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

impl Read for ChunkReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}

impl ArchiveInput for ChunkReader {
    fn skip(&mut self, mut bytes: u64) -> io::Result<()> {
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

/// Largest zstd window, as a power of two: decompression needs that much memory. Only the levels
/// "ultra" and "long" of zstd use larger windows.
const MAX_WINDOW_LOG: u32 = 26;

/// Layer as a stream, with its digest, if known, and its size.
pub struct LayerBlob<'a, R> {
    pub reader: R,
    pub digest: Option<&'a Digest>,
    pub size: u64,
}

/// Blob that is hashed and measured while it is read.
struct CheckedBlob<'a, R> {
    blob: LayerBlob<'a, R>,
    hasher: Option<Hasher>,
    bytes: u64,
    /// Error of the reader, kept apart from errors of the decoder.
    failure: Option<UnpackError>,
}

impl<'a, R: Read> CheckedBlob<'a, R> {
    pub(super) fn new(blob: LayerBlob<'a, R>) -> Self {
        let hasher = blob.digest.map(|digest| Hasher::new(digest.algorithm()));
        CheckedBlob { blob, hasher, bytes: 0, failure: None }
    }

    /// Checks the size, and the digest if there is one.
    pub fn verify(self) -> Result<(), UnpackError> {
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

impl<R: Read> Read for CheckedBlob<'_, R> {
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

/// Returns the decoder for the data, by its first bytes: the compression stated by manifests and
/// file names is often wrong, and other engines go by the content too.
pub fn decoder<'a>(mut reader: impl Read + 'a) -> Result<Box<dyn Read + 'a>, UnpackError> {
    let mut magic = Vec::with_capacity(6);
    reader.by_ref().take(6).read_to_end(&mut magic).map_err(UnpackError::Read)?;
    let is = |start: &[u8]| magic.starts_with(start);
    let (is_gzip, is_zstd) = (is(b"\x1f\x8b"), is(b"\x28\xb5\x2f\xfd"));
    if is(b"BZh") {
        return Err(UnpackError::Compression { name: "bzip2" });
    } else if is(b"\xfd7zXZ") {
        return Err(UnpackError::Compression { name: "xz" });
    }
    let input = io::Cursor::new(magic).chain(reader);
    Ok(if is_gzip {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(READ_BYTES, input)))
    } else if is_zstd {
        let input = BufReader::with_capacity(READ_BYTES, input);
        let mut decoder = zstd::Decoder::with_buffer(input).map_err(UnpackError::Inflate)?;
        decoder.window_log_max(MAX_WINDOW_LOG).map_err(UnpackError::Inflate)?;
        Box::new(decoder)
    } else {
        Box::new(input)
    })
}
