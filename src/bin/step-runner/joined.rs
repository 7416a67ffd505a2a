//! Two streams of a log in one place, such as a terminal.

use oci_hooks::step_runner::log::Stream;

/// Puts the lines of both streams one below the other.
///
/// The end of a line comes with the line after it, as that may continue it. Where the other stream writes
/// meanwhile, the line ends there, and its own end is left out.
#[derive(Default)]
pub(crate) struct Joined {
    last: Option<Stream>,
    out: Line,
    err: Line,
}

#[derive(Default)]
struct Line {
    is_open: bool,
    /// It was ended for the sake of the other stream.
    was_ended: bool,
}

impl Joined {
    /// Returns the bytes to write for those that came from a stream.
    pub(crate) fn join(&mut self, stream: Stream, bytes: &[u8]) -> Vec<u8> {
        let mut written = Vec::with_capacity(bytes.len() + 1);
        let (line, other) = match stream {
            Stream::Out => (&mut self.out, &mut self.err),
            Stream::Err => (&mut self.err, &mut self.out),
        };
        let rest = match bytes.strip_prefix(b"\n") {
            Some(rest) if line.was_ended => rest,
            _ => bytes,
        };
        if !bytes.is_empty() {
            line.was_ended = false;
        }
        if rest.is_empty() {
            return written;
        }
        if self.last != Some(stream) && other.is_open {
            written.push(b'\n');
            *other = Line { is_open: false, was_ended: true };
        }
        written.extend_from_slice(rest);
        line.is_open = !rest.ends_with(b"\n");
        self.last = Some(stream);
        written
    }
}

#[test]
fn lines_of_two_streams_stand_one_below_the_other() {
    let joined = |parts: &[(Stream, &str)]| {
        let mut joined = Joined::default();
        let bytes = parts.iter().flat_map(|(stream, text)| joined.join(*stream, text.as_bytes()));
        String::from_utf8(bytes.collect()).unwrap()
    };
    let (out, err) = (Stream::Out, Stream::Err);
    assert_eq!(joined(&[(out, "a"), (err, "b"), (out, "\n"), (err, "\n")]), "a\nb\n");
    assert_eq!(joined(&[(out, "a"), (err, "b"), (out, "\nc"), (err, "\nd")]), "a\nb\nc\nd");
    assert_eq!(joined(&[(out, "a"), (out, "\nc"), (out, "\n"), (err, "d\n")]), "a\nc\nd\n");
    assert_eq!(joined(&[(out, "a\n"), (err, "b"), (err, "\n"), (out, "\n")]), "a\nb\n\n");
}
