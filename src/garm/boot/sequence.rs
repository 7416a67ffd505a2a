//! The steps in their order.

use std::path::Path;

use super::attend::attend;
use super::error::BootError;
use super::guest::{Guest, GuestCommand, Owner};
use super::prepare::{As, BootContext};
use super::release::OsRelease;
use super::spec::{BootSpec, Forge, RunnerSpec};
use super::status::{Deadline, Garm};
use super::{certificates, credentials, gitea, github, prepare};
use crate::garm::http::{Http, HttpError, Proxy, Retry};
use crate::sys::error::chain;

/// More than any install script has.
const MAX_TEMPLATE_BYTES: u64 = 4 << 20;

/// Runs what it reads to the end, and nothing is on a disk or among arguments.
const EVAL: &str = r#"eval "$(cat)""#;

/// A runner that is up to the last step: running it.
#[derive(Clone, Debug)]
pub struct Ready {
    /// What runs it, until its job is done.
    pub command: GuestCommand,
    /// The number that the forge gave it, if it is known.
    pub agent_id: Option<i64>,
}

/// Brings the runner of an instance up and stays with it until it has ended. GARM is told of each
/// step, that the runner waits for its job, and of what went wrong.
pub fn boot(spec: &BootSpec, guest: &mut impl Guest, http: &Http) -> Result<(), BootError> {
    boot_patiently(spec, guest, http, Retry::default())
}

/// The same, and how often things are tried can be said.
pub fn boot_patiently(
    spec: &BootSpec,
    guest: &mut impl Guest,
    http: &Http,
    retry: Retry,
) -> Result<(), BootError> {
    let deadline = Deadline::new(spec.timeout);
    let garm = Garm::new(spec, http, retry, deadline);
    let mut boot = BootContext { guest, deadline, env: proxies(&spec.proxy) };
    let ready = steps(&garm, spec, &mut boot);
    let result = ready.and_then(|ready| attend(&garm, spec, boot.guest, &ready));
    match &result {
        // It has been told.
        Ok(()) | Err(BootError::NeverIdle { .. }) => {}
        Err(error) => {
            // After `idle` GARM takes nothing more of an instance; its lists say how that is.
            if let Err(refusal) = garm.failed(error) {
                boot.guest.note(&format!("GARM was not told: {}", chain(&refusal)));
            }
        }
    }
    result
}

fn steps<G: Guest>(
    garm: &Garm<'_>,
    spec: &BootSpec,
    boot: &mut BootContext<'_, G>,
) -> Result<Ready, BootError> {
    garm.installing(boot.guest, "the instance runs, preparing it")?;
    if let Some(warning) = &spec.warning {
        garm.progress(boot.guest, warning)?;
    }
    let proxies = boot.env.clone();
    let certificates = certificates::install(boot.guest, &spec.ca_pem)?;
    boot.env.extend(certificates);
    prepare::packages(garm, boot, &spec.packages)?;
    prepare::scripts(garm, boot, &spec.pre_install)?;
    if !spec.packages.is_empty() || !spec.pre_install.is_empty() {
        // The distribution's list may be there only now, or be made anew.
        let certificates = certificates::install(boot.guest, &spec.ca_pem)?;
        boot.env = [proxies, certificates].concat();
    }
    let ready = match &spec.runner {
        Some(runner) => own_steps(garm, boot, runner)?,
        None => garms_script(garm, boot)?,
    };
    Ok(with_variables(ready, spec))
}

/// Does what GARM's script would do.
fn own_steps<G: Guest>(
    garm: &Garm<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
) -> Result<Ready, BootError> {
    let owner = Owner { uid: runner.uid, gid: runner.gid };
    let name = credentials::user_name(boot.guest, runner.uid)?;
    let dir = match runner.forge {
        Forge::Github => runner.dir.clone(),
        Forge::Gitea => gitea::dir(),
    };
    let user = As { owner, name: name.as_deref(), home: &runner.home, cwd: &dir };
    let agent_id = match runner.forge {
        Forge::Github => {
            github::dependencies(garm, boot, runner, user)?;
            github::register(garm, boot, runner, user)?
        }
        Forge::Gitea => gitea::register(garm, boot, runner, user)?,
    };
    let command = match runner.forge {
        Forge::Github => github::run(boot, runner, user),
        Forge::Gitea => gitea::run(boot, runner, user),
    };
    let read = |path: &Path, limit| boot.guest.read(path, limit).ok().flatten();
    let release = OsRelease::of(read);
    match garm.system_info(&release, agent_id) {
        // This is for people, and not every GARM has it.
        Err(BootError::Http(error)) => boot
            .guest
            .note(&format!("GARM does not take the system information: {}", chain(&error))),
        result => result?,
    }
    Ok(Ready { command, agent_id })
}

/// Gets the script that GARM made of the pool's template.
fn garms_script<G: Guest>(
    garm: &Garm<'_>,
    boot: &mut BootContext<'_, G>,
) -> Result<Ready, BootError> {
    let script = garm.get("install-script/", MAX_TEMPLATE_BYTES);
    let script = script.map_err(|error| match error {
        BootError::Http(source @ HttpError::Status { status: 400 | 404 | 409, .. }) => {
            BootError::Template { source }
        }
        error => error,
    })?;
    let args = ["bash", "-c", EVAL].map(str::to_owned).to_vec();
    let mut command = boot.command(As::root(), args);
    command.stdin = script;
    Ok(Ready { command, agent_id: None })
}

/// Adds the pool's variables, which come before those of the instance.
fn with_variables(mut ready: Ready, spec: &BootSpec) -> Ready {
    let env = &mut ready.command.env;
    env.retain(|(name, _)| !spec.env.contains_key(name));
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    ready
}

/// Returns proxies as variables, in both cases, since programs do not agree on one.
fn proxies(proxy: &Proxy) -> Vec<(String, String)> {
    let values = [
        ("http_proxy", &proxy.http_proxy),
        ("https_proxy", &proxy.https_proxy),
        ("no_proxy", &proxy.no_proxy),
    ];
    let set = values.into_iter().filter(|(_, value)| !value.is_empty());
    let cases = set.flat_map(|(name, value)| {
        [(name.to_owned(), value.clone()), (name.to_ascii_uppercase(), value.clone())]
    });
    cases.collect()
}
