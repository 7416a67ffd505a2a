//! The order of what is read of several pipes in one round.

use std::ops::Range;
use std::os::fd::RawFd;

/// A read that is this long may be a part of a longer write: a page.
const PAGE_BYTES: usize = 4096;

/// What was read of one pipe.
pub(super) struct Reads<'a> {
    pub(super) fd: RawFd,
    pub(super) bytes: &'a [u8],
    /// Where each read ended.
    pub(super) ends: &'a [usize],
    /// Whether all writers are gone, which counts as a write.
    pub(super) is_closed: bool,
}

/// Puts what was read into the order of the writes, which are given by their pipes: calls `each` with an
/// index into `pipes` and with bytes.
///
/// If a pipe has more writes than reads, its first ones were read before. If it has fewer, what is left
/// was written a moment ago and comes last.
pub(super) fn in_order<'a>(
    writes: &[RawFd],
    pipes: &[Reads<'a>],
    mut each: impl FnMut(usize, &'a [u8]),
) {
    let mut queues: Vec<Queue> = pipes.iter().map(|pipe| Queue::new(writes, pipe)).collect();
    let mut pending: Option<(usize, Range<usize>)> = None;
    let mut say = |index: usize, part: Range<usize>| match &mut pending {
        Some((same, whole)) if *same == index => whole.end = part.end,
        other => {
            if let Some((index, part)) = other.replace((index, part)) {
                each(index, &pipes[index].bytes[part]);
            }
        }
    };
    for write in writes {
        let Some(index) = pipes.iter().position(|pipe| pipe.fd == *write) else { continue };
        if let Some(part) = queues[index].next() {
            say(index, part);
        }
    }
    for (index, queue) in queues.iter().enumerate() {
        let rest = queue.at..pipes[index].bytes.len();
        if !rest.is_empty() {
            say(index, rest);
        }
    }
    if let Some((index, part)) = pending {
        each(index, &pipes[index].bytes[part]);
    }
}

/// The reads of a pipe, one for each write.
struct Queue {
    ends: std::vec::IntoIter<usize>,
    at: usize,
    /// Writes that were read before.
    old: usize,
}

impl Queue {
    fn new(writes: &[RawFd], pipe: &Reads<'_>) -> Self {
        let count = writes.iter().filter(|write| **write == pipe.fd).count();
        let mut ends = pipe.ends.to_vec();
        if ends.len() > count {
            let mut begin = 0;
            ends.retain(|end| {
                let length = end - std::mem::replace(&mut begin, *end);
                length % PAGE_BYTES != 0 || *end == pipe.bytes.len()
            });
        }
        let more = count.saturating_sub(ends.len());
        let old = if pipe.is_closed { more.saturating_sub(1) } else { more };
        Queue { ends: ends.into_iter(), at: 0, old }
    }

    fn next(&mut self) -> Option<Range<usize>> {
        if self.old > 0 {
            self.old -= 1;
            return None;
        }
        let end = self.ends.next()?;
        Some(std::mem::replace(&mut self.at, end)..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: RawFd = 5;
    const ERR: RawFd = 7;

    /// Each byte is a write; the case of the letters says of which pipe.
    fn ordered(writes: &[RawFd], out: &str, err: &str) -> String {
        ordered_with(writes, out, err, false)
    }

    fn ordered_with(writes: &[RawFd], out: &str, err: &str, is_closed: bool) -> String {
        let ends: Vec<usize> = (1..10).collect();
        let pipes = [reads(OUT, out, &ends, is_closed), reads(ERR, err, &ends, is_closed)];
        let mut text = String::new();
        in_order(writes, &pipes, |_, bytes| {
            text += std::str::from_utf8(bytes).unwrap();
            text += " ";
        });
        text
    }

    fn reads<'a>(fd: RawFd, text: &'a str, ends: &'a [usize], is_closed: bool) -> Reads<'a> {
        Reads { fd, bytes: text.as_bytes(), ends: &ends[..text.len()], is_closed }
    }

    #[test]
    fn reads_come_in_the_order_of_writes() {
        assert_eq!(ordered(&[ERR, OUT, ERR, ERR, OUT], "bd", "ACE"), "A b CE d ");
        assert_eq!(ordered(&[OUT, OUT, ERR, 9], "ab", "C"), "ab C ");
        assert_eq!(ordered_with(&[ERR, OUT, ERR, OUT], "b", "A", true), "A b ");
    }

    #[test]
    fn nothing_is_lost_whatever_the_writes_say() {
        assert_eq!(ordered(&[], "ab", "CD"), "ab CD ");
        assert_eq!(ordered(&[ERR], "a", "BC"), "B a C ");
        // The first write was read before.
        assert_eq!(ordered(&[OUT, ERR, OUT], "b", "A"), "A b ");
        assert_eq!(ordered(&[OUT, ERR, OUT], "", "A"), "A ");
    }

    #[test]
    fn a_long_write_is_several_reads() {
        let long = "x".repeat(2 * PAGE_BYTES + 1) + "y";
        let ends = [PAGE_BYTES, 2 * PAGE_BYTES, 2 * PAGE_BYTES + 1, 2 * PAGE_BYTES + 2];
        let pipes = [
            Reads { fd: OUT, bytes: long.as_bytes(), ends: &ends, is_closed: false },
            reads(ERR, "A", &[1], false),
        ];
        let mut lengths = Vec::new();
        in_order(&[OUT, ERR, OUT], &pipes, |_, bytes| lengths.push(bytes.len()));
        assert_eq!(lengths, [2 * PAGE_BYTES + 1, 1, 1]);
    }
}
