//! The programs of this host as the root file system of a container, which then needs no image of anybody.
//!
//! Its `/usr`, `/bin`, `/sbin` and `/lib` are mounted, as [`MountSource::System`]; where they are links into `/usr`, the
//! container has the links. A layer of an image has the rest: empty directories, and of `/etc` what programs need to be
//! loaded and to trust servers. Of that, too, only what every user of the host may read.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tar::{Builder, EntryType, Header};

use crate::bundle::{self, Mount, MountSource, Security};
use crate::image::{
    Configuration, Image, ImageConfig, Platform, Reference, RootFs, Store, StoreError,
};
use crate::runtime::DEFAULT_PATH;
use crate::sys::fs::{PathContext as _, PathError, ReadError, read_bounded};
use crate::sys::host_file::HostFile;

/// Directories of programs and libraries, of whatever architecture. Others that begin with `lib` are no part of a
/// system.
const SYSTEM: [&str; 8] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "libo32"];

/// What of `/etc` the linker reads, what tells which system it is, what links in `/usr/bin` lead through, and what
/// programs trust servers by.
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

/// Files of `/etc` that do not tell who the users of the host are.
const FILES: [(&str, &str); 3] = [
    (
        "etc/passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("etc/group", "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
];

/// Who is nobody, in all distributions.
const NOBODY: u32 = 65_534;

/// What everybody may do with a file that everybody may read, and with a directory that everybody may look into.
const READABLE: u32 = 0o004;
const SEARCHABLE: u32 = 0o005;

/// More than any file of certificates has.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The name of the image, which no registry has.
const NAME: &str = "localhost/host-system";

/// This host cannot be the root file system of a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostSystemError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write the layer of a system")]
    Write(#[source] io::Error),
    #[error(
        "the programs of this system are elsewhere than in /usr, /bin and /sbin: its shell is {}", shell.display()
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
    /// Finds them, and opens their directories.
    pub fn find() -> Result<Self, HostSystemError> {
        HostSystem::of(Path::new("/"))
    }

    fn of(root: &Path) -> Result<Self, HostSystemError> {
        let (mut directories, mut layer) = (Vec::new(), Layer::new(root));
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
        let shell = fs::canonicalize(&shell).at("look up", &shell)?;
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

    /// Returns what the image is called, which nobody finds by that name.
    pub fn reference() -> Reference {
        NAME.parse().expect("it is a name")
    }

    /// Puts the layer into a store, where it is as long as the image is used.
    pub fn image(&self, store: &Store) -> Result<Image, HostSystemError> {
        let config =
            ImageConfig { env: vec![format!("PATH={DEFAULT_PATH}")], ..ImageConfig::default() };
        let (platform, rootfs) = (Platform::host(), RootFs { diff_ids: Vec::new() });
        let configuration = Configuration { platform, config, rootfs };
        Ok(store.unnamed_image(&HostSystem::reference(), &configuration, &self.layer)?)
    }

    /// Returns what is mounted over the image.
    pub fn mounts(&self) -> impl Iterator<Item = Mount> {
        self.directories.iter().map(|(target, file)| Mount {
            target: target.clone(),
            source: MountSource::System { file: file.clone() },
            subpath: None,
            read_only: true,
            id_mapping: None,
        })
    }

    /// Takes from a container whose root is root of the host what would let it read more than everybody may: it has
    /// another user, without capabilities.
    pub fn confine(options: &mut bundle::Options) {
        options.user = Some(format!("{NOBODY}:{NOBODY}"));
        options.supplementary_groups.clear();
        options.security = Security {
            no_new_privileges: true,
            cap_drop: vec!["ALL".to_owned()],
            ..Security::default()
        };
    }
}

/// A layer with files of a system, all of root.
struct Layer<'a> {
    root: &'a Path,
    archive: Builder<Vec<u8>>,
}

impl<'a> Layer<'a> {
    fn new(root: &'a Path) -> Self {
        Layer { root, archive: Builder::new(Vec::new()) }
    }

    /// Adds something of the system with all in it, if it is there and everybody may read it.
    fn add(&mut self, name: &Path) -> Result<(), HostSystemError> {
        let path = self.root.join(name);
        let found = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found.at("look at", &path)?,
        };
        let mode = found.permissions().mode();
        let may = |bits: u32| mode & bits == bits;
        if found.is_symlink() {
            let target = fs::read_link(&path).at("read", &path)?;
            let mut header = header(EntryType::Symlink, 0o777, 0);
            self.archive.append_link(&mut header, name, target).map_err(HostSystemError::Write)?;
        } else if found.is_dir() && may(SEARCHABLE) {
            self.directory(name, 0o755)?;
            let entries = fs::read_dir(&path).at("list", &path)?;
            let names = entries.map(|entry| Ok(entry.at("list", &path)?.file_name()));
            let mut names = names.collect::<Result<Vec<_>, PathError>>()?;
            // The same files make the same layer.
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

    /// Returns what a layer has, with the targets of links and the content of files.
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
    fn only_what_everybody_may_read_is_in_the_layer() {
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
    fn a_system_whose_shell_is_elsewhere_is_refused() {
        let dir = system(&[("nix/store/sh", 0o755)]);
        fs::remove_file(dir.path().join("usr/bin/sh")).unwrap();
        symlink(dir.path().join("nix/store/sh"), dir.path().join("usr/bin/sh")).unwrap();
        let error = HostSystem::of(dir.path()).unwrap_err();
        assert!(matches!(error, HostSystemError::Elsewhere { .. }), "{error}");
    }
}
