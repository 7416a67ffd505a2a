//! Reads single files of a container.

use std::path::Path;

use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{DATA_BYTES, FileProblem, FilesFrame, TreeChange};

use super::error::{FileProblems, FilesError};
use super::exchange::{ExchangeAttempts, receive_answer};
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
            Err(error) => attempts.handle_error(error, session, false).await?,
        }
    }
}

async fn ask(
    link: &mut AgentLink,
    request: &[u8],
) -> Result<Result<Vec<u8>, FileProblem>, FilesError> {
    let (mut to, mut from) = link.split();
    to.send(request).await?;
    match receive_answer(&mut from).await? {
        FilesFrame::Change(TreeChange::Data(content)) if content.len() <= DATA_BYTES => {
            Ok(Ok(content))
        }
        FilesFrame::Problem(problem) => Ok(Err(problem)),
        _ => Err(FrameError::Invalid("order of frames").into()),
    }
}
