//! What the job writes, and what of it may be seen.

use oci_hooks::step_runner::log::Stream;

/// How much of the log is made once, and written again and again.
pub(crate) const BLOCK_BYTES: usize = 16 << 20;

/// How often: all together a gigabyte.
pub(crate) const BLOCKS: u64 = 60;

/// As much is in a pipe, and is masked at a time.
const CHUNK_BYTES: usize = 64 << 10;

const MASK: &str = "[MASKED]";

/// A block of the log.
pub(crate) struct Content {
    pub(crate) secrets: Vec<String>,
    pub(crate) written: Vec<u8>,
    pub(crate) masked: Vec<u8>,
}

impl Content {
    pub(crate) fn new() -> Self {
        let mut random = Random(1);
        let secrets: Vec<_> =
            [12, 40, 100, 1000].iter().map(|&length| random.word(length)).collect();
        let words: Vec<_> = (0..4096).map(|at| random.word(1 + at % 90)).collect();
        let mut content = Content { secrets, written: Vec::new(), masked: Vec::new() };
        let mut cut = 0;
        let mut line = 0_u32;
        while content.written.len() < BLOCK_BYTES {
            line += 1;
            content.both(&format!("{line} "));
            for _ in 0..random.below(6) {
                content.both(&words[random.below(words.len())]);
                content.both(" ");
            }
            let start = content.written.len() / CHUNK_BYTES;
            match random.below(32) {
                0 => {
                    let secret = content.secrets[random.below(content.secrets.len())].clone();
                    content.written.extend_from_slice(secret.as_bytes());
                    content.masked.extend_from_slice(MASK.as_bytes());
                }
                1 => {
                    content.both("glpat-");
                    content.written.extend_from_slice(words[random.below(words.len())].as_bytes());
                    content.masked.extend_from_slice(MASK.as_bytes());
                }
                // Longer than an entry.
                2 if line.is_multiple_of(64) => (0..2000).for_each(|at| content.both(&words[at])),
                _ => {}
            }
            cut += content.written.len() / CHUNK_BYTES - start;
            content.both(["\n", "\n", " \n", "\n\n", "\r\n"][random.below(5)]);
        }
        assert!(cut > 8, "{cut} secrets of a block lie where a pipe is cut");
        content
    }

    fn both(&mut self, text: &str) {
        self.written.extend_from_slice(text.as_bytes());
        self.masked.extend_from_slice(text.as_bytes());
    }
}

/// Compares what comes with what should.
pub(crate) struct Expected {
    masked: Vec<u8>,
    header: String,
    block: u64,
    /// Where in the header and the block it is.
    at: usize,
}

impl Expected {
    pub(crate) fn new(masked: Vec<u8>) -> Self {
        // The first line is the runner's own.
        Expected { masked, header: "Running step \"big\"\nblock 0\n".to_owned(), block: 0, at: 0 }
    }

    pub(crate) fn take(&mut self, stream: Stream, mut bytes: &[u8]) {
        assert_eq!(stream, Stream::Out, "{}", String::from_utf8_lossy(bytes));
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

/// A sequence that looks random, and is always the same: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("it has 31 bits") % limit
    }

    fn word(&mut self, length: usize) -> String {
        const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        (0..length).map(|_| char::from(LETTERS[self.below(LETTERS.len())])).collect()
    }
}
