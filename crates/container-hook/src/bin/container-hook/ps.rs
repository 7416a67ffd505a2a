//! `container-hook ps`.

use clap::Args;
use jiff::Timestamp;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::table::{self, format_age};
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_engine::container::{ContainerRecord, Engine};
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::error::chain;
use oci_hooks_host::identity::ProcessIdentity;
use serde::{Deserialize, Serialize};

use crate::error::HookCommandError;
use crate::job_backend::JobBackend;
use crate::jobs;
use crate::settings::HookFileSettings;

/// List the containers of jobs, or their pods in a cluster
#[derive(Debug, Args)]
pub struct PsArgs {
    /// Print only the ids of the containers, or the names of the pods
    #[arg(long, short)]
    pub quiet: bool,
}

/// A container, as `ps --format json` prints it.
#[derive(Serialize, Deserialize)]
struct PsEntry {
    id: String,
    name: String,
    role: String,
    owner: String,
    image: String,
    digest: String,
    runtime: String,
    created: Timestamp,
    pid: Option<u32>,
    exit_code: Option<i32>,
}

impl PsEntry {
    fn new(record: ContainerRecord, engine: &Engine) -> Self {
        let running = record.process.filter(ProcessIdentity::is_running);
        let end = engine.directory(&record.id).end();
        PsEntry {
            role: record.role.name().to_owned(),
            runtime: record.runtime.program.display().to_string(),
            pid: running.map(|process| process.pid),
            exit_code: end.map(|end| end.code),
            id: record.id,
            name: record.name,
            owner: record.owner,
            image: record.image,
            digest: record.digest,
            created: record.created,
        }
    }

    fn status(&self) -> String {
        match (self.pid, self.exit_code) {
            (_, Some(code)) => format!("ended with {code}"),
            (Some(pid), None) => format!("running, {pid}"),
            (None, None) => "not running".to_owned(),
        }
    }
}

/// Returns the containers in the namespaces of this process, and the errors of unreadable records.
fn list_entries(
    settings: &HookFileSettings,
) -> Result<(Vec<PsEntry>, Vec<String>), HookCommandError> {
    // Listing does not create a store.
    if !settings.host().run().exists() {
        return Ok(Default::default());
    }
    let engine = settings.host().into_existing_engine()?;
    let problems = engine.unreadable_records()?.iter().map(|error| chain(error)).collect();
    let containers = engine.containers()?.into_iter();
    Ok((containers.map(|record| PsEntry::new(record, &engine)).collect(), problems))
}

pub fn run(args: &PsArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let settings = settings_file::load::<HookFileSettings>(context)?.settings;
    match JobBackend::of(&settings)? {
        JobBackend::Root | JobBackend::User => {}
        #[cfg(feature = "kubernetes")]
        JobBackend::Cluster => return crate::pods::ps(args, &settings, context),
    }
    let listed = jobs::of(&settings.store).run_in_each(|store| {
        list_entries(&settings.with_store(store)).map_err(|error| chain(&error))
    })?;
    let (containers, problems): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
    for problem in problems.into_iter().flatten() {
        context.note(&problem);
    }
    let containers: Vec<PsEntry> = containers.into_iter().flatten().collect();
    if context.is_json() {
        context.json(&containers)?;
        return Ok(CliExit::Done);
    }
    if args.quiet {
        for container in &containers {
            context.line(&container.id)?;
        }
        return Ok(CliExit::Done);
    }
    let rows: Vec<_> = containers
        .iter()
        .map(|container| {
            [
                container.id.chars().take(12).collect(),
                container.role.clone(),
                escape_control(container.name.as_bytes()),
                container.image.clone(),
                format_age(container.created),
                container.status(),
            ]
        })
        .collect();
    table::write(["ID", "ROLE", "NAME", "IMAGE", "CREATED", "STATUS, PID"], &rows, context)?;
    Ok(CliExit::Done)
}
