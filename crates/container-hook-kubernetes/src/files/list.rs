//! Lists the files of a container, and reads single ones.

use std::path::Path;

use futures_util::future::try_join;
use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{
    FileCounts, FileEntry, FileScope, FilesAnswer, FilesRequest, TreeChange, order,
};
use tokio::sync::Notify;

use super::error::{ExchangeSummary, FileProblems, FilesError};
use super::exchange::{ExchangeAttempts, ExchangeStop, answer, send_keepalives};
use super::host::ExchangeLimits;
use super::put::bytes;
use crate::agent::{AgentLink, AgentSession, FrameReceiver};

const ENOENT: i32 = 2;

/// Calls a function with each file of a scope, once each, in the order of paths.
#[cfg_attr(not(test), expect(dead_code, reason = "what there is, is only asked for by people"))]
pub async fn list(
    session: &mut AgentSession<'_>,
    root: &Path,
    scope: &FileScope,
    limits: ExchangeLimits,
    take: &mut dyn FnMut(FileEntry),
) -> Result<ExchangeSummary, FilesError> {
    let request = FilesRequest::List { root: bytes(root), scope: scope.clone() };
    let (mut last, mut attempts): (Option<Vec<u8>>, _) = (None, ExchangeAttempts::default());
    let (mut counted, mut problems) = (0, 0);
    loop {
        let mut unread = FileProblems::default();
        // After a lost stream, the list continues after the last path.
        let mut latest: Option<Vec<u8>> = None;
        let mut got_further = false;
        let mut each = |answer| {
            match answer {
                FilesAnswer::Entries(entries) => {
                    for entry in entries {
                        if latest.as_ref().is_some_and(|last| order(last, &entry.path).is_ge()) {
                            return Err(FrameError::Invalid("order of paths").into());
                        }
                        latest = Some(entry.path.clone());
                        if last.as_ref().is_some_and(|last| order(last, &entry.path).is_ge()) {
                            continue;
                        }
                        last = Some(entry.path.clone());
                        counted += 1;
                        limits.check(counted, 0)?;
                        got_further = true;
                        take(entry);
                    }
                }
                FilesAnswer::Problem(problem) => {
                    unread.add(&root.display().to_string(), &problem);
                    problems += 1;
                    limits.check(counted + problems, 0)?;
                }
                _ => return Err(FrameError::Invalid("order of frames").into()),
            }
            Ok(())
        };
        match ask(session.link().await?, &request, &mut each).await {
            Ok(FileCounts { entries, skipped }) => {
                return Ok(ExchangeSummary {
                    entries,
                    skipped,
                    unread,
                    ..ExchangeSummary::default()
                });
            }
            Err(stopped) => attempts.handle_stop(stopped, session, got_further).await?,
        }
    }
}

/// Returns the contents of a file of a container, following links there; `None` if the file does not exist.
pub async fn read(
    session: &mut AgentSession<'_>,
    path: &Path,
    max_bytes: u64,
) -> Result<Option<Vec<u8>>, FilesError> {
    let request = FilesRequest::Read { path: bytes(path), max_bytes };
    let mut attempts = ExchangeAttempts::default();
    loop {
        let (mut content, mut is_whole, mut problem) = (Vec::new(), false, None);
        let mut each = |answer| {
            let part = match answer {
                FilesAnswer::Change(TreeChange::File { content, is_whole: whole, .. }) => {
                    is_whole = whole;
                    content
                }
                FilesAnswer::Change(TreeChange::Data(part)) => part,
                FilesAnswer::Change(TreeChange::End { is_whole: whole }) => {
                    is_whole = whole;
                    Vec::new()
                }
                FilesAnswer::Problem(found) => {
                    problem = Some(found);
                    Vec::new()
                }
                _ => return Err(FrameError::Invalid("order of frames").into()),
            };
            content.extend(part);
            if content.len() as u64 > max_bytes {
                return Err(FrameError::Invalid("length of a file").into());
            }
            Ok(())
        };
        match ask(session.link().await?, &request, &mut each).await {
            Ok(_) => {
                return match problem {
                    Some(problem) if problem.errno == ENOENT => Ok(None),
                    Some(problem) => {
                        let mut problems = FileProblems::default();
                        problems.add("", &problem);
                        Err(FilesError::Failed(problems))
                    }
                    None if is_whole => Ok(Some(content)),
                    None => Err(FrameError::Short.into()),
                };
            }
            Err(stopped) => attempts.handle_stop(stopped, session, false).await?,
        }
    }
}

/// Sends a request and receives its answers.
async fn ask(
    link: &mut AgentLink,
    request: &FilesRequest,
    each: &mut dyn FnMut(FilesAnswer) -> Result<(), FilesError>,
) -> Result<FileCounts, ExchangeStop> {
    let (mut sending, mut receiving) = link.split();
    let over = Notify::new();
    let asked = async {
        let mut out = Vec::new();
        request.encode(&mut out);
        sending.send(&out).await?;
        Ok(send_keepalives(&mut sending, &over).await?)
    };
    let answered = async {
        let counts = answers(&mut receiving, each).await?;
        over.notify_one();
        Ok(counts)
    };
    try_join(asked, answered).await.map(|((), counts)| counts)
}

async fn answers(
    from: &mut FrameReceiver<'_>,
    each: &mut dyn FnMut(FilesAnswer) -> Result<(), FilesError>,
) -> Result<FileCounts, ExchangeStop> {
    loop {
        let (kind, payload) = from.receive().await?;
        match answer(kind, &payload)? {
            None => {}
            Some(FilesAnswer::Done(counts)) => return Ok(counts),
            Some(answer) => each(answer)?,
        }
    }
}
