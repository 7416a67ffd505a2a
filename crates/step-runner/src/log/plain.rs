use std::io::{self, Write};
use std::time::Instant;

use super::masker::{Maskers, STREAMS, index};
use super::masking::Masking;
use super::patterns::TooMuchToMask;
use super::{LogStream, OutputSink, OutputSource};

/// A sink for a terminal: it forwards the output of a job, masked but otherwise unchanged.
///
/// If a stream cannot be written, further output to it is dropped. If there are too many secrets to mask,
/// a line on standard error reports it, and all further output is dropped.
pub struct PlainOutput {
    out: TerminalSink,
    err: TerminalSink,
    maskers: Maskers,
    is_stopped: bool,
    /// Buffer for masked output, empty between calls.
    masked: Vec<u8>,
}

struct TerminalSink {
    to: Box<dyn Write + Send>,
    error: Option<io::Error>,
}

impl PlainOutput {
    /// Writes standard output to `out` and standard error to `err`.
    pub fn new(
        out: Box<dyn Write + Send>,
        err: Box<dyn Write + Send>,
        masking: &Masking,
    ) -> Result<Self, TooMuchToMask> {
        let [out, err] = [out, err].map(|to| TerminalSink { to, error: None });
        let maskers = Maskers::new(masking)?;
        Ok(PlainOutput { out, err, maskers, is_stopped: false, masked: Vec::new() })
    }

    /// Writes held-back output, and returns the first write error.
    pub fn close(mut self) -> io::Result<()> {
        self.flush();
        self.out.error.or(self.err.error).map_or(Ok(()), Err)
    }

    fn sink(&mut self, stream: LogStream) -> &mut TerminalSink {
        match stream {
            LogStream::Out => &mut self.out,
            LogStream::Err => &mut self.err,
        }
    }

    /// Writes the buffer of masked output to a stream, and empties it.
    fn pass(&mut self, stream: LogStream) {
        let masked = std::mem::take(&mut self.masked);
        if !self.is_stopped {
            self.sink(stream).write(&masked);
        }
        self.masked = masked;
        self.masked.clear();
    }
}

impl TerminalSink {
    fn write(&mut self, bytes: &[u8]) {
        if self.error.is_none() && !bytes.is_empty() {
            self.error = self.to.write_all(bytes).and_then(|()| self.to.flush()).err();
        }
    }
}

impl OutputSink for PlainOutput {
    fn write(&mut self, source: OutputSource, stream: LogStream, bytes: &[u8]) {
        self.maskers.write(index(source, stream), bytes, &mut self.masked);
        self.pass(stream);
    }

    fn flush(&mut self) {
        for (source, stream) in STREAMS {
            self.maskers.finish(index(source, stream), &mut self.masked);
            self.pass(stream);
        }
    }

    fn release(&mut self, now: Instant) -> Option<Instant> {
        for (source, stream) in STREAMS {
            self.maskers.release(index(source, stream), now, &mut self.masked);
            self.pass(stream);
        }
        self.maskers.next_release()
    }

    fn mask(&mut self, secret: &str) {
        if let Err(error) = self.maskers.add_secret(secret)
            && !self.is_stopped
        {
            self.is_stopped = true;
            self.err.write(format!("step-runner: output truncated: {error}\n").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

    impl SharedBuffer {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for SharedBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_is_masked_and_forwarded_immediately() {
        let (out, err) = (SharedBuffer::default(), SharedBuffer::default());
        let masking = Masking { phrases: vec!["secret".to_owned()], ..Masking::default() };
        let mut plain =
            PlainOutput::new(Box::new(out.clone()), Box::new(err.clone()), &masking).unwrap();
        plain.write(OutputSource::Step, LogStream::Out, b"a\r\n\n sec");
        assert_eq!(out.text(), "a\r\n\n ");
        plain.write(OutputSource::Step, LogStream::Err, b"glpat-abc");
        plain.write(OutputSource::Runner, LogStream::Out, b"ret");
        assert_eq!(out.text(), "a\r\n\n ret");
        plain.mask("long secret");
        plain.write(OutputSource::Step, LogStream::Out, b"ret bG9uZyBzZWNyZXQ= s");
        plain.close().unwrap();
        assert_eq!(out.text(), "a\r\n\n ret[MASKED] [MASKED]= s");
        assert_eq!(err.text(), "glpat-[MASKED]");
    }

    #[test]
    fn held_back_output_is_shown_after_a_delay_or_by_the_runner() {
        let (out, err) = (SharedBuffer::default(), SharedBuffer::default());
        let mut masking = Masking::default();
        masking.add_secret("a-longer-secret");
        let mut plain =
            PlainOutput::new(Box::new(out.clone()), Box::new(err.clone()), &masking).unwrap();
        plain.write(OutputSource::Runner, LogStream::Err, b"A\n");
        assert_eq!(err.text(), "A\n");
        assert_eq!(plain.release(Instant::now()), None);
        plain.write(OutputSource::Step, LogStream::Out, b"x A\n");
        let due = plain.release(Instant::now()).unwrap();
        assert_eq!(out.text(), "x ");
        // Output of the other stream does not postpone the release.
        plain.write(OutputSource::Step, LogStream::Err, b"A\n");
        assert!(plain.release(due).is_some_and(|next| next >= due));
        assert_eq!((out.text(), err.text()), ("x A\n".to_owned(), "A\n".to_owned()));
    }

    #[test]
    fn closed_stream_does_not_close_the_other() {
        struct BrokenPipeWriter;

        impl Write for BrokenPipeWriter {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let err = SharedBuffer::default();
        let masking = Masking::default();
        let mut plain =
            PlainOutput::new(Box::new(BrokenPipeWriter), Box::new(err.clone()), &masking).unwrap();
        plain.write(OutputSource::Step, LogStream::Out, b"a");
        plain.write(OutputSource::Step, LogStream::Err, b"b");
        assert_eq!(err.text(), "b");
        assert_eq!(plain.close().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
