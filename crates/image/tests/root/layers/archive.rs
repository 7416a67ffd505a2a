//! Archives to unpack, and the store to unpack them in.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use oci_hooks_image::{
    Descriptor, Digest, ImageStore, Layer, LayerLimits, MediaType, StoreError, StoreOptions,
};
use tar::{EntryType, Header};

/// Archive written entry by entry, with names that no archiver would write.
#[derive(Default)]
pub(crate) struct TestArchive(Vec<u8>);

impl TestArchive {
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
        self.with_raw_data(data)
    }

    /// Adds data, padded to the next block.
    pub(crate) fn with_raw_data(mut self, data: &[u8]) -> Self {
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

/// Store in a new directory, beside a tree that must not change.
pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    pub(crate) store: ImageStore,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_limits(LayerLimits::default())
    }

    pub(crate) fn with_limits(limits: LayerLimits) -> Self {
        oci_hooks_testsupport::program::require_root();
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (root, run) = (dir.path().join("root"), dir.path().join("run"));
        let mut options = StoreOptions::new(root, run);
        options.limits = limits;
        let store = ImageStore::open(options).unwrap();
        let outside = dir.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("canary"), "alive").unwrap();
        Fixture { dir, store }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn outside_path(&self) -> PathBuf {
        self.path().join("outside")
    }

    pub(crate) fn unpack(&self, archive: TestArchive) -> Result<Layer, StoreError> {
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

    /// Unpacks an archive, or checks that a rejected one leaves nothing behind. Either way, nothing
    /// outside the layer may change.
    pub(crate) fn try_unpack(&self, archive: TestArchive) -> Option<PathBuf> {
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
        let names: Vec<_> = names(&self.outside_path());
        assert_eq!(names, ["canary"]);
        let canary = self.outside_path().join("canary");
        assert_eq!(fs::read_to_string(&canary).unwrap(), "alive");
        use std::os::unix::fs::MetadataExt as _;
        assert_eq!(fs::metadata(&canary).unwrap().nlink(), 1);
        assert_eq!(fs::metadata(self.outside_path()).unwrap().mode() & 0o7777, 0o755);
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
