//! What comes through sudo: the first line of it has the variables, and says how much follows.
//!
//! Whoever may call sudo writes it, and root reads it.

#![no_main]

use std::io::Read as _;

use libfuzzer_sys::fuzz_target;
use oci_hooks::program::relayed;

const MAX_BYTES: u64 = 64;

fuzz_target!(|sent: &[u8]| {
    let mut input = sent;
    match relayed::read_message(&mut input, MAX_BYTES) {
        Err(error) => drop(error.to_string()),
        Ok((variables, request)) => {
            assert!(request.len() as u64 <= MAX_BYTES);
            // What follows is signals, and stays for who reads those.
            assert!(sent.ends_with(&[&request, input].concat()));

            // What it says is what the other end says of the same.
            let mut again = relayed::message(variables.clone(), &request);
            again.extend(input);
            let mut rest = again.as_slice();
            assert_eq!(relayed::read_message(&mut rest, MAX_BYTES).unwrap(), (variables, request));
            assert_eq!(rest, input);
        }
    }
    // A pipe gives it in pieces.
    let (first, second) = sent.split_at(sent.len() / 2);
    let mut pieces = first.chain(second);
    let whole = relayed::read_message(&mut { sent }, MAX_BYTES).ok();
    assert_eq!(relayed::read_message(&mut pieces, MAX_BYTES).ok(), whole);
});
