//! `call DIR`: what a host asks for through the stream of an exec.
//!
//! The first frame out is the hello. What begins or follows a step goes to the process that keeps it
//! (`keeper`), whose answers go out as they come, and files are sent and received here (`exchange`). It ends
//! when the stream does, or when the host has said nothing for a minute; no step ends by that.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::time::Duration;

use crate::attached::Attached;
use crate::exchange;
use crate::frames::files::FilesRequest;
use crate::frames::journal::JournalRequest;
use crate::os;
use crate::place::Place;
use crate::remote::{Gone, Host};

/// How long the host may say nothing; it says something every 5 seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Answers a host until it has gone; returns the exit code.
pub fn run(args: &[OsString]) -> i32 {
    let [directory] = args else {
        report("expected one directory");
        return 2;
    };
    // The frames have secrets.
    os::hide();
    let place = Place::new(directory.into());
    let answered = Host::open(PATIENCE).and_then(|host| Call { host, place, attached: None }.run());
    match answered {
        Ok(()) | Err(Gone::Closed) => 0,
        Err(gone) => {
            report(&gone.to_string());
            1
        }
    }
}

/// Says something to whoever reads the errors of the exec.
fn report(what: &str) {
    let _ = io::stderr().write_all(format!("call: {what}\n").as_bytes());
}

struct Call {
    host: Host,
    place: Place,
    /// The step whose output goes to the host.
    attached: Option<Attached>,
}

impl Call {
    fn run(mut self) -> Result<(), Gone> {
        loop {
            while let Some((kind, payload)) = self.host.try_receive()? {
                self.answer(kind, &payload)?;
            }
            let is_more = self.host.wait(self.attached.as_ref().map(Attached::descriptor))?;
            if let Some(attached) = self.attached.as_mut().filter(|_| is_more) {
                let goes_on = attached.pass(&mut self.host)?;
                self.attached = self.attached.take().filter(|_| goes_on);
            }
        }
    }

    fn answer(&mut self, kind: u8, payload: &[u8]) -> Result<(), Gone> {
        if FilesRequest::is_kind(kind) {
            return exchange::serve(kind, payload, &mut self.host);
        }
        match JournalRequest::decode(kind, payload)? {
            JournalRequest::Attach(attach) => {
                self.attached = None;
                self.attached = Attached::open(&self.place, *attach, &mut self.host)?;
            }
            // Without a step that it could be for: its end is on its way to the host.
            request => {
                if let Some(attached) = &self.attached {
                    attached.send(&request)?;
                }
            }
        }
        Ok(())
    }
}
