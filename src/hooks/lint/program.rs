//! The program: its path, arguments, environment and timeout, the file itself, and what has replaced it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::fields::Fields;
use super::finding::Sink;
use super::{FileChecks, LintOptions, Rule, Severity, rules};
use crate::hooks::trust::{Checker, TrustError};
use crate::hooks::{Consumer, HookError, OciStage, Version};
use crate::json::{Kind, Value};

/// The greatest timeout that runtimes can count in nanoseconds.
const MAX_TIMEOUT_SECONDS: i64 = i64::MAX / 1_000_000_000;

/// Programs that act by the name they are called by.
const MULTI_CALL: [&str; 5] = ["busybox", "toybox", "coreutils", "uutils", "bash"];

/// Checks what a file says about its program.
pub fn check(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    if fields.is_mask() {
        return;
    }
    let path = fields.path.and_then(Value::as_str).unwrap_or_default();
    if let Some(value) = fields.path
        && !path.is_empty()
        && !path.starts_with('/')
    {
        let finding =
            sink.at(&rules::RELATIVE_PROGRAM, value, format!("`{path}` is not an absolute path"));
        finding.help(if path.contains('@') {
            "this looks like a placeholder of a template that was not filled in"
        } else if path.starts_with('~') || path.starts_with('$') {
            "neither ~ nor variables are expanded"
        } else {
            "PATH is not searched: write the whole path"
        });
    }
    if fields.version == Version::V1_0_0 {
        args0(fields, &path, sink);
        timeout(fields, sink);
    }
    environment(fields, sink);
}

fn args0(fields: &Fields<'_>, path: &str, sink: &mut Sink<'_>) {
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
    // python3 calls itself python3.11, and a script of a name with a suffix leaves it out.
    let is_variant = !own.is_empty() && (program.starts_with(&own) || own.starts_with(&program));
    if is_variant || MULTI_CALL.contains(&program.as_str()) {
        return;
    }
    let message = format!("args[0] is `{name}`, but the program is `{program}`");
    sink.at(&rules::WRONG_ARGS0, *first, message)
        .help("args[0] is the name the program sees as its own; its arguments start at args[1]");
}

fn timeout(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    let is_wrong = |value: &Value<'_>| {
        fields.hook.is_some_and(|hook| {
            let (outer, inner) = (hook.value.span(), value.span());
            outer.start <= inner.start && inner.end <= outer.end
        })
    };
    match (fields.timeout, fields.timeout.and_then(Value::as_i64)) {
        (Some(value), Some(..=0)) => {
            sink.at(&rules::USELESS_TIMEOUT, value, "the hook is killed at once")
                .help("write the seconds it may take, or leave the timeout out");
        }
        (Some(value), Some(seconds)) if seconds > MAX_TIMEOUT_SECONDS => {
            sink.at(
                &rules::USELESS_TIMEOUT,
                value,
                "this overflows, and the hook is killed at once",
            )
            .help("write the seconds it may take, or leave the timeout out");
        }
        (Some(_), _) => {}
        (None, _) => {
            let broken = fields
                .mismatches
                .iter()
                .any(|(value, expected)| *expected == "an integer" && is_wrong(value));
            if let Some(hook) =
                fields.hook.filter(|hook| hook.value.kind() == Kind::Object && !broken)
            {
                sink.at(
                    &rules::MISSING_TIMEOUT,
                    hook.key,
                    "the hook may run for as long as it likes",
                )
                .help("set `hook.timeout` to the seconds it may take");
            }
        }
    }
}

fn environment(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    for &entry in fields.env.iter().flat_map(|list| &list.items) {
        if sink.is_full() {
            return;
        }
        let text = entry.as_str().unwrap_or_default();
        let name = text.split_once('=').map(|(name, _)| name);
        if name.is_none_or(|name| name.is_empty() || name.contains(char::is_whitespace)) {
            sink.at(&rules::MALFORMED_ENV, entry, format!("`{text}` is not NAME=value"))
                .help("the value is not taken from the environment of the engine: write it down");
        }
    }
    let is_set = |value: Value<'_>| value.elements().next().is_some();
    if fields.env.as_ref().is_some_and(|list| is_set(list.member.value)) {
        return;
    }
    let Some(hook) = fields.hook else { return };
    let stages = fields.stages.as_ref().map(|list| list.texts()).unwrap_or_default();
    let in_container = stages.iter().any(|stage| stage == OciStage::CreateContainer.name());
    let own = |stage: &String| sink.options.consumer.extension_stages.contains(&stage.as_str());
    if in_container {
        sink.at(
            &rules::MISSING_ENV,
            hook.key,
            "runc gives the hook the environment of the container, which the image decides",
        )
        .severity(Severity::Warning)
        .help("set `hook.env` to what the hook needs, at least PATH; LD_PRELOAD from an image runs its code");
    } else if fields.version == Version::V0_1_0 {
        // The old schema has no environment, and a finding that says so.
    } else if !stages.is_empty() && stages.iter().all(own) {
        sink.at(&rules::MISSING_ENV, hook.key, "the hook gets an empty environment, without PATH")
            .help("set `hook.env` to what the hook needs");
    } else {
        sink.at(&rules::MISSING_ENV, hook.key, "the hook gets the environment of the runtime")
            .help("set `hook.env` to what the hook needs, at least PATH");
    }
}

/// What is wrong with the files of programs; each is looked at once.
#[derive(Debug)]
pub struct Programs {
    /// By path and the `PATH` that a script may be for.
    known: HashMap<(String, Option<String>), Vec<ProgramProblem>>,
    trust: Option<Checker>,
}

#[derive(Clone, Debug)]
struct ProgramProblem {
    rule: &'static Rule,
    message: String,
    help: Option<String>,
}

impl Programs {
    pub(super) fn new(options: &LintOptions) -> Self {
        let trust = match &options.files {
            FileChecks::Skip => None,
            FileChecks::Trust(trust) => Some(Checker::new(trust.clone())),
        };
        Programs { known: HashMap::new(), trust }
    }

    /// Checks who may change a file or directory.
    pub fn trust(&mut self, path: &Path) -> Option<TrustError> {
        let checker = self.trust.as_mut()?;
        checker.check_path(&std::path::absolute(path).ok()?).err()
    }

    /// Checks who may make files in a directory that [`trust`](Self::trust) found nothing about.
    pub fn trust_additions(&self, directory: &Path) -> Option<TrustError> {
        self.trust.as_ref()?.check_additions(directory).err()
    }

    /// Checks the file of the program and returns whether it exists.
    pub fn check(&mut self, fields: &Fields<'_>, sink: &mut Sink<'_>) -> bool {
        let Some(value) = fields.path else { return true };
        let path = value.as_str().unwrap_or_default();
        if path.is_empty() || fields.is_mask() {
            return true;
        }
        let env = fields.env.as_ref().map(|list| list.texts()).unwrap_or_default();
        let search = env.iter().rev().find_map(|entry| entry.strip_prefix("PATH="));
        let key = (path.clone().into_owned(), search.map(str::to_owned));
        if !self.known.contains_key(&key) {
            let problems = self.look_at(&path, search);
            self.known.insert(key.clone(), problems);
        }
        // A program that runs in the container only has to exist on the host.
        let stages = fields.stages.as_ref().map(|list| list.texts()).unwrap_or_default();
        let inside = !stages.is_empty()
            && stages.iter().all(|stage| stage == OciStage::StartContainer.name());
        let mut exists = true;
        for problem in self.known.get(&key).into_iter().flatten() {
            exists &= !problem.rule.rejects;
            if !problem.rule.rejects && inside {
                continue;
            }
            let is_missing = problem.rule.code == rules::MISSING_PROGRAM.code;
            let draft = if is_missing { uninstalled(&path, sink) } else { None };
            let finding = sink.at(problem.rule, value, problem.message.clone());
            finding.help = problem.help.clone();
            if let Some(program) = draft {
                let help = format!("install {} to {path}, then this file", program.display());
                finding.severity(Severity::Note).help(help);
            }
        }
        exists
    }

    fn look_at(&mut self, path: &str, search: Option<&str>) -> Vec<ProgramProblem> {
        let problem =
            |rule, message: String, help: Option<String>| ProgramProblem { rule, message, help };
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(source) => {
                let path = path.to_owned();
                return vec![if source.kind() == io::ErrorKind::NotFound {
                    let error = HookError::PathMissing { path };
                    problem(&rules::MISSING_PROGRAM, error.to_string(), error.hint())
                } else {
                    let message = format!("cannot look up hook program {path:?}: {source}");
                    problem(&rules::PROGRAM_LOOKUP, message, None)
                }];
            }
        };
        let mut problems = Vec::new();
        if !metadata.is_file() {
            let kind = if metadata.is_dir() { "a directory" } else { "not a file" };
            let message = format!("`{path}` is {kind} and cannot be run");
            problems.push(problem(&rules::PROGRAM_NOT_A_FILE, message, None));
        } else if metadata.permissions().mode() & 0o111 == 0 {
            let message = format!("`{path}` is not executable");
            let help = format!("chmod +x {path}");
            problems.push(problem(&rules::PROGRAM_NOT_EXECUTABLE, message, Some(help)));
        }
        // A relative path is another file for everyone who looks it up.
        let trust = self.trust.as_mut().filter(|_| path.starts_with('/'));
        let search = search.map(OsStr::new);
        if let Some(Err(error)) =
            trust.map(|checker| checker.check_program(Path::new(path), search))
            && let Some(rule) = trust_rule(&error)
        {
            let message = format!("the program can be replaced: {error}");
            problems.push(problem(rule, message, error.hint()));
        }
        problems
    }
}

/// Returns the program beside a hook file that is to be installed to `path`.
fn uninstalled(path: &str, sink: &Sink<'_>) -> Option<PathBuf> {
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

/// Returns the rule for what keeps a path from being trusted; what cannot be looked up is reported as
/// such.
pub fn trust_rule(error: &TrustError) -> Option<&'static Rule> {
    match error {
        TrustError::Writable { .. } => Some(&rules::WRITABLE_BY_OTHERS),
        TrustError::Owner { .. } => Some(&rules::WRONG_OWNER),
        TrustError::Relative { .. } | TrustError::Unclear { .. } | TrustError::Lookup(_) => None,
    }
}

/// A vendor's hook for devices that the Container Device Interface (CDI) has replaced.
struct VendorHook {
    vendor: &'static str,
    /// The names that its program has had.
    programs: &'static [&'static str],
    /// What replaces it.
    instead: &'static str,
}

/// Only those whose replacement their vendor documents. AMD never had one.
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

/// Looks for the program of a vendor, also behind a shell or `env`.
pub fn replaced_by_cdi(fields: &Fields<'_>, sink: &mut Sink<'_>) {
    if fields.is_mask() {
        return;
    }
    let args = fields.args.iter().flat_map(|list| list.items.iter().copied());
    for value in fields.path.into_iter().chain(args) {
        let Some(hook) = vendor_hook(value) else { continue };
        let message = format!("{}'s hook for devices has been replaced by CDI", hook.vendor);
        sink.at(&rules::REPLACED_BY_CDI, value, message).help(hook.instead);
        return;
    }
}

fn vendor_hook(value: Value<'_>) -> Option<&'static VendorHook> {
    let text = value.as_str()?;
    let mut words = text.split_whitespace();
    words.find_map(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        let name = name.strip_suffix(".real").unwrap_or(name);
        HOOKS.iter().find(|hook| hook.programs.contains(&name))
    })
}
