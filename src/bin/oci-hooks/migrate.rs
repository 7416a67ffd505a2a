//! `oci-hooks migrate`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use oci_hooks::hooks::manage::{EditMode, MigrationDestination, write_migration};
use oci_hooks::hooks::migrate::{
    MigrateOptions, Migration, MigrationNote, PrestartMigration, migrate,
};
use oci_hooks::hooks::{LoadOptions, PathCheck};
use oci_hooks_cli::exit::CliExit;
use serde::Serialize;

use crate::context::{CommandContext, input_name};
use crate::diff;
use crate::error::{Diagnostic, HooksCommandError};
use crate::install::{ChangeJson, write};

/// Convert hook files from schema 0.1.0 to schema 1.0.0
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oci-hooks migrate old.json > new.json
  oci-hooks migrate --diff /usr/share/containers/oci/hooks.d/*.json
  oci-hooks migrate --in-place /etc/containers/oci/hooks.d/*.json
  oci-hooks migrate -o /etc/containers/oci/hooks.d old.json

In 0.1.0 one condition is enough, in 1.0.0 all must match. A file with several conditions,
NAME.json, therefore becomes NAME.json, NAME.1.json and so on, which match the same containers.
A container that meets several conditions gets the hook several times, which a warning reports.
On standard output such files are concatenated.

Files of schema 1.0.0 are not changed: on standard output they are printed as they are.")]
pub struct MigrateArgs {
    /// Hook files, or - for standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print a diff instead of the new files
    #[arg(long, conflicts_with_all = ["output", "in_place"])]
    diff: bool,

    /// Write new files to DIR; never overwrite
    #[arg(long, short, value_name = "DIR", conflicts_with = "in_place")]
    output: Option<PathBuf>,

    /// Replace the old files by the new ones
    #[arg(long)]
    in_place: bool,

    /// Show what would be written without writing it
    #[arg(long)]
    dry_run: bool,

    /// Treatment of the deprecated stage prestart
    #[arg(long, value_enum, value_name = "STAGE", default_value_t)]
    prestart: PrestartTreatment,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum PrestartTreatment {
    /// Keep it; each consumer injects it as before
    #[default]
    Keep,
    /// Replace it by createRuntime, at which podman 5 and CRI-O inject it anyway
    #[value(name = "createRuntime")]
    CreateRuntime,
}

/// One file to migrate, with the files that replace it.
#[derive(Serialize)]
struct MigratedFile {
    path: String,
    /// Set if the file already follows schema 1.0.0.
    current: bool,
    files: Vec<NewFileJson>,
    remarks: Vec<Diagnostic>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<ChangeJson>,
}

#[derive(Serialize)]
struct NewFileJson {
    name: String,
    text: String,
}

pub fn run(args: &MigrateArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let mut errors = Vec::new();
    let mut reports = Vec::new();
    for path in &args.files {
        match args.file(path, context) {
            Ok(report) => reports.push(report),
            // One bad file does not keep the others from being migrated.
            Err(error) => errors.push(error),
        }
    }
    if context.is_json() {
        context.json(&reports)?;
    }
    context.fail_with(errors)?;
    Ok(CliExit::Done)
}

impl MigrateArgs {
    fn file(
        &self,
        path: &Path,
        context: &mut CommandContext,
    ) -> Result<MigratedFile, HooksCommandError> {
        let text = context.read_hook(path)?;
        let mut load_options = LoadOptions::for_consumer(&context.consumer);
        let mut options = MigrateOptions::default();
        options.extension_stages = &load_options.extension_stages;
        options.prestart = match self.prestart {
            PrestartTreatment::Keep => PrestartMigration::Keep,
            PrestartTreatment::CreateRuntime => PrestartMigration::CreateRuntime,
        };
        let migration = migrate(name_of(path), &text, options).map_err(|fault| {
            HooksCommandError::Fault { path: path.to_owned(), fault: Box::new(fault) }
        })?;
        let Some(migration) = migration else {
            context.note(&format!("{}: already follows schema 1.0.0", path.display()));
            let is_printed = self.output.is_none() && !self.in_place && !self.diff;
            if is_printed && !context.is_json() {
                context.write(&text)?;
            }
            return Ok(MigratedFile::already_current(path));
        };
        let mut report = MigratedFile::new(path, &migration);
        for remark in &report.remarks {
            context.warn(remark);
        }
        if let Some(destination) = self.destination(path, &text)? {
            // The program may be installed on another host.
            load_options.path_check = PathCheck::Skip;
            let mode = if self.dry_run { EditMode::Plan } else { EditMode::Apply };
            let change = write_migration(&migration, destination, &load_options, mode)?;
            if !context.is_json() {
                write(&change, mode, context)?;
            }
            report.change = Some(ChangeJson::new(change, mode));
        } else if !context.is_json() {
            self.show(path, &text, &migration, context)?;
        }
        Ok(report)
    }

    fn destination<'a>(
        &'a self,
        path: &'a Path,
        text: &'a [u8],
    ) -> Result<Option<MigrationDestination<'a>>, HooksCommandError> {
        match &self.output {
            Some(dir) => Ok(Some(MigrationDestination::Directory(dir))),
            None if self.in_place && input_name(path).is_none() => Err(HooksCommandError::Usage {
                message: "--in-place cannot be combined with standard input or a pipe".to_owned(),
                hint: Some("omit --in-place, or name a directory with -o".to_owned()),
            }),
            None if self.in_place => Ok(Some(MigrationDestination::Replace { path, text })),
            None => Ok(None),
        }
    }

    /// Prints the new files, or their difference from the old one.
    fn show(
        &self,
        path: &Path,
        text: &[u8],
        migration: &Migration,
        context: &mut CommandContext,
    ) -> Result<(), HooksCommandError> {
        for (index, file) in migration.files.iter().enumerate() {
            if self.diff {
                let old = if index == 0 { text } else { b"" };
                let name = path.with_file_name(&file.name);
                diff::write(context, old, file.text.as_bytes(), &name.to_string_lossy())?;
            } else {
                context.write(&file.text)?;
            }
        }
        Ok(())
    }
}

impl MigratedFile {
    fn already_current(path: &Path) -> Self {
        MigratedFile {
            path: path.to_string_lossy().into_owned(),
            current: true,
            files: Vec::new(),
            remarks: Vec::new(),
            change: None,
        }
    }

    fn new(path: &Path, migration: &Migration) -> Self {
        let files = migration.files.iter().map(|file| NewFileJson {
            name: file.name.to_string_lossy().into_owned(),
            text: file.text.clone(),
        });
        MigratedFile {
            files: files.collect(),
            remarks: migration.remarks.iter().map(|remark| diagnostic(path, remark)).collect(),
            current: false,
            ..MigratedFile::already_current(path)
        }
    }
}

fn diagnostic(path: &Path, remark: &MigrationNote) -> Diagnostic {
    Diagnostic {
        location: match remark {
            MigrationNote::UnknownKey { location, .. } => Some(location.clone()),
            _ => None,
        },
        ..Diagnostic::new(remark.class(), Some(path), remark.to_string())
    }
}

/// Returns the name of the new file, which is `hook.json` for standard input and pipes.
fn name_of(path: &Path) -> &OsStr {
    input_name(path).unwrap_or(OsStr::new("hook.json"))
}
