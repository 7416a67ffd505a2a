//! The engine's calls to create a container, and their parts, in turn with the runtime alone on an equal bundle. Prints
//! medians of the wall-clock time, and the load.
//!
//! `cargo bench -p oci-hooks-engine --bench phases`, as root; needs runc, crun, nft, docker-registry, skopeo and
//! busybox-static.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks_engine::bundle::{
    self, BundleOptions, ContainerNamespaces, NamespaceSource, ResolverOptions,
};
use oci_hooks_engine::container::{
    ContainerRecord, ContainerRole, ContainerSpec, Engine, MonitorProgram, write_record,
};
use oci_hooks_engine::network::{
    EndpointRequest, NamespaceOwner, Network, NetworkOptions, NetworkRequest,
};
use oci_hooks_engine::rootfs::{self, RootfsRequest, UserNamespace};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_files::lock::{FileLock, LOCK_TIMEOUT};
use oci_hooks_host::netns;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{
    ClientOptions, Credentials, Image, ImageStore, Platform, PullPolicy, PullRequest,
    RegistryClient, RegistryOptions, SilentProgress, StoreOptions, pull,
};
use oci_hooks_testsupport::images::{TestImage, TestLayer};
use oci_hooks_testsupport::measure::{LapTimes, median_ms};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::registry::{RegistryAuth, RegistryConfig, TestRegistry};
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

const ROUNDS: usize = 31;

const IMAGE: &str = "bench/busybox:1";

fn main() {
    println!("milliseconds, medians of {ROUNDS} rounds");
    for runtime in TestRuntime::ALL {
        let dir = program::temporary_directory_in(Path::new("/dev/shm"));
        // Root of a user namespace must be able to reach the root file system.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
        let host = dir.path().join("host");
        netns::create(&host, None, || measure(dir.path(), runtime)).unwrap();
        netns::unpin(&host).unwrap();
    }
}

fn measure(dir: &Path, runtime: TestRuntime) {
    program::run(Command::new("ip").args(["link", "set", "lo", "up"])).success();
    let bench = PhasesBench::new(dir, runtime);
    let mut times = [const { Vec::new() }; 12];
    for round in 0..=ROUNDS {
        let laps = bench.create();
        // Round 0 pulls the image.
        if round > 0 {
            for (times, lap) in times.iter_mut().zip(laps) {
                times.push(lap);
            }
        }
    }
    let medians = times.map(|times| median_ms(&times));
    let [lock, check, network, prepare, start, process, total, parts @ ..] = medians;
    let [record, root, bundle, bare, bare_process] = parts;
    println!("\n{runtime}");
    for (phase, ms) in [
        ("lock", lock),
        ("registry check", check),
        ("network", network),
        ("prepare", prepare),
        ("  record and lease", record),
        ("  root file system", root),
        ("  bundle", bundle),
        ("  unexplained", prepare - record - root - bundle),
        ("start", start),
        ("  the runtime alone", bare),
        ("  unexplained", start - bare),
        ("first process", process),
        ("  with the runtime alone", bare_process),
        ("sum of the phases", lock + check + network + record + root + bundle + bare + process),
        ("total of the calls", total),
        ("more than the runtime", total - bare - bare_process),
    ] {
        println!("{phase:26} {ms:>8.2}");
    }
    println!("load average: {}", fs::read_to_string("/proc/loadavg").unwrap());
}

struct PhasesBench<'a> {
    dir: &'a Path,
    registry: TestRegistry,
    client: ClientOptions,
    engine: Engine,
}

impl<'a> PhasesBench<'a> {
    /// Creates an engine, and a registry with TLS that has an image.
    fn new(dir: &'a Path, runtime: TestRuntime) -> Self {
        let data = program::repository("crates/testsupport/data/registry");
        let (certificate, key) = (data.join("server.pem"), data.join("server.key"));
        let config = RegistryConfig { tls: Some((&certificate, &key)) };
        let registry = TestRegistry::start_with(RegistryAuth::None, config);
        let busybox = fs::read(program::find("busybox")).unwrap();
        let layer = TestLayer::new(|tree| tree.file("busybox", 0o755, busybox));
        let layout = dir.join("layout");
        TestImage::new(&[&layer], json!({})).write_layout(&layout);
        registry.push(&format!("oci:{}", layout.display()), IMAGE, None);
        let ca_files = vec![data.join("authority.pem")];
        let trusted = RegistryOptions { ca_files, ..RegistryOptions::default() };
        let registries = [(registry.address(), trusted)].into();
        let client = ClientOptions { registries, ..ClientOptions::default() };
        let (disk, run) = (dir.join("lib"), dir.join("run"));
        let engine = Engine {
            store: ImageStore::open(StoreOptions::new(&disk, &run)).unwrap(),
            runtime: OciRuntime::new(runtime.command().get_program().into(), run.join("runtime")),
            run,
            disk,
            // The output of these containers is not kept.
            monitor: MonitorProgram { path: "/nonexistent".into(), arguments: Vec::new() },
            privilege: Privilege::Root,
        };
        PhasesBench { dir, registry, client, engine }
    }

    /// Creates a container by the calls of the engine, and an equal one by their parts and the runtime alone.
    /// Returns the times of the calls, their sum, and the times of the parts.
    fn create(&self) -> Vec<Duration> {
        let mut laps = LapTimes::start();
        let lock = self.engine.run.join("job.lock");
        let _lock = FileLock::acquire_exclusive(&lock, LOCK_TIMEOUT).unwrap();
        laps.lap();
        let image = self.pull();
        laps.lap();
        let mut spec = ContainerSpec::new(ContainerRole::Job, "bench", &image);
        let (network, options) = self.connect(&spec.id[..12]);
        spec.options = options.clone();
        laps.lap();
        let prepared = self.engine.prepare(spec).unwrap();
        laps.lap();
        let root = prepared.rootfs.path.clone();
        let record = prepared.start().unwrap();
        laps.lap();
        wait_for_first_process(&root);
        laps.lap();
        let total: Duration = laps.times.iter().sum();
        laps.times.push(total);
        self.engine.remove(&record).unwrap();
        laps.times.extend(self.create_by_parts(&image, options, &record));
        network.remove().unwrap();
        laps.times
    }

    /// Checks the image at the registry, with a new connection.
    fn pull(&self) -> Image {
        let client = RegistryClient::new(self.client.clone()).unwrap();
        let request = PullRequest {
            reference: &format!("{}/{IMAGE}", self.registry.address()).parse().unwrap(),
            platform: &Platform::host(),
            credentials: &Credentials::default(),
            policy: PullPolicy::Always,
            progress: &SilentProgress,
        };
        pull(&self.engine.store, &client, &request).unwrap()
    }

    /// Creates the network of a container, and returns the options of the container in it.
    fn connect(&self, id: &str) -> (Network, BundleOptions) {
        let user_namespace = Some(NamespaceOwner::FirstId);
        let request = NetworkRequest { id: id.to_owned(), user_namespace };
        let options = NetworkOptions::new(&self.engine.run);
        let network = Network::create(&options, &request).unwrap();
        let endpoint = network.attach(&EndpointRequest::new(id)).unwrap();
        let script = ": >/started; exec /busybox sleep 1000";
        let options = BundleOptions {
            args: ["/busybox", "sh", "-c", script].map(str::to_owned).into(),
            hostname: Some(id.to_owned()),
            hosts: Some(Vec::new()),
            dns: Some(ResolverOptions::default()),
            namespaces: ContainerNamespaces {
                network: NamespaceSource::Path(endpoint.netns),
                ..ContainerNamespaces::default()
            },
            user_namespace: network.user_namespace(),
            private_ids: network.private_ids(),
            ..BundleOptions::default()
        };
        (network, options)
    }

    fn create_by_parts(
        &self,
        image: &Image,
        mut options: BundleOptions,
        record: &ContainerRecord,
    ) -> Vec<Duration> {
        let [disk, dir, state] = ["disk", "bundle", "state"].map(|name| self.dir.join(name));
        fs::create_dir(&disk).unwrap();
        options.cgroups_path = Some(record.cgroup.clone());
        let mut laps = LapTimes::start();
        write_record(&self.dir.join("record.json"), record).unwrap();
        self.engine.store.lease(&record.id, image).unwrap();
        laps.lap();
        let (path, ids) = (options.user_namespace.as_deref(), options.private_ids);
        let rootfs = rootfs::mount(&RootfsRequest {
            user_namespace: path.map(|path| UserNamespace { path, ids }),
            ..RootfsRequest::new(&image.layers, &disk)
        });
        let root = rootfs.unwrap().path;
        laps.lap();
        let bundle = bundle::write(&image.config, &root, &options, &dir).unwrap();
        laps.lap();
        let runtime = || {
            let mut command = Command::new(&self.engine.runtime.program);
            command.arg("--root").arg(&state);
            command
        };
        let mut run = runtime();
        run.args(["run", "--detach", "--bundle"]).arg(&dir).arg("bare");
        // Not the host's null device: crun changes the owner of a container's streams.
        let output = File::create(self.dir.join("output")).unwrap();
        run.stdin(std::io::pipe().unwrap().0);
        run.stdout(output.try_clone().unwrap()).stderr(output);
        bundle.mounts.enter(&mut run).unwrap();
        let status = run.status().unwrap();
        laps.lap();
        assert!(status.success(), "{}", fs::read_to_string(self.dir.join("output")).unwrap());
        wait_for_first_process(&root);
        laps.lap();
        program::run(runtime().args(["delete", "--force", "bare"])).success();
        drop(bundle);
        rootfs::unmount(&disk).unwrap();
        self.engine.store.release(&record.id).unwrap();
        for dir in [disk, dir] {
            fs::remove_dir_all(dir).unwrap();
        }
        laps.times
    }
}

/// Waits for the file of a container's first process, and removes it.
fn wait_for_first_process(root: &Path) {
    let end = Instant::now() + program::DEADLINE;
    while let Err(error) = fs::remove_file(root.join("started")) {
        assert!(Instant::now() < end, "the first process does not run: {error}");
        thread::sleep(Duration::from_micros(50));
    }
}
