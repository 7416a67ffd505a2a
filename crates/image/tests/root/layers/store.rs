//! Images and layers in the store: concurrent and killed processes, leases, pruning.

use std::fs;
use std::io::{self, Read};
use std::process::{Child, Command};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use oci_hooks_image::{
    Digest, Image, ImageReference, ImageStore, NewImage, Platform, PrunePolicy, StoreError,
    StoreOptions,
};
use oci_hooks_testsupport::program::wait_until;

use crate::layers::archive::{Fixture, TestArchive, descriptor, gzip, names, names_of_layers};

/// Variable with the store of the process that is killed while it unpacks.
const KILLED: &str = "TEST_LAYERS_KILLED_IN";

fn archive(name: &str) -> Vec<u8> {
    (0..300)
        .fold(TestArchive::default(), |a, n| a.file(&format!("{name}/{n}"), &[b'x'; 3000]))
        .finish()
}

fn image(fixture: &Fixture, name: &str, layers: &[&str]) -> Image {
    let archives: Vec<_> = layers.iter().map(|layer| archive(layer)).collect();
    for archive in &archives {
        fixture.unpack_blob(archive, gzip).unwrap();
    }
    commit(&fixture.store, name, &archives.iter().map(|a| Digest::of(a)).collect::<Vec<_>>())
        .unwrap()
}

fn commit(store: &ImageStore, name: &str, diff_ids: &[Digest]) -> Result<Image, StoreError> {
    let configuration = serde_json::json!({
        "os": "linux",
        "architecture": "amd64",
        "config": { "Env": [format!("NAME={name}")] },
        "rootfs": { "diff_ids": diff_ids },
    });
    let configuration = configuration.to_string();
    store.commit_image(&NewImage {
        reference: &name.parse().unwrap(),
        platform: &Platform::host(),
        digest: &Digest::of(b"manifest"),
        id: &Digest::of(configuration.as_bytes()),
        configuration: configuration.as_bytes(),
        access: None,
    })
}

fn find(store: &ImageStore, name: &str) -> Option<Image> {
    store.find(&name.parse::<ImageReference>().unwrap(), &Platform::host()).unwrap()
}

#[test]
fn concurrent_import_of_a_layer_waits_and_reuses_it() {
    let fixture = Fixture::new();
    let archive = archive("a");
    let blob = gzip(&archive);
    let barrier = Barrier::new(8);
    let layers: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    let (descriptor, diff_id) = (descriptor(&blob), Digest::of(&archive));
                    fixture.store.unpack_layer(&descriptor, &diff_id, blob.as_slice()).unwrap()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(layers.iter().all(|layer| *layer == layers[0]));
    assert_eq!(names(&layers[0].path.join("a")).len(), 300);
    assert_eq!(names_of_layers(&fixture).len(), 1);
}

#[test]
fn layer_is_stored_completely_or_not_at_all() {
    let fixture = Fixture::new();
    let archive = archive("a");
    let blob = gzip(&archive);
    let diff_id = Digest::of(&archive);
    let until = Instant::now() + Duration::from_secs(2);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while Instant::now() < until {
                    let _kept = fixture.store.reserve(std::slice::from_ref(&diff_id)).unwrap();
                    let layer = fixture
                        .store
                        .unpack_layer(&descriptor(&blob), &diff_id, blob.as_slice())
                        .unwrap();
                    assert_eq!(names(&layer.path.join("a")).len(), 300);
                }
            });
        }
        scope.spawn(|| {
            while Instant::now() < until {
                fixture.store.prune(&PrunePolicy::default()).unwrap();
            }
        });
    });
    fixture.store.prune(&PrunePolicy::default()).unwrap();
    fixture.assert_no_layer();
    assert_eq!(names(&fixture.path().join("run/leases")), <[String; 0]>::default());
}

#[test]
fn stored_layer_is_given_only_with_its_blob() {
    let fixture = Fixture::new();
    let (archive, other) = (archive("a"), archive("b"));
    let diff_id = Digest::of(&archive);
    let layer = fixture.unpack_blob(&archive, gzip).unwrap();
    let unpack =
        |blob: &[u8], sent: &[u8]| fixture.store.unpack_layer(&descriptor(blob), &diff_id, sent);
    let (blob, wrong) = (gzip(&archive), gzip(&other));
    for result in
        [unpack(&wrong, &wrong), unpack(&blob, &wrong), unpack(&blob, b""), unpack(b"", b"")]
    {
        assert!(matches!(result, Err(StoreError::Unpack { .. })), "{result:?}");
    }
    assert_eq!(unpack(&blob, &blob).unwrap(), layer);
    // The same layer with another compression.
    assert_eq!(unpack(&archive, &archive).unwrap(), layer);
    assert_eq!(names_of_layers(&fixture).len(), 1);
}

/// Not a test: run by the process that is killed.
#[test]
fn helper_process_to_be_killed() {
    let Some(dir) = std::env::var_os(KILLED).map(std::path::PathBuf::from) else { return };
    let (root, run) = (dir.join("root"), dir.join("run"));
    let store = ImageStore::open(StoreOptions::new(root, run)).unwrap();
    let archive = archive("a");
    let diff_id = Digest::of(&archive);
    let _kept = store.reserve(std::slice::from_ref(&diff_id)).unwrap();
    let endless = archive[..archive.len() / 2].chain(StuckReader(dir.join("stuck")));
    store.unpack_layer(&descriptor(&archive), &diff_id, endless).unwrap();
}

/// Reader that creates a file when it is reached, and waits to be killed.
struct StuckReader(std::path::PathBuf);

impl Read for StuckReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        fs::write(&self.0, "")?;
        loop {
            thread::park();
        }
    }
}

fn start_and_kill(fixture: &Fixture) {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "layers::store::helper_process_to_be_killed"])
        .env(KILLED, fixture.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let stuck = fixture.path().join("stuck");
    let started = |fixture: &Fixture| {
        let layers = fixture.path().join("root/layers");
        layers.exists() && !names(&layers).is_empty()
    };
    wait_until("a process that unpacks", || stuck.exists() && started(fixture));
    // The process holds the layer while it lives, so pruning keeps it.
    fixture.store.prune(&PrunePolicy::default()).unwrap();
    assert_eq!(names_of_layers(fixture).len(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    fs::remove_file(stuck).unwrap();
}

#[test]
fn leftovers_of_a_killed_process_are_pruned() {
    let fixture = Fixture::new();
    start_and_kill(&fixture);
    assert!(names_of_layers(&fixture)[0].starts_with(".tmp-"));
    assert_eq!(names(&fixture.path().join("run/leases")).len(), 1);
    fixture.store.prune(&PrunePolicy::default()).unwrap();
    fixture.assert_no_layer();
    assert_eq!(names(&fixture.path().join("run/leases")), <[String; 0]>::default());
}

#[test]
fn next_process_continues_after_a_kill() {
    let fixture = Fixture::new();
    start_and_kill(&fixture);
    let layer = fixture.unpack_blob(&archive("a"), <[u8]>::to_vec).unwrap();
    assert_eq!(names(&layer.path.join("a")).len(), 300);
    assert_eq!(names_of_layers(&fixture).len(), 1);
}

#[test]
fn shared_layers_are_removed_with_the_last_image() {
    let fixture = Fixture::new();
    image(&fixture, "one", &["a", "b"]);
    image(&fixture, "two", &["a", "c"]);
    let images = fixture.store.images().unwrap();
    let list: Vec<_> = images.iter().map(|image| image.reference.familiar_name()).collect();
    assert_eq!(list, ["one:latest", "two:latest"]);
    assert!(images[0].size_bytes > 2 * 300 * 4096, "{}", images[0].size_bytes);
    let usage = fixture.store.usage().unwrap();
    assert_eq!((usage.images, usage.layers, usage.unneeded_bytes), (2, 3, 0));
    assert!(usage.bytes < images[0].size_bytes + images[1].size_bytes);

    assert_eq!(fixture.store.remove(&"one".parse().unwrap()).unwrap().len(), 1);
    assert_eq!(names_of_layers(&fixture).len(), 2);
    assert!(find(&fixture.store, "one").is_none() && find(&fixture.store, "two").is_some());
    assert!(fixture.store.remove(&"one".parse().unwrap()).unwrap().is_empty());
    fixture.store.remove(&"two".parse().unwrap()).unwrap();
    fixture.assert_no_layer();
}

#[test]
fn a_name_can_move_and_its_old_layers_are_pruned() {
    let fixture = Fixture::new();
    image(&fixture, "one", &["a"]);
    let moved = image(&fixture, "one", &["b"]);
    assert_eq!(find(&fixture.store, "one"), Some(moved));
    let pruned = fixture.store.prune(&PrunePolicy::default()).unwrap();
    assert_eq!((pruned.images.len(), pruned.layers), (0, 1));
    assert!(pruned.freed_bytes > 300 * 3000);
    assert!(find(&fixture.store, "one").is_some());
}

#[test]
fn leased_layers_are_kept_until_release() {
    let fixture = Fixture::new();
    let one = image(&fixture, "one", &["a", "b"]);
    fixture.store.lease("job-1", &one).unwrap();
    fixture.store.lease("job-2", &one).unwrap();
    fixture.store.remove(&one.reference).unwrap();
    let all = PrunePolicy::new(Some(Duration::ZERO), Some(0));
    fixture.store.prune(&all).unwrap();
    assert!(one.layers.iter().all(|layer| layer.exists()));
    fixture.store.release("job-1").unwrap();
    fixture.store.prune(&all).unwrap();
    assert!(one.layers.iter().all(|layer| layer.exists()));
    fixture.store.release("job-2").unwrap();
    fixture.store.release("job-2").unwrap();
    assert_eq!(fixture.store.prune(&all).unwrap().layers, 2);
    fixture.assert_no_layer();
    let error = fixture.store.lease("job-3", &one).unwrap_err();
    assert!(matches!(error, StoreError::NoLayer { .. }), "{error}");
    for holder in ["", ".", "..", "a/b", ".hidden", "../x"] {
        assert!(matches!(fixture.store.release(holder), Err(StoreError::Holder { .. })));
    }
}

#[test]
fn image_about_to_be_used_is_not_pruned() {
    let fixture = Fixture::new();
    image(&fixture, "one", &["a", "b"]);
    let (name, host) = ("one".parse().unwrap(), Platform::host());
    let held = fixture.store.hold(&name, &host).unwrap().unwrap();
    let all = PrunePolicy::new(Some(Duration::ZERO), Some(0));
    assert_eq!(fixture.store.prune(&all).unwrap().layers, 0);
    let copy = held.clone();
    drop(held);
    assert_eq!(fixture.store.prune(&all).unwrap().layers, 0);
    fixture.store.lease("job", &copy).unwrap();
    drop(copy);
    assert_eq!(fixture.store.prune(&all).unwrap().layers, 0);
    fixture.store.release("job").unwrap();
    assert_eq!(fixture.store.prune(&all).unwrap().layers, 2);
    assert_eq!(fixture.store.hold(&name, &host).unwrap(), None);
}

#[test]
fn pruning_goes_by_age_and_by_size() {
    let fixture = Fixture::new();
    let hour = Duration::from_secs(3600);
    for (name, age) in [("old", 30), ("middle", 20), ("new", 10)] {
        let one = image(&fixture, name, &["shared", name]);
        let records = fixture.path().join("root/images");
        let path = names(&records).into_iter().map(|name| records.join(name)).find(|path| {
            fs::read_to_string(path).unwrap().contains(&format!("{}\"", one.reference))
        });
        let file = fs::File::options().write(true).open(path.unwrap()).unwrap();
        file.set_modified(SystemTime::now() - hour * age).unwrap();
    }
    let prune = |unused_for: Option<Duration>, max_bytes| {
        let pruned = fixture.store.prune(&PrunePolicy::new(unused_for, max_bytes)).unwrap();
        let mut names: Vec<_> =
            pruned.images.iter().map(|image| image.reference.base_name().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(prune(Some(hour * 40), Some(u64::MAX)), <[String; 0]>::default());
    let used = fixture.store.usage().unwrap().bytes;
    assert_eq!(prune(None, Some(used - 1)), ["old"]);
    assert_eq!(prune(Some(hour * 15), None), ["middle"]);
    // A lease updates the time of the last use.
    fixture.store.lease("job", &find(&fixture.store, "new").unwrap()).unwrap();
    fixture.store.release("job").unwrap();
    assert_eq!(prune(Some(hour), None), <[String; 0]>::default());
    assert!(find(&fixture.store, "new").is_some());
}

#[test]
fn image_needs_its_layers_and_matching_configuration() {
    let fixture = Fixture::new();
    let error = commit(&fixture.store, "one", &[Digest::of(b"nothing")]).unwrap_err();
    assert!(matches!(error, StoreError::NoLayer { .. }), "{error}");
    let error = fixture
        .store
        .commit_image(&NewImage {
            reference: &"one".parse().unwrap(),
            platform: &Platform::host(),
            digest: &Digest::of(b""),
            id: &Digest::of(b"other"),
            configuration: b"{}",
            access: None,
        })
        .unwrap_err();
    assert!(matches!(error, StoreError::ConfigurationDigest { .. }), "{error}");
}

#[test]
fn layer_of_an_earlier_boot_is_used_if_it_was_synced() {
    let fixture = Fixture::new();
    let one = image(&fixture, "one", &["a"]);
    let record = one.layers[0].parent().unwrap().join("layer.json");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let reboot = || {
        let text = fs::read_to_string(&record).unwrap();
        fs::write(&record, text.replace(boot.trim(), "another")).unwrap();
    };
    fixture.store.sync_file_system().unwrap();
    reboot();
    assert_eq!(find(&fixture.store, "one"), Some(one.clone()));
    let id = &one.diff_ids[0];
    // As if the layer had not been synced.
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replace('}', r#","boot":"another"}"#)).unwrap();
    assert_eq!(find(&fixture.store, "one"), None);
    assert!(!fixture.store.has_layer(id).unwrap());
    // The layer is unpacked again and replaced.
    fs::remove_dir_all(one.layers[0].join("a")).unwrap();
    fixture.unpack_blob(&archive("a"), gzip).unwrap();
    assert_eq!(find(&fixture.store, "one"), Some(one.clone()));
    assert_eq!(names(&one.layers[0].join("a")).len(), 300);
    // Records that were lost in a power cut are removed.
    fs::write(&record, "").unwrap();
    let records = fixture.path().join("root/images");
    fs::write(records.join(&names(&records)[0]), "").unwrap();
    assert_eq!(find(&fixture.store, "one"), None);
    fixture.store.prune(&PrunePolicy::default()).unwrap();
    fixture.assert_no_layer();
    assert_eq!(names(&records), <[String; 0]>::default());
}
