//! Mount sources: files of the host and volumes, with the owners that the container sees.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use oci_hooks_host::detached::{DetachedMount, MountAttributes, MountDepth, cannot_map_owners};
use oci_hooks_host::file_user::FileUser;
use oci_hooks_host::host_file::HostFile;
use oci_hooks_host::netns;
use oci_hooks_host::userns::{NamespaceMapping, OwnerIds, PrivateIds};
use rustix::fs::{StatVfsMountFlags, fstatvfs};

use super::BundleError;
use super::devices::DeviceNode;
use super::options::{IdMapping, MountPropagation, MountRequest, MountSource};
use super::volume;
use super::volume::MountContext;

/// A mount source, checked and open.
#[derive(Debug)]
pub enum PreparedSource {
    File(FileSource),
    /// A tmpfs, with its options.
    Memory {
        words: Vec<String>,
        maker: Option<FileUser>,
    },
    /// A program of the engine on a `noexec` file system, which is copied to the container's stage
    /// (module `stage`).
    Program(HostFile),
    /// A device node, which is created with this owner on the container's stage (module `stage`).
    Node {
        node: DeviceNode,
        owner: OwnerIds,
    },
}

/// A file or directory, and its mount options.
#[derive(Debug)]
pub struct FileSource {
    file: HostFile,
    target: PathBuf,
    depth: MountDepth,
    read_only: bool,
    no_suid: bool,
    no_dev: bool,
    propagation: MountPropagation,
    /// Mapping of the owners of the source's files; `None` to mount it without id mapping.
    owners: Option<OwnerMapping>,
    without_mapping: WithoutMapping,
    /// User with whose permissions mount points are created in the source; `None` for this process's own.
    maker: Option<FileUser>,
}

/// Handling of a mount whose file system cannot map owners.
#[derive(Clone, Copy, Debug)]
enum WithoutMapping {
    /// The mount is made without id mapping.
    Mounted,
    /// The mount is rejected: the container could read or create files of other users.
    Rejected {
        /// Set if a read-only mount would be allowed.
        can_be_read: bool,
    },
}

/// Mapping of the owners of files on disk to owners in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerMapping {
    Mapped(IdMapping),
    /// Ids in the container equal ids on disk.
    Same,
}

impl PreparedSource {
    /// Returns the source of a requested mount.
    pub(super) fn of_mount(
        container: MountContext<'_>,
        mount: &MountRequest,
        target: &Path,
    ) -> Result<Self, BundleError> {
        let private = MountPropagation::Private;
        let has_users = container.options.user_namespace.is_some();
        let same = has_users.then_some(OwnerMapping::Same);
        let (file, propagation, recursive, owners) = match &mount.source {
            MountSource::Bind { file, propagation, recursive } => {
                (file.clone(), *propagation, *recursive, same)
            }
            MountSource::Trusted { path, propagation, recursive } => {
                (open_trusted(path)?, *propagation, *recursive, same)
            }
            MountSource::System { file } => (file.clone(), private, false, None),
            MountSource::Volume { path, copy, is_shared } => {
                let fill = copy.then_some(target);
                let (file, mapping) = volume::open(container, path, fill, *is_shared)?;
                (file, private, false, mapping.map(OwnerMapping::Mapped))
            }
            MountSource::Tmpfs(_) => unreachable!("memory is nothing of the host"),
        };
        let file = match &mount.subpath {
            None => file,
            Some(path) => {
                let owner = match mount.id_mapping {
                    Some(IdMapping::User { host_uid, host_gid, .. }) => (host_uid, host_gid),
                    _ => file.owner(),
                };
                file.open_within(path, owner)?
            }
        };
        let is_device = file.kind().is_char_device() || file.kind().is_block_device();
        let is_system = matches!(mount.source, MountSource::System { .. });
        let is_host_root = container.options.security.privileged && container.user.uid == 0;
        let may_be_unmapped = if has_users { mount.read_only } else { is_host_root };
        let without_mapping = match mount.id_mapping {
            Some(IdMapping::User { is_required, .. }) if is_required || !may_be_unmapped => {
                WithoutMapping::Rejected { can_be_read: has_users && !is_required }
            }
            _ => WithoutMapping::Mounted,
        };
        Ok(PreparedSource::File(FileSource {
            target: mount.target.clone(),
            depth: if recursive { MountDepth::Recursive } else { MountDepth::Single },
            read_only: mount.read_only || is_system,
            no_suid: !matches!(mount.source, MountSource::Volume { .. }),
            no_dev: !is_device && !file.has_name(Path::new("/dev")),
            propagation,
            owners: mount.id_mapping.filter(|_| !is_system).map(OwnerMapping::Mapped).or(owners),
            without_mapping,
            maker: maker(container, mount.id_mapping)?,
            file,
        }))
    }

    /// Returns the source of a program of the engine, read-only for containers. A program on a `noexec` file
    /// system, as some homes are, is copied.
    pub(super) fn of_program(file: HostFile, target: &Path) -> Result<Self, BundleError> {
        let stat = fstatvfs(&file).map_err(|error| file.error("inspect", error))?;
        if stat.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Ok(PreparedSource::Program(file));
        }
        Ok(PreparedSource::of_file(file, target, true))
    }

    /// Returns the source of a file of the engine.
    pub(super) fn of_file(file: HostFile, target: &Path, read_only: bool) -> Self {
        PreparedSource::File(FileSource {
            file,
            target: target.to_owned(),
            depth: MountDepth::Recursive,
            read_only,
            no_suid: true,
            no_dev: true,
            propagation: MountPropagation::Private,
            owners: None,
            without_mapping: WithoutMapping::Mounted,
            maker: None,
        })
    }

    /// Returns the source of a device: the host's device file if the engine cannot create devices.
    pub(super) fn of_node(
        container: MountContext<'_>,
        node: &DeviceNode,
    ) -> Result<Self, BundleError> {
        let options = container.options;
        if !options.privilege.can_make_devices() {
            let host = node.host.clone();
            return Ok(PreparedSource::File(FileSource {
                file: host.expect("nodes that are not accessible on the host were removed"),
                target: node.path.clone(),
                depth: MountDepth::Single,
                read_only: false,
                no_suid: true,
                no_dev: false,
                propagation: MountPropagation::Private,
                owners: None,
                without_mapping: WithoutMapping::Mounted,
                maker: None,
            }));
        }
        // Ids outside the container's range become root, which has full access to the device anyway.
        let id = |id| options.host_id(id).or_else(|_| options.host_id(0));
        Ok(PreparedSource::Node { node: node.clone(), owner: (id(node.uid)?, id(node.gid)?) })
    }

    /// Returns the source of a tmpfs whose `uid` and `gid` options are ids of the container.
    pub(super) fn of_memory(
        container: MountContext<'_>,
        mut words: Vec<String>,
    ) -> Result<Self, BundleError> {
        for key in ["uid", "gid"] {
            let given = words.iter().position(|word| word.split('=').next() == Some(key));
            let id = given.map(|at| words.swap_remove(at));
            let id = id.and_then(|word| word.split_once('=')?.1.parse().ok()).unwrap_or(0);
            words.push(format!("{key}={}", container.options.host_id(id)?));
        }
        Ok(PreparedSource::Memory { words, maker: maker(container, None)? })
    }

    /// Returns the mount options for the configuration. The mount has all of them already; a runtime that did
    /// not get them would try to clear some, which a user namespace does not permit.
    pub(super) fn mount_options(&self) -> Result<Vec<&'static str>, BundleError> {
        let source = match self {
            PreparedSource::File(source) => source,
            PreparedSource::Program(_) => {
                return Ok(vec!["bind", "rprivate", "ro", "nosuid", "nodev"]);
            }
            PreparedSource::Memory { .. } | PreparedSource::Node { .. } => {
                return Ok(vec!["bind", "rprivate", "rw"]);
            }
        };
        let file = &source.file;
        let flags = fstatvfs(file).map_err(|error| file.error("inspect", error))?.f_flag;
        let has = |flag| flags.contains(flag);
        let is_read_only = source.read_only || has(StatVfsMountFlags::RDONLY);
        let mut words = vec!["rbind", source.propagation()];
        words.push(if is_read_only { "ro" } else { "rw" });
        for (is_set, word) in [
            (source.no_suid || has(StatVfsMountFlags::NOSUID), "nosuid"),
            (source.no_dev || has(StatVfsMountFlags::NODEV), "nodev"),
            (has(StatVfsMountFlags::NOEXEC), "noexec"),
        ] {
            words.extend(is_set.then_some(word));
        }
        Ok(words)
    }

    /// Returns the `linux.rootfsPropagation` that the mount requires, if any.
    pub(super) fn root_propagation(&self) -> Option<&'static str> {
        match self {
            PreparedSource::File(source) if source.propagation != MountPropagation::Private => {
                Some(source.propagation())
            }
            _ => None,
        }
    }

    /// Returns the user with whose permissions mount points are created in the source.
    pub(super) fn maker(&self) -> Option<&FileUser> {
        match self {
            PreparedSource::File(FileSource { maker, .. })
            | PreparedSource::Memory { maker, .. } => maker.as_ref(),
            PreparedSource::Node { .. } | PreparedSource::Program(_) => None,
        }
    }
}

impl FileSource {
    fn propagation(&self) -> &'static str {
        match self.propagation {
            MountPropagation::Private => "rprivate",
            MountPropagation::Slave => "rslave",
            MountPropagation::Shared => "rshared",
        }
    }
}

/// Returns the user with whose permissions mount points are created: with an id mapping of one
/// user, that user, by default the container's; otherwise root of the container. `None`, for this
/// process's own, if there is neither an id mapping nor a user namespace.
fn maker(
    container: MountContext<'_>,
    id_mapping: Option<IdMapping>,
) -> Result<Option<FileUser>, BundleError> {
    let options = container.options;
    let own = (container.user.uid, container.user.gid);
    let (uid, gid) = match id_mapping {
        Some(IdMapping::User { user, .. }) => user.unwrap_or(own),
        None if options.user_namespace.is_none() => return Ok(None),
        Some(IdMapping::Stored) | None => (0, 0),
    };
    let (uid, gid) = (options.host_id(uid)?, options.host_id(gid)?);
    Ok(Some(FileUser { uid, gid }))
}

fn open_trusted(path: &Path) -> Result<HostFile, BundleError> {
    if !path.is_absolute() {
        return Err(BundleError::RelativeSource { path: path.to_owned() });
    }
    match HostFile::open_trusted(path) {
        Err(error) if error.source.kind() == io::ErrorKind::NotFound => {
            Err(BundleError::NoSource { path: path.to_owned() })
        }
        opened => Ok(opened?),
    }
}

/// Ids of a container, for its mounts.
#[derive(Clone, Copy, Debug)]
pub struct ContainerIds<'a> {
    pub user: OwnerIds,
    pub private: PrivateIds,
    /// Pinned user namespace, which maps the container's ids to the private ids on the host.
    pub namespace: Option<&'a Path>,
}

impl ContainerIds<'_> {
    /// Returns the host ids of root in the container.
    pub fn root(&self) -> OwnerIds {
        self.namespace.map_or((0, 0), |_| (self.private.first, self.private.first))
    }
}

/// Creates the mounts of one container.
pub struct DetachedMounts<'a> {
    ids: ContainerIds<'a>,
    /// User namespaces created so far, by mapping.
    namespaces: Vec<(OwnerMapping, OwnedFd)>,
    pub warnings: Vec<String>,
}

impl<'a> DetachedMounts<'a> {
    pub(super) fn new(ids: ContainerIds<'a>) -> Self {
        DetachedMounts { ids, namespaces: Vec::new(), warnings: Vec::new() }
    }

    /// Creates the mount of a file or directory of the host.
    pub fn mount_file(&mut self, source: &FileSource) -> Result<DetachedMount, BundleError> {
        let tree = DetachedMount::copy_of(&source.file, source.depth)?;
        let attributes = MountAttributes {
            read_only: source.read_only,
            no_suid: source.no_suid,
            no_dev: source.no_dev,
            is_slave: source.propagation == MountPropagation::Slave,
            is_shared: source.propagation == MountPropagation::Shared,
            ..MountAttributes::default()
        };
        let Some(wanted) = source.owners else {
            tree.set(&attributes)?;
            return Ok(tree);
        };
        let at = self.namespace(wanted, &source.file)?;
        let owners = Some(self.namespaces[at].1.as_fd());
        let reason = match tree.set(&MountAttributes { owners, ..attributes }) {
            Err(error) if cannot_map_owners(&error) => error.source,
            set => {
                set?;
                return Ok(tree);
            }
        };
        if let WithoutMapping::Rejected { can_be_read } = source.without_mapping {
            let (name, path) = (source.file.display().to_string(), source.target.clone());
            return Err(BundleError::NoIdMapping { name, path, can_be_read, reason });
        }
        // In a user namespace, unmapped files belong to the overflow user: the container can do less with
        // them, not more.
        tree.set(&attributes)?;
        let target = source.target.display();
        let found = match self.ids.namespace {
            _ if source.file.kind().is_char_device() => None,
            Some(_) => Some(format!("files in {target} belong to nobody in the container")),
            None if source.read_only => None,
            None => Some(format!("files that the container makes in {target} belong to root")),
        };
        self.warnings.extend(
            found.map(|found| format!("{found}: their file system cannot map owners ({reason})")),
        );
        Ok(tree)
    }

    fn namespace(&mut self, owners: OwnerMapping, file: &HostFile) -> Result<usize, BundleError> {
        if let Some(at) = self.namespaces.iter().position(|(known, _)| *known == owners) {
            return Ok(at);
        }
        let ContainerIds { user, private, namespace } = self.ids;
        let made = |mapping: NamespaceMapping| {
            let made = mapping.namespace();
            made.map_err(|error| file.error("map the owners of files in", error))
        };
        let namespace = match (owners, namespace) {
            (OwnerMapping::Same, Some(pin)) => netns::open(pin)?,
            (OwnerMapping::Same, None) => made(NamespaceMapping::shifted(private))?,
            (OwnerMapping::Mapped(IdMapping::Stored), Some(_)) => {
                made(NamespaceMapping::stored(private))?
            }
            (OwnerMapping::Mapped(IdMapping::Stored), None) => {
                made(NamespaceMapping::stored_for_host())?
            }
            (OwnerMapping::Mapped(IdMapping::User { host_uid, host_gid, user: given, .. }), _) => {
                let base = if namespace.is_some() { private.first } else { 0 };
                let user = given.unwrap_or(user);
                made(NamespaceMapping::owned_by((host_uid, host_gid), user, base, private))?
            }
        };
        self.namespaces.push((owners, namespace));
        Ok(self.namespaces.len() - 1)
    }
}
