//! What mounts show: files of the host and volumes, with the owners that the container is to see.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, fstatvfs};

use super::BundleError;
use super::devices::Node;
use super::options::{IdMapping, Mount, MountSource, Propagation};
use super::volume;
use super::volume::MountContext;
use crate::sys::caller::FileUser;
use crate::sys::detached::{Attributes, Depth, Detached, cannot_map_owners};
use crate::sys::host_file::HostFile;
use crate::sys::netns;
use crate::sys::userns::{Ids, Mapping, PrivateIds};

/// What is mounted, checked and open.
#[derive(Debug)]
pub enum Source {
    File(FileSource),
    /// Memory, with options of a tmpfs.
    Memory {
        words: Vec<String>,
        maker: Option<FileUser>,
    },
    /// A program of the engine's own that is where nothing can be executed: it is copied to the stage.
    Program(HostFile),
    /// A device, made on the stage with this owner.
    Node {
        node: Node,
        owner: Ids,
    },
}

/// A file or directory, and how it is mounted.
#[derive(Debug)]
pub struct FileSource {
    file: HostFile,
    target: PathBuf,
    depth: Depth,
    read_only: bool,
    no_suid: bool,
    no_dev: bool,
    propagation: Propagation,
    /// How owners are mapped, if they are.
    owners: Option<Owners>,
    /// With whose access places to mount on are made in it; this process's own if nobody's.
    maker: Option<FileUser>,
}

/// How the owners of files on disk are seen in the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owners {
    /// Those of one user as those of the container's user.
    Of(IdMapping),
    /// By the same numbers.
    Same,
}

impl Source {
    /// Returns the source of a mount that was asked for.
    pub(super) fn of_mount(
        container: MountContext<'_>,
        mount: &Mount,
        target: &Path,
    ) -> Result<Self, BundleError> {
        let (file, propagation, recursive, is_volume) = match &mount.source {
            MountSource::Bind { file, propagation, recursive } => {
                (file.clone(), *propagation, *recursive, false)
            }
            MountSource::Trusted { path, propagation, recursive } => {
                (trusted(path)?, *propagation, *recursive, false)
            }
            MountSource::System { file } => (file.clone(), Propagation::Private, false, false),
            MountSource::Volume { path, copy, is_shared } => {
                let file = volume::open(container, path, copy.then_some(target), *is_shared)?;
                (file, Propagation::Private, false, true)
            }
            MountSource::Tmpfs(_) => unreachable!("memory is nothing of the host"),
        };
        let file = match &mount.subpath {
            None => file,
            Some(path) => {
                let owner = mount.id_mapping.map_or(file.owner(), |o| (o.host_uid, o.host_gid));
                file.within(path, owner)?
            }
        };
        let is_device = file.kind().is_char_device() || file.kind().is_block_device();
        let has_users = container.options.user_namespace.is_some();
        let is_system = matches!(mount.source, MountSource::System { .. });
        Ok(Source::File(FileSource {
            target: mount.target.clone(),
            depth: if recursive { Depth::Recursive } else { Depth::Single },
            read_only: mount.read_only || is_system,
            no_suid: !is_volume,
            no_dev: !is_device && !file.has_name(Path::new("/dev")),
            propagation,
            owners: match mount.id_mapping {
                _ if is_system => None,
                Some(id_mapping) => Some(Owners::Of(id_mapping)),
                None => has_users.then_some(Owners::Same),
            },
            maker: maker(container, mount.id_mapping)?,
            file,
        }))
    }

    /// Returns the source of a program of the engine's own, which containers cannot write to. Nothing of a
    /// store can be executed that is mounted `noexec`, as some homes are.
    pub(super) fn of_program(file: HostFile, target: &Path) -> Result<Self, BundleError> {
        let stat = fstatvfs(&file).map_err(|error| file.error("look at", error))?;
        if stat.f_flag.contains(StatVfsMountFlags::NOEXEC) {
            return Ok(Source::Program(file));
        }
        Ok(Source::of_file(file, target, true))
    }

    /// Returns the source of a file of the engine's own.
    pub(super) fn of_file(file: HostFile, target: &Path, read_only: bool) -> Self {
        Source::File(FileSource {
            file,
            target: target.to_owned(),
            depth: Depth::Recursive,
            read_only,
            no_suid: true,
            no_dev: true,
            propagation: Propagation::Private,
            owners: None,
            maker: None,
        })
    }

    /// Returns the source of a device: the host's own where none can be made.
    pub(super) fn of_node(container: MountContext<'_>, node: &Node) -> Result<Self, BundleError> {
        let options = container.options;
        if !options.privilege.can_make_devices() {
            return Ok(Source::File(FileSource {
                file: node.host.clone(),
                target: node.path.clone(),
                depth: Depth::Single,
                read_only: false,
                no_suid: true,
                no_dev: false,
                propagation: Propagation::Private,
                owners: None,
                maker: None,
            }));
        }
        // Whom the container does not have cannot be said there; root can do all the same with it.
        let id = |id| options.host_id(id).or_else(|_| options.host_id(0));
        Ok(Source::Node { node: node.clone(), owner: (id(node.uid)?, id(node.gid)?) })
    }

    /// Returns the source of memory with options in the words of the container.
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
        Ok(Source::Memory { words, maker: maker(container, None)? })
    }

    /// Returns the options of the configuration's entry. All of them are in force already; a runtime
    /// that were not told would try to drop some, which nobody may in a user namespace.
    pub(super) fn words(&self) -> Result<Vec<&'static str>, BundleError> {
        let source = match self {
            Source::File(source) => source,
            Source::Program(_) => return Ok(vec!["bind", "rprivate", "ro", "nosuid", "nodev"]),
            Source::Memory { .. } | Source::Node { .. } => {
                return Ok(vec!["bind", "rprivate", "rw"]);
            }
        };
        let file = &source.file;
        let flags = fstatvfs(file).map_err(|error| file.error("look at", error))?.f_flag;
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

    /// Returns what `linux.rootfsPropagation` has to be for it; none if it makes no difference.
    pub(super) fn root_propagation(&self) -> Option<&'static str> {
        match self {
            Source::File(source) if source.propagation != Propagation::Private => {
                Some(source.propagation())
            }
            _ => None,
        }
    }

    /// Returns with whose access places to mount on are made in it.
    pub(super) fn maker(&self) -> Option<&FileUser> {
        match self {
            Source::File(FileSource { maker, .. }) | Source::Memory { maker, .. } => maker.as_ref(),
            Source::Node { .. } | Source::Program(_) => None,
        }
    }
}

impl FileSource {
    fn propagation(&self) -> &'static str {
        match self.propagation {
            Propagation::Private => "rprivate",
            Propagation::Slave => "rslave",
            Propagation::Shared => "rshared",
        }
    }
}

/// Returns with whose access places to mount on are made: the user of the container where all is theirs,
/// else root of the container.
fn maker(
    container: MountContext<'_>,
    id_mapping: Option<IdMapping>,
) -> Result<Option<FileUser>, BundleError> {
    let options = container.options;
    if id_mapping.is_none() && options.user_namespace.is_none() {
        return Ok(None);
    }
    let own = (container.user.uid, container.user.gid);
    let (uid, gid) = id_mapping.map_or((0, 0), |owner| owner.user.unwrap_or(own));
    let (uid, gid) = (options.host_id(uid)?, options.host_id(gid)?);
    Ok(Some(FileUser { uid, gid }))
}

fn trusted(path: &Path) -> Result<HostFile, BundleError> {
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

/// The ids of a container, by which its mounts are made.
#[derive(Clone, Copy, Debug)]
pub struct ContainerIds<'a> {
    /// Its user and that one's first group.
    pub user: Ids,
    pub private: PrivateIds,
    /// Its pinned user namespace, in which its ids are the private ones on the host.
    pub namespace: Option<&'a Path>,
}

impl ContainerIds<'_> {
    /// Returns the host's ids of root in the container.
    pub fn root(&self) -> Ids {
        self.namespace.map_or((0, 0), |_| (self.private.first, self.private.first))
    }
}

/// Makes the mounts of one container.
pub struct Trees<'a> {
    ids: ContainerIds<'a>,
    /// User namespaces of mappings that came up.
    namespaces: Vec<(Owners, OwnedFd)>,
    pub warnings: Vec<String>,
}

impl<'a> Trees<'a> {
    pub(super) fn new(ids: ContainerIds<'a>) -> Self {
        Trees { ids, namespaces: Vec::new(), warnings: Vec::new() }
    }

    /// Makes the mount of something of the host.
    pub fn of_file(&mut self, source: &FileSource) -> Result<Detached, BundleError> {
        let tree = Detached::copy_of(&source.file, source.depth)?;
        let attributes = Attributes {
            read_only: source.read_only,
            no_suid: source.no_suid,
            no_dev: source.no_dev,
            is_slave: source.propagation == Propagation::Slave,
            is_shared: source.propagation == Propagation::Shared,
            ..Attributes::default()
        };
        let Some(wanted) = source.owners else {
            tree.set(&attributes)?;
            return Ok(tree);
        };
        let at = self.namespace(wanted, &source.file)?;
        let owners = Some(self.namespaces[at].1.as_fd());
        let reason = match tree.set(&Attributes { owners, ..attributes }) {
            Err(error) if cannot_map_owners(&error) => error.source,
            set => {
                set?;
                return Ok(tree);
            }
        };
        if wanted != Owners::Same {
            let (name, path) = (source.file.display().to_string(), source.target.clone());
            return Err(BundleError::NoIdMapping { name, path, reason });
        }
        // In a user namespace all there is nobody's: the container may do less with it, not more.
        tree.set(&attributes)?;
        if !source.file.kind().is_char_device() {
            self.warnings.push(format!(
                "files in {} belong to nobody in the container: their file system cannot map owners \
                 ({reason})",
                source.target.display()
            ));
        }
        Ok(tree)
    }

    fn namespace(&mut self, owners: Owners, file: &HostFile) -> Result<usize, BundleError> {
        if let Some(at) = self.namespaces.iter().position(|(known, _)| *known == owners) {
            return Ok(at);
        }
        let ContainerIds { user, private, namespace } = self.ids;
        let made = |mapping: Mapping| {
            let made = mapping.namespace();
            made.map_err(|error| file.error("map the owners of files in", error))
        };
        let namespace = match (owners, namespace) {
            (Owners::Same, Some(pin)) => netns::open(pin)?,
            (Owners::Same, None) => made(Mapping::shifted(private))?,
            (Owners::Of(owner), _) => {
                let base = if namespace.is_some() { private.first } else { 0 };
                let user = owner.user.unwrap_or(user);
                made(Mapping::owned_by((owner.host_uid, owner.host_gid), user, base, private))?
            }
        };
        self.namespaces.push((owners, namespace));
        Ok(self.namespaces.len() - 1)
    }
}
