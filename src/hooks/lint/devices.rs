//! Checks of Container Device Interface (CDI) specifications: errors, conflicts, missing programs,
//! and trust.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use oci_hooks_files::error::chain;

use super::finding::filter;
use super::program::untrusted;
use super::{HookFinding, LintOptions, LintReport, LintedFile, rules};
use crate::cdi::{CdiSpec, CdiSpecError, DeviceHook, DeviceProblem, DeviceRegistry};
use crate::hooks::OciStage;
use crate::hooks::trust::TrustChecker;
use crate::json::TextLocation;

/// Lints the CDI specifications of directories, in order of increasing precedence.
pub fn lint_devices(dirs: &[PathBuf], options: &LintOptions) -> LintReport {
    let registry = DeviceRegistry::load(dirs);
    let mut report = LintReport::default();
    let mut add = |path: &Path, mut findings: Vec<HookFinding>| {
        filter(&mut findings, options);
        report.files.push(LintedFile { path: path.to_owned(), text: None, findings });
    };
    for problem in registry.problems() {
        add(&problem.path, vec![invalid(problem)]);
    }
    let mut checker = options.files.clone().map(TrustChecker::new);
    for (path, spec) in registry.specs() {
        let mut findings = conflicts(path, &registry);
        if let Some(checker) = &mut checker {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            if let Err(error) = checker.check_path(&absolute) {
                findings.extend(untrusted(path, "the CDI specification can be replaced", &error));
            }
            findings.extend(hooks(path, spec, checker));
        }
        add(path, findings);
    }
    report.spec_files = report.files.len();
    report
}

fn invalid(problem: &DeviceProblem) -> HookFinding {
    let message = chain(&problem.source);
    let mut finding = HookFinding::new(&rules::INVALID_SPECIFICATION, &problem.path, message);
    finding.location = problem.source.position().map(|at| TextLocation {
        span: 0..0,
        line: at.line,
        column: at.column,
        pointer: match &problem.source {
            CdiSpecError::Value { pointer, .. } => pointer.clone(),
            _ => String::new(),
        },
    });
    finding
}

fn conflicts(path: &Path, registry: &DeviceRegistry) -> Vec<HookFinding> {
    let own = registry.conflicts().iter().filter(|(_, files)| files.contains(path));
    let finding = |(name, files): (&String, &BTreeSet<PathBuf>)| {
        let message = format!("several files define device {name}: it is not available");
        let mut finding = HookFinding::new(&rules::CONFLICTING_DEVICE, path, message);
        for other in files.iter().filter(|file| *file != path) {
            finding.add_related(other, None, "also defined here");
        }
        finding.hint("remove the device from all files but one");
        finding
    };
    own.map(finding).collect()
}

/// Returns the findings about the programs of hooks; each program is reported once.
fn hooks(path: &Path, spec: &CdiSpec, checker: &mut TrustChecker) -> Vec<HookFinding> {
    let devices = spec.devices.iter().map(|device| &device.container_edits);
    let all = devices.chain([&spec.container_edits]).flat_map(|edits| &edits.hooks);
    // startContainer hooks run in the container, where their programs are looked up.
    let on_host = |hook: &&DeviceHook| hook.hook_name != OciStage::StartContainer.name();
    let mut known = BTreeSet::new();
    let mut findings = Vec::new();
    for hook in all.filter(on_host) {
        let search = hook.env.iter().rev().find_map(|entry| entry.strip_prefix("PATH="));
        if !known.insert((&hook.path, search)) {
            continue;
        }
        let program = Path::new(&hook.path);
        if !program.exists() {
            let message = format!("hook program {} does not exist", hook.path);
            let mut finding = HookFinding::new(&rules::MISSING_DEVICE_PROGRAM, path, message);
            finding.hint("install the program, or generate the specification again");
            findings.push(finding);
        } else if let Err(error) = checker.check_program(program, search.map(OsStr::new)) {
            findings.extend(untrusted(path, "the program of a hook can be replaced", &error));
        }
    }
    findings
}
