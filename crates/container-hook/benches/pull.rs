//! Pulling and unpacking an image of six layers from a registry on this machine: `container-hook
//! pull`, podman, and the lower bound, two `igzip | tar` in parallel on files in memory.
//! Prints the best wall-clock time of a few runs, and the memory of `container-hook`.
//!
//! `cargo bench -p container-hook --bench pull`, as root; needs docker-registry, busybox-static and
//! isal, and podman for its line.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flate2::Compression;
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{self, HostRegistry, RegistryName};
use oci_hooks_testsupport::images::{TestImage, TestLayer};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

const RUNS: usize = 5;
const LAYERS: u64 = 6;
/// Compressed size of the image.
const SIZE: u64 = 149_000_000;
const REFERENCE: &str = "localhost:5000/bench/large:1";

fn main() {
    let image = create_large_image();
    let packed: usize = image.layers.iter().map(|layer| layer.blob.len()).sum();
    println!(
        "{} layers, {:.0} MB in gzip; best of {RUNS}\n",
        image.layers.len(),
        to_megabytes(packed)
    );
    let storage = program::temporary_directory_in(Path::new("/dev/shm"));
    hub::push_all(storage.path(), std::iter::once(("bench/large:1", &image)));

    let floor = measure_best(|| floor(&image));
    let mut memory = 0;
    let ours = measure_best(|| {
        let (time, peak) = measure_our_pull(storage.path());
        memory = memory.max(peak);
        time
    });
    let podman = Path::new("/usr/bin/podman").is_file();
    let podman = podman.then(|| measure_best(|| podman_pull(storage.path())));
    let line = |what: &str, time: Duration| {
        let ratio = time.as_secs_f64() / ours.as_secs_f64();
        println!("{what:28} {:>8.0} ms {ratio:>6.2} × ours", time.as_secs_f64() * 1e3);
    };
    line("container-hook pull", ours);
    line("two igzip | tar", floor);
    if let Some(podman) = podman {
        line("podman pull", podman);
    }
    println!("\nmemory of container-hook     {memory:>8} KiB");
}

fn to_megabytes(bytes: usize) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let bytes = bytes as f64;
    bytes / 1e6
}

fn measure_best(mut measure: impl FnMut() -> Duration) -> Duration {
    (0..RUNS).map(|_| measure()).min().unwrap()
}

/// Creates an image from the programs and libraries of this machine.
fn create_large_image() -> TestImage {
    let mut files: Vec<PathBuf> = Vec::new();
    let mut rest = vec![PathBuf::from("/usr/bin"), PathBuf::from("/usr/lib")];
    while let Some(directory) = rest.pop() {
        let mut entries: Vec<_> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()).collect();
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let kind = entry.file_type().unwrap();
            // Larger files would fill a layer.
            if kind.is_dir() {
                rest.push(entry.path());
            } else if kind.is_file() && entry.metadata().unwrap().len() < 8_000_000 {
                files.push(entry.path());
            }
        }
    }
    let mut files = files.into_iter().peekable();
    let layers: Vec<_> = (0..LAYERS).map(|_| layer(&mut files)).collect();
    let layers: Vec<_> = layers.iter().collect();
    TestImage::new(&layers, json!({"Cmd": ["sh"]}))
}

/// Creates a layer from the next files, about a sixth of the compressed size.
fn layer(files: &mut impl Iterator<Item = PathBuf>) -> TestLayer {
    // Measured compression ratio of programs and libraries.
    let limit = SIZE * 26 / 10 / LAYERS;
    let mut size = 0;
    TestLayer::compressed(Compression::default(), |tree| {
        while size < limit {
            let Some(path) = files.next() else { break };
            let Ok(content) = fs::read(&path) else { continue };
            size += content.len() as u64;
            let name = path.strip_prefix("/").unwrap().to_str();
            if let Some(name) = name {
                tree.file(name, 0o644, content);
            }
        }
    })
}

/// Unpacks the layers with the fastest tools, two in parallel.
fn floor(image: &TestImage) -> Duration {
    let directory = program::temporary_directory_in(Path::new("/dev/shm"));
    for (number, layer) in image.layers.iter().enumerate() {
        fs::write(directory.path().join(format!("{number}.tgz")), &layer.blob).unwrap();
    }
    let igzip = program::find("igzip");
    let script = format!(
        "ls *.tgz | xargs -P 2 -I @ sh -c 'mkdir @.d && {} -dc @ | tar -x -C @.d'",
        igzip.display()
    );
    let start = Instant::now();
    let mut shell = Command::new("sh");
    program::run(shell.args(["-ec", &script]).current_dir(directory.path())).success();
    start.elapsed()
}

/// Pulls into an empty store, and returns the time and the peak memory in KiB.
fn measure_our_pull(storage: &Path) -> (Duration, u64) {
    let host = TestHost::new();
    let _registry = HostRegistry::serve(&host, RegistryName::Local, None, storage);
    let settings = "[registry.\"localhost:5000\"]\ninsecure = true\n";
    let installation = HookInstallation::new(&host, TestRuntime::Runc, settings);
    let mut command = Command::new(program::find("busybox"));
    let (name, value) = installation.variable();
    command.args(["time", "-f", "%M"]).arg(installation.program()).env(name, value);
    command.args(["pull", REFERENCE]);
    let start = Instant::now();
    let ended = host.run(&mut command);
    let time = start.elapsed();
    let peak = ended.stderr.lines().last().and_then(|line| line.trim().parse().ok());
    let said = ended.stderr.clone();
    ended.success();
    (time, peak.unwrap_or_else(|| panic!("{said}")))
}

fn podman_pull(storage: &Path) -> Duration {
    let host = TestHost::new();
    let _registry = HostRegistry::serve(&host, RegistryName::Local, None, storage);
    let directory = host.path().join("podman");
    let mut command = Command::new("/usr/bin/podman");
    command.arg("--root").arg(directory.join("root"));
    command.arg("--runroot").arg(directory.join("run"));
    command.args([
        "--storage-driver",
        "overlay",
        "pull",
        "--quiet",
        "--tls-verify=false",
        REFERENCE,
    ]);
    let start = Instant::now();
    host.run(&mut command).success();
    start.elapsed()
}
