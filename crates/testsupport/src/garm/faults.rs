//! Faults of the connections to GARM and to the download host.

use super::super::http::{Gate, WebRequest, WebResponse};

/// A fault that replaces or changes a response.
#[derive(Clone, Debug)]
pub enum ConnectionFault {
    /// Replaced by an error page of a proxy with this status.
    Status(u16),
    /// Closed without a response.
    Refuse,
    /// Cut after this many bytes of the body.
    Cut(usize),
    /// One byte of the body flipped.
    Change,
    /// Paused after this many bytes, until the gate opens.
    Hold(usize, Gate),
}

impl ConnectionFault {
    /// Returns whether the fault occurs before the request reaches GARM.
    pub fn is_before(&self) -> bool {
        matches!(self, Self::Status(_) | Self::Refuse)
    }

    pub fn apply(self, mut response: WebResponse) -> WebResponse {
        match self {
            Self::Status(status) => {
                let page = format!("<html><body>{status} from a proxy</body></html>\n");
                response = WebResponse::ok(page).with("content-type", "text/html");
                response.status = status;
            }
            Self::Refuse => response.refused = true,
            Self::Cut(at) => response.cut = Some(at),
            Self::Change => {
                let middle = response.body.len() / 2;
                response.body[middle] ^= 1;
            }
            Self::Hold(at, gate) => response.held = Some((at, gate)),
        }
        response
    }
}

/// Planned faults, in order.
#[derive(Debug, Default)]
pub struct PlannedFaults(Vec<PlannedFault>);

#[derive(Debug)]
struct PlannedFault {
    path: String,
    fault: ConnectionFault,
    times: usize,
}

impl PlannedFaults {
    /// Plans a fault for the next `times` requests whose path contains a text.
    pub fn plan(&mut self, path: &str, fault: ConnectionFault, times: usize) {
        self.0.push(PlannedFault { path: path.to_owned(), fault, times });
    }

    /// Takes the planned fault of a request, if any.
    pub fn take(&mut self, request: &WebRequest) -> Option<ConnectionFault> {
        let matches = |planned: &&mut PlannedFault| {
            planned.times > 0 && request.path.contains(planned.path.as_str())
        };
        let planned = self.0.iter_mut().find(matches)?;
        planned.times -= 1;
        Some(planned.fault.clone())
    }
}
