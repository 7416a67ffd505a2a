//! Images of ordinary users: their layers, what overlays show of them, and whose the files are.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use oci_hooks::image::{Descriptor, Digest, MediaType, Store, StoreError, StoreOptions};
use oci_hooks::rootfs::{self, Backing, Request};
use oci_hooks::sys::error::chain;
use oci_hooks::sys::privilege::Privilege;
use oci_hooks::sys::removal::remove_tree;
use rustix::fs::getxattr;
use rustix::io::Errno;
use tar::{EntryType, Header};

use crate::namespace::for_each_privilege;

/// An entry of a layer.
struct Entry<'a> {
    name: &'a str,
    kind: EntryType,
    owner: (u32, u32),
    mode: u32,
}

/// A program that may do without root what `ping` does, and how its file says so: version 2, in force at
/// once, `CAP_NET_RAW` of all capabilities.
const CAPABLE: &str = "ping";
const NET_RAW: [u8; 20] = *b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// Returns what root owns: a directory if the name ends in a slash.
fn of_root(name: &str) -> Entry<'_> {
    let is_dir = name.ends_with('/');
    let kind = if is_dir { EntryType::Directory } else { EntryType::Regular };
    Entry { name, kind, owner: (0, 0), mode: if is_dir { 0o755 } else { 0o644 } }
}

fn store(privilege: Privilege, dir: &Path) -> Store {
    let mut options = StoreOptions::new(dir.join("store"), dir.join("run"));
    options.privilege = privilege;
    Store::open(options).unwrap()
}

/// Puts a layer into the store.
fn unpack(store: &Store, entries: &[Entry<'_>]) -> Result<PathBuf, StoreError> {
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

/// Mounts layers, and does something with what they show.
fn with_rootfs(privilege: Privilege, dir: &Path, layers: &[PathBuf], work: impl FnOnce(&Path)) {
    let disk = dir.join("container");
    fs::create_dir(&disk).unwrap();
    let request = Request { privilege, ..Request::new(layers, &disk) };
    let rootfs = rootfs::mount(&request).unwrap();
    assert_eq!(rootfs.backing, Backing::Overlay, "{privilege:?} in {}", dir.display());
    work(&rootfs.path);
    rootfs::unmount(&disk).unwrap();
    remove_tree(&disk).unwrap();
}

#[test]
fn directories_of_lower_layers_are_hidden_removed_and_replaced_as_for_root() {
    let test = "storage::directories_of_lower_layers_are_hidden_removed_and_replaced_as_for_root";
    for_each_privilege(test, |privilege, dir| {
        let store = store(privilege, dir);
        let lower = ["opt/", "opt/a", "opt/b/", "opt/b/c", "gone", "srv/", "srv/old", "var/"];
        let lower = unpack(&store, &lower.map(of_root)).unwrap();
        // In one directory the entry that hides all comes last, in another the directory is made anew.
        let upper = ["opt/own", "opt/.wh..wh..opq", ".wh.gone", ".wh.srv", "srv/", "srv/new"];
        let upper = unpack(&store, &upper.map(of_root)).unwrap();
        let more = unpack(&store, &["var/lib/", "var/lib/x", "var/log/"].map(of_root)).unwrap();
        with_rootfs(privilege, dir, &[lower, more, upper], |root| {
            assert_eq!(names(root), ["opt", "srv", "var"]);
            assert_eq!(names(&root.join("opt")), ["own"]);
            assert_eq!(names(&root.join("srv")), ["new"]);
            // Nor is what is below shown when a directory is removed and made again.
            for name in ["opt", "srv", "var/lib"] {
                fs::remove_dir_all(root.join(name)).unwrap();
                fs::create_dir(root.join(name)).unwrap();
                assert_eq!(names(&root.join(name)), Vec::<String>::new(), "{name}");
            }
            // Directories of layers are copied by whoever moves them, as for root.
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
fn files_belong_to_whom_the_image_says_where_there_are_such() {
    let test = "storage::files_belong_to_whom_the_image_says_where_there_are_such";
    for_each_privilege(test, |privilege, dir| {
        let store = store(privilege, dir);
        let (kind, owner) = (EntryType::Regular, (33, 44));
        let layer = [
            of_root("etc/"),
            Entry { name: "etc/of-others", owner, ..of_root("") },
            Entry { name: "set-user-id", kind, owner, mode: 0o4755 },
            Entry { name: "secret", kind, owner: (0, 0), mode: 0 },
            Entry { name: "null", kind: EntryType::Char, ..of_root("") },
            Entry { name: "pipe", kind: EntryType::Fifo, owner, mode: 0o600 },
            Entry { name: "home/", owner, ..of_root("home/") },
            Entry { name: CAPABLE, mode: 0o755, ..of_root("") },
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
fn an_owner_whom_a_user_does_not_have_is_named_with_the_range_that_would_do() {
    let test = "storage::an_owner_whom_a_user_does_not_have_is_named_with_the_range_that_would_do";
    for_each_privilege(test, |privilege, dir| {
        let store = store(privilege, dir);
        let layer = |owner| [of_root("home/"), Entry { name: "home/app", owner, ..of_root("") }];
        unpack(&store, &layer((65_534, 65_534))).unwrap();
        for (owner, what, file) in
            [((70_000, 0), "user", "subuid"), ((0, 70_000), "group", "subgid")]
        {
            match (privilege, unpack(&store, &layer(owner))) {
                (Privilege::Mapped(ids), Err(error)) => {
                    let last = ids.uids - 1;
                    let error = chain(&error);
                    let expected = format!(
                        "the layer's \"home/app\" belongs to {what} 70000, and there are 0 to {last} here: \
                         ask for a range of at least 131072 ids in /etc/{file}"
                    );
                    assert!(error.contains(&expected), "{error}");
                }
                (Privilege::Mapped(_), Ok(_)) => panic!("nobody has it"),
                (_, unpacked) => drop(unpacked.unwrap()),
            }
        }
        // Nothing of what was not unpacked is left.
        let left = names(&dir.join("store/layers"));
        assert!(left.iter().all(|name| name.starts_with("sha256-")), "{left:?}");
    });
}
