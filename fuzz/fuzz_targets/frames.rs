//! Frames between the first process of a job container and the host, in both directions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks_init::frames::{
    FrameBuffer, FrameError, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, StepAnswer, StepRequest,
};

fuzz_target!(|sent: &[u8]| {
    // The first byte is the size of the pieces.
    let Some((size, sent)) = sent.split_first() else { return };
    let size = usize::from(*size).max(1);

    let requests = decode_all(sent, sent.len().max(1), MAX_REQUEST_BYTES, StepRequest::decode);
    assert_eq!(requests, decode_all(sent, size, MAX_REQUEST_BYTES, StepRequest::decode));
    let encoded = |request: &StepRequest| request.encode().expect("it was in a frame");
    let again: Vec<u8> = requests.iter().flat_map(encoded).collect();
    assert_eq!(requests, decode_all(&again, size, MAX_REQUEST_BYTES, StepRequest::decode));

    let answers = decode_all(sent, sent.len().max(1), MAX_ANSWER_BYTES, StepAnswer::decode);
    assert_eq!(answers, decode_all(sent, size, MAX_ANSWER_BYTES, StepAnswer::decode));
    let again: Vec<u8> = answers.iter().flat_map(StepAnswer::encode).collect();
    assert_eq!(answers, decode_all(&again, size, MAX_ANSWER_BYTES, StepAnswer::decode));
});

/// Returns the messages before the first error.
fn decode_all<T>(
    sent: &[u8],
    size: usize,
    max: usize,
    decode: impl Fn(u8, &[u8]) -> Result<T, FrameError> + Copy,
) -> Vec<T> {
    let mut frames = FrameBuffer::new(max);
    let mut read = Vec::new();
    for piece in sent.chunks(size) {
        frames.push(piece);
        loop {
            match frames.decode_next(decode) {
                Ok(None) => break,
                Ok(Some(frame)) => read.push(frame),
                Err(_) => return read,
            }
        }
    }
    read
}
