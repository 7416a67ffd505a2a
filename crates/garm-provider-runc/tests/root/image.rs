//! `container:` jobs in instances of the image built by `contrib/images/garm-runner`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::garm::installation::ProviderInstallation;
use oci_hooks_testsupport::garm::runner;
use oci_hooks_testsupport::garm::server::GarmServer;
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::images::{self, SharedLayers, TestImage};
use oci_hooks_testsupport::recipes::BuildahStorage;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::world::{self, UserIds};
use oci_hooks_testsupport::{program, static_program};
use serde_json::json;

use crate::setup::GarmFixture;

/// Reference of the image in GARM's pool.
const IMAGE: &str = "localhost:5000/garm-runner:1";

/// Packages that the Containerfile may install, with programs of this machine as substitutes. Programs that only
/// Dockerfile actions need are omitted.
const PACKAGES: [(&str, &[&str]); 7] = [
    ("buildah", &[]),
    ("crun", &["crun"]),
    ("libcap2-bin", &["setcap"]),
    ("nftables", &["nft"]),
    ("runc", &["runc"]),
    ("slirp4netns", &["slirp4netns"]),
    ("uidmap", &["newuidmap", "newgidmap"]),
];

/// Substitute for apt-get, which copies the files of a package from a directory.
const APT_GET: &str = r#"#!/bin/sh
set -e
[ "$1" != update ] || exit 0
[ "$1" = install ] || { echo "E: Invalid operation $1"; exit 100; }
shift
for package; do
    case $package in -*) continue ;; esac
    [ -d "/packages/$package" ] || { echo "E: Unable to locate package $package"; exit 100; }
    cp -a "/packages/$package/." /
done
"#;

/// Flavor that the image needs.
const NESTING: &str = "[flavors.nesting]\nnesting = true\n";

/// Returns a substitute for GitHub's image: a runner, its node, and an image for a job.
fn base(layout: &Path) -> TestImage {
    let layers = SharedLayers::new();
    layers.alpine().write_layout(layout);
    let node = program::find("node");
    layers.debian().with(json!({"User": "runner", "WorkingDir": "/home/runner"})).with_layer(
        |tree| {
            tree.file(
                "etc/passwd",
                0o644,
                "root:x:0:0:root:/root:/bin/sh\nrunner:x:1001:1001::/home/runner:/bin/sh\n",
            );
            tree.file("etc/group", 0o644, "root:x:0:\nrunner:x:1001:\n");
            // As adduser creates them.
            for name in ["etc/subuid", "etc/subgid"] {
                tree.file(name, 0o644, "runner:100000:65536\n");
            }
            tree.owned_directory("home/runner", 0o777, 1001);
            runner::fill(tree, "home/runner/", "");
            tree.script("usr/bin/apt-get", APT_GET);
            tree.copies([node]);
            tree.file("opt/job.js", 0o644, include_str!("../../../testsupport/data/job.js"));
            for file in files_below(layout) {
                let name = format!("opt/layout/{}", file.strip_prefix(layout).unwrap().display());
                tree.file(&name, 0o644, fs::read(file).unwrap());
            }
            // Each library is added once, even if several programs need it.
            let mut libraries = BTreeMap::new();
            for (package, programs) in PACKAGES {
                tree.directory(&format!("packages/{package}"), 0o755);
                for name in programs {
                    let path = fs::canonicalize(program::find(name)).unwrap();
                    let mode = fs::metadata(&path).unwrap().permissions().mode();
                    let target = format!("packages/{package}/usr/bin/{name}");
                    tree.file(&target, mode & 0o7777, fs::read(&path).unwrap());
                    libraries.extend(images::libraries(&path).into_iter().map(|path| (path, ())));
                }
            }
            tree.copies(libraries.into_keys());
        },
    )
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: PathBuf| if path.is_dir() { files_below(&path) } else { vec![path] };
    entries.flat_map(below).collect()
}

/// Builds the image, pushes it to a registry, and runs a job with a container in an instance.
fn check(world: &GarmFixture<'_>, buildah: &BuildahStorage) {
    let storage = program::temporary_directory();
    let _registry = HostRegistry::serve(world.host(), RegistryName::Local, None, storage.path());
    world.host().run(&mut buildah.push(IMAGE)).success();
    let job = "node /opt/job.js \"$ACTIONS_RUNNER_CONTAINER_HOOKS\" /opt/layout crun && \
               container-hook doctor; echo ended $?; exec sleep 1000";
    let fields = json!({"image": IMAGE, "flavor": "nesting"});
    world.bring_up("one", job, fields);
    let log = world.installation.wait_for_log("one", "ended ");
    assert!(log.text.contains(" ended 0"), "{}", log.text);
    for expected in [
        " user 0 of 65535\n",
        "newuidmap           /usr/bin/newuidmap (file cap",
        "overlay             works",
    ] {
        assert!(log.text.contains(expected), "{expected}: {}", log.text);
    }
    world.provider().delete("one");
}

#[test]
fn jobs_of_the_garm_image_run_containers() {
    let layout = program::temporary_directory();
    let buildah = BuildahStorage::new();
    buildah.base(&base(layout.path()));
    buildah.build("garm-runner", &static_program::program("container-hook"));
    let world = world::UserWorld::new();
    let installation = ProviderInstallation::new(world.host(), TestRuntime::Runc, NESTING);
    check(&GarmFixture { garm: GarmServer::start(world.host()), installation }, &buildah);
    let world = world::UserWorld::new();
    let user = world.user(UserIds::Ranges);
    let installation = ProviderInstallation::of_user(&world, &user, TestRuntime::Crun, NESTING);
    check(&GarmFixture { garm: GarmServer::start(world.host()), installation }, &buildah);
}

#[test]
fn rootless_image_meets_the_requirements_of_a_pod() {
    let layout = program::temporary_directory();
    let buildah = BuildahStorage::new();
    buildah.base(&base(layout.path()));
    buildah.build("rootless-runner", &static_program::program("container-hook"));
    let config = buildah.configuration()["config"].clone();
    assert_eq!(config["User"], "runner");
    assert!(config["Volumes"]["/home/runner/.local/share/oci-hooks"].is_object(), "{config}");
    let hook = "ACTIONS_RUNNER_CONTAINER_HOOKS=/usr/local/lib/container-hook.sh";
    assert!(config["Env"].as_array().unwrap().contains(&json!(hook)), "{config}");
    let root = buildah.mount();
    let mut call = Command::new(program::find("chroot"));
    call.args(["--userspec", "1001:1001"]).arg(&root).args(["sh", "-ec"]);
    call.arg(
        "$0 --version; runc --version; nft --version; slirp4netns --version; cat /etc/subuid /etc/subgid; \
         stat -c %a:%U /home/runner /home/runner/.local/share/oci-hooks $0",
    );
    call.arg("/usr/local/lib/container-hook.sh");
    let said = program::run(&mut call).success();
    assert!(said.starts_with(concat!("container-hook ", env!("CARGO_PKG_VERSION"))), "{said}");
    let ids = "runner:1:1000\nrunner:1002:64534\n".repeat(2);
    assert!(said.ends_with(&format!("{ids}755:runner\n755:runner\n755:root\n")), "{said}");
    let capabilities = program::run(
        Command::new(program::find("getcap"))
            .args(["newuidmap", "newgidmap"])
            .current_dir(root.join("usr/bin")),
    );
    assert_eq!(capabilities.success(), "newuidmap cap_setuid=ep\nnewgidmap cap_setgid=ep\n");
}
