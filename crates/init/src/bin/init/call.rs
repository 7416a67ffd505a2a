//! `call DIR`: serves a host through the streams of an exec.
//!
//! The first frame sent is the hello. Requests that start or follow a step are forwarded to its
//! supervisor, whose answers are returned as they come; files are sent and received here
//! (`exchange`). The process ends with the stream, or after a minute without a frame from the host;
//! steps go on.

use std::ffi::OsString;

use crate::agent_dir::AgentDirectory;
use crate::attached::AttachedStep;
use crate::exchange;
use crate::remote::{ExecHost, StreamError};
use crate::single::report;
use oci_hooks_init::frames::StepRequest;
use oci_hooks_init::frames::files::FilesFrame;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};

/// Serves a host until it disconnects; returns the exit code.
pub fn run(args: &[OsString]) -> i32 {
    let [directory] = args else {
        report("call", "expected one argument, the directory of the agent");
        return 2;
    };
    // Frames contain secrets.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let agent_dir = AgentDirectory::new(directory.into());
    let answered =
        ExecHost::open().and_then(|host| ExecCall { host, agent_dir, attached: None }.run());
    match answered {
        Ok(()) | Err(StreamError::Closed) => 0,
        Err(gone) => {
            report("call", &gone.to_string());
            1
        }
    }
}

struct ExecCall {
    host: ExecHost,
    agent_dir: AgentDirectory,
    /// Step whose output is sent to the host.
    attached: Option<AttachedStep>,
}

impl ExecCall {
    fn run(mut self) -> Result<(), StreamError> {
        loop {
            while let Some((kind, payload)) = self.host.try_receive()? {
                self.answer(kind, &payload)?;
            }
            let is_more = self.host.wait(self.attached.as_ref().map(AttachedStep::descriptor))?;
            if let Some(attached) = self.attached.as_mut().filter(|_| is_more) {
                let goes_on = attached.pass(&mut self.host)?;
                self.attached = self.attached.take().filter(|_| goes_on);
            }
        }
    }

    fn answer(&mut self, kind: u8, payload: &[u8]) -> Result<(), StreamError> {
        if FilesFrame::is_kind(kind) {
            return exchange::serve(kind, payload, &mut self.host);
        }
        let request = StepRequest::decode(kind, payload)?;
        let frame = request.encode()?;
        if let StepRequest::Attach(_) = request {
            self.attached = None;
            self.attached = AttachedStep::open(&self.agent_dir, &frame, &mut self.host)?;
        } else if let Some(attached) = &self.attached {
            // Without a step, the end of the last one is on its way to the host.
            attached.send(&frame);
        }
        Ok(())
    }
}
