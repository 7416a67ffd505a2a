//! Frames that are read as they were written, and invalid bytes.

use super::failure::KINDS;
use super::journal::StepId;
use super::*;

/// Returns a step with a value in every field.
fn step() -> ContainerStep {
    ContainerStep {
        args: vec![b"sh".to_vec(), b"-c".to_vec(), Vec::new()],
        env: vec![(b"A".to_vec(), b"x=y\n".to_vec()), (b"INPUT_FETCH-DEPTH".to_vec(), Vec::new())],
        prepend_path: vec![b"/tools/bin".to_vec()],
        directory: b"/__w/a b".to_vec(),
        user: Some(StepUser { uid: 1000, gid: 100, groups: vec![100, 10] }),
        umask: Some(0o22),
        rlimits: vec![ResourceLimit { resource: 7, soft: 1024, hard: u64::MAX }],
        terminal: Some(TerminalSize { rows: 24, columns: 80 }),
    }
}

fn requests() -> Vec<StepRequest> {
    let plain = ContainerStep { args: vec![b"/bin/true".to_vec()], ..ContainerStep::default() };
    let steps = [step(), plain].map(|step| StepRequest::Step(Box::new(step)));
    let attach = |from, step| {
        let id = StepId::new("a-B_9").unwrap();
        StepRequest::Attach(Box::new(AttachRequest { id, from, step }))
    };
    let others = [
        StepRequest::Signal(15),
        StepRequest::Resize(TerminalSize { rows: 24, columns: 80 }),
        attach(0, Some(step())),
        attach(u64::MAX, None),
        StepRequest::Received(1 << 40),
        StepRequest::Alive,
    ];
    steps.into_iter().chain(others).collect()
}

fn answers() -> Vec<StepAnswer> {
    let failure = |kind| {
        let found = vec![b"sh".to_vec(), b"python3".to_vec()];
        StepAnswer::Failed(StepFailure { kind, errno: 2, path: b"bash".to_vec(), found })
    };
    let kinds = KINDS.into_iter().chain([FailureKind::Other(77)]);
    [
        StepAnswer::Hello(VERSIONS),
        StepAnswer::Started,
        StepAnswer::Exited(255),
        StepAnswer::Signalled(9),
    ]
    .into_iter()
    .chain(kinds.map(failure))
    .collect()
}

fn take_request(bytes: &[u8]) -> Result<Option<StepRequest>, FrameError> {
    let mut frames = FrameBuffer::new(MAX_REQUEST_BYTES);
    frames.push(bytes);
    frames.decode_next(StepRequest::decode)
}

fn take_answer(bytes: &[u8]) -> Result<Option<StepAnswer>, FrameError> {
    let mut frames = FrameBuffer::new(MAX_ANSWER_BYTES);
    frames.push(bytes);
    frames.decode_next(StepAnswer::decode)
}

#[test]
fn frames_decode_in_pieces_of_any_size() {
    let bytes: Vec<u8> = answers().iter().flat_map(StepAnswer::encode).collect();
    for size in [1, 2, 7, bytes.len()] {
        let mut frames = FrameBuffer::new(MAX_ANSWER_BYTES);
        let mut read = Vec::new();
        for piece in bytes.chunks(size) {
            frames.push(piece);
            while let Some(answer) = frames.decode_next(StepAnswer::decode).unwrap() {
                read.push(answer);
            }
        }
        assert_eq!(read, answers());
        assert_eq!(frames.length(), 0);
    }
    for request in requests() {
        assert_eq!(take_request(&request.encode().unwrap()), Ok(Some(request)));
    }
}

#[test]
fn incomplete_frames_and_payloads_are_rejected() {
    for request in requests() {
        let bytes = request.encode().unwrap();
        for end in 0..bytes.len() {
            assert_eq!(take_request(&bytes[..end]), Ok(None));
        }
        let payload = &bytes[HEADER_BYTES..];
        for end in 0..payload.len() {
            assert_eq!(StepRequest::decode(bytes[0], &payload[..end]), Err(FrameError::Short));
        }
        let longer = [payload, b"\0"].concat();
        assert_eq!(StepRequest::decode(bytes[0], &longer), Err(FrameError::Trailing));
    }
    // A later version may append to the hello.
    let hello = [1, 0, 2, 0, 9, 9];
    assert_eq!(
        StepAnswer::decode(1, &hello),
        Ok(StepAnswer::Hello(Hello { oldest: 1, newest: 2 }))
    );
    assert_eq!(StepAnswer::decode(2, b"x"), Err(FrameError::Trailing));
}

#[test]
fn long_frames_are_rejected_by_their_header() {
    let max = MAX_ANSWER_BYTES;
    let too_long = FrameError::TooLong { length: 0xffff_ffff, max };
    assert_eq!(take_answer(&[5, 0xff, 0xff, 0xff, 0xff]), Err(too_long));
    let mut header = vec![5];
    header.extend(u32::try_from(max + 1).unwrap().to_le_bytes());
    assert_eq!(take_answer(&header), Err(FrameError::TooLong { length: max + 1, max }));

    let args = vec![b"echo".to_vec(), vec![b'x'; MAX_REQUEST_BYTES]];
    let long = StepRequest::Step(Box::new(ContainerStep { args, ..ContainerStep::default() }));
    assert!(matches!(long.encode(), Err(FrameError::TooLong { .. })));
}

#[test]
fn counts_are_validated() {
    for count in [2_u32, 1 << 20, u32::MAX] {
        let mut payload = VERSIONS.newest.to_le_bytes().to_vec();
        payload.extend(count.to_le_bytes());
        payload.extend([1, 0, 0, 0, b'a']);
        assert_eq!(StepRequest::decode(0x81, &payload), Err(FrameError::Short));
    }
}

#[test]
fn invalid_values_are_rejected_by_both_ends() {
    let bad: [fn(&mut ContainerStep); 8] = [
        |step| step.args.clear(),
        |step| step.args[0].clear(),
        |step| step.args[1].push(0),
        |step| step.env[0].0.push(b'='),
        |step| step.env[0].0.clear(),
        |step| step.env[0].1.push(0),
        |step| step.directory = b"here".to_vec(),
        |step| step.umask = Some(0o1000),
    ];
    for spoil in bad {
        let mut step = step();
        spoil(&mut step);
        let mut out = PayloadWriter::default();
        step.write(&mut out);
        let read = StepRequest::decode(0x81, &out.0).unwrap_err();
        assert!(matches!(read, FrameError::Invalid(_)), "{step:?}: {read}");
        assert_eq!(StepRequest::Step(Box::new(step)).encode(), Err(read));
    }
    for signal in [0, -9, 65, i32::MAX] {
        assert!(StepRequest::Signal(signal).encode().is_err());
        assert!(StepRequest::decode(0x82, &signal.to_le_bytes()).is_err());
    }
    assert_eq!(StepAnswer::decode(4, &[0]), Err(FrameError::Invalid("signal")));
    assert_eq!(StepRequest::decode(0x81, &[9, 9]), Err(FrameError::Version(0x0909)));
    assert_eq!(StepRequest::decode(0x01, &[]), Err(FrameError::UnknownKind(1)));
    assert_eq!(StepAnswer::decode(0x06, &[]), Err(FrameError::UnknownKind(6)));
}

#[test]
fn common_version_is_found() {
    let hello = |oldest, newest| Hello { oldest, newest };
    for (a, b, common) in [
        (hello(1, 1), hello(1, 1), Some(1)),
        (hello(1, 3), hello(2, 9), Some(3)),
        (hello(1, 1), hello(2, 3), None),
        (hello(9, 1), hello(1, 9), None),
    ] {
        assert_eq!((a.common_version(b), b.common_version(a)), (common, common), "{a:?} {b:?}");
    }
}

#[test]
fn failure_is_cut_to_the_maximum_size() {
    let failure = StepFailure {
        kind: FailureKind::Directory,
        errno: 2,
        path: vec![b'p'; 100_000],
        found: vec![vec![b'f'; 1000]; 100],
    };
    let bytes = StepAnswer::Failed(failure).encode();
    assert!(bytes.len() <= HEADER_BYTES + MAX_ANSWER_BYTES, "{}", bytes.len());
    let Ok(Some(StepAnswer::Failed(failure))) = take_answer(&bytes) else { panic!("no failure") };
    assert_eq!((failure.path.len(), failure.found.len()), (MAX_PATH_BYTES, 12));
}

/// Random and damaged bytes are rejected, or decoded to values that survive encoding.
#[test]
fn garbage_is_rejected_or_encodes_the_same_again() {
    let mut random = fastrand::Rng::with_seed(15);
    let frames: Vec<_> = requests().iter().map(|request| request.encode().unwrap()).collect();
    let frames: Vec<_> =
        frames.into_iter().chain(answers().iter().map(StepAnswer::encode)).collect();
    for _ in 0..20_000 {
        let mut bytes = frames[random.usize(..frames.len())].clone();
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(..=bytes.len()).max(1));
        let (kind, payload) = bytes.split_first().unwrap();
        let payload = if random.bool() { payload } else { payload.get(4..).unwrap_or_default() };
        if let Ok(request) = StepRequest::decode(*kind, payload) {
            assert_eq!(take_request(&request.encode().unwrap()), Ok(Some(request)));
        }
        if let Ok(answer) = StepAnswer::decode(*kind, payload) {
            assert_eq!(take_answer(&answer.encode()), Ok(Some(answer)));
        }
    }
}
