//! Files and directories: what masks what, and who may write.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use oci_hooks::hooks::lint::{
    self, Example, FileChecks, Finding, LintOptions, Report, Severity, UnreadDirectory, rules,
};
use oci_hooks::hooks::trust::TrustOptions;
use rustix::time::{ClockId, clock_gettime};

use crate::acl;

const HOOK: &str = r#"{"version": "1.0.0", "hook": {"path": "/bin/true", "env": ["A=b"], "timeout": 1}, "when": {"always": true}, "stages": ["poststop"]}"#;
const MASK: &str =
    r#"{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {}, "stages": []}"#;
const NO_PROGRAM: &str = r#"{"version": "1.0.0", "hook": {"path": "/nonexistent/hook", "env": ["A=b"], "timeout": 1}, "when": {"always": true}, "stages": ["poststop"]}"#;

/// A list by which the user `nobody` may write.
const NOBODY_MAY: &str = "u::rwx,u:65534:rwx,g::r-x,m::rwx,o::r-x";

/// Two hook directories.
struct Dirs {
    temp: tempfile::TempDir,
    options: LintOptions,
}

impl Dirs {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ["usr", "etc"].map(|name| temp.path().join(name));
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
            set_mode(dir, 0o755);
        }
        let mut options = LintOptions::default();
        options.dirs = dirs.to_vec();
        options.files = FileChecks::Trust(TrustOptions::of_process());
        Dirs { temp, options }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        set_mode(&path, 0o644);
        path
    }

    /// Writes a program and a hook file for it.
    fn program(&self, name: &str, mode: u32) -> PathBuf {
        let program = self.write(&format!("{name}-program"), "#!/bin/sh\n");
        set_mode(&program, mode);
        let text = HOOK.replace("/bin/true", program.to_str().unwrap());
        self.write(&format!("usr/{name}.json"), &text);
        program
    }

    fn report(&self) -> Report {
        lint::lint_dirs(&self.options)
    }

    /// Returns rule, severity and file name of all findings.
    fn found(&self) -> Vec<(&'static str, Severity, String)> {
        let name = |finding: &Finding| {
            finding
                .path
                .strip_prefix(self.temp.path())
                .unwrap_or(&finding.path)
                .display()
                .to_string()
        };
        self.report().findings().map(|f| (f.rule.name, f.severity, name(f))).collect()
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn good_directories_have_no_findings() {
    let dirs = Dirs::new();
    dirs.write("usr/a.json", HOOK);
    dirs.write("etc/a.json", HOOK);
    dirs.write("etc/README", "not a hook file");
    assert_eq!(dirs.found(), []);
    assert_eq!(dirs.report().hook_files, 2);
}

#[test]
fn a_hook_that_turns_off_another_is_a_note_and_nothing_else() {
    let dirs = Dirs::new();
    dirs.write("usr/a.json", HOOK);
    dirs.write("etc/a.json", MASK);
    assert_eq!(dirs.found(), [("masking-hook", Severity::Note, "etc/a.json".to_owned())]);
    fs::remove_file(dirs.path("usr/a.json")).unwrap();
    assert!(dirs.found().contains(&("no-condition", Severity::Warning, "etc/a.json".to_owned())));
}

#[test]
fn masking_a_broken_file_does_not_help() {
    let dirs = Dirs::new();
    dirs.write("usr/a.json", "{");
    dirs.write("etc/a.json", HOOK);
    assert_eq!(
        dirs.found(),
        [
            ("invalid-json", Severity::Error, "usr/a.json".to_owned()),
            ("masked-but-broken", Severity::Error, "usr/a.json".to_owned()),
        ]
    );
}

#[test]
fn a_file_that_cannot_be_used_masks_nothing() {
    for text in [NO_PROGRAM, "{"] {
        let dirs = Dirs::new();
        dirs.write("usr/a.json", HOOK);
        dirs.write("etc/a.json", text);
        let found = dirs.found();
        assert!(
            found.contains(&("broken-mask", Severity::Error, "etc/a.json".to_owned())),
            "{found:?}"
        );
    }
}

#[test]
fn names_are_compared_as_hooks_are_ordered() {
    let dirs = Dirs::new();
    dirs.write("usr/GPU.json", HOOK);
    dirs.write("etc/gpu.json", HOOK);
    assert_eq!(
        dirs.found(),
        [("names-differ-in-case", Severity::Warning, "etc/gpu.json".to_owned())]
    );
}

#[test]
fn files_that_are_not_read_are_noted() {
    let dirs = Dirs::new();
    dirs.write("etc/a.json.bak", HOOK);
    dirs.write("etc/b.JSON", HOOK);
    assert_eq!(
        dirs.found(),
        [
            ("ignored-name", Severity::Note, "etc/a.json.bak".to_owned()),
            ("ignored-name", Severity::Warning, "etc/b.JSON".to_owned()),
        ]
    );
}

#[test]
fn whoever_may_write_is_found() {
    let dirs = Dirs::new();
    let file = dirs.write("etc/a.json", HOOK);
    set_mode(&file, 0o666);
    assert_eq!(dirs.found(), [("writable-by-others", Severity::Error, "etc/a.json".to_owned())]);
    set_mode(&file, 0o644);

    // Once for the directory, and not for each file in it.
    for mode in [0o777, 0o1777] {
        set_mode(&dirs.path("etc"), mode);
        assert_eq!(dirs.found(), [("writable-by-others", Severity::Error, "etc".to_owned())]);
    }
    set_mode(&dirs.path("etc"), 0o755);

    dirs.program("b", 0o757);
    assert_eq!(dirs.found(), [("writable-by-others", Severity::Error, "usr/b.json".to_owned())]);
}

#[test]
fn whoever_may_write_by_an_acl_is_found() {
    let dirs = Dirs::new();
    let program = dirs.program("b", 0o755);
    acl::set(&program, "access", NOBODY_MAY);
    assert_eq!(dirs.found(), [("writable-by-others", Severity::Error, "usr/b.json".to_owned())]);
    acl::set(&program, "access", &NOBODY_MAY.replace("m::rwx", "m::r-x"));
    assert_eq!(dirs.found(), []);

    fs::write(&program, format!("#!{}\n", dirs.path("interpreter").display())).unwrap();
    let interpreter = dirs.write("interpreter", "");
    acl::set(&interpreter, "access", "u::rw-,g::r--,g:65534:rwx,m::rwx,o::r--");
    assert_eq!(dirs.found(), [("writable-by-others", Severity::Error, "usr/b.json".to_owned())]);
    fs::remove_file(dirs.path("usr/b.json")).unwrap();

    acl::set(&dirs.path("etc"), "default", NOBODY_MAY);
    assert_eq!(dirs.found(), [("writable-by-others", Severity::Error, "etc".to_owned())]);
    acl::set(&dirs.path("etc"), "default", "");
    assert_eq!(dirs.found(), []);
}

#[test]
fn a_program_reached_through_an_open_directory_is_found() {
    let dirs = Dirs::new();
    let program = dirs.program("a", 0o755);
    let open = dirs.path("open");
    fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    fs::rename(&program, open.join("program")).unwrap();
    symlink(open.join("program"), &program).unwrap();
    assert_eq!(dirs.found(), [("writable-by-others", Severity::Error, "usr/a.json".to_owned())]);
}

#[test]
fn without_file_checks_only_texts_count() {
    let mut dirs = Dirs::new();
    set_mode(&dirs.write("etc/a.json", NO_PROGRAM), 0o666);
    assert!(!dirs.found().is_empty());
    dirs.options.files = FileChecks::Skip;
    assert_eq!(dirs.found(), []);
}

#[test]
fn a_program_of_the_container_need_not_be_executable_here() {
    let dirs = Dirs::new();
    dirs.program("a", 0o666);
    let path = dirs.path("usr/a.json");
    let text = fs::read_to_string(&path).unwrap().replace("poststop", "startContainer");
    fs::write(&path, text).unwrap();
    assert_eq!(dirs.found(), [("program-in-container", Severity::Note, "usr/a.json".to_owned())]);
}

#[test]
fn thousands_of_files_are_linted_in_no_time() {
    let dirs = Dirs::new();
    for n in 0..3000 {
        dirs.write(&format!("usr/{n}.json"), HOOK);
    }
    // What others do on this machine does not count.
    let spent = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
    let before = spent();
    assert_eq!(dirs.report().hook_files, 3000);
    assert!(spent() - before < 10, "{} s", spent() - before);
}

fn unread(dirs: &Dirs, hook_files: usize) -> UnreadDirectory {
    UnreadDirectory { path: dirs.path("unread"), hook_files, help: "add it".to_owned() }
}

#[test]
fn directories_that_are_not_read_are_reported_with_what_to_do() {
    for (hook_files, said) in [(1, "its hook file has"), (3, "its 3 hook files have")] {
        let mut dirs = Dirs::new();
        dirs.options.unread.push(unread(&dirs, hook_files));
        let report = dirs.report();
        let findings: Vec<_> = report.findings().collect();
        assert_eq!(findings.len(), 1);
        let expected = format!("podman does not read this directory: {said} no effect");
        assert_eq!((&findings[0].message, findings[0].rule.code), (&expected, "OH412"));
        assert_eq!(findings[0].help.as_deref(), Some("add it"));
        assert_eq!((&findings[0].path, report.hook_files), (&dirs.path("unread"), 0));
    }
}

/// Every rule that is no matter of a text, all at once.
#[test]
fn every_rule_about_files_has_a_file_that_breaks_it() {
    let mut dirs = Dirs::new();
    fs::create_dir(dirs.path("usr/directory.json")).unwrap();
    dirs.write("usr/no-program.json", HOOK);
    dirs.write("etc/no-program.json", NO_PROGRAM);
    dirs.write("usr/not-found.json", &NO_PROGRAM.replace("/nonexistent/hook", "/bin/true/hook"));
    dirs.write(
        "usr/data.json",
        &format!("{{\"version\": \"1.0.0\", \"hook\": {{{}\"b\": 1}}}}", "\"a\": 1,".repeat(300)),
    );
    dirs.write("usr/not-a-file.json", &NO_PROGRAM.replace("/nonexistent/hook", "/usr/bin"));
    dirs.program("not-executable", 0o644);
    set_mode(&dirs.write("usr/writable.json", HOOK), 0o666);
    let foreign = dirs.write("usr/foreign.json", HOOK);
    let is_root = chown(&foreign, Some(12345), None).is_ok();
    symlink("/nonexistent/hook.json", dirs.path("usr/dangling.json")).unwrap();
    dirs.write("usr/ignored.json~", HOOK);
    dirs.write("usr/.hidden.json", HOOK);
    dirs.write("usr/CASE.json", HOOK);
    dirs.write("usr/case.json", HOOK);
    dirs.write("usr/broken.json", "{");
    dirs.write("etc/broken.json", HOOK);
    dirs.write("usr/masked.json", HOOK);
    dirs.write("etc/masked.json", MASK);
    dirs.options.dirs.push(dirs.path("missing"));
    dirs.options.dirs.push(dirs.write("file", ""));
    dirs.options.unread.push(unread(&dirs, 1));

    let mut found = dirs.found();
    if !is_root {
        // Who cannot give files away has some that are foreign to root.
        dirs.options.files = FileChecks::Trust(TrustOptions::default());
        found.extend(dirs.found());
    }
    let found: BTreeSet<_> = found.into_iter().map(|(rule, ..)| rule).collect();
    for rule in rules::ALL.iter().filter(|rule| matches!(rule.bad, Example::Shell(_))) {
        assert!(found.contains(rule.name), "{} {}", rule.code, rule.name);
    }
}
