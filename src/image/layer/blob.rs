//! Blobs: a layer as it is transferred, checked and inflated while it is read.

use std::io::{self, BufReader, Read};

use flate2::bufread::MultiGzDecoder;

use super::error::UnpackError;
use crate::image::{Digest, digest::Hasher};

const READ_BYTES: usize = 128 << 10;

/// The largest zstd window, as a power of two: inflating needs that much memory. Only the levels
/// "ultra" and "long" of zstd make larger ones.
const MAX_WINDOW_LOG: u32 = 26;

/// A layer as it comes, and what is known of it.
pub(in crate::image) struct Blob<'a, R> {
    pub(in crate::image) reader: R,
    pub(in crate::image) digest: Option<&'a Digest>,
    pub(in crate::image) size: u64,
}

/// A blob that is hashed and measured while it is read.
pub(super) struct Checked<'a, R> {
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
    pub(super) fn failure(&mut self, error: io::Error) -> UnpackError {
        self.failure.take().unwrap_or(UnpackError::Inflate(error))
    }

    /// Checks what can be checked only at the end.
    pub(super) fn finish(self) -> Result<(), UnpackError> {
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
pub(in crate::image) enum DecoderError {
    Read(io::Error),
    /// With the name of the program that makes such data.
    Unsupported(&'static str),
}

/// Returns what inflates the data, by its first bytes: what manifests and file names say of the
/// compression is often wrong, and other engines go by the content too.
pub(in crate::image) fn decoder<'a>(
    mut reader: impl Read + 'a,
) -> Result<Box<dyn Read + 'a>, DecoderError> {
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
