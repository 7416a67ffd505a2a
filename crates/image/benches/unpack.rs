//! Unpacking of layers, two at a time, on tmpfs, compared with `igzip -dc | tar -x`.
//!
//! The layers are made of this machine's files below `/usr`, in the sizes of images of programming
//! languages: one large layer and smaller ones. Needs root.
//!
//! `cargo bench -p oci-hooks-image --bench unpack`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_image::{Descriptor, Digest, ImageStore, MediaType, StoreOptions};
use oci_hooks_testsupport::measure::median;

/// Compressed size of each layer.
const LAYERS_MIB: [u64; 6] = [48, 28, 60, 8, 4, 1];
const ROUNDS: usize = 7;

struct BenchLayer {
    path: PathBuf,
    descriptor: Descriptor,
    diff_id: Digest,
}

fn main() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let layers = layers(dir.path());
    let bytes: u64 = layers.iter().map(|layer| layer.descriptor.size).sum();
    println!("{} layers, {} MB compressed", layers.len(), bytes / 1_000_000);
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..ROUNDS {
        theirs.push(measure(|| tar(dir.path(), &layers)));
        ours.push(measure(|| unpack(dir.path(), &layers)));
    }
    let (ours, theirs) = (median(ours.into_iter()), median(theirs.into_iter()));
    println!("two parallel igzip | tar: {theirs:?}");
    println!("ours, digests checked:    {ours:?}");
    println!("ratio: {:.2}", ours.as_secs_f64() / theirs.as_secs_f64());
}

/// Returns the time that the work takes, without the removal of its output.
fn measure(work: impl FnOnce() -> PathBuf) -> Duration {
    let start = Instant::now();
    let made = work();
    let time = start.elapsed();
    fs::remove_dir_all(made).unwrap();
    time
}

fn unpack(dir: &Path, layers: &[BenchLayer]) -> PathBuf {
    let made = dir.join("ours");
    let (root, run) = (made.join("root"), made.join("run"));
    let store = ImageStore::open(StoreOptions::new(root, run)).unwrap();
    unpack_in_parallel(layers, |_, layer| {
        let file = File::open(&layer.path).unwrap();
        store.unpack_layer(&layer.descriptor, &layer.diff_id, file).unwrap();
    });
    made
}

fn tar(dir: &Path, layers: &[BenchLayer]) -> PathBuf {
    let made = dir.join("theirs");
    unpack_in_parallel(layers, |at, layer| {
        let to = made.join(at.to_string());
        fs::create_dir_all(&to).unwrap();
        let mut igzip = Command::new("igzip")
            .arg("-dc")
            .arg(&layer.path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("igzip is in Debian's package isal");
        let archive = igzip.stdout.take().unwrap();
        let tar = Command::new("tar").args(["-xpf", "-", "-C"]).arg(&to).stdin(archive).status();
        assert!(tar.unwrap().success() && igzip.wait().unwrap().success());
    });
    made
}

fn unpack_in_parallel(layers: &[BenchLayer], work: impl Fn(usize, &BenchLayer) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let at = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(layer) = layers.get(at)
                {
                    work(at, layer);
                }
            });
        }
    });
}

/// Creates the layers, each of different files.
fn layers(dir: &Path) -> Vec<BenchLayer> {
    let list = Command::new("find")
        .args(["/usr/lib", "/usr/share", "/usr/bin", "-xdev", "-type", "f", "-size", "-20M"])
        .output()
        .unwrap();
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    let mut files = list.lines();
    let layers = LAYERS_MIB.iter().enumerate().map(|(at, mib)| {
        let names = dir.join("names");
        let mut chosen = String::new();
        // Programs and their data compress to about a third.
        let mut left = mib * (3 << 20);
        while left > 0 {
            let name = files.next().expect("there are enough files below /usr");
            let size = fs::metadata(name).map_or(0, |metadata| metadata.len());
            left = left.saturating_sub(size);
            chosen.push_str(name);
            chosen.push('\n');
        }
        fs::write(&names, chosen).unwrap();
        let archive = dir.join("archive");
        let status = Command::new("tar")
            .args(["--ignore-failed-read", "-P", "-cf"])
            .arg(&archive)
            .args(["--transform", "s,^/,,", "-T"])
            .arg(&names)
            .status();
        assert!(status.unwrap().success());
        let path = dir.join(format!("{at}.tar.gz"));
        let status = Command::new("gzip")
            .args(["-6", "-c"])
            .stdin(File::open(&archive).unwrap())
            .stdout(File::create(&path).unwrap())
            .status();
        assert!(status.unwrap().success());
        let (diff_id, _) = hash(&archive);
        fs::remove_file(&archive).unwrap();
        let (digest, size) = hash(&path);
        let descriptor = Descriptor::new(MediaType::ImageLayerGzip, digest, size);
        BenchLayer { path, descriptor, diff_id }
    });
    layers.collect()
}

fn hash(path: &Path) -> (Digest, u64) {
    let bytes = fs::read(path).unwrap();
    (Digest::of(&bytes), bytes.len() as u64)
}
