//! What goes wrong on the way to GARM and to the host of the downloads.

use std::time::Duration;

use super::super::http::{Gate, Request, Response};

/// What becomes of a request instead of its answer, or of the answer.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// This status, with a page of a proxy on the way.
    Status(u16),
    /// The connection is closed without an answer.
    Refuse,
    /// The connection is cut after so many bytes of the body.
    Cut(usize),
    /// One byte of the body is another.
    Change,
    /// The body comes slowly, so long after each kilobyte.
    Slow(Duration),
    /// The body stops after so many bytes until the gate is open.
    Hold(usize, Gate),
}

impl Fault {
    /// Whether the request gets to GARM at all.
    pub(super) fn is_before(&self) -> bool {
        matches!(self, Self::Status(_) | Self::Refuse)
    }

    pub(super) fn apply(self, mut response: Response) -> Response {
        match self {
            Self::Status(status) => {
                let page = format!("<html><body>{status} from a proxy</body></html>\n");
                response = Response::ok(page).with("content-type", "text/html");
                response.status = status;
            }
            Self::Refuse => response.refused = true,
            Self::Cut(at) => response.cut = Some(at),
            Self::Change => {
                let middle = response.body.len() / 2;
                response.body[middle] ^= 1;
            }
            Self::Slow(pace) => response.pace = Some(pace),
            Self::Hold(at, gate) => response.held = Some((at, gate)),
        }
        response
    }
}

/// Faults in the order in which they were planned.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Planned>);

#[derive(Debug)]
struct Planned {
    path: String,
    fault: Fault,
    times: usize,
}

impl Faults {
    /// Plans a fault for the next requests whose path has a text in it.
    pub(super) fn plan(&mut self, path: &str, fault: Fault, times: usize) {
        self.0.push(Planned { path: path.to_owned(), fault, times });
    }

    /// Takes the fault of a request.
    pub(super) fn take(&mut self, request: &Request) -> Option<Fault> {
        let matches = |planned: &&mut Planned| {
            planned.times > 0 && request.path.contains(planned.path.as_str())
        };
        let planned = self.0.iter_mut().find(matches)?;
        planned.times -= 1;
        Some(planned.fault.clone())
    }
}
