//! Writes a bundle: `config.json`, the engine's files, and the mounts that the configuration names.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::mem;
use std::os::unix::fs::{OpenOptionsExt as _, chown};
use std::path::{Path, PathBuf};

use oci_hooks::hooks::LoadProblem;
use oci_hooks::hooks::pipeline::{MatchedHook, PipelineReport};
use oci_hooks_files::fs::{PathContext, create_if_missing};
use oci_hooks_host::mount::MountNamespace;
use oci_hooks_image::ImageConfig;

use super::cdi::CdiError;
use super::config::{ConfigInputs, checked_cwd, config};
use super::devices::{self, devices};
use super::hooks::inject;
use super::mounts::{self, is_in_proc, is_mounted, text};
use super::options::BundleOptions;
use super::rootfs_dir::{HostOwner, RootfsDir};
use super::sources::ContainerIds;
use super::user::{self, ContainerUser};
use super::volume::MountContext;
use super::{BundleError, files};

/// A bundle that was written.
#[derive(Debug)]
pub struct Bundle {
    pub dir: PathBuf,
    /// Contents of `config.json`, with the injected hooks.
    pub config: Vec<u8>,
    /// User that the container runs as.
    pub user: ContainerUser,
    /// Signal that asks the container to end, if the image names one.
    pub stop_signal: Option<String>,
    /// Hook files that match.
    pub hooks: Vec<MatchedHook>,
    /// Hook files that could not be used.
    pub problems: Vec<LoadProblem>,
    /// The lines that `precreate` hooks wrote to stderr, each prefixed with its program.
    pub hook_stderr: Vec<String>,
    pub warnings: Vec<String>,
    /// Mount namespace with the root file system and its mounts, for processes that call `create` or `run`.
    /// `createRuntime` hooks run there too.
    pub mounts: MountNamespace,
}

/// Mount points that files of the image must not redirect.
const MOUNT_POINTS: [&str; 3] = ["proc", "sys", "dev"];

/// Writes the bundle of a container into a directory, which is created if missing.
///
/// Also creates the working directory in the root file system. Mounts are made only in the returned
/// namespace; after an error, the written files are of no use.
pub fn write(
    image: &ImageConfig,
    rootfs: &Path,
    options: &BundleOptions,
    dir: &Path,
) -> Result<Bundle, BundleError> {
    create_if_missing(dir, 0o700)?;
    let inside = RootfsDir::open(rootfs)?;
    for path in MOUNT_POINTS {
        if !inside.is_free_or_directory(path)? {
            return Err(BundleError::NotADirectory { path });
        }
        // The runtime would create it, but until then a symlink to it would dangle.
        let root = options.host_id(0)?;
        inside
            .create_directories(&Path::new("/").join(path), HostOwner { uid: root, gid: root })?;
    }
    let words = options.user.as_deref().unwrap_or(&image.user);
    let user = user::resolve(&inside, words, &options.supplementary_groups)?;
    let user = user.limit_to_privilege(options.privilege, &options.supplementary_groups)?;
    let cwd = create_working_directory(image, options, &inside, &user)?;

    let mut warnings = write_files(options, dir)?;
    // In a user namespace, the host's devices would give the container root's access to the host.
    let has_all = options.security.privileged && options.user_namespace.is_none();
    let mut devices = devices(&options.devices, &options.device_rules, has_all)?;
    let mut cdi = options.cdi.clone();
    devices.add_cdi(&mem::take(&mut cdi.edits.device_nodes), &user)?;
    // Devices cannot be created in a user namespace; there they are mounted.
    let privilege = options.privilege;
    let nodes = if options.user_namespace.is_some() || !privilege.can_make_devices() {
        mem::take(&mut devices.nodes)
    } else {
        Vec::new()
    };
    let nodes = if privilege.can_make_devices() {
        nodes
    } else {
        devices::filter_accessible(nodes, options.security.privileged)?
    };
    // runc opens the file that it replaces, which fails for a mounted `/dev/tty` without a terminal.
    let nodes: Vec<_> = nodes.into_iter().filter(|node| !node.is_of_runtimes()).collect();
    let (inside, user) = (&inside, &user);
    let container = MountContext { image, options, inside, user, rootfs, dir, nodes: &nodes };
    let mounts = mounts::prepare(container)?;
    if options.user_namespace.is_some() {
        mounts.stage.check_reachable()?;
    }
    let config = config(&ConfigInputs {
        image,
        options,
        rootfs: text(rootfs)?,
        user,
        cwd: text(&cwd)?,
        mounts: &mounts,
        devices: &devices,
    })?;

    let mut config = serde_json::to_vec(&config).map_err(BundleError::Configuration)?;
    if !cdi.files.is_empty() {
        config = cdi.apply(&config).map_err(CdiError::from)?;
    }
    let mut report = PipelineReport::default();
    if let Some(hooks) = &options.hooks {
        let injected = inject(&config, hooks, &options.mounts, dir)?;
        (config, report) = (injected.config, injected.report);
    }
    let path = dir.join("config.json");
    let mut file = OpenOptions::new();
    // The file has the environment of a job.
    let file = file.write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(&config)).with_path("write", &path)?;
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
        hooks: report.hooks,
        problems: report.problems,
        warnings,
    })
}

/// Creates the working directory, unless it is in a mount, and returns it.
fn create_working_directory(
    image: &ImageConfig,
    options: &BundleOptions,
    inside: &RootfsDir,
    user: &ContainerUser,
) -> Result<PathBuf, BundleError> {
    let default = if image.working_dir.is_empty() { "/" } else { &image.working_dir };
    let cwd = options.cwd.as_deref().unwrap_or(Path::new(default));
    let path = checked_cwd(cwd)?;
    if is_mounted(options, &path) {
        return Ok(path);
    }
    let owner = HostOwner { uid: options.host_id(user.uid)?, gid: options.host_id(user.gid)? };
    let real = inside.create_directories(&path, owner)?;
    if is_in_proc(&real) {
        return Err(BundleError::CwdInProc { path: cwd.to_owned() });
    }
    Ok(path)
}

/// Writes the files to mount in the container's /etc, and returns warnings.
fn write_files(options: &BundleOptions, dir: &Path) -> Result<Vec<String>, BundleError> {
    let mut warnings = Vec::new();
    let root = options.host_id(0)?;
    // Root of the container may change the files.
    let give = |path: &Path| match options.user_namespace {
        Some(_) => chown(path, Some(root), Some(root)).with_path("set the owner of", path),
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
