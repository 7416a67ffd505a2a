//! Hooks of a container that is restored from a checkpoint: the runtime runs only some of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks::hooks::pipeline::PipelineReport;
use oci_hooks::hooks::{HookStage, OciStage};
use oci_hooks_files::process::{ChildProgram, OutputLimit, ProgramEnd};

/// A hook that does not run when the container is restored.
#[derive(Debug, thiserror::Error)]
#[error("hook {}: {runtime} {stage} hooks when it restores a container", file.display())]
pub struct SkippedHook {
    file: PathBuf,
    stage: OciStage,
    runtime: RuntimeImplementation,
}

/// Implementation of the runtime, detected by `--version`: its file may have any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuntimeImplementation {
    /// Runs hooks when CRIU has created the namespaces (`criuNotifications`).
    Runc,
    /// Runs no hooks (`libcrun_container_restore`), except `poststop` when the container is deleted.
    Crun,
    Unknown,
}

impl RuntimeImplementation {
    fn of(runtime: &Path) -> Self {
        let program = ChildProgram {
            argv: ["runtime", "--version"].map(AsRef::as_ref).to_vec(),
            timeout: Some(Duration::from_secs(10)),
            stdout: OutputLimit::Truncate(4096),
            stderr: OutputLimit::Truncate(0),
            ..ChildProgram::new(runtime, Path::new("/"))
        };
        match program.run() {
            Ok(done) if done.end != ProgramEnd::Exited(0) => RuntimeImplementation::Unknown,
            Ok(done) if done.stdout.starts_with(b"runc version ") => RuntimeImplementation::Runc,
            Ok(done) if done.stdout.starts_with(b"crun version ") => RuntimeImplementation::Crun,
            _ => RuntimeImplementation::Unknown,
        }
    }

    fn runs_stage(self, stage: OciStage) -> bool {
        matches!(
            (self, stage),
            (RuntimeImplementation::Runc, OciStage::Prestart | OciStage::CreateRuntime)
                | (RuntimeImplementation::Runc | RuntimeImplementation::Crun, OciStage::Poststop)
        )
    }
}

impl fmt::Display for RuntimeImplementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuntimeImplementation::Runc => "runc does not run",
            RuntimeImplementation::Crun => "crun does not run",
            RuntimeImplementation::Unknown => "this runtime is not known to run",
        })
    }
}

/// Returns the matching hooks that the runtime does not run when it restores a container.
pub fn skipped_hooks(report: &PipelineReport, runtime: &Path) -> Vec<SkippedHook> {
    let stages = report.hooks.iter().flat_map(|hook| {
        let stages = hook.stages.iter().filter_map(|stage| match stage {
            HookStage::Oci(stage) => Some(*stage),
            // The wrapper itself runs `precreate` hooks.
            HookStage::Extension(_) => None,
        });
        stages.map(|stage| (hook.file.clone(), stage))
    });
    let mut stages = stages.peekable();
    // Do not run the runtime's `--version` without need.
    if stages.peek().is_none() {
        return Vec::new();
    }
    let runtime = RuntimeImplementation::of(runtime);
    let lost = stages.filter(|(_, stage)| !runtime.runs_stage(*stage));
    lost.map(|(file, stage)| SkippedHook { file, stage, runtime }).collect()
}
