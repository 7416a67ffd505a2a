use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

fn replace(path: &Path, symlinks: Symlinks, content: &str) -> Result<(), ReplaceError> {
    FileAt::open(path, symlinks)?.replace(content.as_bytes(), &ReplaceOptions::default())
}

/// Returns the names in a directory, sorted.
fn names(directory: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

fn system_error(result: Result<(), ReplaceError>) -> ErrorKind {
    match result {
        Err(ReplaceError::Path(error)) => error.source.kind(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn file_is_made_with_the_mode_asked_for_whatever_the_umask() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new");
    let file = FileAt::open(&path, Symlinks::Refuse).unwrap();
    file.replace(b"one", &ReplaceOptions::default()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);

    let options = ReplaceOptions { mode: Some(0o666), ..Default::default() };
    file.replace(b"two", &options).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o666);
    assert_eq!(names(directory.path()), ["new"]);
}

#[test]
fn mode_and_owner_of_the_old_file_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "old").unwrap();
    // Only root can have a file that is somebody else's.
    if geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(12345), Some(54321)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    let old = fs::metadata(&path).unwrap();

    replace(&path, Symlinks::Refuse, "new").unwrap();
    let new = fs::metadata(&path).unwrap();
    assert_eq!((new.uid(), new.gid(), new.mode()), (old.uid(), old.gid(), old.mode()));
    assert_ne!(new.ino(), old.ino());

    if geteuid().is_root() {
        let options = ReplaceOptions { owner: Some((1, 2)), ..Default::default() };
        FileAt::open(&path, Symlinks::Refuse).unwrap().replace(b"new", &options).unwrap();
        let new = fs::metadata(&path).unwrap();
        assert_eq!((new.uid(), new.gid()), (1, 2));
    }
}

#[test]
fn path_without_directory_is_in_the_working_directory() {
    assert_eq!(split(Path::new("file")), Some((Path::new("."), OsStr::new("file"))));
    for path in ["/", "..", "", "a/.."] {
        let error = FileAt::open(Path::new(path), Symlinks::Follow).unwrap_err();
        assert!(matches!(error, ReplaceError::NoFileName { .. }), "{path:?}: {error}");
    }
}

#[test]
fn symbolic_link_is_refused_or_its_target_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let (a, b) = (directory.path().join("a"), directory.path().join("b"));
    fs::create_dir(&a).unwrap();
    fs::create_dir(&b).unwrap();
    fs::write(b.join("file"), "old").unwrap();
    // Relative, through another link, and absolute.
    symlink("../b/link", a.join("link")).unwrap();
    symlink(b.join("file"), b.join("link")).unwrap();

    let error = replace(&a.join("link"), Symlinks::Refuse, "new").unwrap_err();
    assert!(matches!(error, ReplaceError::NotAFile { kind: FileKind::Symlink, .. }), "{error}");
    assert_eq!(fs::read(b.join("file")).unwrap(), b"old");

    replace(&a.join("link"), Symlinks::Follow, "new").unwrap();
    assert_eq!(fs::read(b.join("file")).unwrap(), b"new");
    assert!(a.join("link").is_symlink() && b.join("link").is_symlink());
    assert!(!b.join("file").is_symlink());
    assert_eq!((names(&a), names(&b)), (vec!["link".into()], vec!["file".into(), "link".into()]));

    symlink("loop", a.join("loop")).unwrap();
    let error = replace(&a.join("loop"), Symlinks::Follow, "new").unwrap_err();
    assert_eq!(error.to_string(), format!("cannot open {}", a.join("loop").display()));
}

#[test]
fn what_is_no_regular_file_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("directory")).unwrap();
    let error = replace(&directory.path().join("directory"), Symlinks::Refuse, "").unwrap_err();
    assert!(error.to_string().ends_with("is a directory, not a file"), "{error}");
    let error = replace(Path::new("/dev/null"), Symlinks::Follow, "").unwrap_err();
    assert!(error.to_string().ends_with("is a character device, not a file"), "{error}");
    assert_eq!(names(directory.path()), ["directory"]);
}

#[test]
fn file_that_must_be_absent_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let file = FileAt::open(&path, Symlinks::Refuse).unwrap();
    let options = ReplaceOptions { expected: Expected::Absent, ..Default::default() };
    file.replace(b"first", &options).unwrap();
    let error = system_error(file.replace(b"second", &options));
    assert_eq!(error, ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(names(directory.path()), ["file"]);
}

#[test]
fn file_that_changed_since_it_was_read_is_not_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let other = directory.path().join("other");
    let changes: [fn(&Path, &Path); 5] = [
        |path, _| fs::write(path, "longer").unwrap(),
        |path, _| fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap(),
        |path, other| fs::rename(other, path).unwrap(),
        |path, _| fs::remove_file(path).unwrap(),
        |path, other| {
            fs::remove_file(path).unwrap();
            symlink(other, path).unwrap();
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let _ = fs::remove_file(&path);
        fs::write(&path, "old").unwrap();
        fs::write(&other, "old").unwrap();
        // So that a change within a tick of the kernel's clock shows too.
        let old = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        fs::File::options().write(true).open(&path).unwrap().set_times(old).unwrap();
        let file = FileAt::open(&path, Symlinks::Refuse).unwrap();
        let (content, id) = file.read(100).unwrap();
        assert_eq!(content, b"old");
        let options = ReplaceOptions { expected: Expected::Unchanged(id), ..Default::default() };

        wait_for_the_clock(&file);
        change(&path, &other);
        let before = names(directory.path());
        let error = file.replace(b"new", &options).unwrap_err();
        assert!(matches!(error, ReplaceError::Changed { .. }), "change {index}: {error}");
        assert_ne!(fs::read(&path).ok().as_deref(), Some(&b"new"[..]));
        assert_eq!(names(directory.path()), before);
    }

    fs::remove_file(&path).unwrap();
    fs::write(&path, "old").unwrap();
    let file = FileAt::open(&path, Symlinks::Refuse).unwrap();
    let expected = Expected::Unchanged(file.read(100).unwrap().1);
    file.replace(b"new", &ReplaceOptions { expected, ..Default::default() }).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
}

/// Returns when a file touched now gets another time than the file was touched at.
fn wait_for_the_clock(file: &FileAt) {
    let time = |stat: Stat| (stat.st_ctime, stat.st_ctime_nsec);
    let touched = time(statat(&file.directory, &file.name, AtFlags::SYMLINK_NOFOLLOW).unwrap());
    let probe = tempfile::NamedTempFile::new().unwrap();
    while {
        fs::write(&probe, "x").unwrap();
        time(fstat(&probe).unwrap()) == touched
    } {}
}

#[test]
fn failure_leaves_no_file_behind() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "old").unwrap();
    let file = FileAt::open(&path, Symlinks::Refuse).unwrap();

    // Where the file system has no files without names.
    let new = Temporary::create_named(&file.directory).unwrap();
    assert_eq!(names(directory.path()).len(), 2);
    assert!(!names(directory.path())[0].to_str().unwrap().ends_with(".json"));
    drop(new);
    assert_eq!(names(directory.path()), ["file"]);

    let new = Temporary::create_unnamed(&file.directory).unwrap();
    assert_eq!(names(directory.path()), ["file"]);
    drop(new);

    // A name that is too long fails at the very end, when the new file is renamed.
    let long = FileAt { name: "x".repeat(300).into(), ..file };
    let error = system_error(long.replace(b"new", &ReplaceOptions::default()));
    assert_eq!(error, ErrorKind::InvalidFilename);
    assert_eq!(names(directory.path()), ["file"]);
    assert_eq!(fs::read(&path).unwrap(), b"old");
}

#[test]
fn what_a_killed_replacement_left_is_removed_by_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    replace(&path, Symlinks::Refuse, "old").unwrap();
    let file = FileAt::open(&path, Symlinks::Refuse).unwrap();
    let [left, held, linked] = ["00000000000000aa", "00000000000000bb", "00000000000000cc"]
        .map(|digits| format!(".oci-hooks-{digits}.new"));
    fs::write(directory.path().join(&left), "").unwrap();
    symlink("file", directory.path().join(&linked)).unwrap();
    fs::write(directory.path().join(".oci-hooks-mine.new"), "").unwrap();
    let holder = Temporary::create_unnamed(&file.directory).unwrap();
    holder.link(OsStr::new(&held)).unwrap();

    file.replace(b"new", &ReplaceOptions::default()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(names(directory.path()), [&held, &linked, ".oci-hooks-mine.new", "file"]);
    drop(holder);
    file.replace(b"newer", &ReplaceOptions::default()).unwrap();
    assert_eq!(names(directory.path()), [&linked, ".oci-hooks-mine.new", "file"]);
}

#[test]
fn directory_swapped_after_reading_does_not_redirect_the_writing() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for (directory, content) in [("bundle", "ours"), ("victim", "theirs")] {
        fs::create_dir(at(directory)).unwrap();
        fs::write(at(directory).join("config.json"), content).unwrap();
    }
    symlink("bundle", at("link")).unwrap();

    let file = FileAt::open(&at("link/config.json"), Symlinks::Refuse).unwrap();
    let (_, id) = file.read(100).unwrap();
    symlink("victim", at("other")).unwrap();
    fs::rename(at("other"), at("link")).unwrap();
    let options = ReplaceOptions { expected: Expected::Unchanged(id), ..Default::default() };
    file.replace(b"new", &options).unwrap();

    assert_eq!(fs::read(at("bundle/config.json")).unwrap(), b"new");
    assert_eq!(fs::read(at("victim/config.json")).unwrap(), b"theirs");
}

#[test]
fn file_swapped_for_a_link_is_neither_read_nor_written_through() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    fs::write(at("config.json"), "ours").unwrap();
    fs::write(at("victim"), "theirs").unwrap();
    let file = FileAt::open(&at("config.json"), Symlinks::Refuse).unwrap();
    fs::remove_file(at("config.json")).unwrap();
    symlink("victim", at("config.json")).unwrap();

    assert!(file.read(100).is_err());
    let error = file.replace(b"new", &ReplaceOptions::default()).unwrap_err();
    assert!(matches!(error, ReplaceError::NotAFile { kind: FileKind::Symlink, .. }), "{error}");
    assert_eq!(fs::read(at("victim")).unwrap(), b"theirs");
}

#[test]
fn racing_swaps_never_change_another_file() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for (directory, content) in [("bundle", "ours"), ("victim", "theirs")] {
        fs::create_dir(at(directory)).unwrap();
        fs::write(at(directory).join("config.json"), content).unwrap();
    }
    symlink("bundle", at("link")).unwrap();

    let done = AtomicBool::new(false);
    let replaced = std::thread::scope(|scope| {
        // Swaps the directory and, within it, the file, as fast as it can.
        scope.spawn(|| {
            let swap = |target: &str, name: &str| {
                symlink(target, at("spare")).unwrap();
                fs::rename(at("spare"), at(name)).unwrap();
            };
            while !done.load(Ordering::Relaxed) {
                swap("victim", "link");
                swap("bundle", "link");
                swap("../victim/config.json", "bundle/config.json");
                fs::write(at("spare"), "ours").unwrap();
                fs::rename(at("spare"), at("bundle/config.json")).unwrap();
            }
        });
        let mut replaced = 0;
        let start = std::time::Instant::now();
        for round in 0.. {
            // Enough rounds, of which enough found the file as it should be.
            if (round >= 2000 && replaced >= 20) || start.elapsed().as_secs() > 30 {
                break;
            }
            let Ok(file) = FileAt::open(&at("link/config.json"), Symlinks::Refuse) else {
                continue;
            };
            // As a program would: it changes what it has read, if that is what it looks for.
            let Ok((content, id)) = file.read(100) else { continue };
            if content == b"theirs" {
                continue;
            }
            let options = ReplaceOptions {
                expected: Expected::Unchanged(id),
                durability: Durability::Unsynced,
                ..Default::default()
            };
            replaced += u32::from(file.replace(b"new", &options).is_ok());
        }
        done.store(true, Ordering::Relaxed);
        replaced
    });
    assert!(replaced > 0, "no round replaced anything");
    assert_eq!(fs::read(at("victim/config.json")).unwrap(), b"theirs");
    assert_eq!(names(&at("victim")), ["config.json"]);
    assert_eq!(names(&at("bundle")), ["config.json"]);
}
