//! `garm-provider-runc supervise`: what stays with an instance.

use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks::container::{Engine, MonitorProgram};
use oci_hooks::garm::{SupervisorProgram, supervise};
use oci_hooks::image::{Store, StoreOptions};
use oci_hooks::program::exit::Exit;
use oci_hooks::program::monitor::MONITOR;
use oci_hooks::program::programs::this_program;
use oci_hooks::runtime::Runtime;
use oci_hooks::sys::fs::PathError;
use oci_hooks::sys::privilege::Privilege;

use crate::error::Error;

/// Start a runner and stay until it ends; called by this program itself
///
/// It reads no settings: the caller passes the values that it needs. The settings may have changed, and in
/// the namespaces of an ordinary user's instance their owner cannot be checked.
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
    /// The controller
    controller: String,
    /// The instance
    name: String,
}

/// Returns how this program is called to stay with an instance of an engine.
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
    // The controller is any text.
    arguments.push("--".into());
    Ok(SupervisorProgram { path: this_program()?, arguments })
}

pub fn run(args: &SuperviseArgs) -> Result<Exit, Error> {
    let privilege = Privilege::of_process().unwrap_or(Privilege::Single);
    let mut store = StoreOptions::new(&args.store, &args.store_run);
    store.privilege = privilege;
    let engine = Engine {
        store: Store::open(store)?,
        // Its container has the one it was made with in its record.
        runtime: Runtime::new("runc".into(), args.run.join("runtime")),
        run: args.run.clone(),
        disk: args.disk.clone(),
        monitor: MonitorProgram { path: this_program()?, arguments: vec![MONITOR.to_owned()] },
        privilege,
    };
    supervise(&engine, &args.controller, &args.name)?;
    Ok(Exit::Done)
}
