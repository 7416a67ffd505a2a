//! Patterns: neither parsing nor matching panics, and a match of the whole text is a match.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::hooks::Pattern;

// A pattern and a text, separated by a line feed.
fuzz_target!(|input: &str| {
    let (pattern, text) = input.split_once('\n').unwrap_or((input, "/usr/bin/true"));
    let pattern = match Pattern::new(pattern) {
        Ok(pattern) => pattern,
        Err(error) => {
            assert!(pattern.get(error.span()).is_some(), "the span is not within the pattern");
            let _ = (error.to_string(), error.hint());
            return;
        }
    };
    for text in [text, "", pattern.as_str()] {
        if pattern.is_full_match(text) {
            assert!(pattern.is_match(text), "{pattern} matches all of {text:?} and no part of it");
        }
        // An anchored search must agree.
        let anchored = format!(r"\A(?:{pattern})\z");
        if let Ok(anchored) = Pattern::new(anchored) {
            assert_eq!(anchored.is_match(text), pattern.is_full_match(text), "{pattern} {text:?}");
        }
        // An alternative that never matches changes nothing.
        if let Ok(either) = Pattern::new(format!(r"(?:{pattern})|[^\x{{0}}-\x{{10FFFF}}]")) {
            assert_eq!(either.is_match(text), pattern.is_match(text), "{pattern} {text:?}");
        }
    }
});
