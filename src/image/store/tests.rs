//! Records that cannot be read: nobody is kept from anything by them.

use std::fs;
use std::path::PathBuf;

use super::*;
use crate::image::{Digest, Platform, Reference};
use crate::sys::record::NewerRecords;
use crate::sys::tests::Damage;

/// A store with an image of one layer, which somebody leased and somebody else reserved.
struct Bench {
    _dir: tempfile::TempDir,
    store: Store,
    layer: PathBuf,
    reservation: Option<Reservation>,
}

/// As containers are called.
const HOLDER: &str = "0123456789012345678901234567890123456789012345678901234567890123";

const ALL: PrunePolicy =
    PrunePolicy { unused_for: None, max_bytes: Some(0), newer: NewerRecords::Keep };

fn reference() -> Reference {
    "example.com/image:1".parse().unwrap()
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (root, run) = (dir.path().join("root"), dir.path().join("run"));
        let store = Store::open(StoreOptions::new(root, run)).unwrap();
        let layer = store.layer_dir(&Digest::of(b"layer"));
        let mut bench = Bench { _dir: dir, store, layer, reservation: None };
        bench.pull();
        bench
    }

    /// Makes the layer unless it can be used, and the image.
    fn pull(&mut self) {
        let diff_id = Digest::of(b"layer");
        if !self.store.has_layer(&diff_id).unwrap() {
            if let Some(gone) = self.store.take_away(&self.layer).unwrap() {
                self.store.trash().remove(&gone).unwrap();
            }
            fs::create_dir_all(self.layer.join("tree")).unwrap();
            let record = serde_json::json!({"size_bytes": 1, "entries": 1, "is_opaque": false});
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
    fn only(&self, dir: PathBuf) -> PathBuf {
        let mut entries = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        entries.find(|path| path.is_file()).unwrap_or_else(|| panic!("{} is empty", dir.display()))
    }

    /// Does what everybody does.
    fn use_it(&mut self, context: &str) -> Pruned {
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
fn an_image_or_a_layer_whose_record_cannot_be_read_is_pulled_again() {
    for damage in Damage::ALL.into_iter().filter(|damage| *damage != Damage::OtherVersion) {
        for name in ["image", "layer"] {
            let mut bench = Bench::new();
            match name {
                "image" => damage.inflict(&bench.only(bench.store.images_dir())),
                _ => damage.inflict(&bench.layer.join("layer.json")),
            }
            let pruned = bench.use_it(&format!("{damage:?} of {name}"));
            assert_eq!(pruned.unreadable, <[String; 0]>::default(), "{damage:?} of {name}");
        }
    }
}

#[test]
fn an_image_of_a_newer_version_keeps_its_layers_and_is_pulled_again() {
    let mut bench = Bench::new();
    bench.store.release(HOLDER).unwrap();
    let image = bench.only(bench.store.images_dir());
    Damage::OtherVersion.inflict(&image);
    let pruned = bench.store.prune(&ALL).unwrap();
    assert_eq!((pruned.unreadable.len(), pruned.layers), (1, 0));
    assert!(pruned.unreadable[0].contains("newer version"), "{pruned:?}");
    assert!(image.exists() && bench.layer.exists());
    assert_eq!(bench.store.find(&reference(), &Platform::host()).unwrap(), None);
    bench.pull();
    assert!(bench.store.find(&reference(), &Platform::host()).unwrap().is_some());
    bench.store.release(HOLDER).unwrap();
    Damage::OtherVersion.inflict(&image);
    let removed = bench.store.prune(&PrunePolicy { newer: NewerRecords::Remove, ..ALL }).unwrap();
    assert_eq!((removed.unreadable.len(), removed.layers), (0, 1));
    assert!(!image.exists() && !bench.layer.exists());
}

#[test]
fn nothing_comes_in_the_place_of_a_layer_of_a_newer_version() {
    let bench = Bench::new();
    let record = bench.layer.join("layer.json");
    Damage::OtherVersion.inflict(&record);
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
fn as_long_as_a_lease_cannot_be_read_all_layers_stay() {
    for damage in Damage::ALL {
        let mut bench = Bench::new();
        let lease = bench.only(bench.store.leases_dir().join(HOLDER));
        damage.inflict(&lease);
        let other = bench.store.layer_dir(&Digest::of(b"nobody's"));
        fs::create_dir_all(&other).unwrap();
        fs::write(
            other.join("layer.json"),
            r#"{"size_bytes": 1, "entries": 1, "is_opaque": false}"#,
        )
        .unwrap();
        fs::remove_file(bench.only(bench.store.images_dir())).unwrap();
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
fn a_reservation_that_cannot_be_read_counts_as_long_as_its_process_lives() {
    for damage in [Damage::Empty, Damage::CutOff, Damage::NotText, Damage::OtherVersion] {
        let mut bench = Bench::new();
        bench.store.release(HOLDER).unwrap();
        bench.reservation = Some(bench.store.reserve(&[Digest::of(b"layer")]).unwrap());
        let path = bench.only(bench.store.leases_dir());
        // In place: the lock is that of the file.
        let text = fs::read(&path).unwrap();
        fs::write(
            &path,
            match damage {
                Damage::Empty => Vec::new(),
                Damage::CutOff => text[..5].to_vec(),
                Damage::NotText => b"\xff".to_vec(),
                _ => b"{}".to_vec(),
            },
        )
        .unwrap();
        let pruned = bench.store.prune(&ALL).unwrap();
        assert_eq!((pruned.unreadable.len(), pruned.layers), (1, 0), "{damage:?}");
        bench.reservation = None;
        assert_eq!(bench.store.prune(&ALL).unwrap().layers, 1, "{damage:?}");
    }
    for damage in Damage::ALL {
        let mut bench = Bench::new();
        let path = bench.store.leases_dir().join(".reserved-0");
        fs::write(&path, "{}").unwrap();
        damage.inflict(&path);
        bench.use_it(&format!("{damage:?}"));
        assert!(fs::symlink_metadata(&path).is_err(), "{damage:?}");
    }
}

#[test]
fn what_is_in_the_place_of_a_directory_is_removed() {
    for name in ["layer", "unfinished", "holder"] {
        let mut bench = Bench::new();
        let path = match name {
            "layer" => bench.layer.clone(),
            "unfinished" => bench.store.layers_dir().join(".tmp-0"),
            _ => bench.store.leases_dir().join(HOLDER),
        };
        crate::sys::removal::remove_tree(&path).unwrap();
        fs::write(&path, "").unwrap();
        bench.store.prune(&ALL).unwrap();
        bench.store.release(HOLDER).unwrap();
        bench.use_it(name);
        assert!(!path.is_file(), "{name}");
    }
}
