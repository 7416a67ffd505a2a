//! Reads single files of a container.

use std::path::Path;

use oci_hooks_init::frames::FrameError;
use oci_hooks_init::frames::files::{DATA_BYTES, FilesFrame, TreeChange};

use super::error::FilesError;
use super::exchange::{ExchangeAttempts, receive_answer};
use super::put::bytes;
use crate::agent::{AgentLink, AgentSession};

/// Returns the contents of a file of a container, following symbolic links; `None` if the
/// container's user cannot read the file, or if it is no regular file of at most [`DATA_BYTES`].
pub async fn read(
    session: &mut AgentSession<'_>,
    path: &Path,
) -> Result<Option<Vec<u8>>, FilesError> {
    let mut request = Vec::new();
    FilesFrame::Read { path: bytes(path) }.encode(&mut request);
    let mut attempts = ExchangeAttempts::default();
    loop {
        match ask(session.link().await?, &request).await {
            Ok(content) => return Ok(content),
            Err(error) => attempts.handle_error(error, session, false).await?,
        }
    }
}

async fn ask(link: &mut AgentLink, request: &[u8]) -> Result<Option<Vec<u8>>, FilesError> {
    link.sender.send(request).await?;
    match receive_answer(&mut link.receiver).await? {
        FilesFrame::Change(TreeChange::Data(content)) if content.len() <= DATA_BYTES => {
            Ok(Some(content))
        }
        FilesFrame::Problem(_) => Ok(None),
        _ => Err(FrameError::Invalid("kind: it is out of order").into()),
    }
}
