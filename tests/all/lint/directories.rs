//! Files and directories: masking, and write permissions.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use oci_hooks::hooks::lint::{
    self, HookFinding, LintOptions, LintReport, RuleExample, Severity, UnreadDirectory, rules,
};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks_testsupport::acl;
use rustix::time::{ClockId, clock_gettime};

const HOOK: &str = r#"{"version": "1.0.0", "hook": {"path": "/bin/true", "env": ["A=b"], "timeout": 1}, "when": {"always": true}, "stages": ["poststop"]}"#;
const MASK: &str =
    r#"{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {}, "stages": []}"#;
const NO_PROGRAM: &str = r#"{"version": "1.0.0", "hook": {"path": "/nonexistent/hook", "env": ["A=b"], "timeout": 1}, "when": {"always": true}, "stages": ["poststop"]}"#;

/// An ACL that gives write permission to user id 65534.
const NOBODY_MAY: &str = "u::rwx,u:65534:rwx,g::r-x,m::rwx,o::r-x";

/// Two hook directories.
struct HookDirs {
    temp: tempfile::TempDir,
    options: LintOptions,
}

impl HookDirs {
    fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dirs = ["usr", "etc"].map(|name| temp.path().join(name));
        for dir in &dirs {
            fs::create_dir(dir).unwrap();
            set_mode(dir, 0o755);
        }
        let mut options = LintOptions::default();
        options.dirs = dirs.to_vec();
        options.files = Some(TrustOptions::of_process());
        HookDirs { temp, options }
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

    /// Writes a program and a hook file that runs it.
    fn program(&self, name: &str, mode: u32) -> PathBuf {
        let program = self.write(&format!("{name}-program"), "#!/bin/sh\n");
        set_mode(&program, mode);
        let text = HOOK.replace("/bin/true", program.to_str().unwrap());
        self.write(&format!("usr/{name}.json"), &text);
        program
    }

    fn report(&self) -> LintReport {
        lint::lint_dirs(&self.options)
    }

    /// Returns rule, severity and file name of all findings.
    fn findings(&self) -> Vec<(&'static str, Severity, String)> {
        let name = |finding: &HookFinding| {
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

/// Write permissions of a device are no finding: a fix would change the device.
#[test]
fn links_to_devices_are_only_no_hook_files() {
    for (device, rule) in
        [("/dev/full", &rules::UNREADABLE_FILE), ("/dev/null", &rules::EMPTY_FILE)]
    {
        let dirs = HookDirs::new();
        symlink(device, dirs.path("usr/a.json")).unwrap();
        let found: Vec<_> = dirs.findings().into_iter().map(|(rule, ..)| rule).collect();
        assert_eq!(found, [rule.name]);
    }
    let dirs = HookDirs::new();
    dirs.write("usr/a.json", &HOOK.replace("/bin/true", "/dev/full"));
    let found: Vec<_> = dirs.findings().into_iter().map(|(rule, ..)| rule).collect();
    assert_eq!(found, [rules::PROGRAM_NOT_A_FILE.name]);
}

#[test]
fn valid_directories_have_no_findings() {
    let dirs = HookDirs::new();
    dirs.write("usr/a.json", HOOK);
    dirs.write("etc/a.json", HOOK);
    dirs.write("etc/README", "not a hook file");
    assert_eq!(dirs.findings(), []);
    assert_eq!(dirs.report().hook_files, 2);
}

#[test]
fn disabling_another_hook_is_only_a_note() {
    let dirs = HookDirs::new();
    dirs.write("usr/a.json", HOOK);
    dirs.write("etc/a.json", MASK);
    assert_eq!(dirs.findings(), [("masking-hook", Severity::Note, "etc/a.json".to_owned())]);
    fs::remove_file(dirs.path("usr/a.json")).unwrap();
    assert!(dirs.findings().contains(&(
        "no-condition",
        Severity::Warning,
        "etc/a.json".to_owned()
    )));
}

#[test]
fn masking_does_not_suppress_errors_of_a_broken_file() {
    let dirs = HookDirs::new();
    dirs.write("usr/a.json", "{");
    dirs.write("etc/a.json", HOOK);
    assert_eq!(
        dirs.findings(),
        [
            ("invalid-json", Severity::Error, "usr/a.json".to_owned()),
            ("masked-but-broken", Severity::Error, "usr/a.json".to_owned()),
        ]
    );
}

#[test]
fn unusable_file_masks_nothing() {
    for text in [NO_PROGRAM, "{"] {
        let dirs = HookDirs::new();
        dirs.write("usr/a.json", HOOK);
        dirs.write("etc/a.json", text);
        let found = dirs.findings();
        assert!(
            found.contains(&("broken-mask", Severity::Error, "etc/a.json".to_owned())),
            "{found:?}"
        );
    }
}

#[test]
fn names_are_compared_in_hook_order() {
    let dirs = HookDirs::new();
    dirs.write("usr/GPU.json", HOOK);
    dirs.write("etc/gpu.json", HOOK);
    assert_eq!(
        dirs.findings(),
        [("names-differ-in-case", Severity::Warning, "etc/gpu.json".to_owned())]
    );
}

#[test]
fn unread_files_are_reported() {
    let dirs = HookDirs::new();
    dirs.write("etc/a.json.bak", HOOK);
    dirs.write("etc/b.JSON", HOOK);
    assert_eq!(
        dirs.findings(),
        [
            ("ignored-name", Severity::Note, "etc/a.json.bak".to_owned()),
            ("ignored-name", Severity::Warning, "etc/b.JSON".to_owned()),
        ]
    );
}

#[test]
fn other_users_with_write_permission_are_found() {
    let dirs = HookDirs::new();
    let file = dirs.write("etc/a.json", HOOK);
    set_mode(&file, 0o666);
    assert_eq!(dirs.findings(), [("writable-by-others", Severity::Error, "etc/a.json".to_owned())]);
    set_mode(&file, 0o644);

    // One finding for the directory, without findings for its files.
    for mode in [0o777, 0o1777] {
        set_mode(&dirs.path("etc"), mode);
        assert_eq!(dirs.findings(), [("writable-by-others", Severity::Error, "etc".to_owned())]);
    }
    set_mode(&dirs.path("etc"), 0o755);

    dirs.program("b", 0o757);
    assert_eq!(dirs.findings(), [("writable-by-others", Severity::Error, "usr/b.json".to_owned())]);
}

#[test]
fn other_users_with_write_permission_by_acl_are_found() {
    let dirs = HookDirs::new();
    let program = dirs.program("b", 0o755);
    acl::set(&program, "access", NOBODY_MAY);
    assert_eq!(dirs.findings(), [("writable-by-others", Severity::Error, "usr/b.json".to_owned())]);
    acl::set(&program, "access", &NOBODY_MAY.replace("m::rwx", "m::r-x"));
    assert_eq!(dirs.findings(), []);

    fs::write(&program, format!("#!{}\n", dirs.path("interpreter").display())).unwrap();
    let interpreter = dirs.write("interpreter", "#!/bin/sh\n");
    acl::set(&interpreter, "access", "u::rwx,g::r--,g:65534:rwx,m::rwx,o::r--");
    assert_eq!(dirs.findings(), [("writable-by-others", Severity::Error, "usr/b.json".to_owned())]);
    fs::remove_file(dirs.path("usr/b.json")).unwrap();

    acl::set(&dirs.path("etc"), "default", NOBODY_MAY);
    assert_eq!(dirs.findings(), [("writable-by-others", Severity::Error, "etc".to_owned())]);
    acl::set(&dirs.path("etc"), "default", "");
    assert_eq!(dirs.findings(), []);
}

#[test]
fn program_below_a_writable_directory_is_found() {
    let dirs = HookDirs::new();
    let program = dirs.program("a", 0o755);
    let open = dirs.path("open");
    fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    fs::rename(&program, open.join("program")).unwrap();
    symlink(open.join("program"), &program).unwrap();
    assert_eq!(dirs.findings(), [("writable-by-others", Severity::Error, "usr/a.json".to_owned())]);
}

#[test]
fn only_texts_are_checked_without_file_checks() {
    let mut dirs = HookDirs::new();
    set_mode(&dirs.write("etc/a.json", NO_PROGRAM), 0o666);
    assert!(!dirs.findings().is_empty());
    dirs.options.files = None;
    assert_eq!(dirs.findings(), []);
}

#[test]
fn container_program_need_not_be_executable_here() {
    let dirs = HookDirs::new();
    dirs.program("a", 0o666);
    let path = dirs.path("usr/a.json");
    let text = fs::read_to_string(&path).unwrap().replace("poststop", "startContainer");
    fs::write(&path, text).unwrap();
    assert_eq!(
        dirs.findings(),
        [("program-in-container", Severity::Note, "usr/a.json".to_owned())]
    );
}

#[test]
fn thousands_of_files_are_linted_quickly() {
    let dirs = HookDirs::new();
    for n in 0..3000 {
        dirs.write(&format!("usr/{n}.json"), HOOK);
    }
    // The CPU time of other processes does not count.
    let spent = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
    let before = spent();
    assert_eq!(dirs.report().hook_files, 3000);
    assert!(spent() - before < 10, "{} s", spent() - before);
}

fn unread_directory(dirs: &HookDirs, hook_files: usize) -> UnreadDirectory {
    UnreadDirectory { path: dirs.path("unread"), hook_files, hint: "add it".to_owned() }
}

#[test]
fn unread_directories_are_reported_with_a_fix() {
    for (hook_files, said) in [(1, "its hook file has"), (3, "its 3 hook files have")] {
        let mut dirs = HookDirs::new();
        dirs.options.unread.push(unread_directory(&dirs, hook_files));
        let report = dirs.report();
        let findings: Vec<_> = report.findings().collect();
        assert_eq!(findings.len(), 1);
        let expected = format!("podman does not read this directory: {said} no effect");
        assert_eq!((&findings[0].message, findings[0].rule.code), (&expected, "OH412"));
        assert_eq!(findings[0].hint.as_deref(), Some("add it"));
        assert_eq!((&findings[0].path, report.hook_files), (&dirs.path("unread"), 0));
    }
}

/// Breaks every rule about files, all at once.
#[test]
fn every_file_rule_has_a_violating_file() {
    let mut dirs = HookDirs::new();
    fs::create_dir(dirs.path("usr/directory.json")).unwrap();
    dirs.write("usr/no-program.json", HOOK);
    dirs.write("etc/no-program.json", NO_PROGRAM);
    dirs.write("usr/not-found.json", &NO_PROGRAM.replace("/nonexistent/hook", "/bin/true/hook"));
    dirs.write(
        "usr/data.json",
        &format!("{{\"version\": \"1.0.0\", \"hook\": {{{}\"b\": 1}}}}", "\"a\": 1,".repeat(300)),
    );
    dirs.write("usr/not-a-file.json", &NO_PROGRAM.replace("/nonexistent/hook", "/usr/bin"));
    let data = dirs.program("not-executable", 0o644);
    let mut foreign = fs::read("/bin/true").unwrap();
    foreign[18..20].copy_from_slice(&[0xff; 2]);
    for (name, content) in [
        ("crlf", b"#!/bin/sh\r\n".as_slice()),
        ("no-interpreter", b"#!/nonexistent/sh\n"),
        ("no-executable", format!("#!{}\n", data.display()).as_bytes()),
        ("relative", b"#!sh\n"),
        ("not-in-path", b"#!/usr/bin/env nonexistent-program\n"),
        ("no-path", b"#!/usr/bin/env sh\n"),
        ("empty", b""),
        ("foreign", &foreign),
    ] {
        fs::write(dirs.program(name, 0o755), content).unwrap();
    }
    set_mode(&dirs.write("usr/writable.json", HOOK), 0o666);
    let foreign = dirs.write("usr/owner.json", HOOK);
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
    dirs.options.unread.push(unread_directory(&dirs, 1));

    let mut found = dirs.findings();
    if !is_root {
        // An ordinary user cannot create files of other users, but is not trusted by the default options.
        dirs.options.files = Some(TrustOptions::default());
        found.extend(dirs.findings());
    }
    let mut found: BTreeSet<_> = found.into_iter().map(|(rule, ..)| rule).collect();
    let spec = "{\"cdiVersion\": \"0.5.0\", \"kind\": \"v.com/c\", \"devices\": [{\"name\": \"a\", \"containerEdits\":
        {\"hooks\": [{\"hookName\": \"poststop\", \"path\": \"/nonexistent\"}]}}]}";
    for (name, text) in [("cdi-a.json", spec), ("cdi-b.json", spec), ("cdi-c.json", "{")] {
        dirs.write(name, text);
    }
    let root = dirs.path("cdi-a.json").parent().unwrap().to_owned();
    let report = lint::lint_devices(&[root], &dirs.options);
    found.extend(report.findings().map(|finding| finding.rule.name));
    for rule in rules::ALL.iter().filter(|rule| matches!(rule.bad, RuleExample::Shell(_))) {
        assert!(found.contains(rule.name), "{} {}", rule.code, rule.name);
    }
}
