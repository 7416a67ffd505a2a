//! Credential files of a runner, and its id in them.

use std::path::Path;

use serde_json::{Map, Value};

use super::error::{BootError, RunnerFileError};
use super::guest::{Guest, GuestError, GuestIds, TMPFS};
use super::spec::RunnerSpec;
use super::status::GarmApi;

/// Size limit of a credential file, larger than any real one.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// Names of the files in GARM's API; the runner's file names begin with a dot.
const FILES: [&str; 3] = ["runner", "credentials", "credentials_rsaparams"];

/// Installs the files of a runner that GARM registered, and returns the runner's id if they contain it.
///
/// The files are on a tmpfs: the runner's directory, which is on disk, has symlinks to them.
pub fn install(
    garm: &GarmApi<'_>,
    guest: &mut impl Guest,
    runner: &RunnerSpec,
) -> Result<Option<i64>, BootError> {
    let owner = GuestIds { uid: runner.uid, gid: runner.gid };
    let mut id = None;
    for name in FILES {
        let content = garm.get(&format!("credentials/{name}"), MAX_FILE_BYTES)?;
        let file = format!(".{name}");
        if name == "runner" {
            id = match agent_id(&content, "AgentId") {
                // GARM knows the id anyway.
                Err(RunnerFileError::Key { .. }) => None,
                result => Some(
                    result
                        .map_err(|source| BootError::RunnerFile { file: file.clone(), source })?,
                ),
            };
        }
        let path = Path::new(TMPFS).join("runner").join(&file);
        guest.write(&path, &content, 0o600, owner)?;
        guest.link(&runner.dir.join(&file), &path, owner)?;
    }
    Ok(id)
}

/// Reads the id of a registered runner from its file.
pub fn read_registered_id(
    guest: &impl Guest,
    path: &Path,
    key: &'static str,
) -> Result<i64, BootError> {
    let content = guest.read(path, MAX_FILE_BYTES)?;
    let content = content.as_deref().ok_or(RunnerFileError::Missing);
    content
        .and_then(|content| agent_id(content, key))
        .map_err(|source| BootError::RunnerFile { file: path.display().to_string(), source })
}

/// Finds the id in a runner's file; the key is case-insensitive, the value a number or a string.
fn agent_id(content: &[u8], key: &'static str) -> Result<i64, RunnerFileError> {
    let content = content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content);
    let object: Map<String, Value> =
        serde_json::from_slice(content).map_err(RunnerFileError::Syntax)?;
    let found = object.iter().find(|(found, _)| found.eq_ignore_ascii_case(key));
    let id = found.and_then(|(_, value)| match value {
        Value::String(text) => text.parse().ok(),
        value => value.as_i64(),
    });
    id.filter(|id| *id > 0).ok_or(RunnerFileError::Key { key })
}

/// Returns the name of a user, if the instance's `/etc/passwd` has it.
pub fn user_name(guest: &impl Guest, uid: u32) -> Result<Option<String>, GuestError> {
    let Some(content) = guest.read(Path::new("/etc/passwd"), 1 << 20)? else { return Ok(None) };
    let content = String::from_utf8_lossy(&content);
    let named = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let is_it = fields.nth(1)?.parse() == Ok(uid);
        (is_it && !name.is_empty() && !name.contains(char::is_control)).then(|| name.to_owned())
    };
    Ok(content.lines().find_map(named))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn agent_id_is_found_in_every_format() {
        for (content, key, expected) in [
            (r#"{"AgentId":"123"}"#, "AgentId", Some(123)),
            ("\u{feff}{\r\n \"agentId\": 7, \"x\": {}}", "AgentId", Some(7)),
            (r#"{"WARNING":"x","id":42,"uuid":"u"}"#, "id", Some(42)),
            (r#"{"agentId":0}"#, "AgentId", None),
            (r#"{"agentId":-1}"#, "AgentId", None),
            (r#"{"agentId":1.5}"#, "AgentId", None),
            (r#"{"agentId":"1; rm"}"#, "AgentId", None),
            (r#"{"agentId":[1]}"#, "AgentId", None),
            (r#"{"agentId":99999999999999999999}"#, "AgentId", None),
            ("{}", "AgentId", None),
        ] {
            let found = agent_id(content.as_bytes(), key);
            match expected {
                Some(id) => assert_eq!(found.unwrap(), id, "{content}"),
                None => assert!(matches!(found, Err(RunnerFileError::Key { .. })), "{content}"),
            }
        }
        for content in ["", "[]", "x", "{", "\u{feff}", "7"] {
            let found = agent_id(content.as_bytes(), "AgentId");
            assert!(matches!(found, Err(RunnerFileError::Syntax(_))), "{content}");
        }
    }

    proptest! {
        #[test]
        fn agent_id_is_positive_or_an_error(
            content in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                "\\{\"[aA]gentId\": ?\"?.{0,30}\"?\\}".prop_map(String::into_bytes),
                any::<i64>().prop_map(|id| format!("{{\"AGENTID\":\"{id}\"}}").into_bytes()),
            ]
        ) {
            if let Ok(id) = agent_id(&content, "AgentId") {
                prop_assert!(id > 0);
            }
        }
    }
}
