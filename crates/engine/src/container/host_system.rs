//! The programs of this host as the root file system of a container, which then needs no image from a registry.
//!
//! `/usr`, `/bin`, `/sbin` and `/lib` are mounted, as [`MountSource::System`]; if they are symlinks into
//! `/usr`, the container has the symlinks. The rest is a layer: empty directories, and the files of `/etc`
//! with which programs are loaded and trust servers. The layer only has files that every user of the host may
//! read.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::find::DEFAULT_PATH;
use oci_hooks_files::fs::{PathContext as _, PathError, ReadError, read_bounded};
use oci_hooks_host::host_file::HostFile;
use oci_hooks_image::{
    Image, ImageConfig, ImageConfiguration, ImageReference, ImageStore, Platform, RootFs,
    StoreError,
};
use tar::{Builder, EntryType, Header};

use crate::bundle::{self, ContainerSecurity, MountRequest, MountSource};

/// Directories of programs and libraries, of any architecture. Other directories beginning with `lib` are not
/// part of a system.
const SYSTEM: [&str; 8] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"];

/// Files of `/etc` that the linker reads, that identify the system, that symlinks in `/usr/bin` lead through,
/// and by which programs trust servers.
const ETC: [&str; 10] = [
    "alternatives",
    "ca-certificates",
    "crypto-policies",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "os-release",
    "pki",
    "ssl/certs",
    "ssl/openssl.cnf",
];

/// Directories that every system has, with their modes.
const EMPTY: [(&str, u32); 7] = [
    ("root", 0o700),
    ("home", 0o755),
    ("run", 0o755),
    ("tmp", 0o1777),
    ("var", 0o755),
    ("var/tmp", 0o1777),
    ("etc", 0o755),
];

/// Files of `/etc` that do not reveal the host's users.
const FILES: [(&str, &str); 3] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
];

/// Overflow user and group, in all distributions.
const NOBODY: u32 = 65_534;

/// Mode bits of a file that every user may read.
const READABLE: u32 = 0o004;
/// Mode bits of a directory that every user may list and enter.
const SEARCHABLE: u32 = 0o005;

/// Size limit of a copied file, larger than any file of certificates.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Name of the image, which no registry has.
const NAME: &str = "localhost/host-system";

/// Errors of using this host as the root file system of a container.
#[derive(Debug, thiserror::Error)]
pub enum HostSystemError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot make an image of the programs of this machine")]
    Write(#[source] io::Error),
    #[error(
        "cannot run a container with the programs of this machine, which must be in /usr, /bin and /sbin: \
         its shell is {}", shell.display()
    )]
    Elsewhere { shell: PathBuf },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The programs of this host.
#[derive(Clone, Debug)]
pub struct HostSystem {
    directories: Vec<(PathBuf, HostFile)>,
    layer: Vec<u8>,
}

impl HostSystem {
    /// Finds the programs, and opens their directories.
    pub fn find() -> Result<Self, HostSystemError> {
        HostSystem::of(Path::new("/"))
    }

    fn of(root: &Path) -> Result<Self, HostSystemError> {
        let (mut directories, mut layer) = (Vec::new(), SystemLayer::new(root));
        for (name, mode) in EMPTY {
            layer.directory(name.as_ref(), mode)?;
        }
        for name in SYSTEM {
            let path = root.join(name);
            let found = fs::symlink_metadata(&path);
            if found.as_ref().is_ok_and(fs::Metadata::is_dir) {
                layer.directory(name.as_ref(), 0o755)?;
                directories.push((Path::new("/").join(name), HostFile::open_trusted(&path)?));
            } else if found.is_ok_and(|found| found.is_symlink()) {
                layer.add(name.as_ref())?;
            }
        }
        let shell = root.join("bin/sh");
        let shell = fs::canonicalize(&shell).with_path("look up", &shell)?;
        if !SYSTEM.iter().any(|name| shell.starts_with(root.join(name))) {
            return Err(HostSystemError::Elsewhere { shell });
        }
        for name in ETC {
            layer.add(&Path::new("etc").join(name))?;
        }
        for (name, text) in FILES {
            layer.file(name.as_ref(), 0o644, text.as_bytes())?;
        }
        Ok(HostSystem { directories, layer: layer.finish()? })
    }

    /// Returns the reference that names the image in messages. The store has no image of this name.
    pub fn reference() -> ImageReference {
        NAME.parse().expect("it is a name")
    }

    /// Adds the layer to a store, which keeps it as long as the image is used.
    pub fn image(&self, store: &ImageStore) -> Result<Image, HostSystemError> {
        let config =
            ImageConfig { env: vec![format!("PATH={DEFAULT_PATH}")], ..ImageConfig::default() };
        let (platform, rootfs) = (Platform::host(), RootFs { diff_ids: Vec::new() });
        let configuration = ImageConfiguration { platform, config, rootfs };
        Ok(store.create_unnamed_image(&HostSystem::reference(), &configuration, &self.layer)?)
    }

    /// Returns the mounts of the host's directories.
    pub fn mounts(&self) -> impl Iterator<Item = MountRequest> {
        self.directories.iter().map(|(target, file)| MountRequest {
            target: target.clone(),
            source: MountSource::System { file: file.clone() },
            subpath: None,
            read_only: true,
            id_mapping: None,
        })
    }

    /// Confines a container whose root is root of the host to files that every user may read: it gets another
    /// user, without capabilities.
    pub fn confine(options: &mut bundle::BundleOptions) {
        options.user = Some(format!("{NOBODY}:{NOBODY}"));
        options.supplementary_groups.clear();
        options.security = ContainerSecurity {
            no_new_privileges: true,
            cap_drop: vec!["ALL".to_owned()],
            ..ContainerSecurity::default()
        };
    }
}

/// A layer with files of a system, all owned by root.
struct SystemLayer<'a> {
    root: &'a Path,
    archive: Builder<Vec<u8>>,
}

impl<'a> SystemLayer<'a> {
    fn new(root: &'a Path) -> Self {
        SystemLayer { root, archive: Builder::new(Vec::new()) }
    }

    /// Adds a file, or a directory with its contents, if it exists and every user may read it.
    fn add(&mut self, name: &Path) -> Result<(), HostSystemError> {
        let path = self.root.join(name);
        let found = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found.with_path("inspect", &path)?,
        };
        let mode = found.permissions().mode();
        let may = |bits: u32| mode & bits == bits;
        if found.is_symlink() {
            let target = fs::read_link(&path).with_path("read", &path)?;
            let mut header = header(EntryType::Symlink, 0o777, 0);
            self.archive.append_link(&mut header, name, target).map_err(HostSystemError::Write)?;
        } else if found.is_dir() && may(SEARCHABLE) {
            self.directory(name, 0o755)?;
            let entries = fs::read_dir(&path).with_path("list", &path)?;
            let names = entries.map(|entry| Ok(entry.with_path("list", &path)?.file_name()));
            let mut names = names.collect::<Result<Vec<_>, PathError>>()?;
            // Equal files make equal layers.
            names.sort();
            for entry in names {
                self.add(&name.join(entry))?;
            }
        } else if found.is_file() && may(READABLE) {
            self.file(name, mode & 0o755, &read_bounded(&path, MAX_FILE_BYTES)?)?;
        }
        Ok(())
    }

    fn directory(&mut self, name: &Path, mode: u32) -> Result<(), HostSystemError> {
        let mut header = header(EntryType::Directory, mode, 0);
        let name = name.join("");
        self.archive.append_data(&mut header, name, io::empty()).map_err(HostSystemError::Write)
    }

    fn file(&mut self, name: &Path, mode: u32, content: &[u8]) -> Result<(), HostSystemError> {
        let mut header = header(EntryType::Regular, mode, content.len() as u64);
        self.archive.append_data(&mut header, name, content).map_err(HostSystemError::Write)
    }

    fn finish(self) -> Result<Vec<u8>, HostSystemError> {
        self.archive.into_inner().map_err(HostSystemError::Write)
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Returns a system whose programs are in `/usr`, with files of these modes.
    fn system(files: &[(&str, u32)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("usr/bin")).unwrap();
        fs::write(dir.path().join("usr/bin/sh"), "").unwrap();
        symlink("usr/bin", dir.path().join("bin")).unwrap();
        for (name, mode) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, name).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
        dir
    }

    /// Returns the names in a layer, with the targets of symlinks and the content of files.
    fn entries(system: &HostSystem) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(&*system.layer);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            let text = link.unwrap_or_else(|| io::read_to_string(&mut entry).unwrap());
            (name, text)
        });
        entries.collect()
    }

    #[test]
    fn layer_contains_only_world_readable_files() {
        let private = "etc/pki/private/key.pem";
        let dir = system(&[
            ("etc/ssl/certs/a.pem", 0o644),
            ("etc/ssl/certs/key.pem", 0o640),
            ("etc/ssl/private/key.pem", 0o644),
            ("etc/shadow", 0o644),
            (private, 0o644),
        ]);
        let closed = dir.path().join(private);
        let closed = closed.parent().unwrap();
        fs::set_permissions(closed, fs::Permissions::from_mode(0o710)).unwrap();
        symlink("/usr/bin/mawk", dir.path().join("etc/ssl/certs/link")).unwrap();
        let found = entries(&HostSystem::of(dir.path()).unwrap());
        assert_eq!(found["etc/ssl/certs/a.pem"], "etc/ssl/certs/a.pem");
        assert_eq!(found["etc/ssl/certs/link"], "/usr/bin/mawk");
        let leaked = ["key.pem", "shadow", "private"].map(|part| {
            found.keys().filter(|name| name.contains(part)).cloned().collect::<Vec<_>>()
        });
        assert_eq!(leaked, <[Vec<String>; 3]>::default());
    }

    #[test]
    fn directories_are_mounted_and_links_into_them_are_in_the_layer() {
        let dir = system(&[("lib64/ld.so", 0o755), ("library/secret", 0o644)]);
        let system = HostSystem::of(dir.path()).unwrap();
        let targets: Vec<_> = system.mounts().map(|mount| mount.target).collect();
        assert_eq!(targets, [Path::new("/usr"), Path::new("/lib64")]);
        assert_eq!(entries(&system)["bin"], "usr/bin");
        let same = HostSystem::of(dir.path()).unwrap();
        assert_eq!(same.layer, system.layer, "two jobs have one layer");
    }

    #[test]
    fn host_with_another_shell_path_is_rejected() {
        let dir = system(&[("nix/store/sh", 0o755)]);
        fs::remove_file(dir.path().join("usr/bin/sh")).unwrap();
        symlink(dir.path().join("nix/store/sh"), dir.path().join("usr/bin/sh")).unwrap();
        let error = HostSystem::of(dir.path()).unwrap_err();
        assert!(matches!(error, HostSystemError::Elsewhere { .. }), "{error}");
    }
}
