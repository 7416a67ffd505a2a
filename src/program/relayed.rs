//! What goes from one end of sudo to the other: variables, which sudo keeps back, and standard input.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsStr;
use std::io::{self, BufRead as _, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::hooks::trust::{self, TrustError, TrustOptions};
use crate::runtime::{self, DEFAULT_PATH, FindError};
use crate::sys::fs::{PathContext as _, PathError};
use crate::sys::privilege::Privilege;

/// The argument that sudo has to allow.
pub const AS_ROOT: &str = "as-root";

/// Variables that say how to reach registries.
pub const PROXY_VARIABLES: [&str; 6] =
    ["HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"];

/// The most that variables may hold together.
const MAX_VARIABLES_BYTES: u64 = 1 << 20;

/// What precedes standard input, on a line.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    variables: BTreeMap<String, String>,
    request_bytes: u64,
}

/// Returns variables and standard input as one message.
pub fn message(variables: BTreeMap<String, String>, request: &[u8]) -> Vec<u8> {
    let header = Header { variables, request_bytes: request.len() as u64 };
    let mut message = serde_json::to_vec(&header).expect("strings and a number");
    message.push(b'\n');
    message.extend(request);
    message
}

/// Reads a message, and nothing beyond, with at most so much of standard input.
pub fn read_message(
    input: &mut impl io::BufRead,
    max_bytes: u64,
) -> io::Result<(BTreeMap<String, String>, Vec<u8>)> {
    let mut line = Vec::new();
    input.by_ref().take(MAX_VARIABLES_BYTES).read_until(b'\n', &mut line)?;
    let header: Header = serde_json::from_slice(&line)?;
    if header.request_bytes > max_bytes {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut request = Vec::new();
    input.by_ref().take(header.request_bytes).read_to_end(&mut request)?;
    if request.len() as u64 != header.request_bytes {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok((header.variables, request))
}

/// Returns the user and group that sudo was called by, if it was, to become root of the host. It says so to
/// all that is started by whom it made somebody else, too.
pub fn sudo_caller() -> Option<(u32, u32)> {
    if !Privilege::is_root_of_host() {
        return None;
    }
    let id = |name| env::var(name).ok()?.parse().ok();
    Some((id("SUDO_UID")?, id("SUDO_GID")?))
}

/// Returns the file of this program.
pub fn this_program() -> Result<PathBuf, PathError> {
    env::current_exe().at("look up", Path::new("/proc/self/exe"))
}

/// Checks that root alone can change this program, which sudo lets another user have root run.
pub fn check_this_program() -> Result<PathBuf, TrustError> {
    let this = this_program()?;
    trust::check_path(&this, &TrustOptions::default())?;
    Ok(this)
}

/// Finds a program where the system has them: whatever is in `PATH`, jobs may have put it there.
pub fn find(name: &str) -> Result<PathBuf, FindError> {
    runtime::find(&[OsStr::new(name)], Some(DEFAULT_PATH.as_ref()), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_end_reads_what_was_sent_and_leaves_what_follows() {
        let sent: BTreeMap<_, _> = [("A".to_owned(), "x\ny".to_owned())].into();
        let mut bytes = message(sent.clone(), b"{\n}\n");
        bytes.push(15);
        let mut input = bytes.as_slice();
        let (variables, request) = read_message(&mut input, 4).unwrap();
        assert_eq!((variables, request.as_slice()), (sent, &b"{\n}\n"[..]));
        assert_eq!(input, [15]);
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_no_message() {
        for text in ["", "\n", "{\"variables\":{},\"request_bytes\":9}\n{}"] {
            read_message(&mut text.as_bytes(), 100).unwrap_err();
        }
        let text = format!("{{\"variables\":{{}},\"request_bytes\":{}}}\n", u64::MAX);
        assert!(read_message(&mut text.as_bytes(), 100).is_err());
    }
}
