//! `garm-provider-runc supervise`: the supervisor of an instance.

use std::path::{Path, PathBuf};

use clap::Args;
use garm_provider_runc::{SupervisorProgram, supervise};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine::container::{Engine, MonitorProgram};
use oci_hooks_engine::runtime::OciRuntime;
use oci_hooks_engine_cli::monitor::MONITOR;
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_files::fs::PathError;
use oci_hooks_host::privilege::Privilege;
use oci_hooks_image::{ImageStore, StoreOptions};

use crate::error::AdminError;

/// Start a runner and wait for its exit; called by this program itself
///
/// Reads no settings: the caller passes the necessary values. The settings may have changed, and in the namespaces of a
/// rootless instance the owner of the settings file cannot be checked.
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct SuperviseArgs {
    /// Directory of images
    #[arg(long, value_name = "DIR")]
    store: PathBuf,
    /// Directory of records of images and instances for this boot
    #[arg(long, value_name = "DIR")]
    store_run: PathBuf,
    /// Directory of the container's root file system
    #[arg(long, value_name = "DIR")]
    disk: PathBuf,
    /// Directory of the container's records
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
    /// Controller id
    controller: String,
    /// Instance name
    name: String,
}

/// Returns the command line of a supervisor for an engine.
pub fn program(engine: &Engine) -> Result<SupervisorProgram, PathError> {
    let store = engine.store.options();
    let directories: [(&str, &Path); 4] = [
        ("--store", &store.root),
        ("--store-run", &store.run),
        ("--disk", &engine.disk),
        ("--run", &engine.run),
    ];
    let directories = directories.iter().flat_map(|(name, path)| [(*name).into(), path.into()]);
    let mut arguments = vec!["supervise".into()];
    arguments.extend(directories);
    // The controller id is arbitrary text, and may begin with a dash.
    arguments.push("--".into());
    Ok(SupervisorProgram { path: program_path()?, arguments })
}

pub fn run(args: &SuperviseArgs) -> Result<CliExit, AdminError> {
    let privilege = Privilege::of_process().unwrap_or(Privilege::Single);
    let mut store = StoreOptions::new(&args.store, &args.store_run);
    store.privilege = privilege;
    let engine = Engine {
        store: ImageStore::open(store)?,
        // A placeholder: the container's record has the runtime that created it.
        runtime: OciRuntime::new("runc".into(), args.run.join("runtime")),
        run: args.run.clone(),
        disk: args.disk.clone(),
        monitor: MonitorProgram { path: program_path()?, arguments: vec![MONITOR.to_owned()] },
        privilege,
    };
    supervise(&engine, &args.controller, &args.name)?;
    Ok(CliExit::Done)
}
