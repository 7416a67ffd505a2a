use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use rustix::fs::CWD;

use super::*;

fn directories() -> (tempfile::TempDir, tempfile::TempDir) {
    (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap())
}

#[test]
fn a_copy_has_contents_modes_times_and_links() {
    let (from, to) = directories();
    let (from, to) = (from.path(), to.path());
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/b/file"), "text").unwrap();
    fs::hard_link(from.join("a/b/file"), from.join("second")).unwrap();
    symlink("/nowhere", from.join("link")).unwrap();
    fs::set_permissions(from.join("a/b/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(from.join("a"), fs::Permissions::from_mode(0o2770)).unwrap();
    fs::set_permissions(from, fs::Permissions::from_mode(0o711)).unwrap();
    let time = Timestamps {
        last_access: Timespec { tv_sec: 1, tv_nsec: 2 },
        last_modification: Timespec { tv_sec: 3, tv_nsec: 4 },
    };
    utimensat(CWD, from.join("a/b"), &time, AtFlags::empty()).unwrap();
    copy(from, to, Purpose::Plain).unwrap();

    assert_eq!(fs::read_to_string(to.join("a/b/file")).unwrap(), "text");
    let [file, second] = ["a/b/file", "second"].map(|name| fs::metadata(to.join(name)).unwrap());
    assert_eq!(file.ino(), second.ino());
    assert_eq!(file.mode() & 0o7777, 0o4751);
    assert_eq!(fs::read_link(to.join("link")).unwrap(), Path::new("/nowhere"));
    assert_eq!(fs::metadata(to.join("a")).unwrap().mode() & 0o7777, 0o2770);
    assert_eq!(fs::metadata(to).unwrap().mode() & 0o7777, 0o711);
    let copied = fs::metadata(to.join("a/b")).unwrap();
    assert_eq!((copied.mtime(), copied.mtime_nsec()), (3, 4));
}

#[test]
fn a_copy_has_extended_attributes() {
    let (from, to) = directories();
    fs::write(from.path().join("file"), "").unwrap();
    let file = File::open(from.path().join("file")).unwrap();
    fsetxattr(&file, c"user.note", b"kept", XattrFlags::empty()).unwrap();
    copy(from.path(), to.path(), Purpose::Plain).unwrap();
    let file = File::open(to.path().join("file")).unwrap();
    let mut value = [0; 8];
    let length = fgetxattr(&file, c"user.note", &mut value).unwrap();
    assert_eq!(&value[..length], b"kept");
}

#[test]
fn links_that_are_there_lead_nowhere() {
    let (from, to) = directories();
    let outside = tempfile::tempdir().unwrap();
    for name in ["dir", "file"] {
        symlink(outside.path(), to.path().join(name)).unwrap();
    }
    fs::create_dir(from.path().join("dir")).unwrap();
    fs::write(from.path().join("dir/inner"), "new").unwrap();
    fs::write(from.path().join("file"), "new").unwrap();
    copy(from.path(), to.path(), Purpose::Layer).unwrap();
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    assert!(to.path().join("dir").symlink_metadata().unwrap().is_dir());
    assert_eq!(fs::read_to_string(to.path().join("file")).unwrap(), "new");
}

#[test]
fn a_layer_replaces_what_has_its_names() {
    let (from, to) = directories();
    fs::create_dir_all(to.path().join("x/deep")).unwrap();
    fs::create_dir(to.path().join("kept")).unwrap();
    fs::write(to.path().join("kept/old"), "").unwrap();
    fs::write(from.path().join("x"), "").unwrap();
    fs::create_dir(from.path().join("kept")).unwrap();
    copy(from.path(), to.path(), Purpose::Layer).unwrap();
    assert!(to.path().join("x").is_file());
    assert!(to.path().join("kept/old").exists());
}

#[test]
fn an_error_names_the_file() {
    let (from, to) = directories();
    fs::create_dir(from.path().join("a")).unwrap();
    fs::write(from.path().join("a/file"), "").unwrap();
    let missing = to.path().join("missing");
    assert_eq!(
        copy(from.path(), &missing, Purpose::Plain).unwrap_err().to_string(),
        format!("cannot open {}", missing.display())
    );
}
