//! Devices of the Container Device Interface: `--device`, `list --cdi`, `show VENDOR/CLASS=NAME`, `monitor --cdi`.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::cdi::{
    CdiSpecError, ContainerEdits, DEFAULT_DIRS, DeviceEntry, DeviceError, DeviceProblem,
    DeviceRegistry,
};
use oci_hooks::hooks::trust::TrustOptions;
use oci_hooks::json::TextLocation;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::PathContext as _;
use serde::Serialize;

use crate::context::CommandContext;
use crate::error::{Diagnostic, HooksCommandError};
use crate::style;

/// The directories of specifications.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// Read CDI specifications from DIR (can be repeated; the last has precedence) [default: /etc/cdi,
    /// /var/run/cdi]
    #[arg(long, value_name = "DIR")]
    cdi_spec_dir: Vec<PathBuf>,
}

impl DeviceArgs {
    /// Returns the directories of `--cdi-spec-dir`, or else the default directories.
    pub fn dirs(&self) -> Vec<PathBuf> {
        match self.cdi_spec_dir.as_slice() {
            [] => DEFAULT_DIRS.map(PathBuf::from).to_vec(),
            dirs => dirs.to_vec(),
        }
    }

    /// Fails if a directory of the options does not exist.
    pub fn check_dirs(&self) -> Result<(), HooksCommandError> {
        for dir in &self.cdi_spec_dir {
            fs::read_dir(dir).with_path("list", dir)?;
        }
        Ok(())
    }

    /// Loads the specifications, and warns of files that cannot be used.
    pub fn load(&self, context: &CommandContext) -> DeviceRegistry {
        for dir in self.cdi_spec_dir.iter().filter(|dir| !dir.exists()) {
            context.warn(&Diagnostic::new("missing-dir", Some(dir), "directory does not exist"));
        }
        let registry = DeviceRegistry::load(&self.dirs());
        for problem in registry.problems() {
            context.warn(&problem_diagnostic(problem));
        }
        registry
    }

    /// Returns the configuration with the named devices added.
    pub fn add(
        &self,
        names: &[String],
        is_strict: bool,
        config: &[u8],
        path: &Path,
        context: &CommandContext,
    ) -> Result<Vec<u8>, HooksCommandError> {
        let device_error = |error| match error {
            DeviceError::Config(source) => {
                HooksCommandError::Config { path: path.to_owned(), source }
            }
            error => HooksCommandError::Device(error),
        };
        let registry = self.load(context);
        let mut selection = registry.select(names).map_err(device_error)?;
        if is_strict {
            selection.check_trust(&TrustOptions::of_process())?;
            selection.empty_env = true;
        }
        selection.apply(config).map_err(device_error)
    }
}

/// Returns the printable form of a problem.
pub fn problem_diagnostic(problem: &DeviceProblem) -> Diagnostic {
    let pointer = match &problem.source {
        CdiSpecError::Value { pointer, .. } => pointer.clone(),
        _ => String::new(),
    };
    let location = problem.source.position().map(|at| TextLocation {
        span: 0..0,
        line: at.line,
        column: at.column,
        pointer,
    });
    let path = Some(problem.path.as_path());
    Diagnostic { location, ..Diagnostic::new("cdi", path, chain(&problem.source)) }
}

/// One device, as printed by `list --cdi`, `show` and `monitor --cdi` in JSON.
#[derive(Serialize)]
pub struct DeviceJson<'a> {
    pub name: &'a str,
    pub path: String,
    #[serde(flatten)]
    content: DeviceContentJson<'a>,
}

/// The content of a device in its specification.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceContentJson<'a> {
    cdi_version: &'a str,
    /// Edits for the device.
    container_edits: &'a ContainerEdits,
    /// Edits for any device of the file.
    spec_edits: &'a ContainerEdits,
}

impl<'a> DeviceJson<'a> {
    pub fn new(entry: &DeviceEntry<'a>) -> Self {
        DeviceJson {
            name: entry.name,
            path: entry.path.to_string_lossy().into_owned(),
            content: DeviceContentJson::new(entry),
        }
    }
}

impl<'a> DeviceContentJson<'a> {
    pub fn new(entry: &DeviceEntry<'a>) -> Self {
        DeviceContentJson {
            cdi_version: &entry.spec.cdi_version,
            container_edits: &entry.device.container_edits,
            spec_edits: &entry.spec.container_edits,
        }
    }
}

/// Lists the available devices, and notes devices that several files define.
pub fn list(args: &DeviceArgs, context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    let registry = args.load(context);
    for (name, files) in registry.conflicts() {
        let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        context.note(&format!(
            "device {name} is not available, because several files define it: {}",
            files.join(", ")
        ));
    }
    let devices: Vec<_> = registry.devices().collect();
    if context.is_json() {
        let devices: Vec<_> = devices.iter().map(DeviceJson::new).collect();
        context.json(&devices)?;
    } else {
        for entry in &devices {
            let name = context.paint.paint(style::TITLE, entry.name);
            let path = context.paint.paint(style::FAINT, entry.path.display());
            context.line(format!("{name}  {path}"))?;
        }
    }
    Ok(if devices.is_empty() { CliExit::Findings } else { CliExit::Done })
}

/// Shows one device.
pub fn show(
    name: &str,
    args: &DeviceArgs,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    let registry = args.load(context);
    let entry = registry.get(name).map_err(HooksCommandError::Device)?;
    if context.is_json() {
        context.json(&DeviceJson::new(&entry))?;
        return Ok(CliExit::Done);
    }
    let edits = |edits| serde_json::to_string_pretty(edits).expect("edits are strings and numbers");
    let fields = [
        ("device", entry.name.to_owned()),
        ("file", entry.path.display().to_string()),
        ("version", entry.spec.cdi_version.clone()),
        ("edits", edits(&entry.device.container_edits)),
        ("edits of the file", edits(&entry.spec.container_edits)),
    ];
    for (title, value) in fields {
        let title = context.paint.paint(style::TITLE, format_args!("{title:<9}"));
        context.line(format!("{title} {value}"))?;
    }
    Ok(CliExit::Done)
}
