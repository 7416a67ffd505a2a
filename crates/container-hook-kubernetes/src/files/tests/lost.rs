//! Streams that are lost during an exchange.

use std::fs;

use oci_hooks_init::frames::files::FileScope;

use super::trees::{change, grow, snapshot};
use super::{ExchangeDirs, LIMITS};
use crate::agent::AgentSession;
use crate::agent::testing::{TestAgent, block_on};
use crate::files::FilesError;
use crate::files::transfer::{self, transfer};

#[test]
fn exchanges_continue_after_lost_streams() {
    block_on(async {
        let agent = TestAgent::start();
        for seed in 0..6 {
            let (ends, mut random) = (ExchangeDirs::in_memory(), fastrand::Rng::with_seed(seed));
            grow(&ends.host(""), &mut random, 3);
            let mut cut = || (random.usize(20..400_000), random.usize(20..400_000));
            *agent.breaks.borrow_mut() = vec![cut(), cut(), cut()];
            let mut session = AgentSession::without_pauses(&agent);
            ends.upload_work(&mut session, &FileScope::all()).await.unwrap();
            ends.assert_same();
            let mut random = fastrand::Rng::with_seed(100 + seed);
            change(&ends.container(""), &mut random);
            let mut cut = || (random.usize(20..3000), random.usize(20..400_000));
            *agent.breaks.borrow_mut() = vec![cut(), cut(), cut()];
            let mut session = AgentSession::without_pauses(&agent);
            ends.get(&mut session, &FileScope::all()).await.unwrap();
            ends.assert_same();
            assert_eq!(count_parts(&ends), 0, "nothing is left of what was cut off");
        }
    });
}

/// Returns the number of incomplete files on the host.
fn count_parts(ends: &ExchangeDirs) -> usize {
    let name = |path: &Vec<u8>| path.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
    let names = snapshot(&ends.host("")).into_keys().filter_map(|path| name(&path));
    names.filter(|name| name.starts_with(b".oci-hooks.part")).count()
}

#[test]
fn confirmed_changes_are_not_sent_again() {
    block_on(async {
        let (agent, ends) = (TestAgent::start(), ExchangeDirs::new());
        for number in 0..30 {
            let content = vec![number; 1 << 20];
            fs::write(ends.host(&format!("{number:02}")), content).unwrap();
        }
        *agent.breaks.borrow_mut() = vec![(20 << 20, usize::MAX)];
        let mut session = AgentSession::without_pauses(&agent);
        let summary = ends.upload_work(&mut session, &FileScope::all()).await.unwrap();
        ends.assert_same();
        // Little is sent twice.
        assert!((30 << 20..40 << 20).contains(&summary.bytes), "{summary:?}");
    });
}

#[test]
fn interrupted_transfers_restart() {
    block_on(async {
        let (agent, one, two) = (TestAgent::start(), ExchangeDirs::new(), ExchangeDirs::new());
        let mut random = fastrand::Rng::with_seed(3);
        grow(&one.container(""), &mut random, 3);
        *agent.breaks.borrow_mut() = vec![(50, 5000), (usize::MAX, usize::MAX), (100, 100)];
        let (mut a, mut b) =
            (AgentSession::without_pauses(&agent), AgentSession::without_pauses(&agent));
        let (root_a, root_b) = (one.container(""), two.container(""));
        let from = transfer::ContainerDir { session: &mut a, root: &root_a };
        let to = transfer::ContainerDir { session: &mut b, root: &root_b };
        transfer(from, to, &FileScope::all(), &one.record(), LIMITS).await.unwrap();
        assert_eq!(snapshot(&root_a), snapshot(&root_b));
    });
}

#[test]
fn repeatedly_lost_stream_is_an_error() {
    block_on(async {
        let (agent, ends) = (TestAgent::start(), ExchangeDirs::new());
        fs::write(ends.host("file"), vec![0; 1 << 20]).unwrap();
        *agent.breaks.borrow_mut() = vec![(1000, usize::MAX); 100];
        let mut session = AgentSession::without_pauses(&agent);
        let error = ends.upload_work(&mut session, &FileScope::all()).await.unwrap_err();
        assert!(matches!(error, FilesError::Lost { attempts: 8, .. }), "{error}");
    });
}
