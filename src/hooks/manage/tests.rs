use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::directory::{LockedDirectory, WriteAttributes};
use super::*;
use crate::hooks::migrate::{MigrateOptions, Migration, migrate};
use crate::hooks::{LoadOptions, PathCheck, load};

/// Two hook directories; changes go to the second.
struct TwoDirectories {
    root: TempDir,
}

impl TwoDirectories {
    fn new(files: &[(&str, &str)]) -> Self {
        let host = TwoDirectories { root: tempfile::tempdir().unwrap() };
        fs::create_dir(host.path("lower")).unwrap();
        for (path, text) in files {
            let path = host.path(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        host
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    fn options(&self) -> LoadOptions {
        LoadOptions { dirs: vec![self.path("lower"), self.path("upper")], ..LoadOptions::default() }
    }

    fn editor(&self, mode: EditMode) -> HookEditor {
        HookEditor { options: self.options(), mode }
    }

    /// Returns the argument of each hook that can apply, by file name.
    fn hooks_in_force(&self) -> BTreeMap<String, String> {
        let loaded = load(&self.options());
        assert!(loaded.problems.is_empty(), "{:?}", loaded.problems);
        let active = loaded.hooks.iter().filter(|f| f.definition.when.always == Some(true));
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        active.map(|f| (name(&f.path), f.definition.hook.args[1].clone())).collect()
    }

    /// Returns every file of the changed directory with its content.
    fn upper_files(&self) -> BTreeMap<String, String> {
        let Ok(entries) = fs::read_dir(self.path("upper")) else { return BTreeMap::new() };
        let entries = entries.map(|entry| entry.unwrap());
        let content = |entry: fs::DirEntry| fs::read_to_string(entry.path()).unwrap();
        entries.map(|e| (e.file_name().into_string().unwrap(), content(e))).collect()
    }
}

fn hook(argument: &str) -> String {
    format!(
        r#"{{"version":"1.0.0","hook":{{"path":"/bin/sh","args":["sh","{argument}"]}},
            "when":{{"always":true}},"stages":["poststop"]}}"#
    )
}

fn name() -> HookName {
    HookName::new("x").unwrap()
}

type EditOperation = fn(&HookEditor) -> Result<HookChange, ManageError>;

const DISABLE: EditOperation = |editor| editor.disable(&name());
const ENABLE: EditOperation = |editor| editor.enable(&name());
const REMOVE: EditOperation = |editor| editor.remove(&name());
const INSTALL: EditOperation =
    |editor| editor.install(&name(), hook("new").as_bytes(), OverwritePolicy::Replace);

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn installing_creates_the_directory_and_a_readable_file() {
    let host = TwoDirectories::new(&[("lower/x.json", &hook("lower"))]);
    let change = INSTALL(&host.editor(EditMode::Apply)).unwrap();
    let (upper, path) = (host.path("upper"), host.path("upper/x.json"));
    assert!(
        matches!(&change.steps[..], [ChangeStep::CreateDirectory { path: made }, ChangeStep::Write { .. }] if *made == upper)
    );
    assert_eq!(
        change.notes,
        [ChangeNote::Masks { path: path.clone(), hidden: host.path("lower/x.json") }]
    );
    assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "new")]));
    assert_eq!(fs::metadata(&upper).unwrap().mode() & 0o7777, 0o755);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o644);
    assert_eq!(host.upper_files().len(), 1, "nothing else is left");
}

#[test]
fn installing_replaces_a_file_only_with_force() {
    let host = TwoDirectories::new(&[("upper/x.json", &hook("old"))]);
    fs::set_permissions(host.path("upper/x.json"), fs::Permissions::from_mode(0o600)).unwrap();
    let editor = host.editor(EditMode::Apply);
    let install = |text: &str, overwrite| editor.install(&name(), text.as_bytes(), overwrite);

    let refused = install(&hook("new"), OverwritePolicy::Refuse).unwrap_err();
    assert_eq!(refused.class(), "exists");
    let same = install(&hook("old"), OverwritePolicy::Refuse).unwrap();
    assert!(matches!(&same.notes[..], [ChangeNote::AlreadyThere { .. }]));
    assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "old")]));

    install(&hook("new"), OverwritePolicy::Replace).unwrap();
    assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "new")]));
    assert_eq!(fs::metadata(host.path("upper/x.json")).unwrap().mode() & 0o7777, 0o644);
}

#[test]
fn installing_over_a_disabled_hook_needs_force_and_removes_it() {
    for lower in [&[][..], &[("lower/x.json", hook("lower"))]] {
        let host = TwoDirectories::new(&[("upper/x.json", &hook("old"))]);
        for (path, text) in lower {
            fs::write(host.path(path), text).unwrap();
        }
        let editor = host.editor(EditMode::Apply);
        DISABLE(&editor).unwrap();
        let refused =
            editor.install(&name(), hook("new").as_bytes(), OverwritePolicy::Refuse).unwrap_err();
        assert_eq!(refused.class(), "disabled");
        INSTALL(&editor).unwrap();
        assert_eq!(host.upper_files(), pairs(&[("x.json", &hook("new"))]));
    }
}

#[test]
fn hook_rejected_by_a_consumer_is_not_installed() {
    let host = TwoDirectories::new(&[]);
    let editor = host.editor(EditMode::Apply);
    for (text, class) in [
        ("{", "json-syntax"),
        (r#"{"version":"1.0.0","hook":{"path":"/nonexistent"},"stages":[]}"#, "path-not-exist"),
        (r#"{"version":"1.0.0","hook":{"path":"/bin/sh"},"stages":["x"]}"#, "unknown-stage"),
    ] {
        let error = editor.install(&name(), text.as_bytes(), OverwritePolicy::Replace).unwrap_err();
        assert_eq!(error.class(), class);
    }
    assert!(!host.path("upper").exists());
}

#[test]
fn disabled_hook_of_a_lower_directory_is_enabled_again() {
    let host = TwoDirectories::new(&[("lower/x.json", &hook("lower"))]);
    let editor = host.editor(EditMode::Apply);
    let change = DISABLE(&editor).unwrap();
    assert!(matches!(&change.notes[..], [ChangeNote::Masks { .. }]));
    assert_eq!(host.hooks_in_force(), pairs(&[]));
    assert!(matches!(&DISABLE(&editor).unwrap().notes[..], [ChangeNote::AlreadyDisabled { .. }]));

    let change = ENABLE(&editor).unwrap();
    assert_eq!(change.notes, [ChangeNote::Uncovers { path: host.path("lower/x.json") }]);
    assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "lower")]));
    assert_eq!(host.upper_files(), pairs(&[]));
    assert!(matches!(&ENABLE(&editor).unwrap().notes[..], [ChangeNote::AlreadyEnabled { .. }]));
}

#[test]
fn enabled_hook_of_the_last_directory_is_restored_unchanged() {
    for lower in [false, true] {
        let own = hook("own") + "\n\n";
        let host = TwoDirectories::new(&[("upper/x.json", &own)]);
        if lower {
            fs::write(host.path("lower/x.json"), hook("lower")).unwrap();
        }
        let editor = host.editor(EditMode::Apply);
        DISABLE(&editor).unwrap();
        assert_eq!(host.hooks_in_force(), pairs(&[]));
        assert_eq!(host.path("upper/x.json").exists(), lower);
        assert_eq!(host.upper_files()["x.json.disabled"], own);

        ENABLE(&editor).unwrap();
        assert_eq!(host.upper_files(), pairs(&[("x.json", &own)]));
    }
}

#[test]
fn mask_outlives_the_masked_program() {
    let host = TwoDirectories::new(&[("program", "")]);
    let text = hook("lower").replace("/bin/sh", host.path("program").to_str().unwrap());
    fs::write(host.path("lower/x.json"), &text).unwrap();
    DISABLE(&host.editor(EditMode::Apply)).unwrap();
    // A package moves its program and updates its hook file.
    fs::remove_file(host.path("program")).unwrap();
    fs::write(host.path("lower/x.json"), hook("updated")).unwrap();
    assert_eq!(host.hooks_in_force(), pairs(&[]));
}

#[test]
fn broken_hook_can_be_disabled_but_not_enabled() {
    let host = TwoDirectories::new(&[("upper/x.json", "{"), ("lower/x.json", &hook("lower"))]);
    let editor = host.editor(EditMode::Apply);
    DISABLE(&editor).unwrap();
    assert_eq!(host.hooks_in_force(), pairs(&[]));
    assert_eq!(ENABLE(&editor).unwrap_err().class(), "json-syntax");
}

#[test]
fn removing_never_enables_a_disabled_hook() {
    let host =
        TwoDirectories::new(&[("lower/x.json", &hook("lower")), ("upper/x.json", &hook("own"))]);
    let editor = host.editor(EditMode::Apply);
    DISABLE(&editor).unwrap();
    assert!(matches!(&REMOVE(&editor).unwrap().notes[..], [ChangeNote::StillMasked { .. }]));
    assert_eq!(REMOVE(&editor).unwrap_err().class(), "only-mask");
    assert_eq!(host.hooks_in_force(), pairs(&[]));
    ENABLE(&editor).unwrap();
    assert_eq!(REMOVE(&editor).unwrap_err().class(), "elsewhere");
    assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "lower")]));
}

#[test]
fn removing_a_hook_reports_the_uncovered_one() {
    let host =
        TwoDirectories::new(&[("lower/x.json", &hook("lower")), ("upper/x.json", &hook("own"))]);
    let change = REMOVE(&host.editor(EditMode::Apply)).unwrap();
    assert_eq!(change.notes, [ChangeNote::Uncovers { path: host.path("lower/x.json") }]);
    assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "lower")]));
}

#[test]
fn unknown_names_are_errors_and_create_nothing() {
    let host = TwoDirectories::new(&[]);
    for operation in [DISABLE, ENABLE, REMOVE] {
        assert_eq!(operation(&host.editor(EditMode::Apply)).unwrap_err().class(), "no-such-hook");
    }
    assert!(!host.path("upper").exists());
}

#[test]
fn hook_with_both_names_keeps_one_of_them() {
    // The state after `disable` or `enable` was killed between two system calls.
    for (operation, left) in [(DISABLE, "x.json.disabled"), (ENABLE, "x.json")] {
        let own = hook("own");
        let host = TwoDirectories::new(&[("upper/x.json", &own), ("upper/x.json.disabled", &own)]);
        operation(&host.editor(EditMode::Apply)).unwrap();
        assert_eq!(host.upper_files(), pairs(&[(left, &own)]));
    }
}

#[test]
fn other_disabled_hook_of_the_name_is_not_overwritten() {
    let host =
        TwoDirectories::new(&[("upper/x.json", &hook("a")), ("upper/x.json.disabled", &hook("b"))]);
    for operation in [DISABLE, ENABLE] {
        assert_eq!(operation(&host.editor(EditMode::Apply)).unwrap_err().class(), "kept");
    }
    assert_eq!(host.upper_files().len(), 2);
}

#[test]
fn symbolic_link_is_disabled_enabled_replaced_and_removed_itself() {
    let target = hook("target");
    let host = TwoDirectories::new(&[("target", &target)]);
    let editor = host.editor(EditMode::Apply);
    fs::create_dir(host.path("upper")).unwrap();
    let (path, disabled) = (host.path("upper/x.json"), host.path("upper/x.json.disabled"));
    symlink("../target", &path).unwrap();

    for is_masking in [false, true] {
        if is_masking {
            fs::write(host.path("lower/x.json"), hook("lower")).unwrap();
        }
        DISABLE(&editor).unwrap();
        assert!(disabled.is_symlink() && !path.is_symlink());
        assert_eq!(path.exists(), is_masking);
        assert_eq!(host.hooks_in_force(), pairs(&[]));
        for _ in 0..2 {
            ENABLE(&editor).unwrap();
            assert!(path.is_symlink() && !disabled.is_symlink());
            assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "target")]));
        }
    }
    let refused = editor.install(&name(), hook("new").as_bytes(), OverwritePolicy::Refuse);
    assert_eq!(refused.unwrap_err().class(), "exists");
    INSTALL(&editor).unwrap();
    assert!(!path.is_symlink());
    assert_eq!(host.hooks_in_force(), pairs(&[("x.json", "new")]));

    fs::remove_file(&path).unwrap();
    symlink("../target", &path).unwrap();
    REMOVE(&editor).unwrap();
    assert!(!path.is_symlink());
    assert_eq!(fs::read_to_string(host.path("target")).unwrap(), target);

    fs::create_dir(&path).unwrap();
    assert!(INSTALL(&editor).is_err());
}

#[test]
fn directory_behind_a_link_of_another_user_is_not_changed() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give a link to another user.
        return;
    }
    let host =
        TwoDirectories::new(&[("lower/x.json", &hook("own")), ("victim/x.json", &hook("theirs"))]);
    fs::create_dir(host.path("shared")).unwrap();
    fs::set_permissions(host.path("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
    for (name, target) in [("link", "victim"), ("dangling", "made")] {
        symlink(host.path(target), host.path("shared").join(name)).unwrap();
        lchown(host.path("shared").join(name), Some(54321), None).unwrap();
    }
    for dir in ["shared/link", "shared/dangling", "shared/link/new", "shared/dangling/new"] {
        let options =
            LoadOptions { dirs: vec![host.path("lower"), host.path(dir)], ..host.options() };
        for operation in [INSTALL, DISABLE, ENABLE, REMOVE] {
            let editor = HookEditor { options: options.clone(), mode: EditMode::Apply };
            let error = operation(&editor).unwrap_err();
            assert_eq!(error.class(), "foreign-link", "{dir}: {error}");
            assert!(error.to_string().contains("of user 54321, who can point it at any"));
        }
    }
    assert!(!host.path("made").exists());
    assert_eq!(fs::read_dir(host.path("victim")).unwrap().count(), 1);
    assert_eq!(fs::read_to_string(host.path("victim/x.json")).unwrap(), hook("theirs"));
}

#[test]
fn plan_changes_nothing_and_matches_the_later_change() {
    for operation in [INSTALL, DISABLE] {
        let host = TwoDirectories::new(&[("lower/x.json", &hook("lower"))]);
        let plan = operation(&host.editor(EditMode::Plan)).unwrap();
        assert!(!host.path("upper").exists());
        assert_eq!(operation(&host.editor(EditMode::Apply)).unwrap(), plan);
    }
}

#[test]
fn interrupted_change_leaves_old_or_new_state_and_can_be_repeated() {
    let mut cuts = 0;
    for lower in [false, true] {
        for disabled in [false, true] {
            for operation in [INSTALL, DISABLE, ENABLE, REMOVE] {
                let setup = || {
                    let host = TwoDirectories::new(&[("upper/x.json", &hook("own"))]);
                    if lower {
                        fs::write(host.path("lower/x.json"), hook("lower")).unwrap();
                    }
                    if disabled {
                        DISABLE(&host.editor(EditMode::Apply)).unwrap();
                    }
                    host
                };
                let done = setup();
                let before = done.hooks_in_force();
                operation(&done.editor(EditMode::Apply)).unwrap();
                let after = done.hooks_in_force();

                let plan =
                    |host: &TwoDirectories| operation(&host.editor(EditMode::Plan)).unwrap().steps;
                for cut in 1..plan(&setup()).len() {
                    let host = setup();
                    for step in &plan(&host)[..cut] {
                        let upper = host.path("upper");
                        let directory = LockedDirectory::lock(&upper).unwrap();
                        directory.apply(step, WriteAttributes::own()).unwrap();
                    }
                    let now = host.hooks_in_force();
                    assert!(now == before || now == after, "{now:?}");
                    operation(&host.editor(EditMode::Apply)).unwrap();
                    assert_eq!(host.upper_files(), done.upper_files());
                    cuts += 1;
                }
            }
        }
    }
    assert!(cuts >= 4, "{cuts}");
}

const OLD: &str = r#"{"hook":"/bin/sh","stages":["prestart"],"hasbindmounts":true,"cmd":["a"]}"#;

fn migration() -> Migration {
    migrate("x.json".as_ref(), OLD.as_bytes(), MigrateOptions::default()).unwrap().unwrap()
}

fn write(
    host: &TwoDirectories,
    destination: MigrationDestination<'_>,
) -> Result<HookChange, ManageError> {
    let options = LoadOptions { path_check: PathCheck::Skip, ..host.options() };
    write_migration(&migration(), destination, &options, EditMode::Apply)
}

#[test]
fn migrated_files_replace_the_old_one_with_its_mode() {
    let host = TwoDirectories::new(&[("upper/x.json", OLD)]);
    let path = host.path("upper/x.json");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let replace = MigrationDestination::Replace { path: &path, text: OLD.as_bytes() };
    let change = write(&host, replace).unwrap();
    let paths: Vec<_> = change.steps.iter().map(ChangeStep::to_string).collect();
    assert!(paths[0].ends_with("x.1.json") && paths[1].ends_with("x.json"), "{paths:?}");
    for file in ["upper/x.json", "upper/x.1.json"] {
        assert_eq!(fs::metadata(host.path(file)).unwrap().mode() & 0o7777, 0o640);
    }
    assert_eq!(host.upper_files()["x.json"], migration().files[0].text);
}

#[test]
fn migrated_files_replace_no_unrelated_files() {
    let host = TwoDirectories::new(&[("upper/x.json", "edited"), ("upper/x.1.json", "other")]);
    let path = host.path("upper/x.json");
    let changed = write(&host, MigrationDestination::Replace { path: &path, text: OLD.as_bytes() });
    assert_eq!(changed.unwrap_err().class(), "changed");
    fs::write(&path, OLD).unwrap();
    let exists = write(&host, MigrationDestination::Replace { path: &path, text: OLD.as_bytes() });
    assert_eq!(exists.unwrap_err().class(), "exists");
    assert_eq!(host.upper_files(), pairs(&[("x.json", OLD), ("x.1.json", "other")]));

    let made = host.path("new/dir");
    write(&host, MigrationDestination::Directory(&made)).unwrap();
    assert_eq!(fs::read_dir(&made).unwrap().count(), 2);
    let again = write(&host, MigrationDestination::Directory(&made)).unwrap();
    assert!(again.steps.is_empty(), "what is right is left");
}
