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
    /// How many of its next writes were read before: a write can be read a moment before it is known.
    pub(super) early: usize,
}

/// Puts what was read into the order of the writes, which are given by their pipes: calls `each` with an
/// index into `pipes` and with bytes. Returns the new [`Reads::early`] of each.
///
/// If a pipe has more reads than writes, what is left was written a moment ago and comes last. If it has
/// fewer, its last writes are to be read in the next round: they stay in `writes`, which loses all others.
pub(super) fn in_order<'a>(
    writes: &mut Vec<RawFd>,
    pipes: &[Reads<'a>],
    mut each: impl FnMut(usize, &'a [u8]),
) -> Vec<usize> {
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
    writes.retain(|write| {
        let Some(index) = pipes.iter().position(|pipe| pipe.fd == *write) else { return true };
        let queue = &mut queues[index];
        if queue.old > 0 {
            queue.old -= 1;
            return false;
        }
        let part = queue.next();
        let is_left = part.is_none();
        part.into_iter().for_each(|part| say(index, part));
        is_left
    });
    for (index, queue) in queues.iter().enumerate() {
        let rest = queue.at..pipes[index].bytes.len();
        if !rest.is_empty() {
            say(index, rest);
        }
    }
    if let Some((index, part)) = pending {
        each(index, &pipes[index].bytes[part]);
    }
    queues.into_iter().map(|queue| queue.early).collect()
}

/// The reads of a pipe, one for each write.
struct Queue {
    ends: std::vec::IntoIter<usize>,
    at: usize,
    /// Writes that were read before.
    old: usize,
    /// Reads whose writes are not known yet.
    early: usize,
}

impl Queue {
    fn new(writes: &[RawFd], pipe: &Reads<'_>) -> Self {
        let known = writes.iter().filter(|write| **write == pipe.fd).count();
        let old = pipe.early.min(known);
        let new = known - old;
        let mut ends = pipe.ends.to_vec();
        if ends.len() > new {
            let mut begin = 0;
            ends.retain(|end| {
                let length = end - std::mem::replace(&mut begin, *end);
                length % PAGE_BYTES != 0 || *end == pipe.bytes.len()
            });
        }
        let early = pipe.early - old + ends.len().saturating_sub(new);
        Queue { ends: ends.into_iter(), at: 0, old, early }
    }

    fn next(&mut self) -> Option<Range<usize>> {
        let end = self.ends.next()?;
        Some(std::mem::replace(&mut self.at, end)..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: RawFd = 5;
    const ERR: RawFd = 7;

    fn reads<'a>(fd: RawFd, text: &'a str, ends: &'a [usize]) -> Reads<'a> {
        Reads { fd, bytes: text.as_bytes(), ends: &ends[..text.len()], early: 0 }
    }

    /// Each byte is a write. Returns what is said at once, and the writes that are left.
    fn ordered(writes: &[RawFd], out: &str, err: &str) -> (String, Vec<RawFd>) {
        let ends: Vec<usize> = (1..10).collect();
        let mut writes = writes.to_vec();
        let mut text = String::new();
        in_order(&mut writes, &[reads(OUT, out, &ends), reads(ERR, err, &ends)], |_, bytes| {
            text += std::str::from_utf8(bytes).unwrap();
            text += " ";
        });
        (text, writes)
    }

    #[test]
    fn reads_come_in_the_order_of_writes() {
        let all = |text: &str| (text.to_owned(), vec![]);
        assert_eq!(ordered(&[ERR, OUT, ERR, ERR, OUT], "bd", "ACE"), all("A b CE d "));
        assert_eq!(ordered(&[OUT, OUT, ERR], "ab", "C"), all("ab C "));
    }

    #[test]
    fn nothing_is_lost_whatever_the_writes_say() {
        assert_eq!(ordered(&[], "ab", "CD"), ("ab CD ".to_owned(), vec![]));
        assert_eq!(ordered(&[ERR], "a", "BC"), ("B a C ".to_owned(), vec![]));
        assert_eq!(ordered(&[OUT, ERR, OUT, 9], "a", "B"), ("a B ".to_owned(), vec![OUT, 9]));
        assert_eq!(ordered(&[OUT, ERR], "", "A"), ("A ".to_owned(), vec![OUT]));
    }

    #[test]
    fn what_was_read_before_its_write_was_known_does_not_put_off_the_rest() {
        let ends = [1, 2];
        let mut text = String::new();
        let mut round = |writes: &[RawFd], out, err, early: &[usize]| {
            let mut writes = writes.to_vec();
            let out = Reads { early: early[0], ..reads(OUT, out, &ends) };
            let err = Reads { early: early[1], ..reads(ERR, err, &ends) };
            in_order(&mut writes, &[out, err], |_, bytes| {
                text += std::str::from_utf8(bytes).unwrap();
            })
        };
        let early = round(&[OUT, ERR], "ac", "B", &[0, 0]);
        assert_eq!(early, [1, 0]);
        let early = round(&[OUT, ERR, OUT, ERR], "eg", "DF", &early);
        assert_eq!(early, [1, 0]);
        assert_eq!(round(&[OUT, OUT], "i", "", &early), [0, 0]);
        assert_eq!(text, "aBcDeFgi");
    }

    #[test]
    fn a_long_write_is_several_reads() {
        let long = "x".repeat(2 * PAGE_BYTES + 1) + "y";
        let ends = [PAGE_BYTES, 2 * PAGE_BYTES, 2 * PAGE_BYTES + 1, 2 * PAGE_BYTES + 2];
        let pipes = [
            Reads { fd: OUT, bytes: long.as_bytes(), ends: &ends, early: 0 },
            reads(ERR, "A", &[1]),
        ];
        let mut lengths = Vec::new();
        in_order(&mut vec![OUT, ERR, OUT], &pipes, |_, bytes| lengths.push(bytes.len()));
        assert_eq!(lengths, [2 * PAGE_BYTES + 1, 1, 1]);
    }
}
