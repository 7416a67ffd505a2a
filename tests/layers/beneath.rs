//! Rows 11 to 13, 15 and 18: nothing leaves the layer.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::archive::{Archive, Fixture, names};
use tar::EntryType;

#[test]
fn names_and_links_do_not_lead_out_of_the_layer() {
    let fixture = Fixture::new();
    let outside = fixture.outside();
    let outside = outside.to_str().unwrap();
    let up = format!("{}{}", "../".repeat(20), &outside[1..]);
    let new = Archive::default;
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
    // A file replaces the link of its name, and does not go through it.
    let canary = format!("{outside}/canary");
    let layer = fixture.try_unpack(new().symlink("a", &canary).file("a", b"x")).unwrap();
    assert!(fs::symlink_metadata(layer.join("a")).unwrap().is_file());
    // A hard link to a symbolic link is another symbolic link.
    let layer = fixture.try_unpack(new().symlink("a", &canary).hardlink("b", "a")).unwrap();
    assert!(fs::symlink_metadata(layer.join("b")).unwrap().is_symlink());
    // A link that stays in the layer is followed as in a container.
    let inside = new().directory("usr/lib").symlink("lib", "/usr/lib").file("lib/x", b"x");
    let layer = fixture.try_unpack(inside).unwrap();
    assert!(layer.join("usr/lib/x").exists());
}

#[test]
fn the_root_is_not_replaced() {
    let fixture = Fixture::new();
    let outside = fixture.outside();
    for name in ["/", ".", "./", "//", "./."] {
        for archive in [
            Archive::default().symlink(name, outside.to_str().unwrap()).file("x", b"x"),
            Archive::default().file(name, b"x"),
            Archive::default().hardlink(name, "x"),
            Archive::default().entry(EntryType::Fifo, name, "", b""),
        ] {
            // A file whose name ends with a slash is a directory in old archives, with a size
            // that none may have.
            assert_eq!(fixture.try_unpack(archive), None, "{name}");
        }
    }
    let archive = Archive::default().header(b"", |header| {
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
    let outside = fixture.outside();
    let archive = Archive::default()
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
    let outside = fixture.outside();
    let outside = outside.to_str().unwrap();
    let new = Archive::default;
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
    // A link is not followed by its whiteout; what lower layers have is hidden by the link.
    let layer = fixture.try_unpack(new().symlink("a", outside).file(".wh.a", b"")).unwrap();
    assert!(fs::symlink_metadata(layer.join("a")).unwrap().is_symlink());
    let layer = fixture.try_unpack(new().file("d/.wh..wh.plnk/x", b"x").file("y", b"")).unwrap();
    assert_eq!(names(&layer), ["y"]);
}

#[test]
fn whiteouts_hide_lower_layers_wherever_they_stand() {
    let fixture = Fixture::new();
    let new = Archive::default;
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
fn a_race_of_renames_does_not_lead_out_of_the_layer() {
    let fixture = Fixture::new();
    let mut archive = Archive::default();
    for round in 0..2000 {
        archive = archive.file(&format!("a/b/{round}"), b"x").file(&format!("c/{round}"), b"x");
    }
    let archive = archive.finish();
    let tree = fixture
        .path()
        .join("root/layers")
        .join(format!(".tmp-{}", oci_hooks::image::Digest::of(&archive)).replace(':', "-"))
        .join("tree");
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let aside = fixture.path().join("root/aside");
            while !is_done.load(Ordering::Relaxed) {
                // Each of these may fail: that is the race.
                for name in ["a", "a/b", "c"] {
                    if fs::rename(tree.join(name), &aside).is_ok() {
                        drop(symlink(fixture.outside(), tree.join(name)));
                        drop(fs::remove_file(tree.join(name)));
                        drop(fs::rename(&aside, tree.join(name)));
                        drop(fs::remove_dir_all(&aside));
                    }
                }
            }
        });
        for _ in 0..20 {
            if let Ok(layer) = fixture.unpack_blob(&archive, |archive| archive.to_vec()) {
                fs::remove_dir_all(layer.path.parent().unwrap()).unwrap();
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    fixture.assert_outside_intact();
}
