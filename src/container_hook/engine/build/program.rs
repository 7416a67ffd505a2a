//! buildah, as a user who owns nothing of the host, with little of the host to see.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::BuildError;
use crate::container_hook::dockerfile::{CONFIGURATION, NO_MORE};
use crate::container_hook::engine::settings::BuildOptions;
use crate::runtime::DEFAULT_PATH;
use crate::sys::confine::{ConfinedIds, Confinement};
use crate::sys::fs::PathContext as _;
use crate::sys::lock::FileLock;
use crate::sys::privilege::Privilege;
use crate::sys::spawn;

/// Where buildah sees its own directory, that of the Dockerfile, and its configuration.
const STORAGE: &str = "/tmp/storage";
const CONTEXT: &str = "/tmp/context";
const HOME: &str = "/tmp/home";

/// buildah and the directories of the host that it gets.
pub(super) struct Buildah<'a> {
    pub(super) program: PathBuf,
    /// Whose it is on the host.
    pub(super) ids: ConfinedIds,
    pub(super) privilege: Privilege,
    /// Who knows names for what a Dockerfile runs, if not those of the host's own file.
    pub(super) resolvers: Vec<String>,
    pub(super) options: &'a BuildOptions,
    pub(super) storage: &'a Path,
    pub(super) temporary: &'a Path,
    pub(super) context: &'a Path,
    pub(super) home: &'a Path,
    /// Held by every process of it: killed with us it may still write for a moment.
    pub(super) lock: &'a FileLock,
}

impl Buildah<'_> {
    /// Builds a Dockerfile in the context.
    pub(super) fn build(&self, tag: &str, file_name: &OsStr) -> Result<(), BuildError> {
        let context = Path::new(CONTEXT);
        let file = context.join(file_name);
        let options = ["--isolation", "chroot", "--format", "docker", "--layers", "--tag", tag];
        let mut arguments: Vec<&OsStr> = vec!["bud".as_ref()];
        arguments.extend(options.map(OsStr::new));
        if self.privilege.has_own_network() {
            // They have been pulled, and here registries are not reached as they were.
            arguments.push("--pull=false".as_ref());
        }
        for resolver in &self.resolvers {
            arguments.extend(["--dns".as_ref(), OsStr::new(resolver)]);
        }
        arguments.extend(["--file".as_ref(), file.as_os_str(), context.as_os_str()]);
        self.run("build", &arguments, Stdio::null())
    }

    /// Writes an image to a directory beside its storage, as an OCI layout.
    pub(super) fn push(&self, tag: &str, directory: &str) -> Result<(), BuildError> {
        let target = format!("oci:{STORAGE}/{directory}");
        let arguments = ["push", "--quiet", "--disable-compression", tag, &target];
        self.run("push", &arguments.map(OsStr::new), Stdio::null())
    }

    /// Runs a command of buildah to its end.
    pub(super) fn run(
        &self,
        action: &'static str,
        arguments: &[&OsStr],
        input: Stdio,
    ) -> Result<(), BuildError> {
        let (storage, home) = (Path::new(STORAGE), Path::new(HOME));
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(storage.join("root")).arg("--runroot").arg(storage.join("run"));
        command.arg("--registries-conf").arg(home.join(CONFIGURATION));
        command.arg("--registries-conf-dir").arg(home.join(NO_MORE));
        command.args(storage_options(self.privilege));
        command.args(&self.options.options).args(arguments);
        command.env_clear().env("PATH", DEFAULT_PATH).env("HOME", home);
        if self.privilege != Privilege::Root {
            // It is in the namespaces that it needs: it must not look for ranges of a user to make others.
            command.env("_CONTAINERS_USERNS_CONFIGURED", "1").env("STORAGE_DRIVER", "overlay");
        }
        command.envs(self.options.env.iter().map(|(name, value)| (name, value)));
        command.current_dir("/").stdin(input);
        // What a Dockerfile asks for may be the host's root directory (CVE-2024-1753), and its steps
        // have few walls around them: with this they are nobody's on the host.
        let program = &self.program;
        let mut confinement =
            Confinement::new(self.ids).at("make a user namespace for", program)?;
        confinement.give(self.storage, STORAGE)?;
        confinement.give(self.temporary, "/var/tmp")?;
        confinement.give(self.home, HOME)?;
        confinement.show(self.context, CONTEXT)?;
        spawn::pass_descriptor(&mut command, self.lock.descriptor().at("lock", self.storage)?);
        let status = confinement.run(&mut command).at("execute", program)?;
        if status.success() { Ok(()) } else { Err(BuildError::Failed { action, status }) }
    }
}

/// Returns what buildah has to know of the owners of files.
fn storage_options(privilege: Privilege) -> &'static [&'static str] {
    match privilege {
        // There is one: files of an image that belong to others are its own.
        Privilege::Single => &["--storage-opt", "overlay.ignore_chown_errors=true"],
        Privilege::Root | Privilege::Mapped(_) => &[],
    }
}
