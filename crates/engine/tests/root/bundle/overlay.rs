//! Root file systems of layers.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use oci_hooks_engine::rootfs::{self, RootfsBacking, RootfsError, RootfsRequest, UserNamespace};
use oci_hooks_host::netns;
use oci_hooks_host::userns::{NamespaceMapping, PrivateIds};
use oci_hooks_image::MAX_LAYERS;
use oci_hooks_testsupport::program;
use rustix::fs::{CWD, FileType, Mode, XattrFlags, mknodat, setxattr};
use tempfile::TempDir;

/// Layers and the directory of a container, unmounted when dropped.
struct OverlayDisk {
    dir: TempDir,
    layers: Vec<PathBuf>,
}

impl OverlayDisk {
    fn new(count: usize) -> Self {
        program::require_root();
        let dir = program::temporary_directory_in(Path::new("/dev/shm"));
        let mut layers = Vec::new();
        for number in 0..count {
            let layer = dir.path().join(format!("layer-{number}"));
            fs::create_dir(&layer).unwrap();
            fs::write(layer.join(format!("of-{number}")), "").unwrap();
            fs::write(layer.join("top"), number.to_string()).unwrap();
            layers.push(layer);
        }
        fs::create_dir(dir.path().join("disk")).unwrap();
        OverlayDisk { dir, layers }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }
}

impl Drop for OverlayDisk {
    fn drop(&mut self) {
        let _ = rootfs::unmount(&self.path());
    }
}

fn mounts_below(path: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().filter(|line| line.contains(path.to_str().unwrap())).count()
}

/// Fills a layer with whiteouts and an opaque directory, and the layer below it.
fn whiteouts(disk: &OverlayDisk) {
    let [below, above] = [&disk.layers[0], &disk.layers[1]];
    fs::write(below.join("gone"), "").unwrap();
    for name in ["emptied", "merged"] {
        fs::create_dir(below.join(name)).unwrap();
        fs::write(below.join(name).join("old"), "").unwrap();
        fs::create_dir(above.join(name)).unwrap();
        fs::write(above.join(name).join("new"), "").unwrap();
    }
    fs::set_permissions(above.join("merged"), fs::Permissions::from_mode(0o1777)).unwrap();
    mknodat(CWD, above.join("gone"), FileType::CharacterDevice, Mode::empty(), 0).unwrap();
    let opaque = c"trusted.overlay.opaque";
    setxattr(above.join("emptied"), opaque, b"y", XattrFlags::empty()).unwrap();
}

fn expect_whiteouts(root: &Path) {
    for (name, is_there) in [
        ("gone", false),
        ("emptied/old", false),
        ("emptied/new", true),
        ("merged/old", true),
        ("merged/new", true),
        ("of-0", true),
        ("of-1", true),
    ] {
        assert_eq!(root.join(name).exists(), is_there, "{name}");
    }
    assert_eq!(fs::read_to_string(root.join("top")).unwrap(), "1");
    assert_eq!(fs::metadata(root.join("merged")).unwrap().mode() & 0o7777, 0o1777);
}

#[test]
fn hundreds_of_layers_form_one_file_system() {
    let disk = OverlayDisk::new(250);
    let rootfs = rootfs::mount(&RootfsRequest::new(&disk.layers, &disk.path())).unwrap();
    assert_eq!(rootfs.backing, RootfsBacking::Overlay);
    assert_eq!(fs::read_to_string(rootfs.path.join("top")).unwrap(), "249");
    for number in [0, 1, 100, 249] {
        assert!(rootfs.path.join(format!("of-{number}")).exists());
    }
    fs::write(rootfs.path.join("top"), "changed").unwrap();
    assert_eq!(fs::read_to_string(disk.layers[249].join("top")).unwrap(), "249");
}

#[test]
fn maximum_number_of_layers_forms_one_file_system() {
    let disk = OverlayDisk::new(MAX_LAYERS + 1);
    let rootfs = rootfs::mount(&RootfsRequest::new(&disk.layers, &disk.path())).unwrap();
    // Older kernels do not support so many layers: they are copied then.
    let (major, minor) = kernel();
    assert_eq!(rootfs.backing == RootfsBacking::Overlay, (major, minor) >= (6, 5), "{rootfs:?}");
    assert_eq!(fs::read_to_string(rootfs.path.join("top")).unwrap(), MAX_LAYERS.to_string());
    assert!(rootfs.path.join("of-0").exists());
}

/// Returns the version of the kernel.
fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn unmounting_again_succeeds() {
    let disk = OverlayDisk::new(2);
    let root = rootfs::mount(&RootfsRequest::new(&disk.layers, &disk.path())).unwrap().path;
    assert_eq!(mounts_below(disk.dir.path()), 1);
    let busy = fs::File::open(root.join("top")).unwrap();
    for _ in 0..2 {
        rootfs::unmount(&disk.path()).unwrap();
        assert_eq!(mounts_below(disk.dir.path()), 0);
    }
    drop(busy);
    fs::remove_dir_all(disk.path()).unwrap();
    rootfs::unmount(&disk.path()).unwrap();
}

#[test]
fn unmounting_does_not_follow_links() {
    let [disk, other] = [OverlayDisk::new(1), OverlayDisk::new(1)];
    let root = rootfs::mount(&RootfsRequest::new(&other.layers, &other.path())).unwrap().path;
    std::os::unix::fs::symlink(&root, disk.path().join("merged")).unwrap();
    rootfs::unmount(&disk.path()).unwrap();
    assert_eq!(mounts_below(&root), 1);
}

#[test]
fn second_mount_at_the_same_path_is_an_error() {
    let disk = OverlayDisk::new(1);
    rootfs::mount(&RootfsRequest::new(&disk.layers, &disk.path())).unwrap();
    assert!(rootfs::mount(&RootfsRequest::new(&disk.layers, &disk.path())).is_err());
    assert_eq!(mounts_below(disk.dir.path()), 1);
}

#[test]
fn empty_layer_list_is_an_error() {
    let disk = OverlayDisk::new(0);
    let error = rootfs::mount(&RootfsRequest::new(&[], &disk.path())).unwrap_err();
    assert!(matches!(error, RootfsError::NoLayers));
}

#[test]
fn whiteouts_hide_lower_files() {
    let disk = OverlayDisk::new(2);
    whiteouts(&disk);
    let rootfs = rootfs::mount(&RootfsRequest::new(&disk.layers, &disk.path())).unwrap();
    expect_whiteouts(&rootfs.path);
}

#[test]
fn layers_are_copied_if_overlay_is_unavailable() {
    // An overlay cannot be the upper directory of another one.
    let outer = OverlayDisk::new(1);
    let outer_root = rootfs::mount(&RootfsRequest::new(&outer.layers, &outer.path())).unwrap().path;
    let disk = OverlayDisk::new(2);
    whiteouts(&disk);
    let dir = outer_root.join("disk");
    fs::create_dir(&dir).unwrap();
    let rootfs = rootfs::mount(&RootfsRequest::new(&disk.layers, &dir)).unwrap();
    let RootfsBacking::Copy { reason } = &rootfs.backing else { panic!("{:?}", rootfs.backing) };
    assert!(reason.contains("overlay"), "{reason}");
    expect_whiteouts(&rootfs.path);
    assert!(
        !rootfs.path.join("gone").symlink_metadata().is_ok_and(|m| m.file_type().is_char_device())
    );
    fs::write(rootfs.path.join("top"), "changed").unwrap();
    assert_eq!(fs::read_to_string(disk.layers[1].join("top")).unwrap(), "1");
    rootfs::unmount(&dir).unwrap();
    assert!(rootfs.path.join("top").exists(), "a copy is not taken away by unmounting");
}

#[test]
fn read_only_root_cannot_be_changed() {
    for count in [1, 3] {
        let disk = OverlayDisk::new(count);
        let dir = disk.path();
        let request = RootfsRequest { read_only: true, ..RootfsRequest::new(&disk.layers, &dir) };
        let rootfs = rootfs::mount(&request).unwrap();
        let error = fs::write(rootfs.path.join("new"), "").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert!(rootfs.path.join("top").exists());
    }
}

#[test]
fn layer_owners_are_shifted_as_requested() {
    let disk = OverlayDisk::new(3);
    let dir = disk.path();
    let ids = PrivateIds { first: 5000, count: 1000 };
    let pin = disk.dir.path().join("users");
    netns::pin(NamespaceMapping::shifted(ids).namespace().unwrap().as_fd(), &pin).unwrap();
    let user_namespace = Some(UserNamespace { path: &pin, ids });
    let request = RootfsRequest { user_namespace, ..RootfsRequest::new(&disk.layers, &dir) };
    let rootfs = rootfs::mount(&request).unwrap();
    for path in [rootfs.path.clone(), rootfs.path.join("top"), rootfs.path.join("of-0")] {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (5000, 5000));
    }
    assert_eq!(fs::metadata(&disk.layers[0]).unwrap().uid(), 0);
    netns::unpin(&pin).unwrap();
    assert_eq!(mounts_below(disk.dir.path()), 1, "the layers are mounted for the overlay only");
}
