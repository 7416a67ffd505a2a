//! Frames that are what they were before, and bytes that are none.

use super::failure::KINDS;
use super::*;

/// Answers and requests with something in every field.
fn step() -> Step {
    Step {
        args: vec![b"sh".to_vec(), b"-c".to_vec(), Vec::new()],
        env: vec![(b"A".to_vec(), b"x=y\n".to_vec()), (b"INPUT_FETCH-DEPTH".to_vec(), Vec::new())],
        prepend_path: vec![b"/tools/bin".to_vec()],
        directory: b"/__w/a b".to_vec(),
        user: Some(Ids { uid: 1000, gid: 100, groups: vec![100, 10] }),
        umask: Some(0o22),
        rlimits: vec![Rlimit { resource: 7, soft: 1024, hard: u64::MAX }],
        terminal: Some(Size { rows: 24, columns: 80 }),
    }
}

fn requests() -> Vec<Request> {
    let plain = Step { args: vec![b"/bin/true".to_vec()], ..Step::default() };
    let steps = [step(), plain].map(|step| Request::Step(Box::new(step)));
    steps.into_iter().chain([Request::Signal(15), Request::Kill]).collect()
}

fn answers() -> Vec<Answer> {
    let failure = |kind| {
        let found = vec![b"sh".to_vec(), b"python3".to_vec()];
        Answer::Failed(Failure { kind, errno: 2, path: b"bash".to_vec(), found })
    };
    let kinds = KINDS.into_iter().chain([FailureKind::Other(77)]);
    [Answer::Hello(VERSIONS), Answer::Started, Answer::Exited(255), Answer::Signalled(9)]
        .into_iter()
        .chain(kinds.map(failure))
        .collect()
}

fn take_request(bytes: &[u8]) -> Result<Option<Request>, FrameError> {
    let mut frames = Frames::new(MAX_REQUEST_BYTES);
    frames.push(bytes);
    frames.take()?.map(|(kind, payload)| Request::decode(kind, &payload)).transpose()
}

fn take_answer(bytes: &[u8]) -> Result<Option<Answer>, FrameError> {
    let mut frames = Frames::new(MAX_ANSWER_BYTES);
    frames.push(bytes);
    frames.take()?.map(|(kind, payload)| Answer::decode(kind, &payload)).transpose()
}

#[test]
fn frames_are_read_as_they_were_written_in_whatever_pieces() {
    let bytes: Vec<u8> = answers().iter().flat_map(Answer::encode).collect();
    for size in [1, 2, 7, bytes.len()] {
        let mut frames = Frames::new(MAX_ANSWER_BYTES);
        let mut read = Vec::new();
        for piece in bytes.chunks(size) {
            frames.push(piece);
            while let Some((kind, payload)) = frames.take().unwrap() {
                read.push(Answer::decode(kind, &payload).unwrap());
            }
        }
        assert_eq!(read, answers());
        assert!(!frames.is_within_frame());
    }
    for request in requests() {
        assert_eq!(take_request(&request.encode().unwrap()), Ok(Some(request)));
    }
}

#[test]
fn part_of_a_frame_is_no_frame_and_a_part_of_a_payload_no_value() {
    for request in requests() {
        let bytes = request.encode().unwrap();
        for end in 0..bytes.len() {
            assert_eq!(take_request(&bytes[..end]), Ok(None));
        }
        let payload = &bytes[HEADER_BYTES..];
        for end in 0..payload.len() {
            assert_eq!(Request::decode(bytes[0], &payload[..end]), Err(FrameError::Short));
        }
        let longer = [payload, b"\0"].concat();
        assert_eq!(Request::decode(bytes[0], &longer), Err(FrameError::Trailing));
    }
    // A later version may say more.
    let hello = [1, 0, 2, 0, 9, 9];
    assert_eq!(Answer::decode(1, &hello), Ok(Answer::Hello(Hello { oldest: 1, newest: 2 })));
    assert_eq!(Answer::decode(2, b"x"), Err(FrameError::Trailing));
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
    let long = Request::Step(Box::new(Step { args, ..Step::default() }));
    assert!(matches!(long.encode(), Err(FrameError::TooLong { .. })));
}

#[test]
fn counts_are_not_believed() {
    for count in [2_u32, 1 << 20, u32::MAX] {
        let mut payload = VERSIONS.newest.to_le_bytes().to_vec();
        payload.extend(count.to_le_bytes());
        payload.extend([1, 0, 0, 0, b'a']);
        assert_eq!(Request::decode(0x81, &payload), Err(FrameError::Short));
    }
}

#[test]
fn values_that_cannot_be_are_rejected_at_both_ends() {
    let bad: [fn(&mut Step); 8] = [
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
        let mut out = Writer::default();
        step.write(&mut out);
        let read = Request::decode(0x81, &out.0).unwrap_err();
        assert!(matches!(read, FrameError::Invalid(_)), "{step:?}: {read}");
        assert_eq!(Request::Step(Box::new(step)).encode(), Err(read));
    }
    for signal in [0, -9, 65, i32::MAX] {
        assert!(Request::Signal(signal).encode().is_err());
        assert!(Request::decode(0x82, &signal.to_le_bytes()).is_err());
    }
    assert_eq!(Answer::decode(4, &[0]), Err(FrameError::Invalid("signal")));
    assert_eq!(Request::decode(0x81, &[9, 9]), Err(FrameError::Version(0x0909)));
    assert_eq!(Request::decode(0x01, &[]), Err(FrameError::UnknownKind(1)));
    assert_eq!(Answer::decode(0x06, &[]), Err(FrameError::UnknownKind(6)));
}

#[test]
fn versions_that_both_have_are_found() {
    let hello = |oldest, newest| Hello { oldest, newest };
    for (a, b, common) in [
        (hello(1, 1), hello(1, 1), Some(1)),
        (hello(1, 3), hello(2, 9), Some(3)),
        (hello(1, 1), hello(2, 3), None),
        (hello(9, 1), hello(1, 9), None),
    ] {
        assert_eq!((a.common(b), b.common(a)), (common, common), "{a:?} {b:?}");
    }
}

#[test]
fn a_failure_says_what_fits() {
    let failure = Failure {
        kind: FailureKind::Directory,
        errno: 2,
        path: vec![b'p'; 100_000],
        found: vec![vec![b'f'; 1000]; 100],
    };
    let bytes = Answer::Failed(failure).encode();
    assert!(bytes.len() <= HEADER_BYTES + MAX_ANSWER_BYTES, "{}", bytes.len());
    let Ok(Some(Answer::Failed(failure))) = take_answer(&bytes) else { panic!("no failure") };
    assert_eq!((failure.path.len(), failure.found.len()), (MAX_PATH_BYTES, 12));
}

/// What is decoded of random and damaged bytes is encoded to what is decoded to the same.
#[test]
fn garbage_is_rejected_or_read_the_same_again() {
    let mut random = fastrand::Rng::with_seed(15);
    let frames: Vec<_> = requests().iter().map(|request| request.encode().unwrap()).collect();
    let frames: Vec<_> = frames.into_iter().chain(answers().iter().map(Answer::encode)).collect();
    for _ in 0..20_000 {
        let mut bytes = frames[random.usize(..frames.len())].clone();
        for _ in 0..random.usize(..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(..=bytes.len()).max(1));
        let (kind, payload) = bytes.split_first().unwrap();
        let payload = if random.bool() { payload } else { payload.get(4..).unwrap_or_default() };
        if let Ok(request) = Request::decode(*kind, payload) {
            assert_eq!(take_request(&request.encode().unwrap()), Ok(Some(request)));
        }
        if let Ok(answer) = Answer::decode(*kind, payload) {
            assert_eq!(take_answer(&answer.encode()), Ok(Some(answer)));
        }
    }
}
