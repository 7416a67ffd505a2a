//! Masking as slow and plain as it can be said: what [`Masker`](super::Masker) is held against.

use std::ops::Range;

const URL_KEYS: [&str; 6] = [
    "private_token",
    "authenticity_token",
    "rss_token",
    "x-amz-signature",
    "x-amz-credential",
    "x-amz-security-token",
];

/// Returns what is left of a whole text.
pub(crate) fn mask(text: &[u8], phrases: &[String], prefixes: &[String]) -> Vec<u8> {
    let phrases = phrase_ranges(text, phrases);
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

/// Returns what phrases cover: of each, what does not overlap itself; of all, joined if it overlaps.
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

/// Returns for each byte if it is of a value.
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
