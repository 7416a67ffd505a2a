//! The instance before its runner: packages and scripts of the pool, as root.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::error::BootError;
use super::guest::{Guest, GuestCommand, Owner, TMPFS};
use super::status::{Deadline, Garm};

/// Longer than anybody waits.
const FOREVER: Duration = Duration::MAX;

/// Installs its arguments with whatever the distribution has.
const INSTALL: &str = r#"
set -e
has() { command -v "$1" >/dev/null 2>&1; }
if has apt-get; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends -- "$@"
elif has apk; then apk add --no-cache "$@"
elif has dnf; then dnf install --assumeyes "$@"
elif has microdnf; then microdnf install --assumeyes "$@"
elif has yum; then yum install --assumeyes "$@"
elif has zypper; then zypper --non-interactive install "$@"
elif has pacman; then pacman --sync --refresh --noconfirm --needed "$@"
else
    echo "none of apt-get, apk, dnf, microdnf, yum, zypper and pacman is here" >&2
    exit 1
fi
"#;

/// An instance, and what holds for everything that is run in it.
pub struct BootContext<'a, G> {
    pub guest: &'a mut G,
    pub deadline: Deadline,
    pub env: Vec<(String, String)>,
}

/// Who runs something, and where.
#[derive(Clone, Copy)]
pub struct As<'a> {
    pub owner: Owner,
    pub name: Option<&'a str>,
    pub home: &'a Path,
    pub cwd: &'a Path,
}

impl As<'_> {
    pub(super) fn root() -> As<'static> {
        let (home, cwd) = (Path::new("/root"), Path::new("/"));
        As { owner: Owner::ROOT, name: Some("root"), home, cwd }
    }
}

impl<G: Guest> BootContext<'_, G> {
    /// Returns a command that has no variables but those of everything, and no end.
    pub fn command(&self, user: As<'_>, args: Vec<String>) -> GuestCommand {
        let mut env = vec![("HOME".to_owned(), user.home.display().to_string())];
        env.extend(user.name.map(|name| ("USER".to_owned(), name.to_owned())));
        env.extend_from_slice(&self.env);
        let (owner, cwd) = (user.owner, user.cwd.to_owned());
        GuestCommand { args, env, cwd, owner, stdin: Vec::new(), timeout: FOREVER }
    }

    /// Runs something within the time that is left.
    pub fn run(&mut self, command: &mut GuestCommand) -> Result<i32, BootError> {
        command.timeout = self.deadline.left()?;
        Ok(self.guest.run(command)?)
    }
}

/// Installs the pool's packages.
pub fn packages<G: Guest>(
    garm: &Garm<'_>,
    boot: &mut BootContext<'_, G>,
    packages: &[String],
) -> Result<(), BootError> {
    if packages.is_empty() {
        return Ok(());
    }
    garm.progress(boot.guest, "installing packages")?;
    let mut args = vec!["sh".to_owned(), "-c".to_owned(), INSTALL.to_owned(), "sh".to_owned()];
    args.extend_from_slice(packages);
    let mut command = boot.command(As::root(), args);
    match boot.run(&mut command)? {
        0 => Ok(()),
        code => Err(BootError::Packages { packages: packages.join(" "), code }),
    }
}

/// Runs the pool's scripts, in the order of their names.
pub fn scripts<G: Guest>(
    garm: &Garm<'_>,
    boot: &mut BootContext<'_, G>,
    scripts: &BTreeMap<String, Vec<u8>>,
) -> Result<(), BootError> {
    for (index, (name, content)) in scripts.iter().enumerate() {
        garm.progress(boot.guest, &format!("running the pre-install script {name:?}"))?;
        // The name may be any text.
        let path = Path::new(TMPFS).join(format!("pre-install-{index}"));
        boot.guest.write(&path, content, 0o700, Owner::ROOT)?;
        let mut args = vec![path.display().to_string()];
        if !content.starts_with(b"#!") && !content.starts_with(b"\x7fELF") {
            // The kernel does not run it; shells run such files themselves.
            args.insert(0, "sh".to_owned());
        }
        let mut command = boot.command(As::root(), args);
        let result = boot.run(&mut command);
        boot.guest.remove(&path)?;
        match result? {
            0 => {}
            code => return Err(BootError::Script { name: name.clone(), code }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn packages_are_installed_with_whatever_is_there() {
        for (managers, expected) in [
            (
                vec!["apt-get", "apk"],
                "apt-get update\napt-get install --yes --no-install-recommends -- jq g++\n",
            ),
            (vec!["apk"], "apk add --no-cache jq g++\n"),
            (vec!["yum", "dnf"], "dnf install --assumeyes jq g++\n"),
            (vec!["microdnf"], "microdnf install --assumeyes jq g++\n"),
            (vec!["yum"], "yum install --assumeyes jq g++\n"),
            (vec!["zypper"], "zypper --non-interactive install jq g++\n"),
            (vec!["pacman"], "pacman --sync --refresh --noconfirm --needed jq g++\n"),
            (vec![], ""),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for manager in &managers {
                let path = dir.path().join(manager);
                fs::write(&path, format!("#!/bin/sh\necho {manager} \"$@\"\n")).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            }
            let mut sh = Command::new("/bin/sh");
            sh.args(["-c", INSTALL, "sh", "jq", "g++"]).env_clear().env("PATH", dir.path());
            let output = sh.output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
            assert_eq!(output.status.code(), Some(i32::from(managers.is_empty())));
        }
    }
}
