use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use oci_hooks_testsupport::acl;

use super::*;

/// A directory of the user in the sticky `/tmp`.
fn tree() -> (tempfile::TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("a/b/hook");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "").unwrap();
    chmod(&file, 0o755);
    (temp, file)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn fault(path: &Path) -> Option<PathBuf> {
    check_path(path, &TrustOptions::of_process()).err().map(|error| error.path().to_owned())
}

#[test]
fn writable_file_or_parent_directory_is_found() {
    let (temp, file) = tree();
    assert_eq!(fault(&file), None);
    for path in [file.clone(), temp.path().join("a"), temp.path().join("a/b")] {
        let mode = fs::metadata(&path).unwrap().mode();
        chmod(&path, 0o777);
        assert_eq!(fault(&file), Some(path.clone()));
        chmod(&path, mode & 0o7777);
    }
}

#[test]
fn link_targets_and_their_parents_are_checked() {
    let (temp, file) = tree();
    let open = temp.path().join("open");
    fs::create_dir(&open).unwrap();
    chmod(&open, 0o777);
    symlink("../open/../a/b/hook", temp.path().join("a/link")).unwrap();
    assert_eq!(fault(&temp.path().join("a/link")), Some(open.clone()));
    chmod(&open, 0o1777);
    assert_eq!(fault(&temp.path().join("a/link")), None, "sticky");
    symlink("loop", temp.path().join("loop")).unwrap();
    assert!(fault(&temp.path().join("loop")).is_some());
    assert_eq!(fault(&file), None);
}

#[test]
fn group_with_the_number_of_a_trusted_user_may_write() {
    let (_temp, file) = tree();
    chmod(&file, 0o775);
    let group = fs::metadata(&file).unwrap().gid();
    let mut options = TrustOptions::of_process();
    options.uids.push(group);
    check_path(&file, &options).unwrap();
    options.uids.retain(|uid| *uid != group);
    options.uids.push(rustix::process::geteuid().as_raw());
    if !options.uids.contains(&group) {
        assert!(matches!(check_path(&file, &options), Err(TrustError::Writable { .. })));
    }
}

#[test]
fn common_directories_are_checked_once() {
    let (_temp, file) = tree();
    let mut checker = TrustChecker::new(TrustOptions::of_process());
    checker.check_path(&file).unwrap();
    let directory = file.parent().unwrap();
    assert!(checker.good.contains(directory));
    chmod(directory, 0o777);
    checker.check_path(&file).unwrap();
}

#[test]
fn a_foreign_owner_is_found() {
    let (_temp, file) = tree();
    let nobody_is_trusted = TrustOptions { uids: vec![], ..TrustOptions::default() };
    let error = check_path(&file, &nobody_is_trusted).unwrap_err();
    assert_eq!(error.path(), Path::new("/"));
    assert!(matches!(error, TrustError::Owner { .. }), "{error}");
}

/// An ACL like mode 755 that also permits everything to user 54321, which exists nowhere and is not trusted.
const OTHER_MAY: &str = "u::rwx,u:54321:rwx,g::r-x,m::rwx,o::r-x";

fn error(path: &Path) -> Option<TrustError> {
    check_path(path, &TrustOptions::of_process()).err()
}

#[test]
fn writer_granted_by_an_acl_is_found_and_named() {
    let (_temp, file) = tree();
    acl::set(&file, "access", "u::rwx,u:65534:rwx,g::r-x,m::rwx,o::r-x");
    let found = error(&file).unwrap();
    let path = file.display();
    let nobody = AccessSubject::User(65534);
    assert!(
        matches!(&found, TrustError::Writable { writer, .. } if writer.who == nobody),
        "{found:?}"
    );
    let expected = format!("{path} is writable by the user nobody (uid 65534) through an ACL");
    assert_eq!(found.to_string(), expected);
    assert_eq!(found.hint(), Some(format!("setfacl -x u:nobody {path}")));
    acl::set(&file, "access", "u::rwx,g::r-x,m::r-x,o::r-x");
    assert!(error(&file).is_none());
    acl::set(&file, "access", "u::rwx,g::r-x,g:54321:-w-,m::rwx,o::r-x");
    let found = error(&file).unwrap();
    assert_eq!(found.to_string(), format!("{path} is writable by group 54321 through an ACL"));
    assert_eq!(found.hint(), Some(format!("setfacl -x g:54321 {path}")));
}

#[test]
fn acl_entries_without_permissions_are_ignored() {
    let (_temp, file) = tree();
    let own = rustix::process::geteuid().as_raw();
    acl::set(
        &file,
        "access",
        &format!("u::rwx,u:0:rwx,u:{own}:rwx,u:54321:r-x,g::r-x,m::rwx,o::r-x"),
    );
    assert!(error(&file).is_none());
    acl::set(&file, "access", &OTHER_MAY.replace("m::rwx", "m::r-x"));
    assert!(error(&file).is_none(), "the mask takes it away");
    acl::set(&file, "access", OTHER_MAY);
    assert!(error(&file).is_some());
}

#[test]
fn acl_mask_is_not_taken_for_the_owning_group() {
    let (_temp, file) = tree();
    acl::set(&file, "access", "u::rwx,u:0:rwx,g::r-x,m::rwx,o::r-x");
    // The group bits of its mode include write permission.
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o020, 0o020);
    assert!(check_path(&file, &TrustOptions::of_process()).is_ok());
}

#[test]
fn writable_acls_of_parent_directories_are_found() {
    let (temp, file) = tree();
    let above = temp.path().join("a");
    acl::set(&above, "access", OTHER_MAY);
    assert_eq!(fault(&file), Some(above.clone()));
    chmod(&above, 0o1777);
    assert_eq!(fault(&file), None, "sticky");
    acl::set(&above, "default", OTHER_MAY);
    let found = error(&file).unwrap();
    let path = above.display();
    let expected =
        format!("files created in {path} are writable by user 54321 through its default ACL");
    assert_eq!(found.to_string(), expected);
    assert_eq!(found.hint(), Some(format!("setfacl -d -x u:54321 {path}")));
    // New files get the entries of a default ACL.
    let made = above.join("made");
    fs::write(&made, "").unwrap();
    acl::set(&above, "default", "");
    assert_eq!(fault(&made), Some(made));
    assert_eq!(fault(&file), None);
    let additions = TrustChecker::new(TrustOptions::of_process()).check_additions(&above);
    assert!(matches!(additions, Err(TrustError::Writable { .. })));
}

#[test]
fn script_interpreters_are_checked_like_programs() {
    let (temp, file) = tree();
    let interpreter = temp.path().join("interpreter");
    fs::write(&interpreter, "#!/bin/sh\n").unwrap();
    let mut checker = TrustChecker::new(TrustOptions::of_process());
    for line in ["#!", "#! ", "#!\t", "#"] {
        fs::write(&file, format!("{line}{} -e\necho\n", interpreter.display())).unwrap();
        chmod(&interpreter, 0o755);
        checker.check_program(&file, None).unwrap();
        chmod(&interpreter, 0o777);
        let found = checker.check_program(&file, None).err().map(|error| error.path().to_owned());
        assert_eq!(found, (line != "#").then(|| interpreter.clone()), "{line:?}");
    }
    fs::write(&file, "#!sh\n").unwrap();
    assert!(matches!(checker.check_program(&file, None), Err(TrustError::Relative { .. })));
    fs::write(&file, format!("#!{}", file.display())).unwrap();
    assert!(matches!(checker.check_program(&file, None), Err(TrustError::Lookup(_))));
    fs::write(&file, "#!").unwrap();
    checker.check_program(&file, None).unwrap();
}

#[test]
fn interpreter_found_by_env_is_checked() {
    let (temp, file) = tree();
    let at = |name: &str| temp.path().join(name);
    for directory in ["first", "second"] {
        fs::create_dir(at(directory)).unwrap();
        chmod(&at(directory), 0o755);
    }
    let interpreter = at("second/language");
    fs::write(&interpreter, "#!/bin/sh\n").unwrap();
    chmod(&interpreter, 0o755);
    let path = format!("{}:{}", at("first").display(), at("second").display());
    let check = |line: &str, path: &str| {
        fs::write(&file, line).unwrap();
        let mut checker = TrustChecker::new(TrustOptions::of_process());
        checker.check_program(&file, Some(OsStr::new(path))).map_err(|error| error.to_string())
    };
    for line in ["#!/usr/bin/env language\n", "#! /usr/bin/env -S A=1 language -x\n"] {
        check(line, &path).unwrap();
        // The first directory counts, and so do the users who can create files in it.
        for mode in [0o777, 0o1777] {
            chmod(&at("first"), mode);
            check(line, &path).unwrap_err();
            check(line, &path.replacen("/first", "/first/missing", 1)).unwrap_err();
        }
        chmod(&at("first"), 0o755);
        check(line, &path.replacen("/first", "/first/missing", 1)).unwrap();
        fs::write(at("first/language"), "#!/bin/sh\n").unwrap();
        chmod(&at("first/language"), 0o666);
        check(line, &path).unwrap_err();
        chmod(&at("first/language"), 0o644);
        check(line, &path).unwrap();
        fs::remove_file(at("first/language")).unwrap();
        chmod(&interpreter, 0o777);
        let said = check(line, &path).unwrap_err();
        assert!(said.starts_with(&format!("{} is writable", interpreter.display())), "{said}");
        chmod(&interpreter, 0o755);
        // A relative directory has no fixed place.
        assert!(check(line, &format!(":{path}")).unwrap_err().contains("is a relative path"));
        let said = check(line, "/nonexistent").unwrap_err();
        assert!(said.contains("cannot find the interpreter of "), "{said}");
    }
    check("#!/usr/bin/env sh\n", "/bin").unwrap();
    let said = check("#!/usr/bin/env -S 'language'\n", &path).unwrap_err();
    assert!(said.contains("does not show which program `env` starts"), "{said}");
    // Without PATH, the default path of the C library is searched.
    fs::write(&file, "#!/usr/bin/env sh\n").unwrap();
    TrustChecker::new(TrustOptions::of_process()).check_program(&file, None).unwrap();
}

#[test]
fn writable_mounts_are_checked_despite_the_option() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().canonicalize().unwrap().join("settings");
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    let options = TrustOptions { read_only_mounts: true, ..TrustOptions::of_process() };
    let error = check_path(&path, &options).unwrap_err();
    assert!(matches!(error, TrustError::Writable { .. }), "{error}");
}
