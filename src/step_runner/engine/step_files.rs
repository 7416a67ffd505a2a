//! The files to which a command writes outputs and exported variables.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::super::Value;
use super::super::document::{Action, Definition, Output, Outputs};
use super::super::files::{MAX_BYTES, read_exports, read_outputs};
use super::super::trace;
use super::super::wire::proto::step_result::Status;
use super::error::StepFileError;

/// Creates the step files of a job, with unique names.
#[derive(Debug)]
pub(super) struct StepFiles {
    dir: PathBuf,
    count: u64,
}

/// Output file and export file of one step, removed on drop.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) output: PathBuf,
    pub(super) export: PathBuf,
    /// Whether the files were created: a step that does not use them needs none.
    exist: bool,
}

impl StepFiles {
    pub(super) fn new(dir: &Path) -> Self {
        StepFiles { dir: dir.to_path_buf(), count: 0 }
    }

    /// Creates the files of a step, if it uses either.
    pub(super) fn make(&mut self, definition: &Definition) -> Result<Files, StepFileError> {
        self.count += 1;
        let path = |what: &str| self.dir.join(format!("step-{}-{what}", self.count));
        let exist = names_files(definition);
        let files = Files { output: path("output"), export: path("export"), exist };
        let paths = [&files.output, &files.export];
        for path in paths.into_iter().filter(|_| exist) {
            let make = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            make.map_err(|error| io_error("create", path, error))?;
        }
        Ok(files)
    }
}

impl Files {
    /// Returns the outputs that a command wrote.
    pub(super) fn outputs(
        &self,
        declared: &Outputs,
    ) -> Result<BTreeMap<String, Value>, StepFileError> {
        let content = self.read(&self.output)?;
        match declared {
            Outputs::Declared(declared) => Ok(read_outputs(&content, declared)?),
            Outputs::Delegate => {
                let result = trace::from_json(&content).map_err(StepFileError::StepResult)?;
                if result.status == i32::from(Status::Failure) {
                    return Err(StepFileError::Delegated);
                }
                let outputs = result.outputs.into_iter();
                Ok(outputs.map(|(name, value)| (name, Value::from(value))).collect())
            }
        }
    }

    /// Returns the outputs that steps of a sequence wrote to its file, all of them optional.
    pub(super) fn written_outputs(
        &self,
        declared: &Outputs,
    ) -> Result<BTreeMap<String, Value>, StepFileError> {
        let Outputs::Declared(declared) = declared else { return Ok(BTreeMap::new()) };
        let optional = |output: &Output| Output { default: Some(Value::Null), ..output.clone() };
        let optional = declared.iter().map(|(name, output)| (name.clone(), optional(output)));
        let mut outputs = read_outputs(&self.read(&self.output)?, &optional.collect())?;
        outputs.retain(|_, value| *value != Value::Null);
        Ok(outputs)
    }

    /// Returns the exported variables.
    pub(super) fn exports(&self) -> Result<BTreeMap<String, String>, StepFileError> {
        Ok(read_exports(&self.read(&self.export)?)?)
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, StepFileError> {
        if self.exist { read(path) } else { Ok(Vec::new()) }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let paths = [&self.output, &self.export];
        for path in paths.into_iter().filter(|_| self.exist) {
            // A step may have removed it; the directory is removed with the job.
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns whether a step uses its files. Their paths are available only through expressions, whose names
/// are literal.
fn names_files(definition: &Definition) -> bool {
    let exec = match &definition.action {
        Action::Exec(exec) => exec,
        Action::Run(_) => return true,
        Action::Builtin(_) => return false,
    };
    let mut texts = exec.command.iter().chain(&exec.work_dir).chain(definition.env.values());
    texts.any(|text| text.contains("output_file") || text.contains("export_file"))
}

/// Reads a file that a command may have replaced by anything.
fn read(path: &Path) -> Result<Vec<u8>, StepFileError> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let read = || -> io::Result<Vec<u8>> {
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        read_limited(file)
    };
    read().map_err(|error| io_error("open", path, error))
}

/// Reads one byte beyond the limit, so that the caller notices a file that is too large.
fn read_limited(file: File) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

fn io_error(action: &'static str, path: &Path, error: io::Error) -> StepFileError {
    StepFileError::Io { action, path: path.to_path_buf(), error }
}
