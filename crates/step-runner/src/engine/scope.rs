//! The scope of a step: its environment, and the names in its expressions.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::super::document::{OutputSpecs, StepAction, StepDefinition, ValueSpec};
use super::super::expression::{ExprContext, ExpressionError, expand_text};
use super::super::files::{MAX_BYTES, read_exports, read_outputs};
use super::super::wire::proto::step_result::Status;
use super::super::{ExprValue, trace};
use super::error::StepOutputError;

/// The scope of a running step: the names that its expressions see, and the paths to which its
/// references are relative.
pub struct StepScope {
    /// Variables declared in step files; nested steps override their callers.
    pub declared_env: BTreeMap<String, String>,
    pub context: ExprContext,
    /// Directory of the step file.
    pub dir: PathBuf,
    /// The fetched repository or image that contains the step file.
    pub tree: Option<PathBuf>,
    /// Nesting depth, from 0 for the job.
    pub depth: usize,
}

impl StepScope {
    /// Returns a scope at depth 0, without environment.
    pub(super) fn new(dir: &Path, work_dir: &Path, vars: Arc<BTreeMap<String, String>>) -> Self {
        let context = ExprContext {
            vars,
            step_dir: dir.to_string_lossy().into_owned(),
            work_dir: work_dir.to_string_lossy().into_owned(),
            ..ExprContext::default()
        };
        StepScope {
            declared_env: BTreeMap::new(),
            context,
            dir: dir.to_path_buf(),
            tree: None,
            depth: 0,
        }
    }
}

/// Expands the values of environment variables, independently of each other.
pub fn expand_env<E>(
    env: &BTreeMap<String, String>,
    context: &ExprContext,
    error: impl Fn(String, ExpressionError) -> E,
) -> Result<BTreeMap<String, String>, E> {
    let expand = |(name, text): (&String, &String)| match expand_text(text, context) {
        Ok((value, _)) => Ok((name.clone(), value)),
        Err(reason) => Err(error(name.clone(), reason)),
    };
    env.iter().map(expand).collect()
}

/// The output and export files of a job's steps, with unique names.
#[derive(Debug)]
pub struct JobOutputFiles {
    dir: PathBuf,
    count: u64,
}

/// Output file and export file of one step, removed on drop.
#[derive(Debug)]
pub struct StepOutputFiles {
    pub output: PathBuf,
    pub export: PathBuf,
    /// Set if the files were created; steps that do not use them have no files.
    exist: bool,
}

impl JobOutputFiles {
    pub(super) fn new(dir: &Path) -> Self {
        JobOutputFiles { dir: dir.to_path_buf(), count: 0 }
    }

    /// Creates the output and export files of a step, unless it uses neither.
    pub fn make(
        &mut self,
        definition: &StepDefinition,
    ) -> Result<StepOutputFiles, StepOutputError> {
        self.count += 1;
        let path = |what: &str| self.dir.join(format!("step-{}-{what}", self.count));
        let exist = names_files(definition);
        let files = StepOutputFiles { output: path("output"), export: path("export"), exist };
        let paths = [&files.output, &files.export];
        for path in paths.into_iter().filter(|_| exist) {
            let make = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            make.map_err(|error| io_error("create", path, error))?;
        }
        Ok(files)
    }
}

impl StepOutputFiles {
    /// Returns the outputs that a command wrote.
    pub(super) fn outputs(
        &self,
        declared: &OutputSpecs,
    ) -> Result<BTreeMap<String, ExprValue>, StepOutputError> {
        let content = self.read(&self.output)?;
        match declared {
            OutputSpecs::Declared(declared) => Ok(read_outputs(&content, declared)?),
            OutputSpecs::Delegate => {
                let result = trace::from_json(&content).map_err(StepOutputError::StepResult)?;
                if result.status == i32::from(Status::Failure) {
                    return Err(StepOutputError::Delegated);
                }
                let outputs = result.outputs.into_iter();
                Ok(outputs.map(|(name, value)| (name, ExprValue::from(value))).collect())
            }
        }
    }

    /// Returns the outputs that the steps of a sequence wrote to its output file; none of the
    /// declared outputs is required.
    pub(super) fn written_outputs(
        &self,
        declared: &OutputSpecs,
    ) -> Result<BTreeMap<String, ExprValue>, StepOutputError> {
        let OutputSpecs::Declared(declared) = declared else { return Ok(BTreeMap::new()) };
        let optional =
            |output: &ValueSpec| ValueSpec { default: Some(ExprValue::Null), ..output.clone() };
        let optional = declared.iter().map(|(name, output)| (name.clone(), optional(output)));
        let mut outputs = read_outputs(&self.read(&self.output)?, &optional.collect())?;
        outputs.retain(|_, value| *value != ExprValue::Null);
        Ok(outputs)
    }

    pub(super) fn exports(&self) -> Result<BTreeMap<String, String>, StepOutputError> {
        Ok(read_exports(&self.read(&self.export)?)?)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, StepOutputError> {
        if self.exist { read(path) } else { Ok(Vec::new()) }
    }
}

impl Drop for StepOutputFiles {
    fn drop(&mut self) {
        let paths = [&self.output, &self.export];
        for path in paths.into_iter().filter(|_| self.exist) {
            // A step may have removed the file; the directory is removed with the job.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns whether a step uses its output or export file. A command gets their paths only from the
/// expressions `output_file` and `export_file`, so its text contains these names.
fn names_files(definition: &StepDefinition) -> bool {
    let exec = match &definition.action {
        StepAction::Exec(exec) => exec,
        StepAction::Run(_) => return true,
        StepAction::Builtin(_) => return false,
    };
    let mut texts = exec.command.iter().chain(&exec.work_dir).chain(definition.env.values());
    texts.any(|text| text.contains("output_file") || text.contains("export_file"))
}

/// Reads an output or export file. Fails if a command replaced it by anything but a regular file.
fn read(path: &Path) -> Result<Vec<u8>, StepOutputError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let read = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let mut content = Vec::new();
        // One byte beyond the limit, so that the caller notices a file that is too large.
        file.take(MAX_BYTES as u64 + 1).read_to_end(&mut content)?;
        Ok(content)
    };
    read().map_err(|error| io_error("open", path, error))
}

fn io_error(action: &'static str, path: &Path, error: io::Error) -> StepOutputError {
    StepOutputError::Io { action, path: path.to_path_buf(), error }
}
