//! Compares the masker with its reference implementation, for all ways to cut the text.
//!
//! The first line has phrases, the second loose phrases, the third prefixes of tokens, separated by
//! `|`; the text follows.

#![no_main]

use libfuzzer_sys::fuzz_target;
use step_runner::log::{Masker, Masking};

#[path = "../../crates/step-runner/src/log/masker/reference.rs"]
mod reference;

/// The reference is slow, and longer phrases and texts find no more.
const MAX_BYTES: usize = 512;

fuzz_target!(|input: &[u8]| {
    let mut parts = input.splitn(4, |&byte| byte == b'\n');
    let mut words = || {
        let line = parts.next().unwrap_or_default();
        let words = line[..line.len().min(MAX_BYTES)].split(|&byte| byte == b'|');
        words.filter_map(|word| String::from_utf8(word.to_vec()).ok()).collect::<Vec<_>>()
    };
    // Phrases have no newlines here, only in the tests.
    let (phrases, loose_phrases, token_prefixes) = (words(), words(), words());
    let text = parts.next().unwrap_or_default();
    let text = &text[..text.len().min(MAX_BYTES)];

    let mut prefixes = token_prefixes.clone();
    prefixes.push("glpat-".to_owned());
    let expected = reference::mask(text, &phrases, &loose_phrases, &prefixes);
    let masking = Masking { phrases, loose_phrases, token_prefixes, ..Masking::default() };
    let mut masker = Masker::new(&masking).unwrap();
    let mut out = Vec::new();
    let mut check = |chunks: &mut dyn Iterator<Item = &[u8]>| {
        out.clear();
        chunks.for_each(|chunk| masker.write(chunk, &mut out));
        masker.finish(&mut out);
        assert_eq!(out, expected, "{masking:?}");
    };
    for at in 0..=text.len() {
        let (before, after) = text.split_at(at);
        check(&mut [before, after].into_iter());
    }
    for size in [1, 2, 3, 7] {
        check(&mut text.chunks(size));
    }
});
