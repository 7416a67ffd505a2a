//! Frames between the first process of a job container and the host, at both ends: what a job sends us,
//! and what we send it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::sys::init::frames::{
    Answer, FrameError, Frames, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Request,
};

fuzz_target!(|sent: &[u8]| {
    // The first byte says how large the pieces are.
    let Some((size, sent)) = sent.split_first() else { return };
    let size = usize::from(*size).max(1);

    let requests = all(sent, sent.len().max(1), MAX_REQUEST_BYTES, Request::decode);
    assert_eq!(requests, all(sent, size, MAX_REQUEST_BYTES, Request::decode));
    let encoded = |request: &Request| request.encode().expect("it was in a frame");
    let again: Vec<u8> = requests.iter().flat_map(encoded).collect();
    assert_eq!(requests, all(&again, size, MAX_REQUEST_BYTES, Request::decode));

    let answers = all(sent, sent.len().max(1), MAX_ANSWER_BYTES, Answer::decode);
    assert_eq!(answers, all(sent, size, MAX_ANSWER_BYTES, Answer::decode));
    let again: Vec<u8> = answers.iter().flat_map(Answer::encode).collect();
    assert_eq!(answers, all(&again, size, MAX_ANSWER_BYTES, Answer::decode));
});

/// Returns what there is before the first error.
fn all<T>(
    sent: &[u8],
    size: usize,
    max: usize,
    decode: impl Fn(u8, &[u8]) -> Result<T, FrameError>,
) -> Vec<T> {
    let mut frames = Frames::new(max);
    let mut read = Vec::new();
    for piece in sent.chunks(size) {
        frames.push(piece);
        loop {
            match frames.take().map(|frame| frame.map(|(kind, payload)| decode(kind, &payload))) {
                Ok(None) => break,
                Ok(Some(Ok(frame))) => read.push(frame),
                Ok(Some(Err(_))) | Err(_) => return read,
            }
        }
    }
    read
}
