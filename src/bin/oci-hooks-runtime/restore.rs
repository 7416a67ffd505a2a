//! Hooks of a container that is restored from a checkpoint: the runtime runs some of them only.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use oci_hooks::hooks::pipeline::Report;
use oci_hooks::hooks::{OciStage, Stage};
use oci_hooks::sys::process::{End, Limit, Program};

/// A hook that does not run if the container is restored.
#[derive(Debug, thiserror::Error)]
#[error("hook {}: {runtime} {stage} hooks when it restores a container", file.display())]
pub struct NotRun {
    file: PathBuf,
    stage: OciStage,
    runtime: Implementation,
}

/// Which runtime restores, as it says itself: its file may have any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Implementation {
    /// It runs hooks when CRIU has made the namespaces (`criuNotifications`).
    Runc,
    /// It runs none (`libcrun_container_restore`), and `poststop` when the container is deleted.
    Crun,
    Unknown,
}

impl Implementation {
    fn of(runtime: &Path) -> Self {
        let program = Program {
            argv: ["runtime", "--version"].map(AsRef::as_ref).to_vec(),
            timeout: Some(Duration::from_secs(10)),
            stdout: Limit::Truncate(4096),
            stderr: Limit::Truncate(0),
            ..Program::new(runtime, Path::new("/"))
        };
        match program.run() {
            Ok(done) if done.end != End::Exited(0) => Implementation::Unknown,
            Ok(done) if done.stdout.starts_with(b"runc version ") => Implementation::Runc,
            Ok(done) if done.stdout.starts_with(b"crun version ") => Implementation::Crun,
            _ => Implementation::Unknown,
        }
    }

    fn runs(self, stage: OciStage) -> bool {
        matches!(
            (self, stage),
            (Implementation::Runc, OciStage::Prestart | OciStage::CreateRuntime)
                | (Implementation::Runc | Implementation::Crun, OciStage::Poststop)
        )
    }
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Implementation::Runc => "runc does not run",
            Implementation::Crun => "crun does not run",
            Implementation::Unknown => "this runtime is not known to run",
        })
    }
}

/// Returns the hooks that match and that the runtime does not run when it restores a container.
pub fn not_run(report: &Report, runtime: &Path) -> Vec<NotRun> {
    let stages = report.hooks.iter().flat_map(|hook| {
        let stages = hook.stages.iter().filter_map(|stage| match stage {
            Stage::Oci(stage) => Some(*stage),
            // `precreate` hooks are run by us.
            Stage::Extension(_) => None,
        });
        stages.map(|stage| (hook.file.clone(), stage))
    });
    let mut stages = stages.peekable();
    // Only then is the runtime asked.
    if stages.peek().is_none() {
        return Vec::new();
    }
    let runtime = Implementation::of(runtime);
    let lost = stages.filter(|(_, stage)| !runtime.runs(*stage));
    lost.map(|(file, stage)| NotRun { file, stage, runtime }).collect()
}
