//! Linting files and directories.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::{ReadError, read_bounded};

use super::finding::filter;
use super::program::{ProgramChecker, untrusted};
use super::text::{self, FileUsability};
use super::{HookFinding, LintOptions, LintReport, LintedFile, Severity, rules};
use crate::hooks::load::{self, MAX_FILE_BYTES};
use crate::hooks::set::{is_hook_file_name, order_key};

/// Lints one file, whatever its name.
pub fn lint_file(path: &Path, options: &LintOptions) -> LintedFile {
    let mut linter = Linter::new(options);
    let (mut file, _) = linter.file(path);
    filter(&mut file.findings, options);
    file
}

/// Lints the directories of the options as the consumer reads them: a file masks files of the same
/// name in earlier directories, and the order of hooks spans all directories.
pub fn lint_dirs(options: &LintOptions) -> LintReport {
    let mut linter = Linter::new(options);
    for dir in &options.dirs {
        linter.dir(dir);
    }
    linter.report_unread();
    linter.masks();
    linter.names();
    for file in &mut linter.files {
        filter(&mut file.findings, options);
    }
    let hook_files = linter.by_name.values().map(Vec::len).sum();
    LintReport { files: linter.files, hook_files, spec_files: 0 }
}

struct Linter<'o> {
    options: &'o LintOptions,
    programs: ProgramChecker,
    files: Vec<LintedFile>,
    /// The hook files of each name in order of increasing precedence, as indices into `files`.
    by_name: HashMap<OsString, Vec<(usize, FileUsability)>>,
    /// The keys of `by_name`, in the order in which the directories are read.
    names: Vec<OsString>,
    /// Untrusted paths that a finding about a directory names. Findings about its files do not
    /// repeat them.
    reported: HashSet<PathBuf>,
}

impl<'o> Linter<'o> {
    fn new(options: &'o LintOptions) -> Self {
        Linter {
            options,
            programs: ProgramChecker::new(options),
            files: Vec::new(),
            by_name: HashMap::new(),
            names: Vec::new(),
            reported: HashSet::new(),
        }
    }

    fn dir(&mut self, dir: &Path) {
        let mut linted = LintedFile { path: dir.to_owned(), text: None, findings: Vec::new() };
        let names = match load::open(dir) {
            Ok((_, names)) => names,
            Err(error) => {
                let finding = if error.source.kind() == io::ErrorKind::NotFound {
                    HookFinding::new(
                        &rules::MISSING_DIRECTORY,
                        dir,
                        "the directory does not exist".to_owned(),
                    )
                } else {
                    let message = format!("the directory cannot be read: {}", error.source);
                    HookFinding::new(&rules::UNREADABLE_DIRECTORY, dir, message)
                };
                linted.findings.push(finding);
                return self.files.push(linted);
            }
        };
        if let Some(error) = self.programs.trust(dir)
            && let Some(finding) = untrusted(dir, "hook files can be replaced", &error)
        {
            linted.findings.push(finding);
            self.reported.insert(error.path().to_owned());
        } else if let Some(error) = self.programs.trust_additions(dir) {
            // The sticky bit keeps files from being replaced, not from being added.
            linted.findings.extend(untrusted(dir, "hook files can be added", &error));
        }
        self.files.push(linted);
        for name in names {
            let path = dir.join(&name);
            if is_hook_file_name(&name) {
                let (file, usability) = self.file(&path);
                let at = self.files.len();
                self.files.push(file);
                if !self.by_name.contains_key(&name) {
                    self.names.push(name.clone());
                }
                self.by_name.entry(name).or_default().push((at, usability));
            } else if let Some(finding) = check_ignored_name(&path, &name)
                .or_else(|| check_subdirectory(&path, &name, &self.options.dirs))
            {
                self.files.push(LintedFile { path, text: None, findings: vec![finding] });
            }
        }
    }

    /// Reports hook files in directories that the consumer does not read.
    fn report_unread(&mut self) {
        for dir in &self.options.unread {
            let message = dir.message(&self.options.consumer);
            let mut finding = HookFinding::new(&rules::UNREAD_DIRECTORY, &dir.path, message);
            finding.hint(dir.hint.clone());
            let (path, findings) = (dir.path.clone(), vec![finding]);
            self.files.push(LintedFile { path, text: None, findings });
        }
    }

    fn file(&mut self, path: &Path) -> (LintedFile, FileUsability) {
        let mut findings = Vec::new();
        let checked = match read_bounded(path, MAX_FILE_BYTES) {
            Ok(text) => {
                let checked = text::check(path, &text, self.options, &mut self.programs);
                findings.extend(checked.findings);
                Ok((text, checked.usability))
            }
            Err(error) => Err(unreadable(path, &error)),
        };
        let (text, usability) = match checked {
            Ok((text, usability)) => (Some(text), usability),
            Err((finding, usability)) => {
                findings.push(finding);
                (None, usability)
            }
        };
        let is_hidden = path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"."));
        if is_hidden {
            let message =
                "the name starts with a dot, but podman and CRI-O read the file nevertheless"
                    .to_owned();
            findings.push(HookFinding::new(&rules::HIDDEN_FILE, path, message));
        }
        // Permissions of a device must not be changed because a hook file links to it.
        if fs::metadata(path).is_ok_and(|metadata| metadata.is_file())
            && let Some(error) = self.programs.trust(path)
            && !self.reported.contains(error.path())
        {
            findings.extend(untrusted(path, "the hook file can be replaced", &error));
        }
        let text = text.filter(|_| !findings.is_empty());
        (LintedFile { path: path.to_owned(), text, findings }, usability)
    }

    /// Checks files that mask files of the same name.
    fn masks(&mut self) {
        for name in &self.names {
            let Some(entries) = self.by_name.get(name).filter(|entries| entries.len() > 1) else {
                continue;
            };
            for (position, &(at, usability)) in entries.iter().enumerate() {
                let path = self.files[at].path.clone();
                let is_hook = |usability| {
                    matches!(usability, FileUsability::Hook | FileUsability::NeverApplies)
                };
                let before =
                    entries[..position].iter().rev().find(|(_, usability)| is_hook(*usability));
                let before = before.map(|&(at, _)| self.files[at].path.clone());
                let after = entries.get(position + 1).map(|&(at, _)| self.files[at].path.clone());
                let findings = &mut self.files[at].findings;
                if let (FileUsability::Rejected, Some(after)) = (usability, &after) {
                    let message = "the file is masked, but podman and CRI-O read it, and fail because of its errors".to_owned();
                    let mut finding = HookFinding::new(&rules::MASKED_BUT_BROKEN, &path, message);
                    finding.add_related(after, None, "this file masks it");
                    findings.push(finding);
                }
                let Some(before) = before else { continue };
                let (rule, message) = match usability {
                    FileUsability::Hook => continue,
                    FileUsability::NeverApplies => {
                        // The hook is disabled on purpose: a missing timeout, for example, does not matter.
                        findings.retain(|finding| finding.severity == Severity::Error);
                        (
                            &rules::MASKING_HOOK,
                            "the file never matches, and so turns off the hook of the same name in an earlier \
                             directory",
                        )
                    }
                    FileUsability::Skipped => (
                        &rules::BROKEN_MASK,
                        "the file is skipped, so the file of the same name in an earlier directory stays in force",
                    ),
                    FileUsability::Rejected => (
                        &rules::BROKEN_MASK,
                        "the file is rejected; if the engine starts nevertheless, the file of the same name in an \
                         earlier directory stays in force",
                    ),
                };
                let mut finding = HookFinding::new(rule, &path, message.to_owned());
                finding.add_related(&before, None, "this file has the same name");
                findings.push(finding);
            }
        }
    }

    /// Reports names that differ only in case, which makes the order of their hooks undefined.
    fn names(&mut self) {
        let mut by_key: HashMap<Vec<u8>, usize> = HashMap::new();
        for name in &self.names {
            let Some(&(at, _)) = self.by_name.get(name).and_then(|entries| entries.last()) else {
                continue;
            };
            let Some(&first) = by_key.get(&*order_key(name)) else {
                by_key.insert(order_key(name).into_owned(), at);
                continue;
            };
            let other = self.files[first].path.clone();
            let path = self.files[at].path.clone();
            let message = format!("the name differs only in case from {}", other.display());
            let mut finding = HookFinding::new(&rules::NAMES_DIFFER_IN_CASE, &path, message);
            finding.hint("neither masks the other, and their order is random").add_related(
                &other,
                None,
                "file whose name differs only in case",
            );
            self.files[at].findings.push(finding);
        }
    }
}

/// Returns the finding for a file that cannot be read.
fn unreadable(path: &Path, error: &ReadError) -> (HookFinding, FileUsability) {
    let is_link = || fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    match error {
        ReadError::Path(error) if error.source.kind() == io::ErrorKind::NotFound && is_link() => {
            let message = "dangling symlink: silently skipped".to_owned();
            let mut finding = HookFinding::new(&rules::DANGLING_SYMLINK, path, message);
            if let Ok(target) = fs::read_link(path) {
                finding.hint(format!("the link points to {}", target.display()));
            }
            (finding, FileUsability::Skipped)
        }
        ReadError::Path(error) => {
            let message = format!("the file cannot be read: {}", error.source);
            (HookFinding::new(&rules::UNREADABLE_FILE, path, message), FileUsability::Rejected)
        }
        error => {
            let mut finding = HookFinding::new(&rules::UNREADABLE_FILE, path, error.to_string());
            if matches!(error, ReadError::NotAFile { .. }) {
                finding.hint("remove it");
            }
            (finding, FileUsability::Rejected)
        }
    }
}

/// Reports a subdirectory with hook files, if the consumer does not read it.
fn check_subdirectory(path: &Path, name: &OsStr, dirs: &[PathBuf]) -> Option<HookFinding> {
    let is_hidden = name.as_bytes().starts_with(b".");
    let is_read = dirs.iter().any(|dir| dir == path);
    if is_hidden || is_read || !fs::symlink_metadata(path).ok()?.is_dir() {
        return None;
    }
    let (_, names) = load::open(path).ok()?;
    let count = names.iter().filter(|name| is_hook_file_name(name)).count();
    let files = if count == 1 {
        "its hook file is".to_owned()
    } else {
        format!("its {count} hook files are")
    };
    let message = format!("this subdirectory is not read: {files} not used");
    (count > 0).then(|| HookFinding::new(&rules::IGNORED_NAME, path, message))
}

/// Reports a file that is not read, if its name resembles that of a hook file.
fn check_ignored_name(path: &Path, name: &OsStr) -> Option<HookFinding> {
    let lower = name.as_bytes().to_ascii_lowercase();
    let is_similar = lower.windows(5).any(|part| part == b".json")
        || [&b".conf"[..], b".yaml", b".yml"].iter().any(|end| lower.ends_with(end));
    let message = "the file is not read: its name does not end in .json".to_owned();
    let mut finding = is_similar.then(|| HookFinding::new(&rules::IGNORED_NAME, path, message))?;
    if lower.ends_with(b".json") {
        finding.severity(Severity::Warning).hint("write .json in lower case");
    }
    Some(finding)
}
