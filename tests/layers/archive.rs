//! Archives to unpack, and the store to unpack them in.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use oci_hooks::image::{
    Descriptor, Digest, Layer, Limits, MediaType, Store, StoreError, StoreOptions,
};
use tar::{EntryType, Header};

/// An archive that is written entry by entry, with names that no archiver would write.
#[derive(Default)]
pub(crate) struct Archive(Vec<u8>);

impl Archive {
    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(EntryType::Regular, name, "", content)
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, b"")
    }

    pub(crate) fn hardlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, b"")
    }

    pub(crate) fn entry(self, kind: EntryType, name: &str, target: &str, data: &[u8]) -> Self {
        self.header(data, |header| {
            header.set_entry_type(kind);
            set(&mut header.as_gnu_mut().unwrap().name, name);
            set(&mut header.as_gnu_mut().unwrap().linkname, target);
        })
    }

    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Self {
        let mut data = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length += 1;
            }
            write!(data, "{length} {key}=").unwrap();
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        self.entry(EntryType::XHeader, "pax", "", &data)
    }

    pub(crate) fn header(mut self, data: &[u8], change: impl FnOnce(&mut Header)) -> Self {
        let mut header = Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header.set_size(data.len() as u64);
        change(&mut header);
        header.set_cksum();
        self.0.extend_from_slice(header.as_bytes());
        self.raw(data)
    }

    /// Adds data, filled up to the next block.
    pub(crate) fn raw(mut self, data: &[u8]) -> Self {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

fn set(field: &mut [u8], text: &str) {
    field[..text.len()].copy_from_slice(text.as_bytes());
}

pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn descriptor(blob: &[u8]) -> Descriptor {
    Descriptor::new(MediaType::ImageLayer, Digest::of(blob), blob.len() as u64)
}

/// A store in a new directory, beside a tree that nobody may touch.
pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    pub(crate) store: Store,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    pub(crate) fn with_limits(limits: Limits) -> Self {
        crate::support::program::require_root();
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (root, run) = (dir.path().join("root"), dir.path().join("run"));
        let mut options = StoreOptions::new(root, run);
        options.limits = limits;
        let store = Store::open(options).unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("canary"), "alive").unwrap();
        Fixture { dir, store }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.path().join("outside")
    }

    pub(crate) fn unpack(&self, archive: Archive) -> Result<Layer, StoreError> {
        self.unpack_blob(&archive.finish(), |archive| archive.to_vec())
    }

    pub(crate) fn unpack_blob(
        &self,
        archive: &[u8],
        compress: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Result<Layer, StoreError> {
        let blob = compress(archive);
        self.store.unpack_layer(&descriptor(&blob), &Digest::of(archive), blob.as_slice())
    }

    /// Unpacks an archive, or finds that it is refused and nothing is left; nothing outside the
    /// layer may change in either case.
    pub(crate) fn try_unpack(&self, archive: Archive) -> Option<PathBuf> {
        let unpacked = self.unpack(archive);
        self.assert_outside_intact();
        match unpacked {
            Ok(layer) => Some(layer.path),
            Err(_) => {
                self.assert_no_layer();
                None
            }
        }
    }

    #[track_caller]
    pub(crate) fn assert_outside_intact(&self) {
        let names: Vec<_> = names(&self.outside());
        assert_eq!(names, ["canary"]);
        let canary = self.outside().join("canary");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "alive");
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(fs::metadata(&canary).unwrap().nlink(), 1);
        assert_eq!(fs::metadata(self.outside()).unwrap().mode() & 0o7777, 0o755);
        assert_eq!(self::names(self.path()), ["outside", "root", "run"]);
    }

    #[track_caller]
    pub(crate) fn assert_no_layer(&self) {
        assert_eq!(names_of_layers(self), <[String; 0]>::default());
    }
}

pub(crate) fn names_of_layers(fixture: &Fixture) -> Vec<String> {
    names(&fixture.path().join("root/layers"))
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
