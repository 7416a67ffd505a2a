//! `garm-provider-runc doctor`.

mod probe;
mod user;
mod users;

use clap::Args;
use oci_hooks::program::checks::{
    CONTAINERS, Check, host, network, owners, registries, report, runtimes, storage,
};
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::settings_file::Loaded;
use oci_hooks::sys::error::chain;

use crate::backend::Backend;
use crate::error::Error;
use crate::settings::Settings;

/// Check this machine for problems, and print a fix for each
#[derive(Debug, Args)]
#[command(after_help = "\
Run it as the user who runs GARM. Exit status is 0 if containers will run, and 1 otherwise.

Examples:
  garm-provider-runc doctor                          What is missing on this machine?
  garm-provider-runc doctor --probe                  What do instances reach that they must not?
  garm-provider-runc doctor --probe --format json    The same for programs

With --probe an instance of each flavor is made, and another one: meanwhile this program listens on
all addresses of this machine, and has sockets and files in /tmp, /var/tmp, /dev/shm, /run, the
store and the directory of logs, which the instances try to reach, as well as the other one,
addresses of metadata services and files of the kernel. Neither GARM nor an image is needed. The
exit status is 1 if something was reached, or if no instance could be made. What could not be tried,
and what did not answer and may not be there, is a warning.")]
pub struct DoctorArgs {
    /// Make an instance of each flavor, and try to reach from inside what SECURITY.md says is out of reach
    #[arg(long)]
    probe: bool,
}

pub fn run(args: &DoctorArgs, context: &mut Context) -> Result<Exit, Error> {
    let loaded = context.settings::<Settings>()?;
    if args.probe {
        return probe::probe(&loaded.settings, context);
    }
    match Backend::of(loaded.settings.clone()) {
        Backend::Root(_) => run_as_root(&loaded, context),
        Backend::User(_) => user::run(loaded, context),
    }
}

fn run_as_root(loaded: &Loaded<Settings>, context: &mut Context) -> Result<Exit, Error> {
    let settings = &loaded.settings;
    let mut checks = vec![Check::ok("user", "root"), settings_file(loaded)];
    checks.push(host::kernel(Some(owners::IDMAPPED_OVERLAY)));
    checks.extend([host::cgroups(), host::cgroup_controllers()]);
    checks.extend(runtimes::checks(settings.host()));
    checks.extend(storage::checks(settings.host()));
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

fn settings_file(loaded: &Loaded<Settings>) -> Check {
    Check::ok("settings", loaded.files_named().unwrap_or_else(|| "defaults".to_owned()))
}

fn certificates(settings: &Settings) -> Option<Check> {
    let path = settings.boot.ca.as_ref()?;
    Some(match settings.garm() {
        Ok(garm) if garm.ca_pem.contains("-----BEGIN CERTIFICATE-----") => {
            Check::ok("certificates", path.display().to_string())
        }
        Ok(_) => Check::fail(
            "certificates",
            format!("{} has none", path.display()),
            "name a PEM file as `ca` under [boot]",
        ),
        Err(error) => {
            Check::fail("certificates", chain(&error), "name a PEM file as `ca` under [boot]")
        }
    })
}

fn mounts(settings: &Settings) -> Vec<Check> {
    let missing = settings.mounts.iter().filter(|(_, mount)| !mount.source.exists());
    let missing = missing.map(|(name, mount)| {
        let found = format!("{} of mount {name:?} does not exist", mount.source.display());
        Check::fail("mounts", found, "make it, or take the mount out of the settings")
    });
    missing.collect()
}

/// What containers in an instance want from the host.
fn nesting(settings: &Settings) -> Option<Check> {
    if !settings.flavors.values().any(|flavor| flavor.nesting) {
        return None;
    }
    let missing =
        ["/dev/fuse", "/dev/net/tun"].iter().filter(|path| !std::path::Path::new(path).exists());
    let missing: Vec<_> = missing.copied().collect();
    Some(if missing.is_empty() {
        Check::ok("nesting", "/dev/fuse, /dev/net/tun")
    } else {
        Check::warn(
            "nesting",
            format!("without {}", missing.join(", ")),
            "modprobe fuse tun: containers in instances are slow or without a network otherwise",
        )
    })
}
