//! Reference implementation of masking, slow and simple, with which [`Masker`](super::Masker) is compared.

use std::ops::Range;

const URL_KEYS: [&str; 6] = [
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
];

/// Returns a text with its secrets masked.
pub fn mask(text: &[u8], phrases: &[String], loose: &[String], prefixes: &[String]) -> Vec<u8> {
    let mut ranges = phrase_ranges(text, phrases);
    ranges.extend(loose_ranges(text, loose));
    let phrases = join_ranges(ranges);
    let value = values(text, prefixes);
    let in_phrase = |at: usize| phrases.iter().any(|range| range.contains(&at));
    let mut out = Vec::new();
    for at in 0..text.len() {
        let begins_phrase = phrases.iter().any(|range| range.start == at);
        let in_value = value[at] && !in_phrase(at);
        let begins_value = in_value && (at == 0 || !value[at - 1] || in_phrase(at - 1));
        if begins_phrase || begins_value {
            out.extend_from_slice(b"[MASKED]");
        } else if !in_phrase(at) && !in_value {
            out.push(text[at]);
        }
    }
    out
}

/// Returns the ranges of phrases; occurrences of one phrase do not overlap.
fn phrase_ranges(text: &[u8], phrases: &[String]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    for phrase in phrases.iter().map(|phrase| phrase.trim().as_bytes()) {
        let mut at = 0;
        while !phrase.is_empty() && at < text.len() {
            if text[at..].starts_with(phrase) {
                ranges.push(at..at + phrase.len());
                at += phrase.len();
            } else {
                at += 1;
            }
        }
    }
    ranges
}

/// Returns the ranges of loose phrases, with the line breaks and escape sequences in them.
fn loose_ranges(text: &[u8], phrases: &[String]) -> Vec<Range<usize>> {
    let text = normalize_text(text);
    let mut ranges = Vec::new();
    for phrase in phrases {
        let phrase: Vec<_> =
            normalize_text(phrase.trim().as_bytes()).into_iter().map(|(_, byte)| byte).collect();
        let mut at = 0;
        while phrase.len() >= 8 && at < text.len() {
            let rest = &text[at..];
            if rest.len() >= phrase.len() && phrase.iter().zip(rest).all(|(a, (_, b))| a == b) {
                ranges.push(rest[0].0..rest[phrase.len() - 1].0 + 1);
                at += phrase.len();
            } else {
                at += 1;
            }
        }
    }
    ranges
}

/// Returns the normalized bytes (lower case, no line breaks or escape sequences), each with its offset;
/// `None` stands for a gap that is longer than a secret may have.
fn normalize_text(text: &[u8]) -> Vec<(usize, Option<u8>)> {
    let (mut out, mut at, mut gap) = (Vec::new(), 0, 0);
    while at < text.len() {
        let end = match text[at] {
            0x1b => escape_end(text, at).min(at + 256),
            b'\n' | b'\r' => at + 1,
            byte => {
                if gap > 512 {
                    out.push((at, None));
                }
                gap = 0;
                out.push((at, Some(byte.to_ascii_lowercase())));
                at += 1;
                continue;
            }
        };
        gap += end - at;
        at = end;
    }
    out
}

/// Returns the end of the escape sequence that begins at `at`.
fn escape_end(text: &[u8], at: usize) -> usize {
    let byte = |at: usize| text.get(at).copied();
    let skip = |mut at: usize, range: std::ops::RangeInclusive<u8>| {
        while byte(at).is_some_and(|byte| range.contains(&byte)) {
            at += 1;
        }
        at
    };
    let last = |at: usize, range: std::ops::RangeInclusive<u8>| match byte(at) {
        Some(byte) if range.contains(&byte) => at + 1,
        _ => at,
    };
    match byte(at + 1) {
        Some(b'[') => last(skip(at + 2, 0x20..=0x3f), 0x40..=0x7e),
        Some(b']' | b'P' | b'X' | b'^' | b'_') => {
            let rest = &text[at + 2..];
            let stop = rest.iter().position(|byte| matches!(byte, 7 | 0x1b | b'\n' | b'\r'));
            let Some(stop) = stop.map(|stop| at + 2 + stop) else { return text.len() };
            match (text[stop], byte(stop + 1)) {
                (7, _) => stop + 1,
                (0x1b, Some(b'\\')) => stop + 2,
                _ => stop,
            }
        }
        _ => last(skip(at + 1, 0x20..=0x2f), 0x30..=0x7e),
    }
}

fn join_ranges(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns for each byte whether it belongs to a masked value.
fn values(text: &[u8], prefixes: &[String]) -> Vec<bool> {
    let mut value = vec![false; text.len()];
    let mut hide = |from: usize, belongs: fn(u8) -> bool| {
        for at in (from..text.len()).take_while(|&at| belongs(text[at])) {
            value[at] = true;
        }
    };
    for end in 0..=text.len() {
        let before = &text[..end];
        if prefixes.iter().any(|prefix| !prefix.is_empty() && before.ends_with(prefix.as_bytes())) {
            hide(end, |byte| byte.is_ascii_alphanumeric() || b"._=-".contains(&byte));
        }
        let lower = before.to_ascii_lowercase();
        let ends = |key: &str| {
            ["?", "&"].iter().any(|mark| lower.ends_with(format!("{mark}{key}=").as_bytes()))
        };
        if URL_KEYS.into_iter().any(ends) {
            hide(end, |byte| !b"?& ".contains(&byte) && !byte.is_ascii_control());
        }
    }
    value
}
