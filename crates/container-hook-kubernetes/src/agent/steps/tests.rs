//! Steps run by the real agent, over streams that are cut.

mod left;

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread::JoinHandle;

use oci_hooks_init::frames::journal::OutputStream;
use oci_hooks_init::frames::{StepFailure, VERSIONS};
use oci_hooks_testsupport::program::wait_until;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::time::sleep;

use super::*;
use crate::agent::testing::{TestAgent, block_on};
use crate::agent::{LinkFuture, LinkOpener};
use crate::testing::KeptLog;

/// Signals sent by a test.
struct TestSignals {
    pipe: File,
    numbers: std::sync::Arc<std::sync::Mutex<Vec<i32>>>,
}

/// Sends signals to a [`TestSignals`].
#[derive(Clone)]
struct SignalSender {
    pipe: std::sync::Arc<File>,
    numbers: std::sync::Arc<std::sync::Mutex<Vec<i32>>>,
}

fn signals() -> (SignalSender, TestSignals) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let numbers = std::sync::Arc::<std::sync::Mutex<Vec<i32>>>::default();
    let pipe = std::sync::Arc::new(File::from(write));
    (SignalSender { pipe, numbers: numbers.clone() }, TestSignals { pipe: read.into(), numbers })
}

impl SignalSender {
    fn send(&self, signal: Signal) {
        self.numbers.lock().unwrap().push(signal.as_raw());
        (&*self.pipe).write_all(b"s").unwrap();
    }
}

impl StepSignals for TestSignals {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    fn take(&mut self) -> Vec<i32> {
        let _ = self.pipe.read(&mut [0; 64]);
        std::mem::take(&mut self.numbers.lock().unwrap())
    }
}

/// Pipes as standard streams, and threads that collect their output.
struct StandardStreams {
    ends: [OwnedFd; 2],
    readers: [JoinHandle<Vec<u8>>; 2],
}

impl StandardStreams {
    fn new() -> Self {
        let make = || {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
            let reader = std::thread::spawn(move || {
                let mut all = Vec::new();
                File::from(read).read_to_end(&mut all).unwrap();
                all
            });
            (write, reader)
        };
        let ((output, read_output), (errors, read_errors)) = (make(), make());
        StandardStreams { ends: [output, errors], readers: [read_output, read_errors] }
    }

    fn read(self) -> [Vec<u8>; 2] {
        drop(self.ends);
        self.readers.map(|reader| reader.join().unwrap())
    }
}

fn script(text: &str) -> ContainerStep {
    let args = ["sh", "-c", text].map(|arg| arg.as_bytes().to_vec()).to_vec();
    ContainerStep { args, ..ContainerStep::default() }
}

/// Returns the request to attach to a step, and to start this script unless the step was started before.
fn attach(id: &str, from: u64, text: Option<&str>) -> AttachRequest {
    AttachRequest { id: StepId::new(id).unwrap(), from, step: text.map(script) }
}

fn agent_step<'a>(id: &'a str, streams: [BorrowedFd<'a>; 2], log: &'a KeptLog) -> AgentStep<'a> {
    AgentStep { id, title: "the container", streams, log, lost_timeout: Duration::from_secs(600) }
}

async fn run_id(
    agent: &dyn LinkOpener,
    id: &str,
    step: ContainerStep,
    signals: &mut TestSignals,
) -> (Result<StepEnd, AgentError>, [Vec<u8>; 2]) {
    let mut session = AgentSession::new(agent);
    let standard = StandardStreams::new();
    let ends = [standard.ends[0].as_fd(), standard.ends[1].as_fd()];
    let log = KeptLog::default();
    let end = run(&mut session, agent_step(id, ends, &log), step, signals).await;
    (end, standard.read())
}

/// Runs a step that gets no signals.
async fn run_step(agent: &TestAgent, id: &str, text: &str) -> (StepEnd, [String; 2]) {
    let (_sender, mut sent) = signals();
    let (end, written) = run_id(agent, id, script(text), &mut sent).await;
    (end.unwrap(), written.map(|bytes| String::from_utf8(bytes).unwrap()))
}

fn expect_failure(end: Result<StepEnd, AgentError>) -> StepFailure {
    match end {
        Err(AgentError::Step(StepError::Failed(failure))) => failure,
        other => panic!("it did not fail: {other:?}"),
    }
}

#[test]
fn step_ends_with_the_result_of_its_program() {
    let agent = TestAgent::start();
    block_on(async {
        for (at, (text, end)) in [
            ("exit 0", StepEnd::Exited(0)),
            ("exit 7", StepEnd::Exited(7)),
            ("exit 255", StepEnd::Exited(255)),
            ("kill -TERM $$", StepEnd::Signalled(15)),
        ]
        .into_iter()
        .enumerate()
        {
            let text = format!("echo out; echo err >&2; {text}");
            let (ended, [output, errors]) = run_step(&agent, &format!("s{at}"), &text).await;
            assert_eq!((ended, &*output, &*errors), (end, "out\n", "err\n"));
        }
        let (_sender, mut sent) = signals();
        let missing =
            ContainerStep { args: vec![b"no-such-program".to_vec()], ..ContainerStep::default() };
        let (end, _) = run_id(&agent, "missing", missing, &mut sent).await;
        assert_eq!(end.as_ref().unwrap_err().code(), 127);
        assert_eq!(expect_failure(end).kind, FailureKind::ProgramMissing);
        let (end, _) = run_id(&agent, "a/b", script("exit 0"), &mut sent).await;
        assert!(end.is_err());
    });
    wait_until("nobody is left", || agent.children().is_empty());
}

#[test]
fn step_that_waited_for_its_cpu_limit_is_told_so() {
    let null = File::open("/dev/null").unwrap();
    let said = "line: the container was slowed down by its CPU limit in 95 % of the time";
    for (cpu_usec, throttled_usec, expected) in [
        (600_000, 11_400_000, Some(said)),
        (600_000, 4_900_000, None),
        (60_000_000, 11_400_000, None),
        (0, 0, None),
    ] {
        let (log, none) = (KeptLog::default(), LimitEvents::default());
        let limits = LimitEvents { cpu_usec, throttled_usec, ..none };
        report_limits(&agent_step("s", [null.as_fd(); 2], &log), limits);
        assert_eq!(log.lines().first().map(String::as_str), expected);
    }
}

#[test]
fn background_output_is_logged_without_delaying_the_end() {
    let agent = TestAgent::start();
    let go = agent.directory().join("go");
    rustix::fs::mkfifoat(rustix::fs::CWD, &go, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    let text = format!("echo now; (read x < {}; echo later $x) & exit 4", go.display());
    let (end, [output, _]) = block_on(run_step(&agent, "left", &text));
    assert_eq!((end, &*output), (StepEnd::Exited(4), "now\n"));
    fs::write(&go, "word\n").unwrap();
    wait_until("it is in the log", || agent.log() == "later word\n");
}

/// Cuts the streams of a step after `first`, and then once every `then`; checks its output of `lines` lines.
fn cut_streams_at(first: Duration, then: Option<Duration>, lines: usize) {
    let agent = TestAgent::start();
    let count = agent.directory().join("count");
    let text = format!(
        "echo once >> {}; i=0; while [ $i -lt {lines} ]; do echo line $i; echo err $i >&2; \
         i=$((i+1)); done; exit 3",
        count.display()
    );
    let (end, [output, errors]) = block_on(async {
        let step = run_step(&agent, "one", &text);
        tokio::pin!(step);
        let mut next = first;
        loop {
            tokio::select! {
                ended = &mut step => break ended,
                () = sleep(next) => {
                    agent.cut_streams();
                    next = then.unwrap_or(Duration::MAX);
                }
            }
        }
    });
    assert_eq!(end, StepEnd::Exited(3));
    let expected = |word: &str| (0..lines).map(|i| format!("{word} {i}\n")).collect::<String>();
    assert_eq!(output, expected("line"));
    assert_eq!(errors, expected("err"));
    assert_eq!(fs::read_to_string(count).unwrap(), "once\n");
}

#[test]
fn stream_lost_at_any_time_changes_nothing() {
    for at in 0..20 {
        cut_streams_at(Duration::from_millis(at * 10), None, 2000);
    }
}

#[test]
fn constantly_lost_streams_change_nothing() {
    cut_streams_at(Duration::from_millis(3), Some(Duration::from_millis(60)), 20_000);
}

#[test]
fn large_output_is_fast_and_needs_little_memory() {
    const BYTES: u64 = 200_000_000;
    let agent = TestAgent::start();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let null = File::options().write(true).open("/dev/null").unwrap();
    let reader = std::thread::spawn(move || io::copy(&mut File::from(read), &mut io::sink()));
    let begun = std::time::Instant::now();
    block_on(async {
        let mut session = AgentSession::new(&agent);
        let (_sender, mut sent) = signals();
        let step = script(&format!("head -c {BYTES} /dev/zero"));
        let ends = [write.as_fd(), null.as_fd()];
        let log = KeptLog::default();
        let end = run(&mut session, agent_step("much", ends, &log), step, &mut sent).await;
        let end = end.unwrap();
        assert_eq!(end, StepEnd::Exited(0));
    });
    drop(write);
    assert_eq!(reader.join().unwrap().unwrap(), BYTES);
    let memory = agent.peak_memory();
    println!("200 MB in {:?}; the agent takes {memory} kB", begun.elapsed());
    assert!(memory < 5000, "{memory} kB");
}

#[test]
fn client_that_does_not_read_pauses_the_step_without_loss() {
    const BYTES: u64 = 100 << 20;
    let agent = TestAgent::start();
    let done = agent.directory().join("done");
    let text = format!("head -c {BYTES} /dev/zero; : > {}; exit 5", done.display());
    block_on(async {
        let mut session = AgentSession::new(&agent);
        let link = session.link().await.unwrap();
        send_attach(link, attach("slow", 0, Some(&text))).await;
        // Receives some output, then cuts the stream.
        while !matches!(next(link).await, StepEvent::Output { .. }) {}
        agent.cut_streams();
        sleep(Duration::from_secs(1)).await;
        assert!(!done.exists());
        assert!(agent.peak_memory() < 5000, "{} kB", agent.peak_memory());

        let mut session = AgentSession::new(&agent);
        let link = session.link().await.unwrap();
        send_attach(link, attach("slow", 0, None)).await;
        let mut position = 0;
        let end = loop {
            match next(link).await {
                StepEvent::Output { stream: OutputStream::Output, offset, bytes } => {
                    assert_eq!(offset, position);
                    position += bytes.len() as u64;
                    let received = encode_request(&StepRequest::Received(position));
                    link.sender.send(&received).await.unwrap();
                }
                StepEvent::Ended { offset, end, .. } => break (offset, end),
                _ => {}
            }
        };
        acknowledge_end(link).await;
        assert_eq!((position, end), (BYTES, (BYTES, StepAnswer::Exited(5))));
    });
    wait_until("nobody is left", || agent.children().is_empty());
}

async fn send_attach(link: &mut AgentLink, attach: AttachRequest) {
    let request = StepRequest::Attach(Box::new(attach));
    link.sender.send(&encode_request(&request)).await.unwrap();
}

/// Waits for a condition while other futures go on.
async fn wait_for(is_so: impl Fn() -> bool) {
    while !is_so() {
        sleep(Duration::from_millis(1)).await;
    }
}

async fn next(link: &mut AgentLink) -> StepEvent {
    let (kind, payload) = link.receiver.receive().await.unwrap();
    StepEvent::decode(kind, &payload).unwrap()
}

/// Follows a step without acknowledging its output.
async fn follow(agent: &TestAgent, attach: AttachRequest) -> (Vec<u8>, u64, StepAnswer) {
    let mut session = AgentSession::new(agent);
    let link = session.link().await.unwrap();
    send_attach(link, attach).await;
    let mut all = Vec::new();
    loop {
        match next(link).await {
            StepEvent::Output { bytes, .. } => all.extend(bytes),
            StepEvent::Ended { offset, end, .. } => return (all, offset, end),
            StepEvent::Started | StepEvent::Heartbeat => {}
        }
    }
}

#[test]
fn two_clients_of_one_step_both_get_its_output() {
    for round in 0..10 {
        let agent = TestAgent::start();
        let count = agent.directory().join("count");
        let text = format!("echo once >> {}; seq 1000; exit 9", count.display());
        let id = format!("both-{round}");
        let follow_from = |from| follow(&agent, attach(&id, from, Some(&text)));
        let (a, b) = block_on(async { tokio::join!(follow_from(0), follow_from(0)) });
        let expected: String = (1..=1000).map(|i| format!("{i}\n")).collect();
        let expected = (expected.into_bytes(), 3893, StepAnswer::Exited(9));
        assert_eq!((&a, &b), (&expected, &expected));
        assert_eq!(fs::read_to_string(count).unwrap(), "once\n");
        // From the middle of the output and from its end: unacknowledged output is kept.
        let (rest, offset, end) = block_on(follow_from(3889));
        assert_eq!((&*rest, offset, end), (&b"000\n"[..], 3893, StepAnswer::Exited(9)));
    }
}

#[test]
fn repeated_request_runs_no_step_again() {
    let agent = TestAgent::start();
    let count = agent.directory().join("n");
    let text = format!("echo x >> {0}; cat {0}; exit 6", count.display());
    block_on(async {
        // Until the end is acknowledged, it is sent again.
        for (from, rest) in [(0, &b"x\n"[..]), (2, b"")] {
            let end = follow(&agent, attach("again", from, Some(&text))).await;
            assert_eq!(end, (rest.to_vec(), 2, StepAnswer::Exited(6)));
        }
        let (end, [output, _]) = run_step(&agent, "again", &text).await;
        assert_eq!((end, &*output), (StepEnd::Exited(6), "x\n"));
        wait_until("nobody is left", || agent.children().is_empty());
        // A caller without the output does not mistake the end of an earlier run for its own.
        let (_sender, mut sent) = signals();
        let (end, _) = run_id(&agent, "again", script(&text), &mut sent).await;
        assert_eq!(expect_failure(end).kind, FailureKind::Keeper);
    });
    assert_eq!(fs::read_to_string(count).unwrap(), "x\n");
}

/// Opens streams with these answers, the last entry first.
struct FixedAnswers(RefCell<Vec<Vec<StepEvent>>>);

impl LinkOpener for FixedAnswers {
    fn open(&self) -> LinkFuture<'_> {
        let events = self.0.borrow_mut().pop().expect("another stream");
        let mut answers = StepAnswer::Hello(VERSIONS).encode();
        answers.extend(events.iter().flat_map(StepEvent::encode));
        let answers = io::Cursor::new(answers);
        Box::pin(async move { Ok(AgentLink::new(tokio::io::sink(), answers)) })
    }
}

/// Runs a step whose streams have these answers, the last entry first.
fn run_fixed(streams: Vec<Vec<StepEvent>>) -> (Result<StepEnd, AgentError>, [Vec<u8>; 2]) {
    let agent = FixedAnswers(RefCell::new(streams));
    let (_sender, mut sent) = signals();
    block_on(run_id(&agent, "fixed", script("exit 0"), &mut sent))
}

fn output_at(offset: u64) -> StepEvent {
    StepEvent::Output { stream: OutputStream::Output, offset, bytes: b"out".to_vec() }
}

fn ended_at(offset: u64) -> StepEvent {
    let (limits, end) = (LimitEvents::default(), StepAnswer::Exited(4));
    StepEvent::Ended { offset, limits, end }
}

#[test]
fn output_that_an_agent_leaves_out_is_an_error() {
    let (end, [output, _]) = run_fixed(vec![vec![output_at(0), ended_at(3)]]);
    assert_eq!((end.unwrap(), &*output), (StepEnd::Exited(4), &b"out"[..]));
    for events in [
        vec![output_at(0), ended_at(4)],
        vec![output_at(0), ended_at(2)],
        vec![output_at(1), ended_at(4)],
    ] {
        let (end, _) = run_fixed(vec![events.clone()]);
        let is_rejected =
            matches!(end, Err(AgentError::Answer(LinkError::Frame(FrameError::Invalid("offset")))));
        assert!(is_rejected, "{events:?}: {end:?}");
    }
}

#[test]
fn step_goes_on_while_no_process_can_be_created_for_its_stream() {
    let none = StepEvent::failed(
        0,
        StepFailure::new(FailureKind::Process, Errno::AGAIN.raw_os_error(), ""),
    );
    let begun = vec![StepEvent::Started, output_at(0)];
    let (end, [output, _]) = run_fixed(vec![vec![ended_at(3)], vec![none.clone()], begun]);
    assert_eq!((end.unwrap(), &*output), (StepEnd::Exited(4), &b"out"[..]));
    // A step that could not be begun has failed.
    let (end, _) = run_fixed(vec![vec![none]]);
    assert_eq!(expect_failure(end).kind, FailureKind::Process);
}

#[test]
fn large_environment_is_passed_and_a_too_large_one_rejected() {
    let agent = TestAgent::start();
    let with = |count: usize, text: &str| {
        let name = |i| (format!("NAME_{i}").into_bytes(), vec![b'x'; 100_000]);
        ContainerStep { env: (0..count).map(name).collect(), ..script(text) }
    };
    block_on(async {
        let (_sender, mut sent) = signals();
        let step = with(15, "printf %s \"$NAME_14\" | wc -c; exit 2");
        let (end, [output, _]) = run_id(&agent, "large", step, &mut sent).await;
        assert_eq!((end.unwrap(), &*output), (StepEnd::Exited(2), &b"100000\n"[..]));
        let (end, _) = run_id(&agent, "larger", with(100, ""), &mut sent).await;
        assert_eq!(end.as_ref().unwrap_err().code(), 126);
        assert!(end.unwrap_err().to_string().ends_with("Argument list too long"));
        let (end, _) = run_id(&agent, "largest", with(200, ""), &mut sent).await;
        assert!(matches!(end, Err(AgentError::Step(StepError::Request(_)))), "{end:?}");
    });
}

#[test]
fn signals_reach_the_step_which_determines_the_result() {
    let agent = TestAgent::start();
    let ready = agent.directory().join("ready");
    let text = |signal: &str, then: &str| {
        format!("trap '{then}' {signal}; : > {}; while :; do sleep 0.01; done", ready.display())
    };
    for (id, signal, text, end) in [
        ("int", Signal::INT, text("INT", "echo got; exit 8"), StepEnd::Exited(8)),
        ("term", Signal::TERM, text("TERM", "echo got; exit 9"), StepEnd::Exited(9)),
        // A step that ignores `SIGTERM` is killed.
        ("kill", Signal::TERM, text("TERM", "echo got"), StepEnd::Signalled(9)),
    ] {
        let _ = fs::remove_file(&ready);
        let (sender, mut sent) = signals();
        let path = ready.clone();
        let sending = std::thread::spawn(move || {
            wait_until("it is ready", || path.exists());
            sender.send(signal);
            // Keeps the sender open: the signal descriptor never reaches its end.
            sender
        });
        let begun = std::time::Instant::now();
        let (ended, [output, _]) = block_on(run_id(&agent, id, script(&text), &mut sent));
        drop(sending.join().unwrap());
        assert_eq!((ended.unwrap(), &*output), (end, &b"got\n"[..]), "{id}");
        assert!(begun.elapsed() < TERM_GRACE + Duration::from_secs(300));
    }
    wait_until("nobody is left", || agent.children().is_empty());
}

#[test]
fn signal_without_a_stream_is_sent_on_the_next_stream() {
    let agent = TestAgent::start();
    let ready = agent.directory().join("ready");
    let text = format!(
        "trap 'echo got; exit 8' INT; : > {}; while :; do sleep 0.01; done",
        ready.display()
    );
    let (sender, mut sent) = signals();
    block_on(async {
        let step = run_id(&agent, "lost", script(&text), &mut sent);
        tokio::pin!(step);
        let cutting = async {
            wait_for(|| ready.exists()).await;
            agent.set_reachable(false);
            agent.cut_streams();
            sender.send(Signal::INT);
            sleep(Duration::from_millis(100)).await;
            agent.set_reachable(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            (ended, [output, _]) = &mut step => {
                assert_eq!((ended.unwrap(), &*output), (StepEnd::Exited(8), &b"got\n"[..]));
            }
            () = cutting => {}
        }
    });
}

#[test]
fn cancelled_client_without_a_stream_ends_in_time() {
    let agent = TestAgent::start();
    agent.set_reachable(false);
    let (sender, mut sent) = signals();
    sender.send(Signal::TERM);
    let (ended, _) = block_on(run_id(&agent, "never", script("exit 0"), &mut sent));
    assert_eq!(ended.unwrap_err().code(), 143);

    agent.set_reachable(true);
    let ready = agent.directory().join("ready");
    let text = format!(": > {}; sleep 1000", ready.display());
    let (sender, mut sent) = signals();
    let begun = block_on(async {
        let step = run_id(&agent, "gone", script(&text), &mut sent);
        tokio::pin!(step);
        let cutting = async {
            wait_for(|| ready.exists()).await;
            agent.set_reachable(false);
            agent.cut_streams();
            sender.send(Signal::TERM);
        };
        tokio::select! {
            ended = &mut step => panic!("{:?}", ended.0),
            () = cutting => {}
        }
        let begun = Instant::now();
        assert_eq!(step.await.0.unwrap_err().code(), 143);
        begun
    });
    assert!(begun.elapsed() < TERM_LIMIT + Duration::from_secs(300));
}

#[test]
fn silent_container_is_reported_and_may_answer_again() {
    let agent = TestAgent::start();
    let log = KeptLog::default();
    let (standard, (_sender, mut sent)) = (StandardStreams::new(), signals());
    let ends = [standard.ends[0].as_fd(), standard.ends[1].as_fd()];
    let [ready, go] = ["ready", "go"].map(|name| agent.directory().join(name));
    let wait =
        format!(": > {}; until [ -e {} ]; do sleep 0.1; done", ready.display(), go.display());
    let program = script(&format!("echo before; {wait}; echo after"));
    let stopping = async {
        wait_for(|| ready.exists()).await;
        agent.signal_calls(Signal::STOP);
        wait_for(|| !log.lines().is_empty()).await;
        agent.signal_calls(Signal::CONT);
        wait_for(|| log.lines().len() > 1).await;
        fs::write(&go, "").unwrap();
        std::future::pending::<()>().await;
    };
    let end = block_on(async {
        let mut session = AgentSession::new(&agent);
        tokio::select! {
            end = run(&mut session, agent_step("silent", ends, &log), program, &mut sent) => end,
            () = stopping => unreachable!("it never ends"),
        }
    });
    assert_eq!(end.unwrap(), StepEnd::Exited(0));
    assert_eq!(standard.read()[0], b"before\nafter\n");
    let lines = log.lines();
    let [silent, again] = lines.as_slice() else { panic!("{lines:?}") };
    let seconds = silent.strip_prefix("warning: the container has not answered for ");
    let seconds = seconds.and_then(|text| text.strip_suffix(" s: nothing more is known"));
    let seconds = seconds.and_then(|text| text.parse::<u64>().ok());
    assert!(seconds.is_some_and(|seconds| seconds >= 10), "{silent}");
    assert!(again.starts_with("line: the container answers again, after "), "{again}");
}
