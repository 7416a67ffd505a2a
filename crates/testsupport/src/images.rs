//! Images made from busybox-static, and from bash and node of this machine with their libraries.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use ureq::Agent;

use super::program;

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Answers like redis, as far as the tests need.
const PONG: &str = r#"#!/bin/sh
while read -r line; do
    case $line in
        *[Pp][Ii][Nn][Gg]*) printf '+PONG\r\n' ;;
        *[Qq][Uu][Ii][Tt]*) exit 0 ;;
    esac
done
"#;

const REDIS_CLI: &str = r#"#!/bin/sh
host=127.0.0.1
[ "$1" != -h ] || { host=$2; shift 2; }
answer=$(printf 'PING\r\nQUIT\r\n' | nc -w 60 "$host" 6379) || exit 1
echo "$answer" | tr -d '\r'
[ "$answer" ]
"#;

/// Replaces `pg_isready` and the like: checks that a process listens on the port.
const IS_READY: &str = r#"#!/bin/sh
grep -qi ": 0*:$(printf %04X "$PORT") 0*:0000 0A" /proc/net/tcp /proc/net/tcp6
"#;

/// A layer: a gzip-compressed tar archive.
#[derive(Clone)]
pub struct TestLayer {
    pub blob: Vec<u8>,
    diff_id: String,
}

impl TestLayer {
    pub fn new(fill: impl FnOnce(&mut LayerArchive)) -> Self {
        Self::compressed(Compression::fast(), fill)
    }

    pub fn compressed(level: Compression, fill: impl FnOnce(&mut LayerArchive)) -> Self {
        let mut tree = LayerArchive(tar::Builder::new(Vec::new()));
        fill(&mut tree);
        let archive = tree.0.into_inner().expect("a vector takes everything");
        let diff_id = digest(&archive);
        let mut encoder = GzEncoder::new(Vec::new(), level);
        encoder.write_all(&archive).expect("a vector takes everything");
        Self { blob: encoder.finish().expect("a vector takes everything"), diff_id }
    }
}

/// Content of a layer.
pub struct LayerArchive(tar::Builder<Vec<u8>>);

impl LayerArchive {
    pub fn directory(&mut self, path: &str, mode: u32) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(mode);
        header.set_size(0);
        self.0.append_data(&mut header, path, &[][..]).expect("the name fits");
    }

    pub fn owned_directory(&mut self, path: &str, mode: u32, owner: u64) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_size(0);
        self.0.append_data(&mut header, path, &[][..]).expect("the name fits");
    }

    pub fn file(&mut self, path: &str, mode: u32, content: impl AsRef<[u8]>) {
        let content = content.as_ref();
        let mut header = tar::Header::new_gnu();
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        self.0.append_data(&mut header, path, content).expect("the name fits");
    }

    pub fn script(&mut self, path: &str, content: &str) {
        self.file(path, 0o755, content);
    }

    /// Adds a program of this machine under the same path, with the file capability of this number (`=ep`).
    pub fn capable_program(&mut self, program: &Path, capability: u32) {
        let (revision_and_effective, none) = (0x0200_0001_u32, 0_u32);
        let fields = [revision_and_effective, 1 << capability, none, none, none];
        let value: Vec<u8> = fields.into_iter().flat_map(u32::to_le_bytes).collect();
        let extension = [("SCHILY.xattr.security.capability", &value[..])];
        self.0.append_pax_extensions(extension).expect("a vector takes everything");
        self.copies([program.to_owned()]);
    }

    pub fn link(&mut self, path: &str, target: &str) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_mode(0o777);
        header.set_size(0);
        self.0.append_link(&mut header, path, target).expect("the name fits");
    }

    pub fn hard_link(&mut self, path: &str, target: &str) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Link);
        header.set_mode(0o644);
        header.set_size(0);
        self.0.append_link(&mut header, path, target).expect("the name fits");
    }

    pub fn device(&mut self, path: &str) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Char);
        header.set_mode(0o666);
        header.set_size(0);
        header.set_device_major(1).expect("a GNU header has devices");
        header.set_device_minor(3).expect("a GNU header has devices");
        self.0.append_data(&mut header, path, &[][..]).expect("the name fits");
    }

    /// Adds programs and libraries of this machine under the same paths.
    pub fn copies(&mut self, files: impl IntoIterator<Item = PathBuf>) {
        // Without duplicates: some readers reject a repeated path.
        for file in files.into_iter().collect::<BTreeSet<_>>() {
            let name = file.strip_prefix("/").expect("the path is absolute");
            let content = fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            self.file(name.to_str().expect("the path is UTF-8"), 0o755, content);
        }
    }
}

/// Returns the shared libraries that a program is linked with, including the dynamic linker.
pub fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = program::run(Command::new("ldd").arg(program)).success();
    let words = output.split_whitespace().filter(|word| word.starts_with('/'));
    words.map(PathBuf::from).filter(|path| path != program).collect()
}

/// Returns the files that Debian's node reads when it starts; other builds of node contain them.
fn node_modules() -> Vec<PathBuf> {
    let files = [
        "acorn/dist/acorn.js",
        "acorn-walk/dist/walk.js",
        "cjs-module-lexer/dist/lexer.js",
        "cjs-module-lexer/lexer.js",
        "undici/undici-fetch.js",
    ];
    let paths = files.map(|file| Path::new("/usr/share/nodejs").join(file));
    paths.into_iter().filter(|path| path.exists()).collect()
}

/// An image for the platform of this machine.
#[derive(Clone)]
pub struct TestImage {
    pub layers: Vec<TestLayer>,
    /// The `config` object of the image configuration.
    pub config: Value,
}

impl TestImage {
    pub fn new(layers: &[&TestLayer], config: Value) -> Self {
        Self { layers: layers.iter().map(|&layer| layer.clone()).collect(), config }
    }

    /// Returns the image with fields of its configuration changed.
    pub fn with(&self, fields: Value) -> Self {
        let mut image = self.clone();
        let Value::Object(fields) = fields else { panic!("{fields} is no object") };
        for (name, value) in fields {
            image.config[name] = value;
        }
        image
    }

    /// Returns the image with another layer on top.
    pub fn with_layer(&self, fill: impl FnOnce(&mut LayerArchive)) -> Self {
        let mut image = self.clone();
        image.layers.push(TestLayer::new(fill));
        image
    }

    /// Returns the configuration document.
    pub fn config_document(&self) -> Vec<u8> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let diff_ids: Vec<_> = self.layers.iter().map(|layer| &layer.diff_id).collect();
        // Some builders require a history entry for each layer.
        let history: Vec<_> = self.layers.iter().map(|_| json!({"created_by": "test"})).collect();
        let document = json!({
            "architecture": architecture, "os": "linux", "config": self.config,
            "history": history, "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        serde_json::to_vec(&document).expect("a value can be written")
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> Vec<u8> {
        let descriptor = |media_type: &str, blob: &[u8]| json!({"mediaType": media_type, "digest": digest(blob), "size": blob.len()});
        let layers = self.layers.iter();
        let layers: Vec<_> = layers
            .map(|l| descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &l.blob))
            .collect();
        let config = "application/vnd.oci.image.config.v1+json";
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor(config, &self.config_document()), "layers": layers,
        });
        serde_json::to_vec(&manifest).expect("a value can be written")
    }

    /// Writes the image to a new directory as an OCI layout.
    pub fn write_layout(&self, layout: &Path) {
        let write = |name: &str, content: &[u8]| {
            fs::write(layout.join(name), content).expect("the directory is new");
        };
        fs::create_dir_all(layout.join("blobs/sha256")).expect("the directory is new");
        let (manifest, config) = (self.manifest(), self.config_document());
        let layers = self.layers.iter().map(|layer| &layer.blob);
        for blob in layers.chain([&manifest, &config]) {
            write(&format!("blobs/{}", digest(blob).replace(':', "/")), blob);
        }
        let descriptor = json!({
            "mediaType": MANIFEST, "digest": digest(&manifest), "size": manifest.len(),
        });
        let index = json!({"schemaVersion": 2, "manifests": [descriptor]});
        write("index.json", index.to_string().as_bytes());
        write("oci-layout", br#"{"imageLayoutVersion": "1.0.0"}"#);
    }

    /// Pushes the image to the registry of this URL, under a name of repository and tag.
    pub fn push(&self, registry: &str, name: &str) {
        let config = self.config_document();
        for blob in self.layers.iter().map(|layer| &layer.blob).chain([&config]) {
            push_blob(registry, name, blob);
        }
        push_manifest(registry, name, MANIFEST, &self.manifest());
    }
}

pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Returns the digest of a blob.
pub fn digest(blob: &[u8]) -> String {
    let hash = Sha256::digest(blob);
    hash.iter().fold("sha256:".to_owned(), |text, byte| format!("{text}{byte:02x}"))
}

/// Pushes a blob of an image.
pub fn push_blob(registry: &str, name: &str, blob: &[u8]) {
    let repository = name.split(':').next().expect("a name has one");
    let digest = digest(blob);
    let agent = agent();
    let head = agent.head(format!("{registry}/v2/{repository}/blobs/{digest}")).call();
    if head.is_ok_and(|answer| answer.status() == 200) {
        return;
    }
    let begun = agent
        .post(format!("{registry}/v2/{repository}/blobs/uploads/"))
        .send_empty()
        .expect("the registry answers");
    let place = begun.headers().get("location").and_then(|place| place.to_str().ok());
    let place = place.unwrap_or_else(|| panic!("no upload: {}", begun.status()));
    let put = agent.put(format!("{place}&digest={digest}")).send(blob);
    assert_eq!(put.expect("the registry answers").status(), 201, "{name}");
}

/// Pushes a manifest under a name of repository and tag.
pub fn push_manifest(registry: &str, name: &str, kind: &str, manifest: &[u8]) {
    let (repository, tag) = name.split_once(':').expect("the name has a tag");
    let place = format!("{registry}/v2/{repository}/manifests/{tag}");
    let put = agent().put(place).header("Content-Type", kind).send(manifest);
    assert_eq!(put.expect("the registry answers").status(), 201, "{name}");
}

/// Returns a client that starts no thread, so that it can run in the namespaces of a host.
fn agent() -> Agent {
    Agent::config_builder().http_status_as_error(false).proxy(None).build().into()
}

/// Layers that images share.
pub struct SharedLayers {
    busybox: TestLayer,
    debian: TestLayer,
    alpine: TestLayer,
    services: TestLayer,
}

impl SharedLayers {
    #[expect(clippy::new_without_default, reason = "it is made on the machine")]
    pub fn new() -> Self {
        let busybox = TestLayer::new(|tree| {
            for (directory, mode) in [
                ("bin", 0o755),
                ("dev", 0o755),
                ("etc", 0o755),
                ("home", 0o755),
                ("proc", 0o555),
                ("root", 0o700),
                ("sys", 0o555),
                ("tmp", 0o1777),
                ("usr", 0o755),
                ("usr/bin", 0o755),
                ("usr/local", 0o755),
                ("usr/local/bin", 0o755),
                ("var", 0o755),
            ] {
                tree.directory(directory, mode);
            }
            let busybox = program::find("busybox");
            tree.file("bin/busybox", 0o755, fs::read(&busybox).expect("busybox can be read"));
            let applets = program::run(Command::new(&busybox).arg("--list")).success();
            for applet in applets.lines().filter(|&applet| applet != "busybox") {
                tree.link(&format!("bin/{applet}"), "busybox");
            }
            tree.link("usr/bin/env", "/bin/busybox");
            tree.file(
                "etc/passwd",
                0o644,
                "root:x:0:0:root:/root:/bin/sh\napp:x:1001:1001::/home/app:/bin/sh\n",
            );
            tree.file("etc/group", 0o644, "root:x:0:\napp:x:1001:\nextra:x:1234:app\n");
            tree.copies(node_modules());
        });
        let debian = TestLayer::new(|tree| {
            tree.file("etc/os-release", 0o644, "PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n");
            let bash = program::find("bash");
            let libraries = [libraries(&bash), libraries(&program::find("node"))].concat();
            tree.copies(libraries.into_iter().chain([bash]));
            // These print their name and arguments.
            for name in ["python", "pwsh"] {
                let script = format!("#!/bin/sh\necho {name}\nprintf '<%s>\\n' \"$@\"\n");
                tree.script(&format!("usr/bin/{name}"), &script);
            }
            tree.script("entrypoint.sh", "#!/bin/sh\nprintf '<%s>\\n' \"$@\"\n");
        });
        let alpine = TestLayer::new(|tree| {
            tree.file("etc/os-release", 0o644, "NAME=\"Alpine Linux\"\nID=alpine\n");
        });
        let services = TestLayer::new(|tree| {
            tree.script("usr/local/bin/pong", PONG);
            tree.script("usr/local/bin/redis-cli", REDIS_CLI);
            for name in ["pg_isready", "mysqladmin", "mongosh"] {
                tree.script(&format!("usr/local/bin/{name}"), IS_READY);
            }
            tree.script(
                "usr/local/bin/serve",
                "#!/bin/sh\necho ready >&2\nexec nc -ll -p \"$PORT\" -e pong\n",
            );
            tree.script(
                "usr/local/bin/nginx",
                "#!/bin/sh\necho nginx: started\nexec httpd -f -p 80 -h /www\n",
            );
            tree.directory("www", 0o755);
            tree.file("www/index.html", 0o644, "hello from nginx\n");
        });
        Self { busybox, debian, alpine, services }
    }

    /// Returns an image with bash and the libraries of node.
    pub fn debian(&self) -> TestImage {
        TestImage::new(
            &[&self.busybox, &self.debian],
            json!({"Env": [PATH, "IMAGE=debian"], "Cmd": ["bash"]}),
        )
    }

    pub fn alpine(&self) -> TestImage {
        TestImage::new(&[&self.busybox, &self.alpine], json!({"Env": [PATH], "Cmd": ["/bin/sh"]}))
    }

    /// Returns an image of a service that listens on a port and answers PING.
    pub fn service(&self, port: u16) -> TestImage {
        TestImage::new(
            &[&self.busybox, &self.alpine, &self.services],
            json!({
                "Env": [PATH, format!("PORT={port}")], "Cmd": ["serve"],
                "ExposedPorts": {format!("{port}/tcp"): {}},
            }),
        )
    }

    pub fn nginx(&self) -> TestImage {
        self.service(80).with(json!({"Entrypoint": ["nginx"], "Cmd": ["-g", "daemon off;"]}))
    }

    /// Returns an image with one static program and no shell.
    pub fn scratch(&self) -> TestImage {
        let only = TestLayer::new(|tree| {
            let busybox = fs::read(program::find("busybox")).expect("busybox can be read");
            tree.file("echo", 0o755, busybox);
        });
        TestImage::new(&[&only], json!({"Entrypoint": ["/echo"], "Cmd": ["from", "scratch"]}))
    }

    /// Returns an image for containers with the `/usr` of this machine mounted, to run buildah and podman.
    fn machine_image() -> TestImage {
        let only = TestLayer::new(|tree| {
            for directory in
                ["dev", "etc", "etc/containers", "home", "proc", "root", "run", "sys", "usr", "var"]
            {
                tree.directory(directory, 0o755);
            }
            for directory in ["tmp", "var/tmp"] {
                tree.directory(directory, 0o1777);
            }
            for name in ["bin", "sbin", "lib", "lib64"] {
                tree.link(name, &format!("usr/{name}"));
            }
            tree.file("etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/sh\n");
            tree.file("etc/group", 0o644, "root:x:0:\n");
            let accept = r#"{"default": [{"type": "insecureAcceptAnything"}]}"#;
            tree.file("etc/containers/policy.json", 0o644, accept);
            // As in the images that the Podman project publishes.
            let conf = "[containers]\nnetns = \"host\"\nuserns = \"host\"\nipcns = \"host\"\n\
                        utsns = \"host\"\ncgroupns = \"host\"\ncgroups = \"disabled\"\n\
                        log_driver = \"k8s-file\"\n[engine]\ncgroup_manager = \"cgroupfs\"\n\
                        events_logger = \"file\"\nruntime = \"crun\"\n";
            tree.file("etc/containers/containers.conf", 0o644, conf);
        });
        let volumes = json!({"/var/lib/containers": {}});
        TestImage::new(&[&only], json!({"Env": [PATH], "Cmd": ["sh"], "Volumes": volumes}))
    }

    /// Returns all images that the tests use, by repository and tag.
    pub fn all_images(&self) -> Vec<(String, TestImage)> {
        let health = |test: Value, retries: u32| {
            let second = 1_000_000_000_u64;
            json!({"Healthcheck": {
                "Test": test, "Interval": second / 10, "Timeout": 2 * second, "Retries": retries,
            }})
        };
        let (debian, alpine, nginx) = (self.debian(), self.alpine(), self.nginx());
        let shell = |script: &str| json!(["CMD-SHELL", script]);
        let mut all = vec![
            ("library/node:22", debian.clone()),
            ("library/node:14.16", debian.clone()),
            ("octo/private:1", debian.clone()),
            ("octo/ci-image:main", debian.clone()),
            ("nvidia/cuda:12.4.1-base-ubuntu22.04", debian.clone()),
            ("library/alpine:3.20", alpine.clone()),
            ("library/redis:7", self.service(6379)),
            ("library/redis:latest", self.service(6379)),
            ("library/postgres:16", self.service(5432)),
            ("library/mysql:8", self.service(3306)),
            ("library/mongo:5.0", self.service(27017)),
            ("team/db:1.2", self.service(1521)),
            ("library/nginx:alpine", nginx.clone()),
            ("test/healthy:1", nginx.with(health(shell("wget -q -O- localhost"), 50))),
            ("test/healthy:exec", nginx.with(health(json!(["CMD", "/bin/true"]), 1))),
            (
                "test/unhealthy:1",
                nginx.with(health(shell("echo the probe says no >&2; exit 1"), 2)),
            ),
            ("test/exits:1", nginx.with(json!({"Entrypoint": ["sh", "-c", "echo oh no; exit 3"]}))),
            ("test/scratch:1", self.scratch()),
            ("test/layers:1", layered_image(&alpine)),
            (
                "test/layers:anew",
                layered_image(&debian).with_layer(|tree| {
                    tree.file(".wh..wh..opq", 0o644, "");
                    tree.directory("bin", 0o755);
                    let busybox = fs::read(program::find("busybox")).expect("busybox can be read");
                    tree.file("bin/busybox", 0o755, busybox);
                    tree.link("bin/sh", "busybox");
                    tree.link("bin/ls", "busybox");
                }),
            ),
            ("test/machine:1", Self::machine_image()),
            (
                "test/entrypoint:1",
                alpine.with(json!({"Entrypoint": ["printf", "<%s>\\n"], "Cmd": ["a b", "c"]})),
            ),
            (
                "test/user:1",
                alpine
                    .with(
                        json!({"User": "app", "WorkingDir": "/srv/made", "Volumes": {"/data": {}}}),
                    )
                    .with_layer(|tree| {
                        tree.directory("data", 0o777);
                        tree.file("data/kept", 0o644, "from the image\n");
                    }),
            ),
        ];
        all.extend(hostile_images(&alpine));
        all.into_iter().map(|(name, image)| (name.to_owned(), image)).collect()
    }
}

/// Returns an image with equal layers, and layers that hide files of lower ones: `/opt` has the file `own`, and `/srv`
/// the file `new`.
fn layered_image(base: &TestImage) -> TestImage {
    let repeated = |image: TestImage| {
        image.with_layer(|tree| {
            tree.file("etc/same", 0o644, "same\n");
            tree.file(".wh.gone", 0o644, "");
        })
    };
    let lower = repeated(base.with_layer(|tree| {
        for name in ["opt/a", "opt/b/c", "srv/old", "gone"] {
            tree.file(name, 0o644, "hidden\n");
        }
    }));
    repeated(lower.with_layer(|tree| {
        tree.file("opt/own", 0o644, "");
        tree.file("opt/.wh..wh..opq", 0o644, "");
        tree.file("gone", 0o644, "");
        tree.file(".wh.srv", 0o644, "");
        tree.directory("srv", 0o755);
        tree.file("srv/new", 0o644, "");
    }))
}

/// Returns images that try to reach the host.
fn hostile_images(alpine: &TestImage) -> Vec<(&'static str, TestImage)> {
    let user = |user: &str| alpine.with(json!({"User": user}));
    let linked = |path: &'static str, target: &'static str| {
        let mut image = alpine.clone();
        // The link replaces the directory. A link in a layer above the directory would work as well.
        image.layers[0] = TestLayer::new(|tree| {
            let busybox = fs::read(program::find("busybox")).expect("busybox can be read");
            for directory in ["bin", "etc", "dev", "proc", "sys", "tmp"] {
                if Some(directory) != path.strip_prefix('/') {
                    tree.directory(directory, 0o755);
                }
            }
            tree.file("bin/busybox", 0o755, busybox);
            for applet in ["sh", "cat", "echo", "true", "ls", "id"] {
                tree.link(&format!("bin/{applet}"), "busybox");
            }
            tree.link(path.trim_start_matches('/'), target);
        });
        image
    };
    let mut images = vec![
        ("evil/user:large", user("4294967296")),
        ("evil/user:negative", user("-1")),
        ("evil/user:unknown", user("nobody-here")),
        ("evil/user:group", user("0:no-such-group")),
        ("evil/self:exe", alpine.with(json!({"Entrypoint": ["/proc/self/exe"]}))),
        ("evil/link:dev", linked("/dev", "/run/canary")),
        ("evil/link:dev-up", linked("/dev", "../../../../../../../../run/canary")),
        ("evil/link:proc", linked("/proc", "/run/canary")),
        ("evil/link:sys", linked("/sys", "/run/canary")),
        ("evil/link:dev-null", linked("/dev/null", "/run/canary/file")),
        ("evil/link:dev-null-trigger", linked("/dev/null", "/proc/sysrq-trigger")),
        ("evil/link:dev-console", linked("/dev/console", "/run/canary/file")),
        (
            "evil/workdir:link",
            alpine
                .with(json!({"WorkingDir": "/link/made"}))
                .with_layer(|t| t.link("link", "/run/canary")),
        ),
        (
            "evil/workdir:link-up",
            alpine
                .with(json!({"WorkingDir": "/link/made"}))
                .with_layer(|t| t.link("link", "../../../../../../../../../../run/canary")),
        ),
    ];
    images.push((
        "evil/volume:1",
        alpine.with_layer(|tree| {
            tree.directory("filled", 0o755);
            tree.file("filled/file", 0o644, "from the image\n");
            tree.owned_directory("filled/dir", 0o755, 1001);
            tree.hard_link("filled/dir/file", "filled/file");
            tree.hard_link("filled/dir/again", "filled/file");
        }),
    ));
    for (tag, fd) in [("evil/workdir:fd3", 3), ("evil/workdir:fd7", 7), ("evil/workdir:fd8", 8)] {
        images.push((tag, alpine.with(json!({"WorkingDir": format!("/proc/self/fd/{fd}")}))));
    }
    images
}
