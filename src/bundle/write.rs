//! Writing a bundle.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};

use super::config::{Parts, checked_cwd, config};
use super::devices::{self, devices};
use super::hooks::inject;
use super::mounts::{self, is_in_proc, is_mounted, text};
use super::options::Options;
use super::rootfs_dir::{Owner, RootfsDir};
use super::sources::ContainerIds;
use super::user::{self, User};
use super::volume::MountContext;
use super::{BundleError, files};
use crate::hooks::Problem;
use crate::hooks::pipeline::Report;
use crate::image::ImageConfig;
use crate::sys::fs::PathContext;
use crate::sys::mount::MountNamespace;

/// A bundle that was written.
#[derive(Debug)]
#[non_exhaustive]
pub struct Bundle {
    pub dir: PathBuf,
    /// The text of its config.json, with the hooks that were injected.
    pub config: Vec<u8>,
    /// Who the container runs as.
    pub user: User,
    /// The signal that asks the container to end, if the image names one.
    pub stop_signal: Option<String>,
    /// The hook files whose hooks it got.
    pub hooks: Vec<PathBuf>,
    /// Hook files that could not be used.
    pub problems: Vec<Problem>,
    /// The lines that `precreate` hooks wrote to stderr, each prefixed with its program.
    pub hook_stderr: Vec<String>,
    /// What is not as it was asked for.
    pub warnings: Vec<String>,
    /// Where the runtime finds the root file system and what is mounted into it: `create` and `run`
    /// are for a process in it. `createRuntime` hooks run there too.
    pub mounts: MountNamespace,
}

/// Where file systems are mounted that the image's own files must not redirect.
const MOUNT_POINTS: [&str; 3] = ["proc", "sys", "dev"];

/// Writes the bundle of a container into a directory, which is made if it is missing.
///
/// The root file system is written to as well: it gets its working directory. Nothing is mounted
/// where others see it; on an error what was written is of no use.
pub fn write(
    image: &ImageConfig,
    rootfs: &Path,
    options: &Options,
    dir: &Path,
) -> Result<Bundle, BundleError> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.at("create", dir)?,
    }
    let inside = RootfsDir::open(rootfs)?;
    for path in MOUNT_POINTS {
        if !inside.is_free_or_directory(path)? {
            return Err(BundleError::NotADirectory { path });
        }
        // The runtime would make it, and until then a link to it would seem to lead nowhere.
        let root = options.host_id(0)?;
        inside.create_directories(&Path::new("/").join(path), Owner { uid: root, gid: root })?;
    }
    let words = options.user.as_deref().unwrap_or(&image.user);
    let user = user::resolve(&inside, words, &options.supplementary_groups)?;
    let user = user.within(options.privilege, &options.supplementary_groups)?;
    let cwd = working_directory(image, options, &inside, &user)?;

    let mut warnings = write_files(options, dir)?;
    // Root of a user namespace would have all that root of the host has by the host's devices.
    let has_all = options.security.privileged && options.user_namespace.is_none();
    let mut devices = devices(&options.devices, &options.device_rules, has_all)?;
    // Nobody can make devices in a user namespace; there they are mounted.
    let privilege = options.privilege;
    let nodes = if options.user_namespace.is_some() || !privilege.can_make_devices() {
        std::mem::take(&mut devices.nodes)
    } else {
        Vec::new()
    };
    let nodes = if privilege.can_make_devices() {
        nodes
    } else {
        devices::accessible(nodes, options.security.privileged)?
    };
    let (inside, user) = (&inside, &user);
    let container = MountContext { image, options, inside, user, rootfs, dir, nodes: &nodes };
    let mounts = mounts::prepare(container)?;
    if options.user_namespace.is_some() {
        mounts.stage.check_reachable()?;
    }
    let config = config(&Parts {
        image,
        options,
        rootfs: text(rootfs)?,
        user,
        cwd: text(&cwd)?,
        mounts: &mounts,
        devices: &devices,
    })?;

    let mut config = serde_json::to_vec(&config).map_err(BundleError::Configuration)?;
    let mut report = Report::default();
    if let Some(hooks) = &options.hooks {
        let injected = inject(&config, hooks, &options.mounts, dir)?;
        (config, report) = (injected.config, injected.report);
    }
    let path = dir.join("config.json");
    let mut file = OpenOptions::new();
    // The environment of a job is in it.
    let file = file.write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(&config)).at("write", &path)?;
    let (mounts, of_mounts) = mounts.stage.make(ContainerIds {
        user: (user.uid, user.gid),
        private: options.private_ids,
        namespace: options.user_namespace.as_deref(),
    })?;
    warnings.extend(of_mounts);
    Ok(Bundle {
        dir: dir.to_owned(),
        mounts,
        config,
        user: user.clone(),
        stop_signal: image.stop_signal.clone(),
        hook_stderr: report.precreate_lines(),
        hooks: report.hooks.into_iter().map(|hook| hook.file).collect(),
        problems: report.problems,
        warnings,
    })
}

/// Makes the working directory, unless that is for something mounted to have, and returns it.
fn working_directory(
    image: &ImageConfig,
    options: &Options,
    inside: &RootfsDir,
    user: &User,
) -> Result<PathBuf, BundleError> {
    let default = if image.working_dir.is_empty() { "/" } else { &image.working_dir };
    let cwd = options.cwd.as_deref().unwrap_or(Path::new(default));
    let path = checked_cwd(cwd)?;
    if is_mounted(options, &path) {
        return Ok(path);
    }
    let owner = Owner { uid: options.host_id(user.uid)?, gid: options.host_id(user.gid)? };
    let real = inside.create_directories(&path, owner)?;
    if is_in_proc(&real) {
        return Err(BundleError::CwdInProc { path: cwd.to_owned() });
    }
    Ok(path)
}

/// Writes the files that are mounted in the container's /etc, and returns warnings.
fn write_files(options: &Options, dir: &Path) -> Result<Vec<String>, BundleError> {
    let mut warnings = Vec::new();
    let root = options.host_id(0)?;
    // Root of the container may change them.
    let give = |path: &Path| match options.user_namespace {
        Some(_) => chown(path, Some(root), Some(root)).at("set the owner of", path),
        None => Ok(()),
    };
    if let Some(hosts) = &options.hosts {
        files::write_hosts(dir, hosts)?;
        give(&dir.join(files::HOSTS))?;
    }
    if let Some(dns) = &options.dns {
        let (text, warning) = files::resolv_conf(dns)?;
        files::write(&dir.join(files::RESOLV_CONF), &text)?;
        give(&dir.join(files::RESOLV_CONF))?;
        warnings.extend(warning);
    }
    if let Some(hostname) = &options.hostname {
        files::write(&dir.join(files::HOSTNAME), &format!("{hostname}\n"))?;
        give(&dir.join(files::HOSTNAME))?;
    }
    Ok(warnings)
}
