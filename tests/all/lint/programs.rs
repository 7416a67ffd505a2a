//! Programs that cannot be run: their first bytes, their interpreter, and `env`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::lint::{self, HookFinding, LintOptions, Severity};
use oci_hooks::hooks::trust::TrustOptions;

use crate::lint::env::lint_in;

/// A program, and a hook file that runs it.
struct ProgramFile {
    temp: tempfile::TempDir,
}

impl ProgramFile {
    fn new(content: impl AsRef<[u8]>) -> Self {
        let program = ProgramFile { temp: tempfile::tempdir().unwrap() };
        program.write("program", content, 0o755);
        program
    }

    fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Writes the hook file, with this `env`.
    fn hook(&self, env: &str) -> PathBuf {
        let program = self.path("program");
        let text = format!(
            r#"{{"version": "1.0.0", "hook": {{"path": {program:?}, "env": [{env}], "timeout": 1}},
                "when": {{"always": true}}, "stages": ["poststop"]}}"#
        );
        self.write("hook.json", text, 0o644)
    }

    /// Returns the findings above notes with this `env`.
    fn findings(&self, env: &str) -> Vec<HookFinding> {
        let mut options = LintOptions::default();
        options.files = Some(TrustOptions::of_process());
        let findings = lint::lint_file(&self.hook(env), &options).findings;
        findings.into_iter().filter(|finding| finding.severity > Severity::Note).collect()
    }

    /// Returns the only finding, if there is any.
    #[track_caller]
    fn only_finding(&self, env: &str) -> Option<(&'static str, Severity)> {
        let findings = self.findings(env);
        assert!(findings.len() < 2, "{findings:?}");
        findings.first().map(|finding| (finding.rule.name, finding.severity))
    }
}

const PATH: &str = r#""PATH=/usr/bin:/bin""#;

/// Returns the program of the shell with another architecture.
fn elf(machine: u16) -> Vec<u8> {
    let mut elf = fs::read("/bin/sh").unwrap();
    elf[18..20].copy_from_slice(&machine.to_le_bytes());
    elf
}

#[test]
fn programs_rejected_by_the_kernel_are_errors() {
    let longest = format!("#!/{}\n", "x".repeat(300));
    for (rule, content) in [
        ("crlf-script", "#!/bin/sh\r\ntrue\r\n"),
        ("crlf-script", "#!/usr/bin/env sh\r\n"),
        ("crlf-script", "#! /bin/sh -e\r\ntrue\n"),
        ("crlf-script", "#!/bin/sh\r"),
        ("missing-interpreter", "#!/nonexistent/sh\n"),
        ("missing-interpreter", "#!/bin/sh/sh"),
        ("missing-interpreter", &longest[..100]),
        ("interpreter-not-executable", "#!/usr/bin\n"),
        ("interpreter-not-executable", "#!/etc/passwd -x\n"),
        ("relative-interpreter", "#!sh\n"),
        ("relative-interpreter", "#! ./bin/sh\n"),
        ("missing-env-program", "#!/usr/bin/env nonexistent-program\n"),
        ("missing-env-program", "#!/usr/bin/env -S A=b nonexistent-program -x\n"),
        ("missing-env-program", "#!/usr/bin/env /nonexistent/program\n"),
        ("missing-env-program", "#!/usr/bin/env sh -e\n"),
        ("unknown-format", ""),
        ("unknown-format", "echo\n"),
        ("unknown-format", "\u{feff}#!/bin/sh\n"),
        ("unknown-format", "#!\n"),
        ("unknown-format", "#"),
        ("unknown-format", "\u{7f}ELF"),
    ] {
        let program = ProgramFile::new(content);
        assert_eq!(program.only_finding(PATH), Some((rule, Severity::Error)), "{content:?}");
    }
}

#[test]
fn executable_programs_have_no_finding() {
    for content in [
        "#!/bin/sh\n",
        "#! /bin/sh -e",
        "#!/bin/sh\ntrue\r\n",
        "#!/usr/bin/env sh\n",
        "#!/usr/bin/env -S A=b sh -e\n",
        "#!/usr/bin/env -S 'cannot tell'\n",
    ] {
        assert_eq!(ProgramFile::new(content).only_finding(PATH), None, "{content:?}");
    }
    assert_eq!(ProgramFile::new(fs::read("/bin/sh").unwrap()).only_finding(PATH), None);
}

#[test]
fn interpreters_are_checked_like_programs() {
    let program = ProgramFile::new("");
    for (content, expected) in [
        ("#!/bin/sh\n", None),
        ("", Some("unknown-format")),
        ("#!/bin/sh\r\n", Some("crlf-script")),
        ("#!/usr/bin/env nonexistent-program\n", Some("missing-env-program")),
    ] {
        let interpreter = program.write("interpreter", content, 0o755);
        program.write("program", format!("#!{}\n", interpreter.display()), 0o755);
        let findings = program.findings(PATH);
        assert_eq!(findings.first().map(|finding| finding.rule.name), expected, "{content:?}");
        // The finding is about a file that other programs may use.
        assert!(findings.iter().all(|finding| !finding.is_fixable()));
    }
    program.write("interpreter", "#!/bin/sh\n", 0o644);
    assert_eq!(program.only_finding(PATH), Some(("interpreter-not-executable", Severity::Error)));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn programs_of_other_architectures_are_errors() {
    for (machine, expected) in [
        (62, None),
        (3, None),
        (183, Some("foreign-architecture")),
        (9999, Some("foreign-architecture")),
    ] {
        let program = ProgramFile::new(elf(machine));
        assert_eq!(program.only_finding(PATH).map(|(rule, _)| rule), expected, "{machine}");
    }
    let findings = ProgramFile::new(elf(183)).findings(PATH);
    assert!(findings[0].message.ends_with("is a program for ARM64, and this host is x86_64"));
}

#[test]
fn env_searches_the_path_of_the_hook() {
    let program = ProgramFile::new("#!/usr/bin/env language\n");
    fs::create_dir(program.path("bin")).unwrap();
    let missing = |severity| Some(("missing-env-program", severity));
    let own = format!("\"PATH=/usr/bin:{}\"", program.path("bin").display());
    assert_eq!(program.only_finding(&own), missing(Severity::Error));
    program.write("bin/language", "#!/bin/sh\n", 0o644);
    assert_eq!(program.only_finding(&own), missing(Severity::Error));
    program.write("bin/language", "#!/bin/sh\n", 0o755);
    assert_eq!(program.only_finding(&own), None);
    assert_eq!(program.only_finding(PATH), missing(Severity::Error));
    // Without a PATH, `env` searches /bin and /usr/bin.
    assert_eq!(program.only_finding("\"A=b\""), missing(Severity::Error));
    // Without an environment the PATH of the engine counts.
    assert_eq!(program.only_finding(""), missing(Severity::Warning));
    let findings = ProgramFile::new("#!/usr/bin/env sh -e\n").findings(PATH);
    assert!(findings[0].hint.as_deref().unwrap().contains("env -S"), "{findings:?}");
}

#[test]
fn a_script_for_env_needs_a_path() {
    let program = ProgramFile::new("#!/usr/bin/env sh\n");
    assert_eq!(program.only_finding("\"A=b\""), Some(("no-search-path", Severity::Warning)));
    assert_eq!(program.only_finding(PATH), None);
    program.write("program", "#!/usr/bin/env -S PATH=/usr/bin sh\n", 0o755);
    assert_eq!(program.only_finding("\"A=b\""), None);
    // OH311 reports a missing environment.
    assert_eq!(program.only_finding(""), None);
    program.write("program", "#!/bin/sh\n", 0o755);
    assert_eq!(program.only_finding("\"A=b\""), None);
}

#[test]
fn misspelled_interpreters_have_a_hint() {
    let help = |content: &str| ProgramFile::new(content).findings(PATH)[0].hint.clone().unwrap();
    assert_eq!(help("#!/nonexistent/bin/sleep\n"), "did you mean `/usr/bin/sleep`?");
    assert_eq!(help("#!/usr/bin/sleeep\n"), "did you mean `/usr/bin/sleep`?");
    assert!(help("#!/nonexistent/nonexistent-program\n").starts_with("install it"));
}

#[test]
fn programs_are_not_opened_without_file_checks() {
    let program = ProgramFile::new("");
    let hook = program.hook(PATH);
    let ran = lint_in(program.temp.path(), &["--content-only", "hook.json"], "");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "1 hook file, no findings\n"));
    // A program of the container is not that of the host.
    let text = fs::read_to_string(&hook).unwrap().replace("poststop", "startContainer");
    fs::write(&hook, text).unwrap();
    assert_eq!(lint_in(program.temp.path(), &["hook.json"], "").code, Some(0));
}

#[test]
fn fix_corrects_the_line_endings_of_a_program() {
    let program = ProgramFile::new("#!/bin/sh\r\nexit 0\r\n");
    program.hook(PATH);
    let run = |args: &[&str]| lint_in(program.temp.path(), args, "");
    let path = program.path("program");
    let found = run(&["hook.json"]);
    assert!(found.stdout.contains("error[OH315]: the first line of `"), "{}", found.stdout);
    assert!(found.stdout.contains("1 finding fixable with --fix"), "{}", found.stdout);

    let diff = run(&["--diff", "hook.json"]);
    assert_eq!(diff.code, Some(1));
    assert!(
        diff.stdout.contains("-#!/bin/sh\r\n-exit 0\r\n+#!/bin/sh\n+exit 0\n"),
        "{}",
        diff.stdout
    );
    for untouched in
        [&["--fix", "--content-only", "hook.json"][..], &["--fix", "--allow", "OH315", "hook.json"]]
    {
        assert_eq!(run(untouched).code, Some(0));
        assert_eq!(fs::read_to_string(&path).unwrap(), "#!/bin/sh\r\nexit 0\r\n");
    }

    let fixed = run(&["--fix", "hook.json"]);
    assert_eq!((fixed.code, fixed.stdout.as_str()), (Some(0), "1 hook file, no findings\n"));
    assert!(
        fixed.stderr.contains("program:1: OH315: fixed: write line ends as LF"),
        "{}",
        fixed.stderr
    );
    assert_eq!(fs::read_to_string(&path).unwrap(), "#!/bin/sh\nexit 0\n");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn programs_without_a_safe_fix_are_unchanged() {
    let unfixed = |program: &ProgramFile| {
        let content = fs::read(program.path("program")).unwrap();
        program.hook(PATH);
        let ran = lint_in(program.temp.path(), &["--fix", "hook.json"], "");
        assert!(ran.stdout.contains("OH315") && !ran.stdout.contains("--fix"), "{}", ran.stdout);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), ""));
        assert_eq!(fs::read(program.path("program")).unwrap(), content);
    };
    unfixed(&ProgramFile::new("#!/bin/sh\r\ntrue\n"));
    unfixed(&ProgramFile::new("#!/bin/sh\r\n\0\r\n"));
    let open = ProgramFile::new("#!/bin/sh\r\n");
    open.write("program", "#!/bin/sh\r\n", 0o757);
    unfixed(&open);
}

#[test]
fn variables_set_twice_and_timeouts_in_milliseconds_are_warnings() {
    let found = |hook: &str| {
        let text = format!(
            r#"{{"version": "1.0.0", "hook": {{"path": "/bin/true", {hook}}},
                "when": {{"always": true}}, "stages": ["poststop"]}}"#
        );
        let findings =
            lint::lint_text(Path::new("a.json"), text.as_bytes(), &LintOptions::default());
        let severe = findings.iter().filter(|finding| finding.severity > Severity::Note);
        severe.map(|finding| (finding.rule.name, finding.severity)).collect::<Vec<_>>()
    };
    let long = [("long-timeout", Severity::Warning)];
    for (seconds, expected) in [
        (999, &[][..]),
        (1000, &long),
        (1200, &[]),
        (1500, &long),
        (3600, &[]),
        (5000, &long),
        (30000, &long),
    ] {
        let hook = format!(r#""env": ["A=b"], "timeout": {seconds}"#);
        assert_eq!(found(&hook), expected, "{seconds}");
    }
    let twice = [("repeated-variable", Severity::Warning)];
    for (env, expected) in
        [(r#""A=b", "B=b", "A=c", "A=c""#, &[twice[0], twice[0]][..]), (r#""A=b", "a=b""#, &[])]
    {
        assert_eq!(found(&format!(r#""env": [{env}], "timeout": 1"#)), expected, "{env}");
    }
}
