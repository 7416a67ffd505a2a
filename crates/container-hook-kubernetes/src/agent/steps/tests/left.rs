//! Steps whose client, supervisor or agent is gone.

use super::*;

fn failure_kind(end: StepAnswer) -> FailureKind {
    match end {
        StepAnswer::Failed(failure) => failure.kind,
        end => panic!("it did not fail: {end:?}"),
    }
}

#[test]
fn abandoned_step_is_killed_with_a_message() {
    let agent = TestAgent::start_with(&["--away=1"]);
    let ready = agent.directory().join("ready");
    block_on(async {
        let text = format!("echo $$ > {}; exec sleep 1000", ready.display());
        let mut session = AgentSession::new(&agent);
        send_attach(session.link().await.unwrap(), attach("away", 0, Some(&text))).await;
        wait_until("it is ready", || {
            fs::read_to_string(&ready).is_ok_and(|pid| pid.ends_with('\n'))
        });
    });
    agent.cut_streams();
    let step = fs::read_to_string(&ready).unwrap();
    let step = format!("/proc/{}", step.trim_end());
    wait_until("it is killed", || !fs::exists(&step).unwrap());
    let (_, _, end) = block_on(follow(&agent, attach("away", 0, None)));
    assert_eq!(failure_kind(end), FailureKind::Abandoned);
}

#[test]
fn entries_of_the_externals_are_linked_before_steps_run() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    for name in ["node20", "node24"] {
        fs::create_dir_all(from.join(name)).unwrap();
    }
    // A restarted container has the links already.
    fs::create_dir_all(to.join("node20")).unwrap();
    let options = ["--externals", from.to_str().unwrap(), to.to_str().unwrap()];
    let _agent = TestAgent::start_with(&options);
    assert_eq!(fs::read_link(to.join("node24")).unwrap(), from.join("node24"));
    assert!(fs::symlink_metadata(to.join("node20")).unwrap().is_dir());
}

#[test]
fn abandoned_step_is_dead_before_the_next_begins() {
    let agent = TestAgent::start();
    let (ready, ended) = (agent.directory().join("ready"), agent.directory().join("ended"));
    let left = format!("echo $$ > {}; sleep 1000; : > {}", ready.display(), ended.display());
    block_on(async {
        let mut session = AgentSession::new(&agent);
        send_attach(session.link().await.unwrap(), attach("left", 0, Some(&left))).await;
        wait_until("it is ready", || {
            fs::read_to_string(&ready).is_ok_and(|pid| pid.ends_with('\n'))
        });
        agent.cut_streams();
        let text = format!("kill -0 $(cat {}) 2>/dev/null && echo alive", ready.display());
        let (_, _, end) = follow(&agent, attach("next", 0, Some(&text))).await;
        assert_eq!(end, StepAnswer::Exited(1));
        let (_, _, end) = follow(&agent, attach("left", 0, Some(""))).await;
        assert_eq!(failure_kind(end), FailureKind::Abandoned);
    });
    assert!(!ended.exists());
}

#[test]
fn killed_supervisor_is_an_error_and_ends_its_step() {
    let agent = TestAgent::start();
    let ready = agent.directory().join("ready");
    let text = format!("echo $$ > {}; sleep 1000", ready.display());
    let (_sender, mut sent) = signals();
    let killing = async {
        wait_for(|| fs::read_to_string(&ready).is_ok_and(|pid| pid.ends_with('\n'))).await;
        let supervisor = rustix::process::Pid::from_raw(agent.children()[0]).unwrap();
        rustix::process::kill_process(supervisor, Signal::KILL).unwrap();
        std::future::pending::<()>().await;
    };
    block_on(async {
        tokio::select! {
            (ended, _) = run_id(&agent, "killed", script(&text), &mut sent) => {
                assert_eq!(expect_failure(ended).kind, FailureKind::Keeper);
            }
            () = killing => {}
        }
        // The agent still runs other steps.
        wait_until("nobody is left", || agent.children().is_empty());
        assert_eq!(run_step(&agent, "other", "exit 3").await.0, StepEnd::Exited(3));
    });
}

#[test]
fn step_of_a_restarted_first_process_is_an_error() {
    let agent = TestAgent::start();
    fs::write(agent.run_directory().join("agent/steps/before"), "").unwrap();
    for (id, text) in [("before", Some("exit 0")), ("unknown", None)] {
        let (_, _, end) = block_on(follow(&agent, attach(id, 0, text)));
        assert_eq!(failure_kind(end), FailureKind::Keeper);
    }
}

#[test]
fn invalid_requests_close_only_their_connection() {
    let agent = TestAgent::start();
    let ready = agent.directory().join("ready");
    let go = agent.directory().join("go");
    let text = format!(
        ": > {}; until [ -e {} ]; do sleep 0.01; done; exit 2",
        ready.display(),
        go.display()
    );
    let (_sender, mut sent) = signals();
    let mut random = fastrand::Rng::with_seed(16);
    let attacking = async {
        wait_for(|| ready.exists()).await;
        let attach = StepRequest::Attach(Box::new(attach("good", 0, None)));
        let attach = encode_request(&attach);
        let (hello, heartbeat) = (StepAnswer::Hello(VERSIONS), StepEvent::Heartbeat);
        let mut answers = hello.encode();
        answers.extend(heartbeat.encode());
        for round in 0..200 {
            let path = agent.run_directory().join("agent/socket");
            let mut socket = std::os::unix::net::UnixStream::connect(path).unwrap();
            // To the process that the first process starts for a request, or to the step's supervisor.
            if round % 2 == 1 {
                socket.write_all(&attach).unwrap();
                let mut read = vec![0; answers.len()];
                socket.read_exact(&mut read).unwrap();
                assert_eq!(read, answers);
            }
            // Random bytes that start no `Signal` frame, which is a valid request.
            let mut bytes: Vec<u8> = (0..random.usize(1..40)).map(|_| random.u8(..)).collect();
            bytes[0] = [0x85, 0x89, 0x00, 0xff, 0x06][random.usize(..5)];
            let _ = socket.write_all(&bytes);
        }
        fs::write(&go, "").unwrap();
        std::future::pending::<()>().await;
    };
    block_on(async {
        tokio::select! {
            (ended, _) = run_id(&agent, "good", script(&text), &mut sent) => {
                assert_eq!(ended.unwrap(), StepEnd::Exited(2));
            }
            () = attacking => {}
        }
    });
}
