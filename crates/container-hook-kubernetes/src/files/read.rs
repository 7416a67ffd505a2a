//! Reads single files of a container.

use std::path::Path;

use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{DATA_BYTES, FileProblem, FilesFrame, TreeChange};

use super::error::{FileProblems, FilesError};
use super::exchange::{ExchangeAttempts, ExchangeStop, answer};
use super::put::bytes;
use crate::agent::{AgentLink, AgentSession};

const ENOENT: i32 = 2;

/// Returns the contents of a file of a container, of at most [`DATA_BYTES`], following links there; `None` if the
/// file does not exist.
pub async fn read(
    session: &mut AgentSession<'_>,
    path: &Path,
) -> Result<Option<Vec<u8>>, FilesError> {
    let mut request = Vec::new();
    FilesFrame::Read { path: bytes(path) }.encode(&mut request);
    let mut attempts = ExchangeAttempts::default();
    loop {
        match ask(session.link().await?, &request).await {
            Ok(Ok(content)) => return Ok(Some(content)),
            Ok(Err(problem)) if problem.errno == ENOENT => return Ok(None),
            Ok(Err(problem)) => {
                let mut problems = FileProblems::default();
                problems.add("", &problem);
                return Err(FilesError::Failed(problems));
            }
            Err(stopped) => attempts.handle_stop(stopped, session, false).await?,
        }
    }
}

async fn ask(
    link: &mut AgentLink,
    request: &[u8],
) -> Result<Result<Vec<u8>, FileProblem>, ExchangeStop> {
    link.send(request).await?;
    loop {
        let (kind, payload) = link.receive().await?;
        match answer(kind, &payload)? {
            None => {}
            Some(FilesFrame::Change(TreeChange::Data(content))) if content.len() <= DATA_BYTES => {
                return Ok(Ok(content));
            }
            Some(FilesFrame::Problem(problem)) => return Ok(Err(problem)),
            Some(_) => return Err(FrameError::UnknownKind(kind).into()),
        }
    }
}
