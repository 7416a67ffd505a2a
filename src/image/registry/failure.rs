//! From what the HTTP client says to what a person can act on.

use std::error::Error as StdError;
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use ureq::Body;
use ureq::http::Response;

use super::budget::Budget;
use super::endpoint::Answer;
use super::error::RegistryError;
use super::guard::InternalAddress;

/// How much of an answer is read to learn what was wrong.
const MAX_MESSAGE_BYTES: u64 = 16 << 10;

/// How much of what a server said is passed on.
const MAX_MESSAGE_CHARS: usize = 200;

/// Explains why there was no answer from a server that `asker` had us talk to.
pub(super) fn explain(asker: &str, server: String, error: ureq::Error) -> RegistryError {
    let source = match error {
        ureq::Error::Timeout(_) => return RegistryError::Timeout { server },
        ureq::Error::HostNotFound => io::Error::new(io::ErrorKind::NotFound, "unknown host"),
        ureq::Error::Io(error) => error,
        ureq::Error::Rustls(error) => io::Error::other(error),
        error @ (ureq::Error::Protocol(_)
        | ureq::Error::Http(_)
        | ureq::Error::BadUri(_)
        | ureq::Error::LargeResponseHeader(..)) => {
            return RegistryError::Protocol { server, source: error.into_io() };
        }
        error => error.into_io(),
    };
    explain_io(asker, server, source)
}

/// Explains why no more came from a server.
pub(super) fn explain_io(asker: &str, server: String, source: io::Error) -> RegistryError {
    let source = match source.downcast::<RegistryError>() {
        // What watches over the transfer has said it all.
        Ok(error) => return error,
        Err(source) => source,
    };
    if let Some(InternalAddress { host, address }) = find(&source) {
        let (host, address) = (host.clone(), *address);
        return RegistryError::InternalAddress { server: asker.to_owned(), host, address };
    }
    match find::<rustls::Error>(&source) {
        // The first bytes are not a TLS record.
        Some(rustls::Error::InvalidMessage(_)) => return RegistryError::PlainHttp { server },
        Some(_) => return RegistryError::Tls { server, source },
        None => {}
    }
    match find::<ureq::Error>(&source) {
        Some(ureq::Error::Timeout(_)) => RegistryError::Timeout { server },
        Some(ureq::Error::Protocol(_)) => RegistryError::Protocol { server, source },
        _ if source.kind() == io::ErrorKind::TimedOut => RegistryError::Timeout { server },
        _ => RegistryError::Unreachable { server, source },
    }
}

/// Finds an error of a kind among the causes of another.
fn find<T: StdError + 'static>(error: &io::Error) -> Option<&T> {
    let mut cause = error.get_ref().map(|inner| inner as &(dyn StdError + 'static));
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        // `io::Error` gives out what it holds only so; its `source` is one further.
        cause = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// Returns the seconds of `Retry-After`; the other form, a date, is rare.
pub(super) fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let value = response.headers().get("retry-after")?.to_str().ok()?;
    Some(Duration::from_secs(value.trim().parse().ok()?))
}

/// Returns what a server said about an error.
pub(super) fn message(answer: Answer, budget: &Arc<Budget>) -> String {
    #[derive(Deserialize)]
    struct Errors {
        #[serde(default)]
        errors: Vec<One>,
        #[serde(default)]
        details: String,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let mut bytes = Vec::new();
    let body = budget.watch(answer.origin.server(), answer.response.into_body().into_reader());
    if body.take(MAX_MESSAGE_BYTES).read_to_end(&mut bytes).is_err() {
        return String::new();
    }
    let text = match serde_json::from_slice::<Errors>(&bytes) {
        Ok(Errors { errors, details }) => {
            let first = errors.into_iter().next();
            first.map_or(details, |one| if one.message.is_empty() { one.code } else { one.message })
        }
        // A page in HTML helps nobody.
        Err(_) if bytes.trim_ascii_start().starts_with(b"<") => String::new(),
        Err(_) => String::from_utf8_lossy(&bytes).into_owned(),
    };
    let line = text.trim().lines().next().unwrap_or("");
    line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE_CHARS).collect()
}
