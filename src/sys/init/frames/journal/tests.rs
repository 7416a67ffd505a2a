//! Frames of kept steps that are what they were before, and bytes that are none.

use super::super::{Failure, FailureKind, Frames, HEADER_BYTES};
use super::*;

fn id(text: &str) -> StepId {
    StepId::new(text).unwrap()
}

fn requests() -> Vec<JournalRequest> {
    let step = Step {
        args: vec![b"sh".to_vec(), Vec::new()],
        env: vec![(b"A".to_vec(), b"\xff\n".to_vec())],
        ..Step::default()
    };
    let attach =
        |from, step| JournalRequest::Attach(Box::new(Attach { id: id("a-B_9"), from, step }));
    vec![
        attach(0, Some(step)),
        attach(u64::MAX, None),
        JournalRequest::Signal(15),
        JournalRequest::Kill,
        JournalRequest::Received(1 << 40),
        JournalRequest::Alive,
        JournalRequest::Yield,
    ]
}

fn events() -> Vec<StepEvent> {
    let failure =
        Failure { kind: FailureKind::Keeper, errno: 2, path: b"x".to_vec(), found: Vec::new() };
    let ends = [Answer::Exited(255), Answer::Signalled(9), Answer::Failed(failure)];
    let output = OutputStream::ALL.map(|stream| StepEvent::Output {
        stream,
        offset: 1 << 33,
        bytes: b"\0\xff".to_vec(),
    });
    let ends = ends.into_iter().map(|end| StepEvent::Ended { offset: 77, end });
    [StepEvent::Started, StepEvent::Heartbeat].into_iter().chain(output).chain(ends).collect()
}

fn taken(bytes: &[u8]) -> (u8, Vec<u8>) {
    let mut frames = Frames::new(MAX_REQUEST_BYTES);
    frames.push(bytes);
    let frame = frames.take().unwrap().unwrap();
    assert!(!frames.is_within_frame());
    frame
}

#[test]
fn frames_are_read_as_they_were_written_and_not_in_part() {
    for request in requests() {
        let (kind, payload) = taken(&request.encode().unwrap());
        assert_eq!(JournalRequest::decode(kind, &payload), Ok(request));
        for end in 0..payload.len() {
            assert_eq!(JournalRequest::decode(kind, &payload[..end]), Err(FrameError::Short));
        }
        let longer = [&payload[..], b"\0"].concat();
        assert_eq!(JournalRequest::decode(kind, &longer), Err(FrameError::Trailing));
    }
    for event in events() {
        let (kind, payload) = taken(&event.encode());
        assert_eq!(StepEvent::decode(kind, &payload), Ok(event.clone()));
        let is_output = matches!(event, StepEvent::Output { .. });
        for end in 0..payload.len() {
            // Output may be any bytes, none too.
            let part = StepEvent::decode(kind, &payload[..end]);
            assert!(part == Err(FrameError::Short) || (is_output && end >= 9), "{part:?}");
        }
    }
}

#[test]
fn output_is_as_long_as_its_frame() {
    let output = StepEvent::Output {
        stream: OutputStream::Errors,
        offset: 5,
        bytes: vec![7; MAX_OUTPUT_BYTES],
    };
    let frame = output.encode();
    assert_eq!(frame.len(), OUTPUT_HEADER_BYTES + MAX_OUTPUT_BYTES);
    assert!(frame.len() <= HEADER_BYTES + MAX_EVENT_BYTES);
    assert_eq!(frame[..14], output_header(OutputStream::Errors, 5, MAX_OUTPUT_BYTES));
}

#[test]
fn ids_are_names_of_files_and_nothing_else() {
    let longest = "x".repeat(64);
    for text in ["a", "A-b_0", "-", "6f1e9a5c-3a55-4b9f-8d6f-0e5d2b1c7a11", &longest] {
        assert_eq!(id(text).as_str(), text);
    }
    for text in ["", ".", "..", "a/b", "a b", "a\0", "é", &"x".repeat(65)] {
        assert_eq!(StepId::new(text), None, "{text:?}");
        let mut payload = u32::try_from(text.len()).unwrap().to_le_bytes().to_vec();
        payload.extend(text.as_bytes());
        payload.extend([0; 9]);
        let read = JournalRequest::decode(0x85, &payload);
        assert_eq!(read, Err(FrameError::Invalid("id")), "{text:?}");
    }
}

#[test]
fn what_cannot_be_is_rejected() {
    assert_eq!(StepEvent::decode(0x06, &[2; 9]), Err(FrameError::Invalid("stream")));
    assert_eq!(StepEvent::decode(0x04, &[0; 9]), Err(FrameError::Invalid("signal")));
    assert_eq!(StepEvent::decode(0x08, &[]), Err(FrameError::UnknownKind(8)));
    assert_eq!(JournalRequest::decode(0x81, &[]), Err(FrameError::UnknownKind(0x81)));
    let attach = Attach { id: id("a"), from: 0, step: Some(Step::default()) };
    assert!(JournalRequest::Attach(Box::new(attach)).encode().is_err());
    let step = Step { args: vec![vec![b'x'; MAX_REQUEST_BYTES]], ..Step::default() };
    let attach = Attach { id: id("a"), from: 0, step: Some(step) };
    let encoded = JournalRequest::Attach(Box::new(attach)).encode();
    assert!(matches!(encoded, Err(FrameError::TooLong { .. })));
}
