//! Makes `:authority` readable, where clients send the path of the socket in it.
//!
//! Clients on gRPC's C library (Python, Ruby, C++ and others) name a Unix socket by its path,
//! `tmp%2Fx.sock`: grpcio 1.85 does, 1.51 said `localhost`. That is no host, so that h2 refuses the request
//! with `PROTOCOL_ERROR`: <https://github.com/hyperium/h2/pull/487>. Nothing here reads the header.
//!
//! So bytes of it that no host name has are replaced by as many `-`, in place: nothing changes its length, no
//! frame, no string, no entry of the header table on either side, so that neither side can lose count. What
//! is not read is not changed: header tables are not followed, nor Huffman codes, which those clients do not
//! use for this header; who sends it so is refused as before.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tonic::transport::server::Connected;

use super::frames::{Frames, Head, Kind};

/// Flags of a frame of headers: a length of padding, a priority.
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

const PRIORITY_BYTES: u32 = 5;

const NAME: &[u8] = b":authority";

/// The index of the name in the static table.
const NAME_INDEX: u64 = 1;

/// A connection of a client, whose `:authority` is readable.
#[derive(Debug)]
pub struct Tidied<S> {
    stream: S,
    authorities: Authorities,
}

impl<S> Tidied<S> {
    pub(crate) fn new(stream: S) -> Self {
        Tidied { stream, authorities: Authorities::new() }
    }
}

impl Connected for Tidied<UnixStream> {
    type ConnectInfo = <UnixStream as Connected>::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Tidied<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        this.authorities.tidy(&mut buffer.filled_mut()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Tidied<S> {
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

/// Replaces bytes in the `:authority` of each request of a client.
#[derive(Debug)]
struct Authorities {
    frames: Frames,
    block: Block,
}

impl Authorities {
    fn new() -> Self {
        Authorities { frames: Frames::new(), block: Block::default() }
    }

    /// Changes bytes of the client in place; they may be split anywhere.
    fn tidy(&mut self, bytes: &mut [u8]) {
        let block = &mut self.block;
        self.frames.read(bytes, |head, offset, piece| block.read(head, offset, piece));
    }
}

/// A block of headers, from its first frame to its last.
#[derive(Debug, Default)]
struct Block {
    /// Where in the payload of the frame the block ends: after it is padding.
    end: u32,
    fields: Fields,
}

impl Block {
    fn read(&mut self, head: Head, offset: u32, piece: &mut [u8]) {
        let (is_padded, begin) = match head.kind {
            Kind::Headers => {
                let is_padded = head.flags & PADDED != 0;
                let priority = if head.flags & PRIORITY != 0 { PRIORITY_BYTES } else { 0 };
                (is_padded, u32::from(is_padded) + priority)
            }
            Kind::Continuation => (false, 0),
            _ => return,
        };
        match piece.first() {
            None => {
                self.end = head.length;
                if head.kind == Kind::Headers {
                    self.fields = Fields::default();
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

/// The fields of a block: how they follow each other (RFC 7541, section 6), and not what they say.
#[derive(Debug, Default)]
struct Fields {
    at: At,
}

#[derive(Clone, Copy, Debug, Default)]
enum At {
    #[default]
    Field,
    /// In a number that goes on, with its value so far and the bits that it has.
    Number(Number, u64, u32),
    /// At the length of a string.
    Length(Text),
    /// In a string, with the bytes that are left of it.
    Text(Text, u64),
    /// In a number that is too large, which h2 refuses.
    Lost,
}

/// What a number is for.
#[derive(Clone, Copy, Debug)]
enum Number {
    /// The index of a whole field, or the size of the table.
    Alone,
    /// The index of a name, whose value follows.
    Name,
    Length(Text, Code),
}

#[derive(Clone, Copy, Debug)]
enum Text {
    /// A name; how much of it is that of the header, if all of it so far is.
    Name(Option<usize>),
    /// The value of a header that does not matter.
    Value,
    Authority,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Plain,
    Huffman,
}

impl Fields {
    fn read(&mut self, mut bytes: &mut [u8]) {
        while let Some(&first) = bytes.first() {
            let taken = match self.at {
                At::Field => {
                    self.at = At::field(first);
                    1
                }
                At::Number(number, value, bits) => {
                    self.at = number.more(value, bits, first);
                    1
                }
                At::Length(text) => {
                    let code = if first & 0x80 == 0 { Code::Plain } else { Code::Huffman };
                    self.at = Number::Length(text, code).begin(first, 0x7f);
                    1
                }
                At::Text(text, left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    self.at = text.read(left - count as u64, &mut bytes[..count]);
                    count
                }
                At::Lost => return,
            };
            bytes = &mut bytes[taken..];
        }
    }
}

impl At {
    /// Returns what follows the first byte of a field.
    fn field(first: u8) -> Self {
        match first {
            0x80.. => Number::Alone.begin(first, 0x7f),
            0x40.. => Number::Name.begin(first, 0x3f),
            0x20.. => Number::Alone.begin(first, 0x1f),
            _ => Number::Name.begin(first, 0x0f),
        }
    }
}

impl Number {
    /// Reads the first byte of a number, whose bits are those of `mask`.
    fn begin(self, first: u8, mask: u8) -> At {
        let value = u64::from(first & mask);
        if value == u64::from(mask) { At::Number(self, value, 0) } else { self.end(value) }
    }

    fn more(self, value: u64, bits: u32, next: u8) -> At {
        let Some(value) = u64::from(next & 0x7f)
            .checked_mul(1_u64.checked_shl(bits).unwrap_or(0))
            .filter(|_| bits < u64::BITS)
            .and_then(|more| value.checked_add(more))
        else {
            return At::Lost;
        };
        if next & 0x80 == 0 { self.end(value) } else { At::Number(self, value, bits + 7) }
    }

    fn end(self, value: u64) -> At {
        match self {
            Number::Alone => At::Field,
            Number::Name if value == 0 => At::Length(Text::Name(Some(0))),
            Number::Name if value == NAME_INDEX => At::Length(Text::Authority),
            Number::Name => At::Length(Text::Value),
            Number::Length(text, Code::Plain) => text.read(value, &mut []),
            Number::Length(Text::Name(_), Code::Huffman) => Text::Name(None).read(value, &mut []),
            Number::Length(_, Code::Huffman) => Text::Value.read(value, &mut []),
        }
    }
}

impl Text {
    /// Reads a piece of a string, of which some bytes are left then; returns what follows.
    fn read(self, left: u64, piece: &mut [u8]) -> At {
        let text = match self {
            Text::Name(Some(count))
                if NAME.get(count..).is_some_and(|rest| rest.starts_with(piece)) =>
            {
                Text::Name(Some(count + piece.len()))
            }
            Text::Name(_) => Text::Name(None),
            Text::Value => Text::Value,
            Text::Authority => {
                for byte in piece.iter_mut().filter(|byte| !is_of_host(**byte)) {
                    *byte = b'-';
                }
                Text::Authority
            }
        };
        match text {
            _ if left > 0 => At::Text(text, left),
            Text::Name(Some(count)) if count == NAME.len() => At::Length(Text::Authority),
            Text::Name(_) => At::Length(Text::Value),
            Text::Value | Text::Authority => At::Field,
        }
    }
}

/// Returns whether a byte is one of host names.
fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

#[cfg(test)]
mod tests;
