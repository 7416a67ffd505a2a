//! Streams that are lost on the way.

use std::fs;

use super::agents::{Agent, run};
use super::trees::{change, grow, snapshot};
use super::{Ends, LIMITS};
use crate::container_hook::kubernetes::agent::Session;
use crate::container_hook::kubernetes::files::FilesError;
use crate::container_hook::kubernetes::files::transfer::{self, transfer};
use crate::sys::init::frames::files::Scope;

#[test]
fn exchanges_go_on_after_streams_were_lost() {
    run(async {
        let agent = Agent::new();
        for seed in 0..6 {
            let (ends, mut random) = (Ends::in_memory(), fastrand::Rng::with_seed(seed));
            grow(&ends.host(""), &mut random, 3);
            let mut torn = |most: usize| {
                let mut cut = || (random.usize(20..most), random.usize(20..most));
                *agent.breaks.borrow_mut() = vec![cut(), cut(), cut()];
            };
            torn(400_000);
            let mut session = Session::without_pauses(&agent);
            ends.put(&mut session, &Scope::all()).await.unwrap();
            ends.assert_same();
            let mut random = fastrand::Rng::with_seed(100 + seed);
            change(&ends.container(""), &mut random);
            let mut cut = || (random.usize(20..3000), random.usize(20..400_000));
            *agent.breaks.borrow_mut() = vec![cut(), cut(), cut()];
            let mut session = Session::without_pauses(&agent);
            ends.get(&mut session, &Scope::all()).await.unwrap();
            ends.assert_same();
            let (parts, _) = parts(&ends);
            assert_eq!(parts, 0, "nothing is left of what was cut off");
        }
    });
}

fn parts(ends: &Ends) -> (usize, usize) {
    let is_part = |path: &&Vec<u8>| {
        path.rsplit(|byte| *byte == b'/')
            .next()
            .is_some_and(|name| name.starts_with(b".oci-hooks.part"))
    };
    let count = |root: &str| snapshot(&ends.dir.path().join(root)).keys().filter(is_part).count();
    (count("host"), count("container"))
}

#[test]
fn what_was_done_for_certain_is_not_done_again() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        for number in 0..30 {
            let content = vec![number; 1 << 20];
            fs::write(ends.host(&format!("{number:02}")), content).unwrap();
        }
        *agent.breaks.borrow_mut() = vec![(20 << 20, usize::MAX)];
        let mut session = Session::without_pauses(&agent);
        let summary = ends.put(&mut session, &Scope::all()).await.unwrap();
        ends.assert_same();
        // Not much more than once.
        assert!((30 << 20..40 << 20).contains(&summary.bytes), "{summary:?}");
    });
}

#[test]
fn transfers_begin_again() {
    run(async {
        let (agent, one, two) = (Agent::new(), Ends::new(), Ends::new());
        let mut random = fastrand::Rng::with_seed(3);
        grow(&one.container(""), &mut random, 3);
        *agent.breaks.borrow_mut() = vec![(50, 5000), (usize::MAX, usize::MAX), (100, 100)];
        let (mut a, mut b) = (Session::without_pauses(&agent), Session::without_pauses(&agent));
        let (root_a, root_b) = (one.container(""), two.container(""));
        let from = transfer::Place { session: &mut a, root: &root_a };
        let to = transfer::Place { session: &mut b, root: &root_b };
        transfer(from, to, &Scope::all(), &one.record(), LIMITS).await.unwrap();
        assert_eq!(snapshot(&root_a), snapshot(&root_b));
    });
}

#[test]
fn a_stream_that_is_lost_again_and_again_is_an_error() {
    run(async {
        let (agent, ends) = (Agent::new(), Ends::new());
        fs::write(ends.host("file"), vec![0; 1 << 20]).unwrap();
        *agent.breaks.borrow_mut() = vec![(1000, usize::MAX); 100];
        let mut session = Session::without_pauses(&agent);
        let error = ends.put(&mut session, &Scope::all()).await.unwrap_err();
        assert!(matches!(error, FilesError::Lost { attempts: 8, .. }), "{error}");
    });
}
