//! Output of the job, and its masked form.

use step_runner::log::LogStream;

/// Size of the block of output that is generated once and printed repeatedly.
pub(crate) const BLOCK_BYTES: usize = 16 << 20;

/// Number of blocks, which are a gigabyte in total.
pub(crate) const BLOCKS: u64 = 60;

/// Capacity of a pipe, and the amount masked at a time.
const CHUNK_BYTES: usize = 64 << 10;

const MASK: &str = "[MASKED]";

/// A block of the log.
pub(crate) struct LogBlock {
    pub(crate) secrets: Vec<String>,
    pub(crate) written: Vec<u8>,
    pub(crate) masked: Vec<u8>,
}

impl LogBlock {
    pub(crate) fn new() -> Self {
        let mut random = XorShift(1);
        let secrets: Vec<_> =
            [12, 40, 100, 1000].iter().map(|&length| random.word(length)).collect();
        let words: Vec<_> = (0..4096).map(|at| random.word(1 + at % 90)).collect();
        let mut content = LogBlock { secrets, written: Vec::new(), masked: Vec::new() };
        let mut cut = 0;
        let mut line = 0_u32;
        while content.written.len() < BLOCK_BYTES {
            line += 1;
            content.push_both(&format!("{line} "));
            for _ in 0..random.next_below(6) {
                content.push_both(&words[random.next_below(words.len())]);
                content.push_both(" ");
            }
            let start = content.written.len() / CHUNK_BYTES;
            match random.next_below(32) {
                0 => {
                    let secret = content.secrets[random.next_below(content.secrets.len())].clone();
                    content.written.extend_from_slice(secret.as_bytes());
                    content.masked.extend_from_slice(MASK.as_bytes());
                }
                1 => {
                    content.push_both("glpat-");
                    content
                        .written
                        .extend_from_slice(words[random.next_below(words.len())].as_bytes());
                    content.masked.extend_from_slice(MASK.as_bytes());
                }
                // Longer than a log entry.
                2 if line.is_multiple_of(64) => {
                    (0..2000).for_each(|at| content.push_both(&words[at]));
                }
                _ => {}
            }
            cut += content.written.len() / CHUNK_BYTES - start;
            content.push_both(["\n", "\n", " \n", "\n\n", "\r\n"][random.next_below(5)]);
        }
        assert!(cut > 8, "{cut} secrets of a block lie where a pipe is cut");
        content
    }

    fn push_both(&mut self, text: &str) {
        self.written.extend_from_slice(text.as_bytes());
        self.masked.extend_from_slice(text.as_bytes());
    }
}

/// The expected log, with which the received one is compared.
pub(crate) struct LogExpectation {
    masked: Vec<u8>,
    header: String,
    block: u64,
    /// Position in the header and the block.
    at: usize,
}

impl LogExpectation {
    pub(crate) fn new(masked: Vec<u8>) -> Self {
        // The first line is printed by step-runner.
        LogExpectation {
            masked,
            header: "Running step name=big\nblock 0\n".to_owned(),
            block: 0,
            at: 0,
        }
    }

    pub(crate) fn take(&mut self, stream: LogStream, mut bytes: &[u8]) {
        assert_eq!(stream, LogStream::Out, "{}", String::from_utf8_lossy(bytes));
        while !bytes.is_empty() {
            let rest = match self.at.checked_sub(self.header.len()) {
                None => &self.header.as_bytes()[self.at..],
                Some(at) => &self.masked[at..],
            };
            let (now, later) = bytes.split_at(bytes.len().min(rest.len()));
            assert!(
                self.block < BLOCKS && now == &rest[..now.len()],
                "block {} at {}: {:?} is not {:?}",
                self.block,
                self.at,
                String::from_utf8_lossy(now),
                String::from_utf8_lossy(&rest[..now.len()])
            );
            self.at += now.len();
            if self.at == self.header.len() + self.masked.len() {
                self.block += 1;
                self.header = format!("block {}\n", self.block);
                self.at = 0;
            }
            bytes = later;
        }
    }

    pub(crate) fn finish(&self) {
        assert_eq!((self.block, self.at), (BLOCKS, 0), "the log is not whole");
    }
}

/// A deterministic pseudo-random sequence: xorshift.
struct XorShift(u64);

impl XorShift {
    fn next_below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("it has 31 bits") % limit
    }

    fn word(&mut self, length: usize) -> String {
        const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        (0..length).map(|_| char::from(LETTERS[self.next_below(LETTERS.len())])).collect()
    }
}
