//! Exchanges with hostile agents.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use fastrand::Rng;
use oci_hooks_init::frames::files::{
    DATA_BYTES, FileAction, FileEntryKind, FileEntryState, FileProblem, FileTime, FilesFrame,
    TreeChange,
};
use oci_hooks_init::frames::{FrameError, StepAnswer, VERSIONS};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};

use super::trees::snapshot;
use super::{ExchangeDirs, ExchangeLimits, LIMITS, scope};
use crate::agent::testing::block_on;
use crate::agent::{AgentLink, AgentSession, LinkFuture, LinkOpener};
use crate::files::FilesError;
use crate::files::get::get;
use crate::files::host::HostTree;
use crate::files::put::answers;

/// An agent that sends the same bytes on every stream, then ends it.
struct Liar(Vec<u8>);

impl LinkOpener for Liar {
    fn open(&self) -> LinkFuture<'_> {
        let (ours, theirs) = duplex(1 << 16);
        let mut answer = StepAnswer::Hello(VERSIONS).encode();
        answer.extend_from_slice(&self.0);
        tokio::spawn(async move {
            let (mut input, mut output) = split(theirs);
            // The hook may have closed the stream.
            let _ = output.write_all(&answer).await;
            let _ = output.shutdown().await;
            let mut buffer = vec![0; 4096];
            while input.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
        });
        let (output, input) = split(ours);
        Box::pin(async move { Ok(AgentLink::new(input, output)) })
    }
}

fn frames(answers: &[FilesFrame]) -> Vec<u8> {
    let mut out = Vec::new();
    answers.iter().for_each(|answer| answer.encode(&mut out));
    FilesFrame::Done { skipped: 0 }.encode(&mut out);
    out
}

/// Returns a file, or its beginning if it is not whole.
fn file_change(path: &str, is_whole: bool) -> TreeChange {
    let (kind, time) = (FileEntryKind::File, FileTime::default());
    let state = FileEntryState { kind, mode: 0o6777, size_bytes: 1, time };
    TreeChange::File { path: path.into(), state, content: b"hostile".to_vec(), is_whole }
}

fn file(path: &str) -> FilesFrame {
    FilesFrame::Change(file_change(path, true))
}

fn link(path: &str, target: &str) -> FilesFrame {
    let (path, target) = (path.into(), target.into());
    FilesFrame::Change(TreeChange::Link { path, time: FileTime::default(), target })
}

fn remove(path: &str) -> FilesFrame {
    FilesFrame::Change(TreeChange::Remove(path.into()))
}

/// Returns directories of a runner whose job may only change `work/repo`.
fn create_ends() -> ExchangeDirs {
    let ends = ExchangeDirs::new();
    fs::create_dir_all(ends.host("work/repo/inner")).unwrap();
    fs::create_dir(ends.host("tool")).unwrap();
    fs::write(ends.host("tool/program"), "program").unwrap();
    fs::write(ends.host("work/file"), "file").unwrap();
    fs::create_dir(ends.dir.path().join("outside")).unwrap();
    symlink("../../../outside", ends.host("work/repo/out")).unwrap();
    ends
}

async fn get_from(ends: &ExchangeDirs, answer: Vec<u8>) -> Result<(), FilesError> {
    get_within(ends, answer, LIMITS).await
}

async fn get_within(
    ends: &ExchangeDirs,
    answer: Vec<u8>,
    limits: ExchangeLimits,
) -> Result<(), FilesError> {
    let liar = Liar(answer);
    let mut session = AgentSession::without_pauses(&liar);
    let into = HostTree::open(&ends.host("")).unwrap();
    let (root, scope, record) = (ends.container(""), scope(&["work/repo"]), ends.record());
    get(&mut session, &root, &into, &scope, &record, limits).await.map(drop)
}

/// Returns all files that a job must not change.
fn protected_files(ends: &ExchangeDirs) -> Vec<(Vec<u8>, super::trees::FileSnapshot)> {
    let may_change =
        |path: &[u8]| path.starts_with(b"host/work/repo/") || path.starts_with(b"state/");
    let all = snapshot(ends.dir.path());
    all.into_iter().filter(|(path, _)| !may_change(path)).collect()
}

#[test]
fn changes_are_not_recorded_after_a_failed_one() {
    block_on(async {
        let failed = FileProblem { action: FileAction::Write, path: b"file".to_vec(), errno: 30 };
        let told = frames(&[FilesFrame::Mark, FilesFrame::Problem(failed), FilesFrame::Mark]);
        let mut link = Liar(told).open().await.unwrap();
        // The hello.
        assert!(link.receiver.receive().await.is_ok());
        let mut confirmed = Vec::new();
        let mut confirm = |is_written: bool| {
            confirmed.push(is_written);
            Ok(())
        };
        let problems = answers(&mut link.receiver, Path::new("/"), &mut confirm).await;
        assert!(problems.is_ok_and(|problems| !problems.is_empty()));
        assert_eq!(confirmed, [true, false]);
    });
}

#[test]
fn upload_does_not_end_before_everything_was_sent() {
    block_on(async {
        let ends = create_ends();
        // More than the stream holds.
        fs::write(ends.host("work/repo/big"), vec![0; 1 << 20]).unwrap();
        let liar = Liar(frames(&[]));
        let mut session = AgentSession::without_pauses(&liar);
        let error = ends.upload_work(&mut session, &scope(&["work/repo"])).await.unwrap_err();
        let is_rejected =
            matches!(error, FilesError::Agent(FrameError::Invalid("kind: it is out of order")));
        assert!(is_rejected, "{error}");
    });
}

#[test]
fn nothing_is_written_outside_the_scope() {
    block_on(async {
        let ends = create_ends();
        let before = protected_files(&ends);
        let cases: Vec<Vec<FilesFrame>> = vec![
            vec![file("../x")],
            vec![file("/etc/x")],
            vec![file("work/repo/../../x")],
            vec![file("work/repo/./x")],
            vec![file("work/repo//x")],
            vec![file("")],
            vec![file("x")],
            vec![file("work")],
            vec![file("work/file")],
            vec![file("work/repo")],
            vec![link("work/repo", "/etc")],
            vec![link("work", "/etc")],
            vec![remove("work")],
            vec![remove("work/file")],
            vec![remove("tool")],
            vec![file("work/repo/out/x")],
            vec![link("work/repo/link", "../../../outside"), file("work/repo/link/x")],
            vec![file(&format!("work/repo/{}", "n".repeat(256)))],
            vec![file(&format!("work/repo/{}x", "n/".repeat(2100)))],
            vec![file("work/repo/b"), file("work/repo/a")],
            vec![file("work/repo/c"), file("work/repo/c")],
            vec![FilesFrame::Change(TreeChange::Data(b"x".to_vec()))],
            vec![FilesFrame::Change(TreeChange::End { is_whole: true })],
            vec![FilesFrame::Mark],
            vec![FilesFrame::Entries(Vec::new())],
            vec![FilesFrame::Put { root: b"/".to_vec() }],
        ];
        for answers in cases {
            let result = get_from(&ends, frames(&answers)).await;
            assert!(result.is_err(), "{answers:?}");
            assert_eq!(protected_files(&ends), before, "{answers:?}");
        }
        // The contents are removed, the directory stays.
        get_from(&ends, frames(&[remove("work/repo")])).await.unwrap();
        assert_eq!(fs::read_dir(ends.host("work/repo")).unwrap().count(), 0);
        assert_eq!(protected_files(&ends), before);
    });
}

#[test]
fn endless_files_and_problems_are_stopped() {
    block_on(async {
        let ends = create_ends();
        let mut endless = Vec::new();
        file_change("work/repo/x", false).encode(&mut endless);
        for _ in 0..20_000 {
            TreeChange::Data(vec![0; DATA_BYTES]).encode(&mut endless);
            if endless.len() as u64 > 2000 * DATA_BYTES as u64 {
                break;
            }
        }
        let limits = ExchangeLimits { entries: 1000, bytes: 1 << 20 };
        let problem = FileProblem {
            action: FileAction::Read,
            path: b"work/repo/\x1b[31mred".to_vec(),
            errno: 13,
        };
        let problems = vec![FilesFrame::Problem(problem); 2000];
        for answer in [endless, frames(&problems)] {
            let error = get_within(&ends, answer, limits).await.unwrap_err();
            assert!(matches!(error, FilesError::Limit { .. }), "{error}");
            assert!(!ends.host("work/repo/x").exists());
            assert!(!ends.host("work/repo/.oci-hooks.part").exists());
        }
    });
}

#[test]
fn files_that_the_agent_does_not_end_are_removed() {
    block_on(async {
        let ends = create_ends();
        let directory = TreeChange::Directory { path: b"work/repo/d".to_vec(), mode: 0o755 };
        let [x, y] = ["work/repo/d/x", "work/repo/y"].map(|path| file_change(path, false));
        let answers = [directory, x, y].map(FilesFrame::Change);
        assert!(get_from(&ends, frames(&answers)).await.is_err());
        for path in ["work/repo/d/.oci-hooks.part", "work/repo/.oci-hooks.part"] {
            assert!(!ends.host(path).exists(), "{path}");
        }
    });
}

#[test]
fn arbitrary_bytes_never_write_outside_the_scope() {
    block_on(async {
        let ends = create_ends();
        let before = protected_files(&ends);
        let mut random = Rng::with_seed(1);
        let names =
            ["", "/", "..", "work", "work/repo", "work/repo/a", "work/repo/a/b", "work/repo/out"];
        for _ in 0..120 {
            let mut bytes = Vec::new();
            for _ in 0..random.usize(..12) {
                let name = *random.choice(&names).unwrap();
                let answer = match random.u8(..8) {
                    0 => file(name),
                    1 => link(name, "/etc"),
                    2 => remove(name),
                    3 => FilesFrame::Change(TreeChange::Directory { path: name.into(), mode: 0 }),
                    4 => FilesFrame::Change(TreeChange::Data(vec![1; random.usize(..9)])),
                    5 => FilesFrame::Change(TreeChange::End { is_whole: random.bool() }),
                    6 => FilesFrame::Done { skipped: 0 },
                    _ => FilesFrame::Mark,
                };
                answer.encode(&mut bytes);
            }
            // Changes, cuts or extends the bytes at random.
            for _ in 0..random.usize(..3) {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
            if random.bool() {
                bytes.truncate(random.usize(..=bytes.len()));
            } else {
                FilesFrame::Done { skipped: 0 }.encode(&mut bytes);
            }
            let _ = get_from(&ends, bytes).await;
            assert!(protected_files(&ends) == before);
        }
    });
}
