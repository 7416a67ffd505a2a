//! Preparation of an instance: packages and scripts of the pool, run as root.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::error::BootError;
use super::guest::{Guest, GuestCommand, GuestIds, TMPFS};
use super::status::{BootDeadline, GarmApi};

const FOREVER: Duration = Duration::MAX;

/// Shell script that installs packages, its arguments, with the distribution's package manager.
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
    echo "no package manager in this image: expected apt-get, apk, dnf, microdnf, yum, zypper or pacman" >&2
    exit 1
fi
"#;

/// An instance that boots, with the deadline and environment of all programs run in it.
pub struct BootContext<'a, G> {
    pub guest: &'a mut G,
    pub deadline: BootDeadline,
    pub env: Vec<(String, String)>,
}

/// User and working directory of a program.
#[derive(Clone, Copy)]
pub struct GuestUser<'a> {
    pub owner: GuestIds,
    pub name: Option<&'a str>,
    pub home: &'a Path,
    pub cwd: &'a Path,
}

impl GuestUser<'_> {
    pub(super) fn root() -> GuestUser<'static> {
        let (home, cwd) = (Path::new("/root"), Path::new("/"));
        GuestUser { owner: GuestIds::ROOT, name: Some("root"), home, cwd }
    }
}

impl<G: Guest> BootContext<'_, G> {
    /// Returns a command with the common environment and without a timeout.
    pub fn command(&self, user: GuestUser<'_>, args: Vec<String>) -> GuestCommand {
        let mut env = vec![("HOME".to_owned(), user.home.display().to_string())];
        env.extend(user.name.map(|name| ("USER".to_owned(), name.to_owned())));
        env.extend_from_slice(&self.env);
        let (owner, cwd) = (user.owner, user.cwd.to_owned());
        GuestCommand { args, env, cwd, owner, stdin: Vec::new(), timeout: FOREVER }
    }

    /// Runs a command within the remaining time.
    pub fn run(&mut self, command: &mut GuestCommand) -> Result<i32, BootError> {
        command.timeout = self.deadline.remaining_time()?;
        Ok(self.guest.run(command)?)
    }
}

/// Installs the pool's packages.
pub fn packages<G: Guest>(
    garm: &GarmApi<'_>,
    boot: &mut BootContext<'_, G>,
    packages: &[String],
) -> Result<(), BootError> {
    if packages.is_empty() {
        return Ok(());
    }
    garm.progress(boot.guest, "installing packages")?;
    let mut args = vec!["sh".to_owned(), "-c".to_owned(), INSTALL.to_owned(), "sh".to_owned()];
    args.extend_from_slice(packages);
    let mut command = boot.command(GuestUser::root(), args);
    match boot.run(&mut command)? {
        0 => Ok(()),
        code => Err(BootError::Packages { packages: packages.join(" "), code }),
    }
}

/// Runs the pool's scripts, ordered by name.
pub fn scripts<G: Guest>(
    garm: &GarmApi<'_>,
    boot: &mut BootContext<'_, G>,
    scripts: &BTreeMap<String, Vec<u8>>,
) -> Result<(), BootError> {
    for (index, (name, content)) in scripts.iter().enumerate() {
        garm.progress(boot.guest, &format!("running the pre-install script {name:?}"))?;
        // The script's name may be invalid as a file name.
        let path = Path::new(TMPFS).join(format!("pre-install-{index}"));
        boot.guest.write(&path, content, 0o700, GuestIds::ROOT)?;
        let mut args = vec![path.display().to_string()];
        if !content.starts_with(b"#!") && !content.starts_with(b"\x7fELF") {
            // Without `#!`, the kernel does not execute the file, but shells do.
            args.insert(0, "sh".to_owned());
        }
        let mut command = boot.command(GuestUser::root(), args);
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
    fn packages_are_installed_with_the_available_manager() {
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
