//! Images of ordinary users: layers, overlays, and file owners.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use oci_hooks_engine::rootfs::{self, RootfsBacking, RootfsRequest};
use oci_hooks_files::error::chain;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_image::{Descriptor, Digest, ImageStore, MediaType, StoreError, StoreOptions};
use rustix::fs::getxattr;
use rustix::io::Errno;
use tar::{EntryType, Header};

use crate::rootless::namespace::run_for_each_privilege;

/// An entry of a layer.
struct TestEntry<'a> {
    name: &'a str,
    kind: EntryType,
    owner: (u32, u32),
    mode: u32,
}

/// A program with the file capability of `ping`: `VFS_CAP_REVISION_2`, effective, `CAP_NET_RAW`.
const CAPABLE: &str = "ping";
const NET_RAW: [u8; 20] = *b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Returns an entry owned by root: a directory if the name ends with a slash, else a file.
fn root_entry(name: &str) -> TestEntry<'_> {
    let is_dir = name.ends_with('/');
    let kind = if is_dir { EntryType::Directory } else { EntryType::Regular };
    TestEntry { name, kind, owner: (0, 0), mode: if is_dir { 0o755 } else { 0o644 } }
}

fn store(privilege: Privilege, dir: &Path) -> ImageStore {
    let mut options = StoreOptions::new(dir.join("store"), dir.join("run"));
    options.privilege = privilege;
    ImageStore::open(options).unwrap()
}

fn unpack(store: &ImageStore, entries: &[TestEntry<'_>]) -> Result<PathBuf, StoreError> {
    let mut archive = tar::Builder::new(Vec::new());
    for entry in entries {
        if entry.name == CAPABLE {
            archive
                .append_pax_extensions([("SCHILY.xattr.security.capability", &NET_RAW[..])])
                .unwrap();
        }
        let content = if entry.kind == EntryType::Regular { entry.name.as_bytes() } else { b"" };
        let mut header = Header::new_gnu();
        header.set_entry_type(entry.kind);
        header.set_mode(entry.mode);
        header.set_uid(entry.owner.0.into());
        header.set_gid(entry.owner.1.into());
        header.set_size(content.len() as u64);
        if entry.kind == EntryType::Char {
            header.set_device_major(1).unwrap();
            header.set_device_minor(3).unwrap();
        }
        archive.append_data(&mut header, entry.name, content).unwrap();
    }
    let bytes = archive.into_inner().unwrap();
    let digest = Digest::of(&bytes);
    let descriptor = Descriptor::new(MediaType::ImageLayer, digest.clone(), bytes.len() as u64);
    Ok(store.unpack_layer(&descriptor, &digest, bytes.as_slice())?.path)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Mounts layers as an overlay, and calls a function with its root.
fn with_rootfs(privilege: Privilege, dir: &Path, layers: &[PathBuf], work: impl FnOnce(&Path)) {
    let disk = dir.join("container");
    fs::create_dir(&disk).unwrap();
    let request = RootfsRequest { privilege, ..RootfsRequest::new(layers, &disk) };
    let rootfs = rootfs::mount(&request).unwrap();
    assert_eq!(rootfs.backing, RootfsBacking::Overlay, "{privilege:?} in {}", dir.display());
    work(&rootfs.path);
    rootfs::unmount(&disk).unwrap();
    remove_tree(&disk).unwrap();
}

#[test]
fn lower_directories_are_hidden_removed_and_replaced_like_for_root() {
    let test = "rootless::storage::lower_directories_are_hidden_removed_and_replaced_like_for_root";
    run_for_each_privilege(test, |privilege, dir| {
        let store = store(privilege, dir);
        let lower = ["opt/", "opt/a", "opt/b/", "opt/b/c", "gone", "srv/", "srv/old", "var/"];
        let lower = unpack(&store, &lower.map(root_entry)).unwrap();
        // In `opt` the opaque whiteout comes last; `srv` is removed and created anew.
        let upper = ["opt/own", "opt/.wh..wh..opq", ".wh.gone", ".wh.srv", "srv/", "srv/new"];
        let upper = unpack(&store, &upper.map(root_entry)).unwrap();
        let more = unpack(&store, &["var/lib/", "var/lib/x", "var/log/"].map(root_entry)).unwrap();
        with_rootfs(privilege, dir, &[lower, more, upper], |root| {
            assert_eq!(names(root), ["opt", "srv", "var"]);
            assert_eq!(names(&root.join("opt")), ["own"]);
            assert_eq!(names(&root.join("srv")), ["new"]);
            // Lower directories stay hidden after a directory is removed and created again.
            for name in ["opt", "srv", "var/lib"] {
                fs::remove_dir_all(root.join(name)).unwrap();
                fs::create_dir(root.join(name)).unwrap();
                assert_eq!(names(&root.join(name)), Vec::<String>::new(), "{name}");
            }
            // Renaming a directory of a lower layer fails with `EXDEV`, as for root.
            let moved = fs::rename(root.join("var"), root.join("moved")).unwrap_err();
            assert_eq!(moved.raw_os_error(), Some(Errno::XDEV.raw_os_error()));
            fs::rename(root.join("opt"), root.join("moved")).unwrap();
            fs::create_dir_all(root.join("new/below")).unwrap();
            fs::remove_dir_all(root.join("var")).unwrap();
            fs::rename(root.join("new"), root.join("var")).unwrap();
            assert_eq!(names(&root.join("var")), ["below"]);
            assert_eq!(names(root), ["moved", "srv", "var"]);
        });
    });
}

#[test]
fn file_owners_match_the_image_if_they_are_mapped() {
    let test = "rootless::storage::file_owners_match_the_image_if_they_are_mapped";
    run_for_each_privilege(test, |privilege, dir| {
        let store = store(privilege, dir);
        let (kind, owner) = (EntryType::Regular, (33, 44));
        let layer = [
            root_entry("etc/"),
            TestEntry { name: "etc/of-others", owner, ..root_entry("") },
            TestEntry { name: "set-user-id", kind, owner, mode: 0o4755 },
            TestEntry { name: "secret", kind, owner: (0, 0), mode: 0 },
            TestEntry { name: "null", kind: EntryType::Char, ..root_entry("") },
            TestEntry { name: "pipe", kind: EntryType::Fifo, owner, mode: 0o600 },
            TestEntry { name: "home/", owner, ..root_entry("home/") },
            TestEntry { name: CAPABLE, mode: 0o755, ..root_entry("") },
        ];
        let layer = unpack(&store, &layer).unwrap();
        let real = |path: &Path| {
            let mut value = [0; 64];
            let length = getxattr(path, "user.oci-hooks.owner", &mut value).ok()?;
            Some(String::from_utf8_lossy(&value[..length]).into_owned())
        };
        with_rootfs(privilege, dir, &[layer], |root| {
            let found = |name: &str| {
                let path = root.join(name);
                let meta = fs::symlink_metadata(&path).unwrap();
                ((meta.uid(), meta.gid()), meta.mode() & 0o7777, real(&path))
            };
            let said = |text: &str| Some(text.to_owned());
            if privilege == Privilege::Single {
                assert_eq!(found("etc/of-others"), ((0, 0), 0o644, said("33:44:644")));
                assert_eq!(found("set-user-id"), ((0, 0), 0o755, said("33:44:4755")));
                assert_eq!(found("secret"), ((0, 0), 0o600, said("0:0:0")));
                assert_eq!(found("home"), ((0, 0), 0o755, said("33:44:755")));
                assert_eq!(found("pipe").0, (0, 0));
            } else {
                assert_eq!(found("etc/of-others"), (owner, 0o644, None));
                assert_eq!(found("set-user-id"), (owner, 0o4755, None));
                assert_eq!(found("secret"), ((0, 0), 0, None));
                assert_eq!(found("home"), (owner, 0o755, None));
                assert_eq!(found("pipe").0, owner);
            }
            assert_eq!(found("etc"), ((0, 0), 0o755, None));
            let mut capability = [0; 64];
            let length =
                getxattr(root.join(CAPABLE), "security.capability", &mut capability).unwrap();
            assert_eq!(capability[..length], NET_RAW, "{privilege:?}");
            let is_device = |path: PathBuf| {
                fs::metadata(path).is_ok_and(|found| found.file_type().is_char_device())
            };
            assert_eq!(is_device(root.join("null")), privilege.can_make_devices());
        });
    });
}

#[test]
fn unmapped_owner_is_named_with_the_required_range() {
    let test = "rootless::storage::unmapped_owner_is_named_with_the_required_range";
    run_for_each_privilege(test, |privilege, dir| {
        let store = store(privilege, dir);
        let layer =
            |owner| [root_entry("home/"), TestEntry { name: "home/app", owner, ..root_entry("") }];
        unpack(&store, &layer((65_534, 65_534))).unwrap();
        for (owner, what, file) in
            [((70_000, 0), "user", "subuid"), ((0, 70_000), "group", "subgid")]
        {
            match (privilege, unpack(&store, &layer(owner))) {
                (Privilege::Mapped(ids), Err(error)) => {
                    let last = ids.uids - 1;
                    let error = chain(&error);
                    let expected = format!(
                        "\"home/app\" of the layer belongs to {what} 70000, but only {what}s 0 to {last} are \
                         mapped: give the user that runs this program a range of 131072 or more ids in /etc/{file}"
                    );
                    assert!(error.contains(&expected), "{error}");
                }
                (Privilege::Mapped(_), Ok(_)) => panic!("nobody has it"),
                (_, unpacked) => drop(unpacked.unwrap()),
            }
        }
        // No partly unpacked layer is left.
        let left = names(&dir.join("store/layers"));
        assert!(left.iter().all(|name| name.starts_with("sha256-")), "{left:?}");
    });
}
