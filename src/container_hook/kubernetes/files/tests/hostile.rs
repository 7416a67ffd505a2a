//! What pretends to be an agent.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::os::unix::fs::symlink;
use std::pin::Pin;

use fastrand::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split};

use super::agents::run;
use super::trees::snapshot;
use super::{Ends, LIMITS, scope};
use crate::container_hook::kubernetes::agent::{Link, Opener, Session};
use crate::container_hook::kubernetes::files::FilesError;
use crate::container_hook::kubernetes::files::get::get;
use crate::container_hook::kubernetes::files::host::HostTree;
use crate::sys::init::frames::files::{
    Action, Change, Counts, DATA_BYTES, FilesAnswer, Kind, Problem, Sender, State, Time,
};
use crate::sys::init::frames::{Answer, VERSIONS};

/// Answers every request with the same bytes, then ends.
struct Liar(Vec<u8>);

impl Opener for Liar {
    fn open(
        &self,
    ) -> Pin<Box<dyn Future<Output = Result<Link, Box<dyn Error + Send + Sync>>> + '_>> {
        let (ours, theirs) = duplex(1 << 16);
        let mut answer = Answer::Hello(VERSIONS).encode();
        answer.extend_from_slice(&self.0);
        tokio::spawn(async move {
            let (mut input, mut output) = split(theirs);
            let taken = async {
                let mut buffer = vec![0; 4096];
                while input.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
            };
            let told = async {
                // The hook may have heard enough.
                let _ = output.write_all(&answer).await;
                let _ = output.shutdown().await;
            };
            tokio::pin!(taken);
            told.await;
            taken.await;
        });
        let (output, input) = split(ours);
        Box::pin(async move { Ok(Link::new(input, output)) })
    }
}

fn frames(answers: &[FilesAnswer]) -> Vec<u8> {
    let mut out = Vec::new();
    answers.iter().for_each(|answer| answer.encode(&mut out));
    FilesAnswer::Done(Counts::default()).encode(&mut out);
    out
}

fn file(path: &str) -> FilesAnswer {
    let state = State { kind: Kind::File, mode: 0o6777, size_bytes: 1, time: Time::default() };
    let (path, content) = (path.into(), b"hostile".to_vec());
    FilesAnswer::Change(Change::File { path, state, content, is_whole: true })
}

fn link(path: &str, target: &str) -> FilesAnswer {
    let (path, target) = (path.into(), target.into());
    FilesAnswer::Change(Change::Link { path, time: Time::default(), target })
}

fn remove(path: &str) -> FilesAnswer {
    FilesAnswer::Change(Change::Remove(path.into()))
}

/// A runner whose job may change what is in `work/repo`.
fn ends() -> Ends {
    let ends = Ends::new();
    fs::create_dir_all(ends.host("work/repo/inner")).unwrap();
    fs::create_dir(ends.host("tool")).unwrap();
    fs::write(ends.host("tool/program"), "program").unwrap();
    fs::write(ends.host("work/file"), "file").unwrap();
    fs::create_dir(ends.dir.path().join("outside")).unwrap();
    symlink("../../../outside", ends.host("work/repo/out")).unwrap();
    ends
}

async fn get_from(ends: &Ends, answer: Vec<u8>) -> Result<(), FilesError> {
    let liar = Liar(answer);
    let mut session = Session::without_pauses(&liar);
    let into = HostTree::open(&ends.host("")).unwrap();
    let (root, scope, record) = (ends.container(""), scope(&["work/repo"]), ends.record());
    get(&mut session, &root, &into, &scope, &record, LIMITS).await.map(drop)
}

/// Returns what a job may not have changed.
fn protected(ends: &Ends) -> Vec<(Vec<u8>, super::trees::Seen)> {
    let mut all = snapshot(ends.dir.path());
    // Who may do what in it is the job's as well; that it is a directory is not.
    let root = all.get_mut(&b"host/work/repo"[..]).expect("it stays");
    root.0 &= !0o7777;
    let may_change =
        |path: &[u8]| path.starts_with(b"host/work/repo/") || path.starts_with(b"state/");
    all.into_iter().filter(|(path, _)| !may_change(path)).collect()
}

#[test]
fn nothing_is_written_outside_of_what_was_asked_for() {
    run(async {
        let ends = ends();
        let before = protected(&ends);
        let cases: Vec<Vec<FilesAnswer>> = vec![
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
            vec![FilesAnswer::Change(Change::Data(b"x".to_vec()))],
            vec![FilesAnswer::Change(Change::End { is_whole: true })],
            vec![FilesAnswer::Mark(1)],
            vec![FilesAnswer::Entries(Vec::new())],
        ];
        for answers in cases {
            let result = get_from(&ends, frames(&answers)).await;
            assert!(result.is_err(), "{answers:?}");
            assert_eq!(protected(&ends), before, "{answers:?}");
        }
        // The contents go, the directory stays.
        get_from(&ends, frames(&[remove("work/repo")])).await.unwrap();
        assert_eq!(fs::read_dir(ends.host("work/repo")).unwrap().count(), 0);
        assert_eq!(protected(&ends), before);
    });
}

#[test]
fn endless_files_and_problems_end() {
    run(async {
        let ends = ends();
        let state = State { kind: Kind::File, mode: 0o644, size_bytes: 3, time: Time::default() };
        let (path, content) = (b"work/repo/x".to_vec(), Vec::new());
        let begin = Change::File { path, state, content, is_whole: false };
        let mut endless = Vec::new();
        begin.encode(Sender::Agent, &mut endless);
        for _ in 0..20_000 {
            Change::encode_data(&vec![0; DATA_BYTES], Sender::Agent, &mut endless);
            if endless.len() as u64 > 2000 * DATA_BYTES as u64 {
                break;
            }
        }
        let limits = super::Limits { entries: 1000, bytes: 1 << 20 };
        let into = HostTree::open(&ends.host("")).unwrap();
        let problem =
            Problem { action: Action::Read, path: b"work/repo/\x1b[31mred".to_vec(), errno: 13 };
        let problems = vec![FilesAnswer::Problem(problem); 2000];
        for answer in [endless, frames(&problems)] {
            let liar = Liar(answer);
            let mut session = Session::without_pauses(&liar);
            let (root, scope, record) = (ends.container(""), scope(&["work/repo"]), ends.record());
            let error = get(&mut session, &root, &into, &scope, &record, limits).await.unwrap_err();
            assert!(matches!(error, FilesError::Limit { .. }), "{error}");
            assert!(!ends.host("work/repo/x").exists());
            assert!(!ends.host("work/repo/.oci-hooks.part").exists());
        }
    });
}

#[test]
fn any_bytes_end_in_an_error_or_within_the_scope() {
    run(async {
        let ends = ends();
        let before = protected(&ends);
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
                    3 => FilesAnswer::Change(Change::Directory { path: name.into(), mode: 0 }),
                    4 => FilesAnswer::Change(Change::Data(vec![1; random.usize(..9)])),
                    5 => FilesAnswer::Change(Change::End { is_whole: random.bool() }),
                    6 => FilesAnswer::Done(Counts::default()),
                    _ => FilesAnswer::Mark(0),
                };
                answer.encode(&mut bytes);
            }
            // Some of it changed, some of it lost.
            for _ in 0..random.usize(..3) {
                if !bytes.is_empty() {
                    let at = random.usize(..bytes.len());
                    bytes[at] = random.u8(..);
                }
            }
            if random.bool() {
                bytes.truncate(random.usize(..=bytes.len()));
            } else {
                FilesAnswer::Done(Counts::default()).encode(&mut bytes);
            }
            let _ = get_from(&ends, bytes).await;
            assert!(protected(&ends) == before);
        }
    });
}
