use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use rustix::fs::mkfifoat;

use super::*;
use crate::sys::caller::own_ids;
use crate::sys::removal::remove_tree;
use crate::sys::tests::with_few_descriptors;

struct Tree {
    dir: tempfile::TempDir,
    files: RunnerFiles,
}

impl Tree {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("context/src")).unwrap();
        fs::write(dir.path().join("context/Dockerfile"), "FROM scratch\n").unwrap();
        let files = RunnerFiles::new(&dir.path().join("context")).unwrap();
        Tree { dir, files }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("context").join(name)
    }

    fn copy(&self) -> PathBuf {
        self.dir.path().join("copy")
    }

    fn take_within(&self, limits: Limits) -> Result<String, ContextError> {
        // Directories that may not be written to can be removed by root alone.
        let _ = fs::remove_dir_all(self.copy());
        fs::create_dir(self.copy()).unwrap();
        let target = Target { dir: &self.copy(), owner: own_ids() };
        take(&self.files, &self.path("Dockerfile"), &target, limits).map(|d| d.hex().to_owned())
    }

    fn take(&self) -> Result<String, ContextError> {
        self.take_within(LIMITS)
    }
}

#[test]
fn what_is_copied_is_what_is_there_and_sockets_are_left_out() {
    let tree = Tree::new();
    fs::create_dir_all(tree.path(".git/objects")).unwrap();
    fs::write(tree.path("src/run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(tree.path("src/run"), fs::Permissions::from_mode(0o751)).unwrap();
    symlink("/etc/shadow", tree.path("src/link")).unwrap();
    let _socket = UnixListener::bind(tree.path("socket")).unwrap();
    tree.take().unwrap();
    let copy = tree.copy();
    assert_eq!(fs::read(copy.join("src/run")).unwrap(), b"#!/bin/sh\n");
    assert_eq!(fs::metadata(copy.join("src/run")).unwrap().permissions().mode() & 0o7777, 0o751);
    assert_eq!(fs::read_link(copy.join("src/link")).unwrap(), Path::new("/etc/shadow"));
    assert!(copy.join(".git/objects").is_dir());
    assert!(!copy.join("socket").exists());
    let times = |path: PathBuf| fs::metadata(path).unwrap().modified().unwrap();
    for name in ["src/run", "src", "Dockerfile"] {
        assert_eq!(times(copy.join(name)), times(tree.path(name)), "{name}");
    }
}

#[test]
fn each_difference_makes_another_digest() {
    let tree = Tree::new();
    let mut seen = vec![tree.take().unwrap()];
    assert_eq!(tree.take().unwrap(), seen[0]);
    let mode = |mode| fs::set_permissions(tree.path("src/a"), fs::Permissions::from_mode(mode));
    let changes: [&dyn Fn(); 7] = [
        &|| fs::write(tree.path("src/a"), "1").unwrap(),
        &|| fs::write(tree.path("src/a"), "2").unwrap(),
        &|| mode(0o755).unwrap(),
        &|| fs::rename(tree.path("src/a"), tree.path("a")).unwrap(),
        &|| fs::create_dir(tree.path(".git")).unwrap(),
        &|| symlink("a", tree.path("b")).unwrap(),
        &|| fs::write(tree.path("Dockerfile"), "FROM busybox\n").unwrap(),
    ];
    for change in changes {
        change();
        let digest = tree.take().unwrap();
        assert!(!seen.contains(&digest), "after {}", seen.len());
        seen.push(digest);
    }
}

#[test]
fn fifos_and_devices_are_refused_by_name() {
    let tree = Tree::new();
    mkfifoat(rustix::fs::CWD, tree.path("src/fifo"), Mode::RWXU).unwrap();
    let error = tree.take().unwrap_err().to_string();
    assert!(error.starts_with(&tree.path("src/fifo").display().to_string()), "{error}");
}

#[test]
fn a_dockerfile_is_a_regular_file_of_its_directory() {
    let tree = Tree::new();
    let target = Target { dir: &tree.copy(), owner: own_ids() };
    fs::create_dir(tree.copy()).unwrap();
    symlink("Dockerfile", tree.path("link")).unwrap();
    for name in ["link", "src", "missing", ".."] {
        take(&tree.files, &tree.path(name), &target, LIMITS).unwrap_err();
    }
    // Endless, and it may be that nothing of it is read.
    let error = take(&tree.files, Path::new("/dev/zero"), &target, LIMITS).unwrap_err();
    assert!(matches!(error, ContextError::NotAFile { .. }), "{error}");
    assert_eq!(fs::read_dir(tree.copy()).unwrap().count(), 0);
}

#[test]
fn limits_are_named() {
    let tree = Tree::new();
    for limits in [
        Limits { bytes: 12, ..LIMITS },
        Limits { entries: 1, ..LIMITS },
        Limits { depth: 1, ..LIMITS },
    ] {
        let error = tree.take_within(limits).unwrap_err().to_string();
        assert!(error.contains("the limit for a Dockerfile action"), "{error}");
    }
    tree.take_within(Limits { bytes: 13, entries: 2, depth: 2 }).unwrap();
    // A file that claims to be large takes neither time nor place.
    File::create(tree.path("sparse")).unwrap().set_len(1 << 40).unwrap();
    let error = tree.take_within(Limits { bytes: 1 << 20, ..LIMITS }).unwrap_err();
    assert!(matches!(error, ContextError::TooBig { .. }), "{error}");
}

#[test]
fn directories_nested_without_end_are_an_error() {
    let tree = Tree::new();
    let mut dir = open(tree.path("src"), DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..LIMITS.depth {
        dir = make_directory(dir.as_fd(), c"d").unwrap();
    }
    let error = tree.take().unwrap_err();
    assert!(matches!(error, ContextError::TooDeep { limit: 256, .. }), "{error}");
}

#[test]
fn depth_within_the_limit_takes_few_descriptors() {
    let test = "container_hook::build::snapshot::tests::\
                depth_within_the_limit_takes_few_descriptors";
    with_few_descriptors(test, || {
        let tree = Tree::new();
        let deep = "d/".repeat(250);
        fs::create_dir_all(tree.path(&deep)).unwrap();
        tree.take().unwrap();
        assert!(tree.copy().join(&deep).is_dir());
        remove_tree(tree.dir.path()).unwrap();
    });
}
