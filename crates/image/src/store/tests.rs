//! Unreadable records do not block operations of the store.

use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};
use std::{fs, thread};

use oci_hooks_files::record::NewerRecords;
use oci_hooks_testsupport::damage::RecordDamage;

use super::*;
use crate::{Digest, ImageReference, Platform};

/// Store with an image of one layer, which is leased and reserved.
struct StoreFixture {
    _dir: tempfile::TempDir,
    store: ImageStore,
    layer: PathBuf,
    reservation: Option<LayerReservation>,
}

/// Holder's name in the form of a container ID.
const HOLDER: &str = "0123456789012345678901234567890123456789012345678901234567890123";

const ALL: PrunePolicy =
    PrunePolicy { unused_for: None, max_bytes: Some(0), newer: NewerRecords::Keep };

fn reference() -> ImageReference {
    "example.com/image:1".parse().unwrap()
}

impl StoreFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, run) = (dir.path().join("root"), dir.path().join("run"));
        let store = ImageStore::open(StoreOptions::new(root, run)).unwrap();
        let layer = store.layer_dir(&Digest::of(b"layer"));
        let mut bench = StoreFixture { _dir: dir, store, layer, reservation: None };
        bench.pull();
        bench
    }

    /// Creates the image, and the layer unless it is usable.
    fn pull(&mut self) {
        let diff_id = Digest::of(b"layer");
        if !self.store.has_layer(&diff_id).unwrap() {
            if let Some(gone) = self.store.rename_for_removal(&self.layer).unwrap() {
                self.store.trash().remove(&gone).unwrap();
            }
            fs::create_dir_all(self.layer.join("tree")).unwrap();
            let record = serde_json::json!({"size_bytes": 1, "entries": 1, "is_opaque": false, "highest_owner": 0});
            fs::write(self.layer.join("layer.json"), record.to_string()).unwrap();
        }
        let configuration = serde_json::json!({
            "os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [diff_id]},
        })
        .to_string();
        let image = self.store.commit_image(&NewImage {
            reference: &reference(),
            platform: &Platform::host(),
            digest: &Digest::of(b"manifest"),
            id: &Digest::of(configuration.as_bytes()),
            configuration: configuration.as_bytes(),
            access: None,
        });
        self.store.lease(HOLDER, &image.unwrap()).unwrap();
    }

    /// Returns the one record in a directory.
    fn only_record(&self, dir: PathBuf) -> PathBuf {
        let mut entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        entries.find(|path| path.is_file()).unwrap_or_else(|| panic!("{} is empty", dir.display()))
    }

    /// Performs all operations of the store.
    fn use_it(&mut self, context: &str) -> PruneResult {
        self.store.images().unwrap();
        self.store.usage().unwrap();
        self.store.sweep_reservations().unwrap();
        self.store.find(&reference(), &Platform::host()).unwrap();
        let pruned = self.store.prune(&ALL).unwrap_or_else(|error| panic!("{context}: {error}"));
        self.pull();
        assert!(self.store.find(&reference(), &Platform::host()).unwrap().is_some(), "{context}");
        pruned
    }
}

#[test]
fn image_or_layer_with_a_corrupt_record_is_pulled_again() {
    for damage in
        RecordDamage::ALL.into_iter().filter(|damage| *damage != RecordDamage::OtherVersion)
    {
        for name in ["image", "layer"] {
            let mut bench = StoreFixture::new();
            match name {
                "image" => damage.inflict(&bench.only_record(bench.store.images_dir())),
                _ => damage.inflict(&bench.layer.join("layer.json")),
            }
            let pruned = bench.use_it(&format!("{damage:?} of {name}"));
            assert_eq!(pruned.unreadable, <[String; 0]>::default(), "{damage:?} of {name}");
        }
    }
}

#[test]
fn an_image_of_a_newer_version_keeps_its_layers_and_is_pulled_again() {
    let mut bench = StoreFixture::new();
    bench.store.release(HOLDER).unwrap();
    let image = bench.only_record(bench.store.images_dir());
    RecordDamage::OtherVersion.inflict(&image);
    let pruned = bench.store.prune(&ALL).unwrap();
    assert_eq!((pruned.unreadable.len(), pruned.layers), (1, 0));
    assert!(pruned.unreadable[0].contains("newer version"), "{pruned:?}");
    assert!(image.exists() && bench.layer.exists());
    assert_eq!(bench.store.find(&reference(), &Platform::host()).unwrap(), None);
    bench.pull();
    assert!(bench.store.find(&reference(), &Platform::host()).unwrap().is_some());
    bench.store.release(HOLDER).unwrap();
    RecordDamage::OtherVersion.inflict(&image);
    let policy = PrunePolicy { newer: NewerRecords::Remove, ..ALL };
    let previewed = bench.store.preview_prune(&policy).unwrap();
    let removed = bench.store.prune(&policy).unwrap();
    assert_eq!((removed.unreadable.len(), removed.layers), (0, 1));
    assert_eq!(previewed, removed);
    assert!(!image.exists() && !bench.layer.exists());
}

#[test]
fn layer_of_a_newer_version_is_not_replaced() {
    let bench = StoreFixture::new();
    let record = bench.layer.join("layer.json");
    RecordDamage::OtherVersion.inflict(&record);
    let error = bench.store.find(&reference(), &Platform::host()).unwrap_err();
    assert!(error.to_string().contains("newer version"), "{error}");
    bench.store.release(HOLDER).unwrap();
    bench.store.images().unwrap();
    bench.store.usage().unwrap();
    bench.store.prune(&ALL).unwrap();
    assert!(record.exists());
    bench.store.prune(&PrunePolicy { newer: NewerRecords::Remove, ..ALL }).unwrap();
    assert!(!bench.layer.exists());
}

#[test]
fn unreadable_lease_keeps_all_layers() {
    for damage in RecordDamage::ALL {
        let mut bench = StoreFixture::new();
        let lease = bench.only_record(bench.store.leases_dir().join(HOLDER));
        damage.inflict(&lease);
        let other = bench.store.layer_dir(&Digest::of(b"nobody's"));
        fs::create_dir_all(&other).unwrap();
        fs::write(
            other.join("layer.json"),
            r#"{"size_bytes": 1, "entries": 1, "is_opaque": false, "highest_owner": 0}"#,
        )
        .unwrap();
        fs::remove_file(bench.only_record(bench.store.images_dir())).unwrap();
        let pruned = bench.store.prune(&ALL).unwrap();
        let [problem] = &pruned.unreadable[..] else { panic!("{damage:?}: {pruned:?}") };
        assert!(problem.starts_with(&lease.display().to_string()), "{problem}");
        assert!(bench.layer.exists() && other.exists(), "{damage:?}");
        // A new container leases it too.
        bench.use_it(&format!("{damage:?}"));
        bench.store.release(HOLDER).unwrap();
        let pruned = bench.store.prune(&ALL).unwrap();
        assert_eq!((pruned.unreadable.len(), pruned.layers), (0, 2), "{damage:?}");
    }
}

#[test]
fn unreadable_reservation_counts_while_its_process_lives() {
    for damage in [
        RecordDamage::Empty,
        RecordDamage::CutOff,
        RecordDamage::NotText,
        RecordDamage::OtherVersion,
    ] {
        let mut bench = StoreFixture::new();
        bench.store.release(HOLDER).unwrap();
        bench.reservation = Some(bench.store.reserve(&[Digest::of(b"layer")]).unwrap());
        let path = bench.only_record(bench.store.leases_dir());
        // Written in place, because the lock belongs to the file.
        let text = fs::read(&path).unwrap();
        fs::write(
            &path,
            match damage {
                RecordDamage::Empty => Vec::new(),
                RecordDamage::CutOff => text[..5].to_vec(),
                RecordDamage::NotText => b"\xff".to_vec(),
                _ => b"{}".to_vec(),
            },
        )
        .unwrap();
        let pruned = bench.store.prune(&ALL).unwrap();
        assert_eq!((pruned.unreadable.len(), pruned.layers), (1, 0), "{damage:?}");
        bench.reservation = None;
        assert_eq!(bench.store.prune(&ALL).unwrap().layers, 1, "{damage:?}");
    }
    for damage in RecordDamage::ALL {
        let mut bench = StoreFixture::new();
        let path = bench.store.leases_dir().join(".reserved-0");
        fs::write(&path, "{}").unwrap();
        damage.inflict(&path);
        bench.use_it(&format!("{damage:?}"));
        assert!(fs::symlink_metadata(&path).is_err(), "{damage:?}");
    }
}

#[test]
fn file_in_place_of_a_directory_is_removed() {
    for name in ["layer", "unfinished", "holder"] {
        let mut bench = StoreFixture::new();
        let path = match name {
            "layer" => bench.layer.clone(),
            "unfinished" => bench.store.layers_dir().join(".tmp-0"),
            _ => bench.store.leases_dir().join(HOLDER),
        };
        oci_hooks_host::removal::remove_tree(&path).unwrap();
        fs::write(&path, "").unwrap();
        bench.store.prune(&ALL).unwrap();
        bench.store.release(HOLDER).unwrap();
        bench.use_it(name);
        assert!(!path.is_file(), "{name}");
    }
}

#[test]
fn silence_of_a_registry_ends() {
    let bench = StoreFixture::new();
    let other = "other.example.com";
    bench.store.note_unreachable("example.com");
    assert!(bench.store.silence("example.com").is_some() && bench.store.silence(other).is_none());
    let dir = bench.store.options().root.join("unreachable");
    let file = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    let old = SystemTime::now() - Duration::from_secs(61);
    fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    assert!(bench.store.silence("example.com").is_none() && !file.exists());
}

#[test]
fn pruning_counts_layers_of_killed_processes() {
    let bench = StoreFixture::new();
    for name in [".tmp-0", ".gone-0"] {
        let dir = bench.store.layers_dir().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), vec![1; 1 << 20]).unwrap();
    }
    let policy = PrunePolicy { unused_for: None, max_bytes: None, ..ALL };
    let freed = bench.store.prune(&policy).unwrap().freed_bytes;
    assert!((2 << 20..4 << 20).contains(&freed), "{freed}");
}

#[test]
fn preview_is_what_pruning_removes() {
    let bench = StoreFixture::new();
    let kept = bench.store.preview_prune(&ALL).unwrap();
    assert!(kept.images.is_empty() && kept.layers == 0, "{kept:?}");
    bench.store.release(HOLDER).unwrap();
    let previewed = bench.store.preview_prune(&ALL).unwrap();
    assert_eq!((previewed.images.len(), previewed.layers, previewed.freed_bytes), (1, 1, 1));
    assert_eq!(bench.store.prune(&ALL).unwrap(), previewed);
}

#[test]
fn preview_counts_an_unusable_layer_of_a_kept_image() {
    let bench = StoreFixture::new();
    bench.store.release(HOLDER).unwrap();
    RecordDamage::Empty.inflict(&bench.layer.join("layer.json"));
    let policy = PrunePolicy { unused_for: None, max_bytes: None, ..ALL };
    let previewed = bench.store.preview_prune(&policy).unwrap();
    assert_eq!((previewed.images.len(), previewed.layers), (0, 1));
    assert_eq!(bench.store.prune(&policy).unwrap(), previewed);
}

/// Between creation and lock, a reservation looks like that of a dead process.
#[test]
fn usage_waits_for_an_unfinished_reservation() {
    let bench = StoreFixture::new();
    let path = bench.store.leases_dir().join(".reserved-0");
    let shared = bench.store.share().unwrap();
    let file = fs::File::create(&path).unwrap();
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let store = &bench.store;
        scope.spawn(move || sender.send(store.usage().unwrap()));
        let early = receiver.recv_timeout(Duration::from_millis(200));
        file.lock().unwrap();
        drop(shared);
        assert_eq!(early.unwrap_err(), mpsc::RecvTimeoutError::Timeout);
        receiver.recv().unwrap();
    });
    assert!(path.exists());
}
