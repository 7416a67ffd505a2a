//! The directories that are recorded for runners which call by sudo.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use oci_hooks::program::checks::Check;
use oci_hooks::sys::caller::is_root;

use crate::settings::Settings;

const NAME: &str = "runner directories";
const RECORD: &str = "container-hook install --sudo --runner-user USER --runner-dir DIR SCRIPT_DIR";

/// Looks at what is recorded, for the users whose runners call by sudo now.
pub(super) fn checks(settings: &Settings, sudo_users: &[u32]) -> Vec<Check> {
    let runner = &settings.runner;
    let mut checks = Vec::new();
    let mut owners = Vec::new();
    for dir in &runner.directories {
        match owner(dir) {
            Ok(uid) if is_root(uid) => {
                let found =
                    format!("{} belongs to root: no runner by sudo may use it", dir.display());
                checks.push(Check::warn(NAME, found, "chown it to the runner's user"));
            }
            Ok(uid) => owners.push(uid),
            Err(found) => checks.push(Check::warn(NAME, found, RECORD)),
        }
    }
    for dir in &runner.tool_directories {
        if let Err(found) = owner(dir) {
            checks.push(Check::warn(NAME, found, RECORD));
        }
    }
    for uid in sudo_users.iter().filter(|uid| !owners.contains(uid)) {
        let found =
            format!("the runner of user {uid} calls by sudo, and has no recorded directory");
        checks.push(Check::fail(NAME, found, RECORD));
    }
    if checks.is_empty() && !owners.is_empty() {
        checks.push(Check::ok(NAME, format!("{} recorded", owners.len())));
    }
    checks
}

/// Returns whom a directory belongs to, or what is wrong with its path.
fn owner(dir: &Path) -> Result<u32, String> {
    let name = dir.display();
    let real = fs::canonicalize(dir).map_err(|error| format!("{name}: {error}"))?;
    if real != dir {
        return Err(format!("{name} is {} by now, which is not recorded", real.display()));
    }
    let metadata = fs::symlink_metadata(dir).map_err(|error| format!("{name}: {error}"))?;
    if metadata.is_dir() { Ok(metadata.uid()) } else { Err(format!("{name} is not a directory")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use serde_json::Value;

    use super::*;

    fn found(directories: &[PathBuf], sudo_users: &[u32]) -> String {
        let mut settings = Settings::default();
        settings.runner.directories = directories.to_vec();
        let checks = checks(&settings, sudo_users);
        let found = |check: &Check| serde_json::to_value(check).unwrap()["found"].clone();
        let texts: Vec<Value> = checks.iter().map(found).collect();
        serde_json::to_string(&texts).unwrap()
    }

    #[test]
    fn what_runners_by_sudo_could_not_use_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let uid = dir.metadata().unwrap().uid();
        symlink(&dir, dir.join("link")).unwrap();
        assert_eq!(found(&[], &[]), "[]");
        assert!(found(&[], &[12345]).contains("user 12345 calls by sudo"));
        assert!(found(std::slice::from_ref(&dir), &[12345]).contains("user 12345 calls by sudo"));
        assert!(found(&[dir.join("missing")], &[]).contains("No such file"));
        assert!(found(&[dir.join("link")], &[]).contains("is not recorded"));
        let own = found(&[dir], &[]);
        assert!(own.contains(if uid == 0 { "belongs to root" } else { "1 recorded" }), "{own}");
    }
}
