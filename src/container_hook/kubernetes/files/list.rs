//! What a container has, and single files of it.

use std::path::Path;

use tokio::sync::Notify;

use super::error::{FilesError, Summary, Trouble};
use super::exchange::{Attempts, Stopped, answer, both, stay};
use super::host::Limits;
use super::put::bytes;
use crate::container_hook::kubernetes::agent::{Link, Receiving, Session};
use crate::sys::init::frames::FrameError;
use crate::sys::init::frames::files::{
    Change, Counts, Entry, FilesAnswer, FilesRequest, Scope, order,
};

const ENOENT: i32 = 2;

/// Calls a function with each file of a scope in the order of paths, once each.
#[cfg_attr(not(test), expect(dead_code, reason = "what there is, is only asked for by people"))]
pub async fn list(
    session: &mut Session<'_>,
    root: &Path,
    scope: &Scope,
    limits: Limits,
    take: &mut dyn FnMut(Entry),
) -> Result<Summary, FilesError> {
    let request = FilesRequest::List { root: bytes(root), scope: scope.clone() };
    let (mut last, mut attempts): (Option<Vec<u8>>, _) = (None, Attempts::default());
    let (mut counted, mut problems) = (0, 0);
    loop {
        let mut unread = Trouble::default();
        // After a lost stream the list goes on where it was.
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
            Ok(Counts { entries, skipped }) => {
                return Ok(Summary { entries, skipped, unread, ..Summary::default() });
            }
            Err(stopped) => attempts.after(stopped, session, got_further).await?,
        }
    }
}

/// Returns a file of a container, with links followed there; none if there is none.
pub async fn read(
    session: &mut Session<'_>,
    path: &Path,
    max_bytes: u64,
) -> Result<Option<Vec<u8>>, FilesError> {
    let request = FilesRequest::Read { path: bytes(path), max_bytes };
    let mut attempts = Attempts::default();
    loop {
        let (mut content, mut is_whole, mut problem) = (Vec::new(), false, None);
        let mut each = |answer| {
            let part = match answer {
                FilesAnswer::Change(Change::File { content, is_whole: whole, .. }) => {
                    is_whole = whole;
                    content
                }
                FilesAnswer::Change(Change::Data(part)) => part,
                FilesAnswer::Change(Change::End { is_whole: whole }) => {
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
                        let mut trouble = Trouble::default();
                        trouble.add("", &problem);
                        Err(FilesError::Failed(trouble))
                    }
                    None if is_whole => Ok(Some(content)),
                    None => Err(FrameError::Short.into()),
                };
            }
            Err(stopped) => attempts.after(stopped, session, false).await?,
        }
    }
}

/// Sends a request, and takes answers until the last.
async fn ask(
    link: &mut Link,
    request: &FilesRequest,
    each: &mut dyn FnMut(FilesAnswer) -> Result<(), FilesError>,
) -> Result<Counts, Stopped> {
    let (mut sending, mut receiving) = link.split();
    let over = Notify::new();
    let asked = async {
        let mut out = Vec::new();
        request.encode(&mut out);
        sending.send(&out).await?;
        Ok(stay(&mut sending, &over).await?)
    };
    let answered = async {
        let counts = answers(&mut receiving, each).await?;
        over.notify_one();
        Ok(counts)
    };
    both(asked, answered).await.map(|((), counts)| counts)
}

async fn answers(
    from: &mut Receiving<'_>,
    each: &mut dyn FnMut(FilesAnswer) -> Result<(), FilesError>,
) -> Result<Counts, Stopped> {
    loop {
        let (kind, payload) = from.receive().await?;
        match answer(kind, &payload)? {
            None => {}
            Some(FilesAnswer::Done(counts)) => return Ok(counts),
            Some(answer) => each(answer)?,
        }
    }
}
