//! `container-hook audit`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use clap::Args;
use container_hook_job::audit::{AuditEvent, AuditLine};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_cli::table;
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_engine_cli::settings_file;
use oci_hooks_files::fs::PathContext as _;
use oci_hooks_files::quantity::format_count;

use crate::error::HookCommandError;
use crate::settings::HookFileSettings;

/// Show the audit log: job containers, host resources granted to them, and denied requests
#[derive(Debug, Args)]
#[command(after_help = "\
The log is the `file` under [audit] of the settings; without one nothing is written.

Examples:
  container-hook audit --tail 20                      The last 20 entries
  container-hook audit --event denied                 Denied requests of jobs
  container-hook audit --job octo/repo --format json  Entries of one repository, machine-readable")]
pub struct AuditArgs {
    /// Show only entries of this kind: allowed, container, denied, device, mount, port (can be
    /// repeated)
    #[arg(long, value_name = "EVENT", value_parser = EVENTS)]
    event: Vec<String>,

    /// Show only entries of the runner with this name
    #[arg(long, value_name = "NAME")]
    runner: Option<String>,

    /// Show only entries of jobs of this repository, or with this run id or job id
    #[arg(long, value_name = "TEXT")]
    job: Option<String>,

    /// Show only entries of the container with this id or prefix of an id
    #[arg(long, value_name = "ID")]
    container: Option<String>,

    /// Show only the last COUNT entries
    #[arg(long, short = 'n', value_name = "COUNT")]
    tail: Option<usize>,
}

const EVENTS: [&str; 6] = ["allowed", "container", "denied", "device", "mount", "port"];

pub fn run(args: &AuditArgs, context: &mut CliContext) -> Result<CliExit, HookCommandError> {
    let settings = settings_file::load::<HookFileSettings>(context)?.settings;
    let path = settings.audit.file.as_deref().ok_or(HookCommandError::NoAudit)?;
    let (lines, unreadable) = args.read(path)?;
    if unreadable > 0 {
        let count = format_count(unreadable, "line");
        context.note(&format!("ignored {count} of {}: not audit entries", path.display()));
    }
    if context.is_json() {
        context.json(&lines)?;
        return Ok(CliExit::Done);
    }
    let rows: Vec<_> = lines.iter().map(row).collect();
    table::write(["TIME", "RUNNER", "JOB", "SUBJECT", "EVENT", "DETAILS"], &rows, context)?;
    Ok(CliExit::Done)
}

impl AuditArgs {
    /// Returns the matching entries, and the number of invalid lines.
    fn read(&self, path: &Path) -> Result<(VecDeque<AuditLine>, usize), HookCommandError> {
        let mut found = VecDeque::new();
        let mut unreadable = 0;
        let file = BufReader::new(File::open(path).with_path("open", path)?);
        for line in file.split(b'\n') {
            match serde_json::from_slice::<AuditLine>(&line.with_path("read", path)?) {
                Ok(line) if self.matches_line(&line) => found.push_back(line),
                Ok(_) => {}
                Err(_) => unreadable += 1,
            }
            if self.tail.is_some_and(|tail| found.len() > tail) {
                found.pop_front();
            }
        }
        Ok((found, unreadable))
    }

    fn matches_line(&self, line: &AuditLine) -> bool {
        let is_event = self.event.is_empty() || self.event.iter().any(|it| it == line.event.name());
        let is_job = |text: &String| {
            ["repository", "run-id", "job"].iter().any(|key| line.job.get(*key) == Some(text))
        };
        let is_container =
            |id: &String| line.event.container().is_some_and(|container| container.starts_with(id));
        is_event
            && self.runner.as_ref().is_none_or(|name| *name == line.runner)
            && self.job.as_ref().is_none_or(is_job)
            && self.container.as_ref().is_none_or(is_container)
    }
}

fn row(line: &AuditLine) -> [String; 6] {
    let of_job = |key: &str| line.job.get(key).map(String::as_str);
    let job: Vec<_> = ["repository", "run-id", "job"].into_iter().filter_map(of_job).collect();
    // Names come from workflows: escape sequences in them must not reach the terminal.
    [
        format!("{:.0}", line.time),
        line.runner.clone(),
        job.join("/"),
        line.subject.clone(),
        line.event.name().to_owned(),
        describe_event(&line.event),
    ]
    .map(|cell| escape_control(cell.as_bytes()))
}

fn describe_event(event: &AuditEvent) -> String {
    let short = |id: &str| id.chars().take(12).collect::<String>();
    match event {
        AuditEvent::Container { container, image, digest, network, privileged, .. } => {
            let privileged = if *privileged { ", privileged" } else { "" };
            format!("{} {image} {digest}, network {network}{privileged}", short(container))
        }
        AuditEvent::Mount { container, kind, source, target, read_only } => {
            let source = source.as_ref().unwrap_or(kind);
            let mode = if *read_only { ", read-only" } else { "" };
            format!("{} {source} at {target}{mode}", short(container))
        }
        AuditEvent::Device { container, source, target } => {
            format!("{} {source} at {target}", short(container))
        }
        AuditEvent::Port { container, host_ip, host_port, container_port, protocol } => {
            let host = host_ip.map_or("all addresses".to_owned(), |ip| ip.to_string());
            format!(
                "{} port {host_port} of {host} to container port {container_port}/{protocol}",
                short(container)
            )
        }
        AuditEvent::Allowed { option } => option.clone(),
        AuditEvent::Denied { option, reason } => format!("{option}: {reason}"),
    }
}
