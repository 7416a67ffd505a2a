//! The pattern parser and matcher: no input panics, and what matches as a whole matches in part.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::hooks::Pattern;

fuzz_target!(|input: &str| {
    let (source, text) = input.split_once('\n').unwrap_or((input, "/usr/bin/python3"));
    match Pattern::new(source) {
        Ok(pattern) => {
            assert!(!pattern.is_full_match(text) || pattern.is_match(text));
            // A group around a pattern changes nothing, unless it is too deep with it.
            if let Ok(group) = Pattern::new(format!("(?:{source})")) {
                assert_eq!(group.is_match(text), pattern.is_match(text));
            }
        }
        Err(error) => {
            assert!(source.get(error.span()).is_some());
            error.to_string();
        }
    }
});
