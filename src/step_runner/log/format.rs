//! The forms that the log of a job can have.

use super::Source;
use super::Stream;
use super::stamp::{Stamper, Time};
use super::streams::{STREAMS, index};

/// The form of the log of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogFormat {
    /// Lines with a header: time, stream, whether the line goes on. GitLab Runner understands it since 19.0.
    #[default]
    Stamped,
    /// The bytes as they come, of both streams; at the end of a command the line ends. Older runners show
    /// every byte of a log.
    Plain,
}

/// Puts the output of all streams into a form.
pub(super) enum Formatter {
    Stamped(Box<[Stamper; STREAMS.len()]>),
    Plain {
        /// Whether the next byte begins a line.
        is_at_begin: bool,
    },
}

impl Formatter {
    pub(super) fn new(format: LogFormat) -> Self {
        match format {
            LogFormat::Stamped => Formatter::Stamped(Box::new(
                STREAMS.map(|(source, stream)| Stamper::of(source, stream)),
            )),
            LogFormat::Plain => Formatter::Plain { is_at_begin: true },
        }
    }

    /// Reads bytes of a stream, given by its [`index`], and appends what is complete to `out`.
    pub(super) fn write(&mut self, index: usize, bytes: &[u8], out: &mut Vec<u8>) {
        match self {
            Formatter::Stamped(stampers) => stampers[index].write(bytes, Time::now(), out),
            Formatter::Plain { is_at_begin } => {
                out.extend_from_slice(bytes);
                if let Some(last) = bytes.last() {
                    *is_at_begin = *last == b'\n';
                }
            }
        }
    }

    /// Ends the line of a stream.
    pub(super) fn finish(&mut self, index: usize, out: &mut Vec<u8>) {
        if let Formatter::Stamped(stampers) = self {
            stampers[index].finish(out);
        }
    }

    /// Ends the line that is open, where streams have lines in common.
    pub(super) fn end_line(&mut self, out: &mut Vec<u8>) {
        if let Formatter::Plain { is_at_begin } = self
            && !*is_at_begin
        {
            out.push(b'\n');
            *is_at_begin = true;
        }
    }

    /// Returns a line of the runner for after a line that was cut off or ended.
    pub(super) fn last_line(&self, text: &str, is_cut_off: bool) -> Vec<u8> {
        let mut line = Vec::new();
        let mut format = match self {
            Formatter::Stamped(_) => Formatter::new(LogFormat::Stamped),
            Formatter::Plain { .. } => Formatter::Plain { is_at_begin: !is_cut_off },
        };
        format.end_line(&mut line);
        format.write(index(Source::Runner, Stream::Err), text.as_bytes(), &mut line);
        line
    }
}
