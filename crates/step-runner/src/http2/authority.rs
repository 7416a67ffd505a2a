//! Makes `:authority` valid for clients that send the path of the socket in it.
//!
//! Clients based on gRPC's C library (Python, Ruby, C++ and others) name a Unix socket by its path,
//! `tmp%2Fx.sock`: grpcio 1.85 does, 1.51 sent `localhost`. A path is not a valid host, so h2 rejects the
//! request with `PROTOCOL_ERROR`: <https://github.com/hyperium/h2/pull/487>. This program does not use the
//! header.
//!
//! Each byte that is invalid in a host name is replaced by `-` in place: lengths of frames and strings, and
//! entries of the header table, stay the same on both sides. Header tables are not tracked, and Huffman
//! codes are not decoded, as those clients do not use them for this header; a client that does is still
//! rejected.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

use super::frames::{FrameHead, FrameKind, FrameReader};

/// Flag of a HEADERS frame: the payload is padded.
const PADDED: u8 = 0x08;

/// Flag of a HEADERS frame: the payload contains a priority.
const PRIORITY: u8 = 0x20;

const PRIORITY_BYTES: u32 = 5;

const NAME: &[u8] = b":authority";

/// Index of `:authority` in HPACK's static table (RFC 7541, appendix A).
const NAME_INDEX: u64 = 1;

/// A connection of a client whose `:authority` is made valid.
#[derive(Debug)]
pub struct AuthorityStream<S> {
    stream: S,
    authorities: AuthorityFilter,
}

impl<S> AuthorityStream<S> {
    pub(crate) fn new(stream: S) -> Self {
        AuthorityStream { stream, authorities: AuthorityFilter::new() }
    }
}

impl Connected for AuthorityStream<UnixStream> {
    type ConnectInfo = <UnixStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AuthorityStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        this.authorities.rewrite_bytes(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AuthorityStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// A filter that replaces bytes in the `:authority` of each request of a client.
#[derive(Debug)]
struct AuthorityFilter {
    frames: FrameReader,
    block: HeaderBlock,
}

impl AuthorityFilter {
    fn new() -> Self {
        AuthorityFilter { frames: FrameReader::new(), block: HeaderBlock::default() }
    }

    /// Replaces invalid bytes of `:authority` in `bytes` of the client, which may begin and end
    /// within a frame or field.
    fn rewrite_bytes(&mut self, bytes: &mut [u8]) {
        let block = &mut self.block;
        self.frames.read(bytes, |head, offset, piece| block.read(head, offset, piece));
    }
}

/// A header block, from its first frame to its last.
#[derive(Debug, Default)]
struct HeaderBlock {
    /// Offset in the payload of the current frame at which the block ends and the padding begins.
    end: u32,
    fields: HeaderFields,
}

impl HeaderBlock {
    fn read(&mut self, head: FrameHead, offset: u32, piece: &mut [u8]) {
        let (is_padded, begin) = match head.kind {
            FrameKind::Headers => {
                let is_padded = head.flags & PADDED != 0;
                let priority = if head.flags & PRIORITY != 0 { PRIORITY_BYTES } else { 0 };
                (is_padded, u32::from(is_padded) + priority)
            }
            FrameKind::Continuation => (false, 0),
            _ => return,
        };
        match piece.first() {
            None => {
                self.end = head.length;
                if head.kind == FrameKind::Headers {
                    self.fields = HeaderFields::default();
                }
            }
            Some(padding) if is_padded && offset == 0 => {
                self.end = head.length.saturating_sub(u32::from(*padding));
            }
            Some(_) => {}
        }
        let within = |at: u32| {
            usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX).min(piece.len())
        };
        let (from, to) = (within(begin), within(self.end));
        if from < to {
            self.fields.read(&mut piece[from..to]);
        }
    }
}

/// A parser of the header fields in a block (RFC 7541, section 6) that recognizes only `:authority`.
#[derive(Debug, Default)]
struct HeaderFields {
    at: FieldPosition,
}

#[derive(Clone, Copy, Debug, Default)]
enum FieldPosition {
    #[default]
    Field,
    /// In a number of several bytes, with its kind, its value so far, and the number of bits read
    /// after its first byte.
    Number(HpackNumber, u64, u32),
    /// At the length of a string.
    Length(HpackStringKind),
    /// In a string, with the number of remaining bytes.
    Text(HpackStringKind, u64),
    /// After a number that is too large, which h2 rejects.
    Lost,
}

#[derive(Clone, Copy, Debug)]
enum HpackNumber {
    /// The index of a complete field, or the size of the dynamic table; no string follows.
    Alone,
    /// The index of a name, which is followed by a value.
    Name,
    Length(HpackStringKind, StringCode),
}

#[derive(Clone, Copy, Debug)]
enum HpackStringKind {
    /// A name, with the number of bytes that match `:authority`; `None` if it is another name, or
    /// in Huffman code.
    Name(Option<usize>),
    /// The value of a header other than `:authority`, or any value in Huffman code.
    Value,
    Authority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StringCode {
    Plain,
    Huffman,
}

impl HeaderFields {
    fn read(&mut self, mut bytes: &mut [u8]) {
        while let Some(&first) = bytes.first() {
            let taken = match self.at {
                FieldPosition::Field => {
                    self.at = FieldPosition::field(first);
                    1
                }
                FieldPosition::Number(number, value, bits) => {
                    self.at = number.add_byte(value, bits, first);
                    1
                }
                FieldPosition::Length(text) => {
                    let code =
                        if first & 0x80 == 0 { StringCode::Plain } else { StringCode::Huffman };
                    self.at = HpackNumber::Length(text, code).begin(first, 0x7f);
                    1
                }
                FieldPosition::Text(text, left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    self.at = text.read(left - count as u64, &mut bytes[..count]);
                    count
                }
                FieldPosition::Lost => return,
            };
            bytes = &mut bytes[taken..];
        }
    }
}

impl FieldPosition {
    /// Returns the position after the first byte of a header field.
    fn field(first: u8) -> Self {
        match first {
            0x80.. => HpackNumber::Alone.begin(first, 0x7f),
            0x40.. => HpackNumber::Name.begin(first, 0x3f),
            0x20.. => HpackNumber::Alone.begin(first, 0x1f),
            _ => HpackNumber::Name.begin(first, 0x0f),
        }
    }
}

impl HpackNumber {
    /// Reads the first byte of a number, which begins in the bits of `mask`. Returns the next
    /// state.
    fn begin(self, first: u8, mask: u8) -> FieldPosition {
        let value = u64::from(first & mask);
        if value == u64::from(mask) {
            FieldPosition::Number(self, value, 0)
        } else {
            self.end(value)
        }
    }

    fn add_byte(self, value: u64, bits: u32, next: u8) -> FieldPosition {
        let Some(value) = u64::from(next & 0x7f)
            .checked_mul(1_u64.checked_shl(bits).unwrap_or(0))
            .filter(|_| bits < u64::BITS)
            .and_then(|more| value.checked_add(more))
        else {
            return FieldPosition::Lost;
        };
        if next & 0x80 == 0 {
            self.end(value)
        } else {
            FieldPosition::Number(self, value, bits + 7)
        }
    }

    fn end(self, value: u64) -> FieldPosition {
        match self {
            HpackNumber::Alone => FieldPosition::Field,
            HpackNumber::Name if value == 0 => {
                FieldPosition::Length(HpackStringKind::Name(Some(0)))
            }
            HpackNumber::Name if value == NAME_INDEX => {
                FieldPosition::Length(HpackStringKind::Authority)
            }
            HpackNumber::Name => FieldPosition::Length(HpackStringKind::Value),
            HpackNumber::Length(text, StringCode::Plain) => text.read(value, &mut []),
            HpackNumber::Length(HpackStringKind::Name(_), StringCode::Huffman) => {
                HpackStringKind::Name(None).read(value, &mut [])
            }
            HpackNumber::Length(_, StringCode::Huffman) => {
                HpackStringKind::Value.read(value, &mut [])
            }
        }
    }
}

impl HpackStringKind {
    /// Reads a piece of a string, after which `left` bytes remain. Returns the next state.
    fn read(self, left: u64, piece: &mut [u8]) -> FieldPosition {
        let text = match self {
            HpackStringKind::Name(Some(count))
                if NAME.get(count..).is_some_and(|rest| rest.starts_with(piece)) =>
            {
                HpackStringKind::Name(Some(count + piece.len()))
            }
            HpackStringKind::Name(_) => HpackStringKind::Name(None),
            HpackStringKind::Value => HpackStringKind::Value,
            HpackStringKind::Authority => {
                for byte in piece.iter_mut().filter(|byte| !is_of_host(**byte)) {
                    *byte = b'-';
                }
                HpackStringKind::Authority
            }
        };
        match text {
            _ if left > 0 => FieldPosition::Text(text, left),
            HpackStringKind::Name(Some(count)) if count == NAME.len() => {
                FieldPosition::Length(HpackStringKind::Authority)
            }
            HpackStringKind::Name(_) => FieldPosition::Length(HpackStringKind::Value),
            HpackStringKind::Value | HpackStringKind::Authority => FieldPosition::Field,
        }
    }
}

/// Returns whether a byte is valid in a host name.
fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

#[cfg(test)]
mod tests;
