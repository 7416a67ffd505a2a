//! The near end of sudo: GARM's user is not root, but instances are root's, and so a call goes to root. That
//! is so unless the settings are the user's own.
//!
//! Which settings root reads is root's to say: those in the usual place, or those that the line in
//! sudoers names, `--config FILE as-root`. Who calls can name no others.
//!
//! sudo keeps variables back, so they and standard input go through a pipe. The line in sudoers
//! needs no `SETENV`, by which GARM's user could have root load a library of their own.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use oci_hooks::program::relayed::{AS_ROOT, PROXY_VARIABLES, find, message, this_program};
use oci_hooks::runtime::FindError;
use oci_hooks::sys::fs::{PathContext as _, PathError};

use crate::settings;

/// Why a call did not get to the other end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(
        "cannot find sudo: install it, have GARM run as root, or give its user settings of their own"
    )]
    NoSudo(#[source] FindError),
    #[error(
        "sudo does not let this user have root read the settings {}: use those in {}, or write \
         \"{line}\" into a file in /etc/sudoers.d, or make the file the user's own to have instances \
         without root", path.display(), settings::FILE
    )]
    OtherSettings { path: PathBuf, line: String },
}

/// Returns whether a call of this user's goes to root, with this file of settings: what that says is root's to
/// decide. A user with settings of their own has instances of their own, and so has one without sudo.
pub(crate) fn is_wanted(config: Option<&Path>) -> bool {
    !rustix::process::geteuid().is_root()
        && settings::own_file(config).is_none()
        && find("sudo").is_ok()
}

/// Hands this call to root, and returns how it ended.
///
/// The pipe stays open meanwhile: its end means that GARM has killed this process.
pub(crate) fn relay(stdin: &[u8], config: Option<&Path>) -> Result<ExitCode, RelayError> {
    let this = this_program()?;
    let sudo = find("sudo").map_err(RelayError::NoSudo)?;
    let allowed = command_line(&this, config);
    if let [_, _, path, _] = allowed.as_slice()
        && !allows(&sudo, &allowed)?
    {
        return Err(RelayError::OtherSettings { path: path.into(), line: sudoers_line(&allowed) });
    }
    let mut command = Command::new(&sudo);
    command.arg("--non-interactive").arg("--").args(&allowed).stdin(Stdio::piped());
    let mut child = command.spawn().at("execute", &sudo)?;
    let mut pipe = child.stdin.take().expect("it was asked for");
    // sudo that does not let us has said so.
    let _ = pipe.write_all(&message(variables(), stdin));
    let status = child.wait().at("wait for", &sudo)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Returns what sudo has to allow, with these settings.
pub(crate) fn command_line(this: &Path, config: Option<&Path>) -> Vec<OsString> {
    let mut words = vec![this.as_os_str().to_owned()];
    if let Some(path) = config.filter(|path| path.as_os_str() != settings::FILE) {
        words.extend(["--config".into(), path.into()]);
    }
    words.push(AS_ROOT.into());
    words
}

/// Returns the line of sudoers that allows it to GARM's user, as packages of GARM call them.
pub(crate) fn sudoers_line(command_line: &[OsString]) -> String {
    let words: Vec<_> = command_line.iter().map(|word| word.to_string_lossy()).collect();
    format!("garm ALL=(root) NOPASSWD: {}", words.join(" "))
}

/// Asks sudo whether it allows a command: that it does not is not to be taken for a failure of it.
fn allows(sudo: &Path, command: &[OsString]) -> Result<bool, RelayError> {
    let mut list = Command::new(sudo);
    list.args(["--non-interactive", "--list", "--"]).args(command);
    list.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(list.status().at("execute", sudo)?.success())
}

fn variables() -> BTreeMap<String, String> {
    let texts =
        env::vars_os().filter_map(|(n, v)| Some((n.into_string().ok()?, v.into_string().ok()?)));
    texts.filter(|(name, _)| is_relayed(name)).collect()
}

/// Returns whether a variable goes to the other end.
pub(crate) fn is_relayed(name: &str) -> bool {
    name.starts_with("GARM_") || PROXY_VARIABLES.contains(&name)
}
