//! Checks of the program: path, arguments, environment, timeout, the file itself, and its replacement by CDI.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use oci_hooks_files::fs::read_bounded;

use super::fields::FileFields;
use super::finding::FindingSink;
use super::text::MAX_FIXED_BYTES;
use super::{HookFinding, LintOptions, LintRule, Severity, execution, fix_program, rules};
use crate::hooks::trust::{TrustChecker, TrustError};
use crate::hooks::{Consumer, HookError, OciStage, SchemaVersion};
use crate::json::{JsonKind, JsonMember, JsonValue};

/// Maximum timeout: runtimes convert it to nanoseconds in 64 bits.
const MAX_TIMEOUT_SECONDS: i64 = i64::MAX / 1_000_000_000;

/// Programs that act according to the name they are called by.
const MULTI_CALL: [&str; 5] = ["busybox", "toybox", "coreutils", "uutils", "bash"];

/// Checks the fields about the program.
pub fn check(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    if fields.is_mask() {
        return;
    }
    let path = fields.path.and_then(JsonValue::as_str).unwrap_or_default();
    if let Some(value) = fields.path
        && !path.is_empty()
        && !path.starts_with('/')
    {
        let finding = sink.report_at(
            &rules::RELATIVE_PROGRAM,
            value,
            format!("`{path}` is not an absolute path"),
        );
        finding.hint(if path.contains('@') {
            "the path looks like a placeholder of a template that was not filled in"
        } else if path.starts_with('~') || path.starts_with('$') {
            "neither ~ nor variables are expanded"
        } else {
            "PATH is not searched: write the whole path"
        });
    }
    if fields.version == SchemaVersion::V1_0_0 {
        args0(fields, &path, sink);
        timeout(fields, sink);
    }
    environment(fields, sink);
}

fn args0(fields: &FileFields<'_>, path: &str, sink: &mut FindingSink<'_>) {
    let Some(list) = &fields.args else { return };
    let (Some(first), Some(element)) = (list.items.first(), list.member.value.elements().next())
    else {
        return;
    };
    let (Some(name), false) = (first.as_str(), path.is_empty() || element.is_null()) else {
        return;
    };
    let base = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let (program, own) = (base(path), base(&name));
    // python3 calls itself python3.11, and scripts omit their suffix.
    let is_variant = !own.is_empty() && (program.starts_with(&own) || own.starts_with(&program));
    if is_variant || MULTI_CALL.contains(&program.as_str()) {
        return;
    }
    let message = format!("args[0] is `{name}`, but the program is `{program}`");
    sink.report_at(&rules::WRONG_ARGS0, *first, message)
        .hint("args[0] is the name the program sees as its own; its arguments start at args[1]");
}

fn timeout(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    match (fields.timeout, fields.timeout.and_then(JsonValue::as_i64)) {
        (Some(value), Some(..=0)) => {
            sink.report_at(
                &rules::USELESS_TIMEOUT,
                value,
                "the timeout is not greater than 0: the hook is killed at once",
            )
            .hint("write the number of seconds that the hook may take, or remove the timeout");
        }
        (Some(value), Some(seconds)) if seconds > MAX_TIMEOUT_SECONDS => {
            sink.report_at(
                &rules::USELESS_TIMEOUT,
                value,
                "the timeout overflows in nanoseconds: the hook is killed at once",
            )
            .hint("write the number of seconds that the hook may take, or remove the timeout");
        }
        (Some(value), Some(seconds)) if is_long(seconds) => {
            let message = format!("the timeout of {seconds} seconds is {} minutes", seconds / 60);
            sink.report_at(&rules::LONG_TIMEOUT, value, message)
                .hint("the unit is seconds, not milliseconds");
        }
        (Some(_), _) => {}
        (None, _) => {
            let is_object = |hook: &JsonMember<'_>| hook.value.kind() == JsonKind::Object;
            if let Some(hook) = fields.hook.filter(is_object)
                && fields.mismatches_in(hook.value).all(|expected| expected != "an integer")
            {
                sink.report_at(
                    &rules::MISSING_TIMEOUT,
                    hook.key,
                    "the hook has no timeout: it may run forever",
                )
                .hint("set `hook.timeout` to the number of seconds that the hook may take");
            }
        }
    }
}

/// Returns whether a timeout in seconds was most likely meant in milliseconds.
fn is_long(seconds: i64) -> bool {
    seconds >= 1000 && (seconds > 3600 || seconds % 600 != 0)
}

/// Returns the first variable in a text, as shells write it: `$NAME` or `${NAME}`.
fn find_variable(text: &str) -> Option<&str> {
    text.match_indices('$').find_map(|(at, _)| {
        let (open, close) = if text[at + 1..].starts_with('{') { (2, "}") } else { (1, "") };
        let rest = &text[at + open..];
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let is_name = rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let end = at + open + length + close.len();
        (is_name && rest[length..].starts_with(close)).then(|| &text[at..end])
    })
}

fn environment(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    let mut seen = HashSet::new();
    for &entry in fields.env.iter().flat_map(|list| &list.items) {
        if sink.is_full() {
            return;
        }
        let text = entry.as_str().unwrap_or_default();
        let name = text.split_once('=').map(|(name, _)| name);
        if name.is_none_or(|name| name.is_empty() || name.contains(char::is_whitespace)) {
            sink.report_at(&rules::MALFORMED_ENV, entry, format!("`{text}` is not NAME=value"))
                .hint("write the value too: it is not taken from the environment of the engine");
        } else if let Some(name) = name
            && !seen.insert(name.to_owned())
        {
            sink.report_at(&rules::REPEATED_VARIABLE, entry, format!("`{name}` is set twice"))
                .hint("runc keeps the last value, crun passes on both");
        } else if let Some(variable) = find_variable(&text) {
            sink.report_at(&rules::VARIABLE_IN_ENV, entry, format!("`{variable}` is not expanded"))
                .hint("write its value");
        }
    }
    let is_set = |value: JsonValue<'_>| value.elements().next().is_some();
    if fields.env.as_ref().is_some_and(|list| is_set(list.member.value)) {
        return;
    }
    let Some(hook) = fields.hook else { return };
    let stages = fields.stages.as_ref().map(|list| list.texts()).unwrap_or_default();
    let in_container = stages.iter().any(|stage| stage == OciStage::CreateContainer.name());
    let own = |stage: &String| sink.options.consumer.extension_stages.contains(&stage.as_str());
    if in_container {
        sink.report_at(
            &rules::MISSING_ENV,
            hook.key,
            "without variables in `env`, runc gives a createContainer hook the environment of the container, which the image sets",
        )
        .severity(Severity::Warning)
        .hint("set `hook.env` to what the hook needs, at least PATH; LD_PRELOAD from an image runs its code");
    } else if fields.version == SchemaVersion::V0_1_0 {
        // Schema 0.1.0 has no environment, which another finding reports.
    } else if !stages.is_empty() && stages.iter().all(own) {
        sink.report_at(
            &rules::MISSING_ENV,
            hook.key,
            "without variables in `env`, the hook gets an empty environment, without PATH",
        )
        .hint("set `hook.env` to what the hook needs");
    } else {
        sink.report_at(
            &rules::MISSING_ENV,
            hook.key,
            "without variables in `env`, the hook gets the environment of the runtime",
        )
        .hint("set `hook.env` to what the hook needs, at least PATH");
    }
}

/// Checks program files, each only once.
#[derive(Debug)]
pub struct ProgramChecker {
    known: HashMap<HookProgram, Vec<ProgramProblem>>,
    trust: Option<TrustChecker>,
}

/// A program, and the part of its environment that `#!/usr/bin/env` scripts depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HookProgram {
    pub path: String,
    /// `PATH` in the hook's environment, if it is set there.
    pub search: Option<String>,
    /// If set, `hook.env` has entries, which replace the runtime's environment.
    pub has_env: bool,
}

/// A problem of a program file.
#[derive(Clone, Debug)]
pub struct ProgramProblem {
    pub rule: &'static LintRule,
    pub severity: Severity,
    pub message: String,
    pub hint: Option<String>,
    pub is_fixable: bool,
}

impl ProgramProblem {
    pub(super) fn new(rule: &'static LintRule, message: String) -> Self {
        ProgramProblem { rule, severity: rule.severity, message, hint: None, is_fixable: false }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        ProgramProblem { hint: Some(hint.into()), ..self }
    }
}

impl ProgramChecker {
    pub(super) fn new(options: &LintOptions) -> Self {
        let trust = options.files.clone().map(TrustChecker::new);
        ProgramChecker { known: HashMap::new(), trust }
    }

    /// Returns an error if untrusted users can change a file or directory.
    pub fn trust(&mut self, path: &Path) -> Option<TrustError> {
        let checker = self.trust.as_mut()?;
        checker.check_path(&std::path::absolute(path).ok()?).err()
    }

    /// Returns an error if untrusted users can create files in a directory that
    /// [`trust`](Self::trust) accepted.
    pub fn trust_additions(&self, directory: &Path) -> Option<TrustError> {
        self.trust.as_ref()?.check_additions(directory).err()
    }

    /// Checks the file of the program and returns whether it exists.
    pub fn check(&mut self, fields: &FileFields<'_>, sink: &mut FindingSink<'_>) -> bool {
        let Some(value) = fields.path else { return true };
        let path = value.as_str().unwrap_or_default();
        if path.is_empty() || fields.is_mask() {
            return true;
        }
        let env = fields.env.as_ref().map(|list| list.texts()).unwrap_or_default();
        let search = env.iter().rev().find_map(|entry| entry.strip_prefix("PATH="));
        let call = HookProgram {
            path: path.clone().into_owned(),
            search: search.map(str::to_owned),
            has_env: !env.is_empty(),
        };
        if !self.known.contains_key(&call) {
            let problems = self.check_call(&call);
            self.known.insert(call.clone(), problems);
        }
        // If the program runs only in the container, the file on the host only has to exist.
        let stages = fields.stages.as_ref().map(|list| list.texts()).unwrap_or_default();
        let inside = !stages.is_empty()
            && stages.iter().all(|stage| stage == OciStage::StartContainer.name());
        let mut exists = true;
        for problem in self.known.get(&call).into_iter().flatten() {
            exists &= !problem.rule.rejects;
            if !problem.rule.rejects && inside {
                continue;
            }
            let is_missing = problem.rule.code == rules::MISSING_PROGRAM.code;
            let draft = if is_missing { find_uninstalled(&path, sink) } else { None };
            let finding = sink.report_at(problem.rule, value, problem.message.clone());
            finding.hint = problem.hint.clone();
            finding.severity = problem.severity;
            finding.program_fix = problem.is_fixable.then(|| PathBuf::from(&*path));
            if let Some(program) = draft {
                let hint = format!("install {} to {path}, then this file", program.display());
                finding.severity(Severity::Note).hint(hint);
            }
        }
        exists
    }

    fn check_call(&mut self, call: &HookProgram) -> Vec<ProgramProblem> {
        let path = call.path.as_str();
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(source) => {
                let path = path.to_owned();
                return vec![if source.kind() == io::ErrorKind::NotFound {
                    let error = HookError::PathMissing { path };
                    ProgramProblem {
                        hint: error.hint(),
                        ..ProgramProblem::new(&rules::MISSING_PROGRAM, error.to_string())
                    }
                } else {
                    let message = format!("cannot look up hook program {path:?}: {source}");
                    ProgramProblem::new(&rules::PROGRAM_LOOKUP, message)
                }];
            }
        };
        let mut problems = Vec::new();
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "not a file" };
            let message = format!("`{path}` is {kind} and cannot be run");
            return vec![ProgramProblem::new(&rules::PROGRAM_NOT_A_FILE, message)];
        }
        if metadata.permissions().mode() & 0o111 == 0 {
            let message = format!("`{path}` is not executable");
            let hint = format!("chmod +x {path}");
            problems.push(ProgramProblem::new(&rules::PROGRAM_NOT_EXECUTABLE, message).hint(hint));
        }
        // A relative path names another file in each working directory.
        if !path.starts_with('/') {
            return problems;
        }
        let search = call.search.as_deref().map(OsStr::new);
        let trust = self.trust.as_mut().map(|checker| checker.check_program(path.as_ref(), search));
        let distrust = trust.and_then(Result::err).and_then(|error| {
            let rule = trust_rule(&error)?;
            let message = format!("the program can be replaced: {error}");
            Some(ProgramProblem { hint: error.hint(), ..ProgramProblem::new(rule, message) })
        });
        let mut execution = execution::check(call);
        if let Some(problem) = &mut execution {
            let checker = self.trust.as_mut();
            problem.is_fixable = distrust.is_none()
                && checker.is_some_and(|checker| checker.check_path(path.as_ref()).is_ok())
                && problem.rule.code == rules::CRLF_SCRIPT.code
                && read_bounded(Path::new(path), MAX_FIXED_BYTES as u64)
                    .is_ok_and(|text| !fix_program(&text).applied.is_empty());
        }
        problems.extend(distrust.into_iter().chain(execution));
        problems
    }
}

/// Returns the program that has yet to be installed to `path`: the file of that name in `bin` or
/// `../bin` beside a draft hook file.
fn find_uninstalled(path: &str, sink: &FindingSink<'_>) -> Option<PathBuf> {
    let dir = sink.path.parent().filter(|_| sink.options.drafts)?;
    let is_installed =
        |consumer: &Consumer| consumer.dirs.iter().any(|read| dir == Path::new(read));
    if Consumer::ALL.iter().any(is_installed) {
        return None;
    }
    let name = Path::new(path).file_name()?;
    let places = ["bin", "../bin"].map(|place| dir.join(place).join(name));
    places.into_iter().find(|program| program.is_file())
}

/// Returns a finding about an untrusted owner or writer. `None` for other errors: other checks
/// report paths that are relative or cannot be looked up.
pub fn untrusted(path: &Path, what: &str, error: &TrustError) -> Option<HookFinding> {
    let mut finding = HookFinding::new(trust_rule(error)?, path, format!("{what}: {error}"));
    finding.hint = error.hint();
    Some(finding)
}

fn trust_rule(error: &TrustError) -> Option<&'static LintRule> {
    match error {
        TrustError::Writable { .. } => Some(&rules::WRITABLE_BY_OTHERS),
        TrustError::Owner { .. } => Some(&rules::WRONG_OWNER),
        TrustError::Relative { .. } | TrustError::Unclear { .. } | TrustError::Lookup(_) => None,
    }
}

/// A vendor's hook for devices that the Container Device Interface (CDI) has replaced.
struct VendorHook {
    vendor: &'static str,
    /// Past and present names of the program.
    programs: &'static [&'static str],
    instead: &'static str,
}

/// Only hooks whose vendor documents the CDI replacement. AMD never had a hook.
const HOOKS: [VendorHook; 2] = [
    VendorHook {
        vendor: "NVIDIA",
        programs: &[
            "nvidia-container-runtime-hook",
            "nvidia-container-toolkit",
            "nvidia-container-cli",
        ],
        instead: "run `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, start containers with \
                  `--device nvidia.com/gpu=all`, and disable this hook",
    },
    VendorHook {
        vendor: "Intel",
        programs: &["intel-fpga-crihook", "fpga_crihook"],
        instead: "update the FPGA device plugin, which passes its hook to the engine by CDI since 0.31, and \
                  disable this hook",
    },
];

/// Reports a vendor's hook that CDI has replaced, also if a shell or `env` starts its program.
pub fn replaced_by_cdi(fields: &FileFields<'_>, sink: &mut FindingSink<'_>) {
    if fields.is_mask() {
        return;
    }
    let args = fields.args.iter().flat_map(|list| list.items.iter().copied());
    for value in fields.path.into_iter().chain(args) {
        let Some(hook) = vendor_hook(value) else { continue };
        let message = format!("{}'s hook for devices has been replaced by CDI", hook.vendor);
        sink.report_at(&rules::REPLACED_BY_CDI, value, message).hint(hook.instead);
        return;
    }
}

fn vendor_hook(value: JsonValue<'_>) -> Option<&'static VendorHook> {
    let text = value.as_str()?;
    let mut words = text.split_whitespace();
    words.find_map(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".real").unwrap_or(name);
        HOOKS.iter().find(|hook| hook.programs.contains(&name))
    })
}
