//! Files are the same as those unpacked by GNU tar and umoci, or the archive is rejected.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::program::find;
use tar::EntryType;

use crate::layers::archive::{Fixture, TestArchive, gzip, names};

/// Observable properties of a file.
#[derive(Debug, PartialEq, Eq)]
struct FileProperties {
    mode: u32,
    owner: (u32, u32),
    mtime: i64,
    device: u64,
    links: u64,
    content: Vec<u8>,
    xattrs: Vec<String>,
}

/// Properties to compare.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CompareMode {
    All,
    Names,
}

fn tree(root: &Path, compare: CompareMode) -> BTreeMap<PathBuf, Option<FileProperties>> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let mut content = Vec::new();
        if kind.is_dir() {
            todo.extend(names(&path).iter().map(|name| path.join(name)));
        } else if kind.is_symlink() {
            content = fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes();
        } else if kind.is_file() {
            content = fs::read(&path).unwrap();
        }
        let seen = FileProperties {
            mode: metadata.mode(),
            owner: (metadata.uid(), metadata.gid()),
            mtime: metadata.mtime(),
            device: if kind.is_char_device() || kind.is_block_device() {
                metadata.rdev()
            } else {
                0
            },
            links: if kind.is_dir() { 0 } else { metadata.nlink() },
            content,
            xattrs: xattrs(&path),
        };
        // Programs differ in the directory above.
        if path != root {
            let relative = path.strip_prefix(root).unwrap().to_owned();
            all.insert(relative, (compare == CompareMode::All).then_some(seen));
        }
    }
    all
}

fn xattrs(path: &Path) -> Vec<String> {
    let mut list = [0; 4096];
    let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap_or(0);
    let names = list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<_> = names
        .map(|name| {
            let mut value = [0; 256];
            let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            format!("{}={:?}", String::from_utf8_lossy(name), &value[..length])
        })
        .collect();
    names.sort();
    names
}

fn gnu_tar(archive: &[u8], dir: &Path) -> Option<PathBuf> {
    let root = dir.join("gnu");
    drop(fs::remove_dir_all(&root));
    fs::create_dir(&root).unwrap();
    fs::write(dir.join("gnu.tar"), archive).unwrap();
    let status = Command::new(find("tar"))
        .args(["--numeric-owner", "-xpf", "../gnu.tar"])
        .args(["--xattrs", "--xattrs-include=user.*", "--xattrs-include=security.capability"])
        .current_dir(&root)
        .output()
        .unwrap()
        .status;
    status.success().then_some(root)
}

/// Unpacks an archive as the only layer of an image, with umoci.
fn umoci(archive: &[u8], dir: &Path) -> PathBuf {
    let (layout, bundle) = (dir.join("layout"), dir.join("bundle"));
    drop(fs::remove_dir_all(&layout));
    drop(fs::remove_dir_all(&bundle));
    fs::create_dir_all(&layout).unwrap();
    crate::layers::import::write_layout(&layout, &[(gzip(archive), archive.to_vec())]);
    let output = Command::new(find("umoci"))
        .args(["raw", "unpack", "--image"])
        .arg(format!("{}:latest", layout.display()))
        .arg(&bundle)
        .output()
        .unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "umoci: {why}");
    bundle
}

#[track_caller]
fn assert_same(archive: TestArchive, compare: CompareMode) -> (Fixture, PathBuf) {
    let fixture = Fixture::new();
    let archive = archive.finish();
    let ours = fixture.unpack_blob(&archive, gzip).unwrap().path;
    let gnu = gnu_tar(&archive, fixture.path()).expect("GNU tar unpacks it");
    let umoci = umoci(&archive, fixture.path());
    let ours_seen = tree(&ours, compare);
    assert_similar(&ours_seen, &tree(&gnu, compare), "GNU tar");
    assert_similar(&ours_seen, &tree(&umoci, compare), "umoci");
    (fixture, ours)
}

#[track_caller]
fn assert_similar(
    ours: &BTreeMap<PathBuf, Option<FileProperties>>,
    theirs: &BTreeMap<PathBuf, Option<FileProperties>>,
    who: &str,
) {
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>(), "{who}");
    for (path, seen) in ours {
        assert_eq!(seen, &theirs[path], "{} of {who}", path.display());
    }
}

#[test]
fn contradictory_sizes_are_read_like_by_other_programs() {
    let inner = TestArchive::default().file("hidden", b"smuggled").finish();
    // The extended header declares the inner archive to be data, the plain one does not.
    let archive = TestArchive::default()
        .pax(&[("size", inner.len().to_string().as_bytes())])
        .header(b"", |header| {
            header.set_path("outer").unwrap();
            header.set_size(0);
        })
        .with_raw_data(&inner)
        .file("last", b"");
    let (_fixture, ours) = assert_same(archive, CompareMode::All);
    assert_eq!(names(&ours), ["last", "outer"]);

    // The reverse.
    let archive = TestArchive::default()
        .pax(&[("size", b"0")])
        .header(b"", |header| {
            header.set_path("outer").unwrap();
            header.set_size(1024);
        })
        .file("first", b"")
        .file("last", b"");
    let (_fixture, ours) = assert_same(archive, CompareMode::All);
    assert_eq!(names(&ours), ["first", "last", "outer"]);
}

#[test]
fn ambiguous_archives_are_rejected() {
    let fixture = Fixture::new();
    let new = TestArchive::default;
    let data = |header: &mut tar::Header| header.set_size(512);
    for archive in [
        // A size without data.
        new()
            .header(b"", |header| {
                header.set_entry_type(EntryType::Directory);
                header.set_path("a").unwrap();
                data(header);
            })
            .file("b", b""),
        new()
            .header(b"", |header| {
                header.set_entry_type(EntryType::Symlink);
                header.set_path("a").unwrap();
                header.set_link_name("b").unwrap();
                data(header);
            })
            .file("b", b""),
        // A single block of zeros.
        new().file("a", b"").with_raw_data(&[0; 512]).file("b", b""),
        // A name for all entries that follow.
        new().entry(EntryType::XGlobalHeader, "g", "", b"9 path=b\n").file("a", b""),
        new().entry(EntryType::XGlobalHeader, "g", "", b"9 size=0\n").file("a", b"x"),
        // Two names for an entry.
        new().pax(&[("path", b"b")]).entry(EntryType::GNULongName, "l", "", b"c").file("a", b""),
        new().pax(&[("path", b"b")]).pax(&[("path", b"c")]).file("a", b""),
        new().pax(&[("path", b"b")]),
        // Invalid numbers.
        new().pax(&[("size", b"-1")]).file("a", b""),
        new().pax(&[("size", b"0x1")]).file("a", b""),
        new().pax(&[("size", b"18446744073709551615")]).file("a", b""),
        new().header(b"", |header| header.set_uid(u64::from(u32::MAX))),
        new().header(b"", |header| header.set_uid(1 << 40)),
        new().entry(EntryType::new(b'V'), "volume", "", b""),
    ] {
        assert_eq!(fixture.try_unpack(archive), None);
    }
    let mut broken = TestArchive::default().file("a", b"").finish();
    broken[0] = b'b';
    fixture.unpack_blob(&broken, <[u8]>::to_vec).unwrap_err();
    fixture.assert_no_layer();
    // Purely descriptive keys are accepted.
    let archive = new().entry(EntryType::XGlobalHeader, "g", "", b"13 comment=1\n").file("a", b"");
    fixture.try_unpack(archive).unwrap();
}

#[test]
fn modes_owners_links_and_nodes_match_other_programs() {
    let owned = |archive: TestArchive, name: &str, kind, mode, (uid, gid): (u64, u64)| {
        archive.header(b"", |header| {
            header.set_entry_type(kind);
            header.set_path(name).unwrap();
            header.set_mode(mode);
            header.set_uid(uid);
            header.set_gid(gid);
            if kind == EntryType::Symlink {
                header.set_link_name("somewhere/else").unwrap();
            }
            header.set_device_major(if kind == EntryType::Fifo { 0 } else { 1 }).unwrap();
            header.set_device_minor(if kind == EntryType::Fifo { 0 } else { 3 }).unwrap();
        })
    };
    let mut archive = TestArchive::default();
    archive = owned(archive, "shared", EntryType::Directory, 0o2775, (0, 50));
    archive = owned(archive, "shared/below", EntryType::Directory, 0o700, (3, 4));
    archive = owned(archive, "shared/file", EntryType::Regular, 0o644, (0, 0));
    archive = owned(archive, "shared/link", EntryType::Symlink, 0o777, (0, 0));
    archive = owned(archive, "setuid", EntryType::Regular, 0o4755, (0, 0));
    archive = owned(archive, "setgid", EntryType::Regular, 0o2711, (1000, 1001));
    archive = owned(archive, "open", EntryType::Regular, 0o666, (0, 0));
    archive = owned(archive, "none", EntryType::Regular, 0, (4_000_000_000, 0));
    archive = owned(archive, "tmp", EntryType::Directory, 0o1777, (0, 0));
    archive = owned(archive, "link", EntryType::Symlink, 0o777, (5, 6));
    archive = owned(archive, "null", EntryType::Char, 0o666, (0, 5));
    archive = owned(archive, "disk", EntryType::Block, 0o660, (0, 6));
    archive = owned(archive, "fifo", EntryType::Fifo, 0o622, (0, 0));
    archive = archive
        .file("one", b"content")
        .hardlink("two", "one")
        .hardlink("three", "./one")
        .file("twice", b"1")
        .file("twice", b"22");
    assert_same(archive, CompareMode::All);
}

#[test]
fn times_and_long_names_match_other_programs() {
    let long = format!("{}/{}", "d".repeat(200), "f".repeat(200));
    let archive = TestArchive::default()
        .pax(&[("path", long.as_bytes()), ("mtime", b"1234567890.987654321")])
        .file("short", b"x")
        .entry(EntryType::GNULongName, "././@LongLink", "", "g".repeat(150).as_bytes())
        .file("short", b"x")
        .entry(EntryType::GNULongLink, "././@LongLink", "", "t".repeat(150).as_bytes())
        .symlink("link", "t")
        .pax(&[("mtime", b"-1000.5")])
        .file("old", b"");
    let (_fixture, ours) = assert_same(archive, CompareMode::Names);
    let metadata = fs::metadata(ours.join(&long)).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (1_234_567_890, 987_654_321));
    let metadata = fs::metadata(ours.join("old")).unwrap();
    assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (-1001, 500_000_000));
}

#[test]
fn extended_attributes_follow_the_policy() {
    // cap_net_raw+ep, with a newline in it.
    let capability = [1, 0, 0, 2, b'\n', 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let fixture = Fixture::new();
    let archive = TestArchive::default()
        .pax(&[
            ("SCHILY.xattr.security.capability", &capability),
            ("SCHILY.xattr.security.selinux", b"a:b:c"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.trusted.x", b"y"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.user.name", b"a=b"),
        ])
        .header(b"", |header| {
            header.set_path("file").unwrap();
            header.set_mode(0o755);
            header.set_uid(12);
        });
    let layer = fixture.unpack(archive).unwrap().path;
    let found = xattrs(&layer.join("file"));
    assert_eq!(found[0], format!("security.capability={capability:?}"));
    assert!(found[1..].iter().all(|name| name.starts_with("user.name=")), "{found:?}");
}

#[test]
fn sparse_files_keep_their_holes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let file = fs::File::create(source.join("sparse")).unwrap();
    use std::os::unix::fs::FileExt as _;
    for piece in 0..30 {
        file.write_all_at(&[piece; 5000], u64::from(piece) * 1_000_000).unwrap();
    }
    file.set_len(40_000_000).unwrap();
    for format in [
        &["--format=gnu"][..],
        &["--sparse-version=0.0"],
        &["--sparse-version=0.1"],
        &["--sparse-version=1.0"],
    ] {
        let archive = Command::new(find("tar"))
            .args(if format[0].starts_with("--sparse") { &["--format=posix"][..] } else { &[] })
            .args(["--sparse", "-c"])
            .args(format)
            .arg("-C")
            .arg(&source)
            .arg(".")
            .output()
            .unwrap();
        assert!(archive.status.success());
        assert!(archive.stdout.len() < 1_000_000);
        let fixture = Fixture::new();
        let layer = fixture.unpack_blob(&archive.stdout, gzip).unwrap().path;
        assert_eq!(names(&layer), ["sparse"], "{format:?}");
        let there = fs::metadata(layer.join("sparse")).unwrap();
        assert_eq!(there.len(), 40_000_000);
        assert!(there.blocks() * 512 < 1_000_000, "{format:?}");
        assert!(
            fs::read(layer.join("sparse")).unwrap() == fs::read(source.join("sparse")).unwrap(),
            "{format:?}"
        );
    }
}

#[test]
fn whole_tree_matches_gnu_tar() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let archive = Command::new(find("tar"))
        .args(["--xattrs", "-c", "-C", "/", "etc", "-C", "/usr", "sbin"])
        .output()
        .unwrap()
        .stdout;
    let fixture = Fixture::new();
    let ours = fixture.unpack_blob(&archive, gzip).unwrap().path;
    let gnu = gnu_tar(&archive, dir.path()).unwrap();
    assert_similar(&tree(&ours, CompareMode::All), &tree(&gnu, CompareMode::All), "GNU tar");
}
