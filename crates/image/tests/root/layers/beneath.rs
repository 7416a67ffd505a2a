//! Layers cannot write outside of their directory.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::Path;

use oci_hooks_testsupport::threads::repeat_during;
use tar::EntryType;

use crate::layers::archive::{Fixture, TestArchive, names};

#[test]
fn names_and_links_do_not_lead_out_of_the_layer() {
    let fixture = Fixture::new();
    let outside = fixture.outside_path();
    let outside = outside.to_str().unwrap();
    let up = format!("{}{}", "../".repeat(20), &outside[1..]);
    let new = TestArchive::default;
    let refused = [
        new().file(&format!("{up}/x"), b"x"),
        new().file("a/../../x", b"x"),
        new().directory(".."),
        new().hardlink("a", &format!("{up}/canary")),
        new().hardlink("a", &format!("{outside}/canary")),
        new().symlink("a", outside).file("a/canary", b"x"),
        new().symlink("a", outside).hardlink("b", "a/canary"),
        new().symlink("a", &up).directory("a/x"),
        new().symlink("a", "b").symlink("b", "a").file("a/x", b"x"),
        new().symlink("a", "/proc/self/cwd").file("a/x", b"x"),
    ];
    for (at, archive) in refused.into_iter().enumerate() {
        assert_eq!(fixture.try_unpack(archive), None, "{at}");
    }
    let layer = fixture.try_unpack(new().file(&format!("{outside}/x"), b"x")).unwrap();
    assert_eq!(fs::read(layer.join(&outside[1..]).join("x")).unwrap(), b"x");
    // A file replaces a link of the same name, without following it.
    let canary = format!("{outside}/canary");
    let layer = fixture.try_unpack(new().symlink("a", &canary).file("a", b"x")).unwrap();
    assert!(fs::symlink_metadata(layer.join("a")).unwrap().is_file());
    // A hard link to a symbolic link is another symbolic link.
    let layer = fixture.try_unpack(new().symlink("a", &canary).hardlink("b", "a")).unwrap();
    assert!(fs::symlink_metadata(layer.join("b")).unwrap().is_symlink());
    // A link within the layer is followed as in a container.
    let inside = new().directory("usr/lib").symlink("lib", "/usr/lib").file("lib/x", b"x");
    let layer = fixture.try_unpack(inside).unwrap();
    assert!(layer.join("usr/lib/x").exists());
}

#[test]
fn root_entry_is_not_replaced() {
    let fixture = Fixture::new();
    let outside = fixture.outside_path();
    for name in ["/", ".", "./", "//", "./."] {
        for archive in [
            TestArchive::default().symlink(name, outside.to_str().unwrap()).file("x", b"x"),
            TestArchive::default().file(name, b"x"),
            TestArchive::default().hardlink(name, "x"),
            TestArchive::default().entry(EntryType::Fifo, name, "", b""),
        ] {
            // Old archives mark directories with a trailing slash, but these must not have a size.
            assert_eq!(fixture.try_unpack(archive), None, "{name}");
        }
    }
    let archive = TestArchive::default().header(b"", |header| {
        header.set_entry_type(EntryType::Directory);
        header.set_path("./").unwrap();
        header.set_mode(0o1710);
        header.set_uid(7);
    });
    let root = fs::metadata(fixture.try_unpack(archive).unwrap()).unwrap();
    assert_eq!((root.mode() & 0o7777, root.uid(), root.mtime()), (0o1710, 7, 1_000_000_000));
}

#[test]
fn a_directory_replaces_a_link_of_its_name() {
    let fixture = Fixture::new();
    let outside = fixture.outside_path();
    let archive = TestArchive::default()
        .symlink("a", outside.to_str().unwrap())
        .header(b"", |header| {
            header.set_entry_type(EntryType::Directory);
            header.set_path("a").unwrap();
            header.set_mode(0o777);
        })
        .file("a/x", b"x");
    let layer = fixture.try_unpack(archive).unwrap();
    assert_eq!(fs::symlink_metadata(layer.join("a")).unwrap().mode(), 0o40777);
    assert!(layer.join("a/x").exists());
}

#[test]
fn whiteouts_stay_in_the_layer() {
    let fixture = Fixture::new();
    let outside = fixture.outside_path();
    let outside = outside.to_str().unwrap();
    let new = TestArchive::default;
    for archive in [
        new().file(".wh.", b""),
        new().file(".wh..", b""),
        new().file(".wh...", b""),
        new().file(".wh.a/b", b""),
        new().symlink("a", outside).file("a/.wh.canary", b""),
        new().symlink("a", outside).file("a/.wh..wh..opq", b""),
        new().file("a/../.wh.canary", b""),
    ] {
        assert_eq!(fixture.try_unpack(archive), None);
    }
    // A whiteout does not follow a link of its name; the link itself hides lower layers.
    let layer = fixture.try_unpack(new().symlink("a", outside).file(".wh.a", b"")).unwrap();
    assert!(fs::symlink_metadata(layer.join("a")).unwrap().is_symlink());
    let layer = fixture.try_unpack(new().file("d/.wh..wh.plnk/x", b"x").file("y", b"")).unwrap();
    assert_eq!(names(&layer), ["y"]);
}

#[test]
fn whiteouts_hide_lower_files_wherever_they_occur() {
    let fixture = Fixture::new();
    let new = TestArchive::default;
    let is_opaque = |path: &Path| {
        let mut value = [0; 8];
        rustix::fs::lgetxattr(path, "trusted.overlay.opaque", &mut value[..]) == Ok(1)
            && value[0] == b'y'
    };
    let layer = fixture
        .try_unpack(new().file(".wh.gone", b"").file("a/.wh..wh..opq", b"").file("a/x", b"x"))
        .unwrap();
    let gone = fs::symlink_metadata(layer.join("gone")).unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    assert_eq!(names(&layer.join("a")), ["x"]);
    assert!(is_opaque(&layer.join("a")));

    for archive in [
        new().file(".wh.a", b"").file("a/x", b"x"),
        new().file(".wh.a", b"").directory("a").file("a/x", b"x"),
        new().directory("a").file("a/x", b"x").file(".wh.a", b""),
    ] {
        let layer = fixture.try_unpack(archive).unwrap();
        assert!(is_opaque(&layer.join("a")));
        assert_eq!(names(&layer.join("a")), ["x"]);
    }
    for archive in
        [new().file(".wh.f", b"").file("f", b"x"), new().file("f", b"x").file(".wh.f", b"")]
    {
        assert_eq!(fs::read(fixture.try_unpack(archive).unwrap().join("f")).unwrap(), b"x");
    }
    assert!(fixture.unpack(new().file(".wh..wh..opq", b"")).unwrap().is_opaque);
}

#[test]
fn racing_renames_do_not_lead_out_of_the_layer() {
    let fixture = Fixture::new();
    let mut archive = TestArchive::default();
    for round in 0..2000 {
        archive = archive.file(&format!("a/b/{round}"), b"x").file(&format!("c/{round}"), b"x");
    }
    let archive = archive.finish();
    let tree = fixture
        .path()
        .join("root/layers")
        .join(format!(".tmp-{}", oci_hooks_image::Digest::of(&archive)).replace(':', "-"))
        .join("tree");
    let aside = fixture.path().join("root/aside");
    let rename = || {
        // Each may fail: that is the race.
        for name in ["a", "a/b", "c"] {
            if fs::rename(tree.join(name), &aside).is_ok() {
                drop(symlink(fixture.outside_path(), tree.join(name)));
                drop(fs::remove_file(tree.join(name)));
                drop(fs::rename(&aside, tree.join(name)));
                drop(fs::remove_dir_all(&aside));
            }
        }
    };
    repeat_during(rename, || {
        for _ in 0..20 {
            if let Ok(layer) = fixture.unpack_blob(&archive, |archive| archive.to_vec()) {
                fs::remove_dir_all(layer.path.parent().unwrap()).unwrap();
            }
        }
    });
    fixture.assert_outside_intact();
}
