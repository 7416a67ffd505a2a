//! `garm-provider-runc doctor`.

mod probe;
mod user;
mod users;

use clap::Args;
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::checks::{
    CONTAINERS, HostCheck, hooks, host, network, owners, registries, report, runtimes, storage,
};
use oci_hooks_engine_cli::settings_file::{self, LoadedSettings};
use oci_hooks_files::error::chain;

use crate::backend::InstanceBackend;
use crate::error::AdminError;
use crate::settings::GarmFileSettings;

/// Check this machine for problems, and print a fix for each
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as the user who runs GARM. Exit status is 0 if containers will run, and 1 otherwise.

Examples:
  garm-provider-runc doctor                          What is missing on this machine?
  garm-provider-runc doctor --probe                  What can instances reach that they must not?
  garm-provider-runc doctor --probe --format json    The same, machine-readable

With --probe, an instance of each flavor and one other instance are created. Meanwhile this program
listens on all addresses of this machine, and has sockets and files in /tmp, /var/tmp, /dev/shm,
/run, the store and the log directory. The instances try to reach these, the other instance,
addresses of metadata services, and kernel files. Neither GARM nor an image is needed. The exit
status is 1 if an instance reached one of them, or if no instance could be created. Targets that
could not be tried, or that did not answer and may not exist, are warnings.")]
pub struct DoctorArgs {
    /// Create an instance of each flavor, and test that it cannot reach this host, other instances or cloud metadata
    #[arg(long)]
    probe: bool,
}

pub fn run(args: &DoctorArgs, context: &mut CliContext) -> Result<CliExit, AdminError> {
    let loaded = settings_file::load::<GarmFileSettings>(context)?;
    if args.probe {
        return probe::probe(&loaded.settings, context);
    }
    match InstanceBackend::of(loaded.settings.clone()) {
        InstanceBackend::Root(_) => run_as_root(&loaded, context),
        InstanceBackend::User(_) => user::run(loaded, context),
    }
}

fn run_as_root(
    loaded: &LoadedSettings<GarmFileSettings>,
    context: &mut CliContext,
) -> Result<CliExit, AdminError> {
    let settings = &loaded.settings;
    let mut checks = vec![HostCheck::ok("user", "root"), settings_file(loaded)];
    checks.push(host::kernel(Some(owners::IDMAPPED_OVERLAY)));
    checks.extend([host::cgroups(), host::cgroup_controllers()]);
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::checks(settings.host()));
    checks.push(hooks::check(&settings.hooks));
    checks.extend(users::checks(settings));
    let has_disks = settings.flavors.values().any(|flavor| flavor.disk.is_some());
    checks.extend(has_disks.then(storage::limited_disks));
    checks.push(storage::permissions("logs", &settings.log.directory));
    checks.extend(network::checks(&settings.network()));
    if settings.network.dns.is_empty() && !settings.network.host_access {
        checks.extend(network::resolver());
    }
    checks.extend(certificates(settings));
    checks.extend(registries::checks(&settings.registry));
    checks.extend(mounts(settings));
    checks.extend(users::mounts(settings));
    checks.extend(nesting(settings));
    Ok(report(&checks, CONTAINERS, context)?)
}

fn settings_file(loaded: &LoadedSettings<GarmFileSettings>) -> HostCheck {
    HostCheck::ok("settings", loaded.files_named().unwrap_or_else(|| "defaults".to_owned()))
}

fn certificates(settings: &GarmFileSettings) -> Option<HostCheck> {
    let path = settings.boot.ca.as_ref()?;
    let found = match settings.ca_pem() {
        Ok(text) if text.contains("-----BEGIN CERTIFICATE-----") => {
            return Some(HostCheck::ok("certificates", path.display().to_string()));
        }
        Ok(_) => format!("no certificate in {}", path.display()),
        Err(error) => chain(&error),
    };
    Some(HostCheck::fail(
        "certificates",
        found,
        "set `ca` under [boot] to a PEM file with CA certificates",
    ))
}

fn mounts(settings: &GarmFileSettings) -> Vec<HostCheck> {
    let missing = settings.mounts.iter().filter(|(_, mount)| !mount.source.exists());
    let missing = missing.map(|(name, mount)| {
        let found = format!("source {} of mount {name:?} does not exist", mount.source.display());
        HostCheck::fail(
            "mounts",
            found,
            "create the file or directory, or remove the mount from the settings",
        )
    });
    missing.collect()
}

/// Checks the devices that nested containers use.
fn nesting(settings: &GarmFileSettings) -> Option<HostCheck> {
    if !settings.flavors.values().any(|flavor| flavor.nesting) {
        return None;
    }
    let missing =
        ["/dev/fuse", "/dev/net/tun"].iter().filter(|path| !std::path::Path::new(path).exists());
    let missing: Vec<_> = missing.copied().collect();
    Some(if missing.is_empty() {
        HostCheck::ok("nesting", "/dev/fuse, /dev/net/tun")
    } else {
        HostCheck::warn(
            "nesting",
            format!("missing: {}", missing.join(", ")),
            "modprobe -a fuse tun: without these devices, containers in instances are slow or have no network",
        )
    })
}
