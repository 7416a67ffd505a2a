//! Steps of a boot, in order.

use std::path::Path;

use oci_hooks_files::error::chain;

use super::error::BootError;
use super::guest::{Guest, GuestCommand, GuestIds};
use super::prepare::{BootContext, GuestUser};
use super::release::OsRelease;
use super::run::run_runner;
use super::spec::{BootSpec, Forge, RunnerSpec};
use super::status::{BootDeadline, GarmApi};
use super::{certificates, credentials, gitea, github, prepare};
use crate::http::{HttpClient, HttpError, HttpRetry, ProxyUrls};

/// Size limit of GARM's install script, larger than any real one.
const MAX_TEMPLATE_BYTES: u64 = 4 << 20;

/// Shell command that runs a script from standard input, so that the script's text is neither on disk nor in arguments.
const EVAL: &str = r#"eval "$(cat)""#;

/// A runner that is ready to run.
#[derive(Clone, Debug)]
pub struct ReadyRunner {
    /// Command that runs the runner until its job is done.
    pub command: GuestCommand,
    /// Id of the runner at its forge, if it is known.
    pub agent_id: Option<i64>,
}

/// Boots the runner of an instance and waits for its exit. Reports to GARM each step, that the runner listens for jobs,
/// and failures.
pub fn boot(
    spec: &BootSpec,
    guest: &mut impl Guest,
    http: &HttpClient,
    retry: HttpRetry,
) -> Result<(), BootError> {
    let deadline = BootDeadline::new(spec.timeout);
    let garm = GarmApi::new(spec, http, retry, deadline);
    let mut boot = BootContext { guest, deadline, env: proxies(&spec.http.proxy) };
    let ready = steps(&garm, spec, &mut boot);
    let result = ready.and_then(|ready| run_runner(&garm, spec, boot.guest, &ready));
    match &result {
        // `run_runner` has already reported `NeverIdle`.
        Ok(()) | Err(BootError::NeverIdle { .. }) => {}
        Err(error) => {
            // After `idle`, GARM accepts no more reports of an instance; it gets the status by listing instances.
            if let Err(refusal) = garm.report_failed(error) {
                boot.guest.note(&format!("cannot report the failure to GARM: {}", chain(&refusal)));
            }
        }
    }
    result
}

fn steps<G: Guest>(
    garm: &GarmApi<'_>,
    spec: &BootSpec,
    boot: &mut BootContext<'_, G>,
) -> Result<ReadyRunner, BootError> {
    garm.report_installing(boot.guest, "the instance is running, preparing the runner")?;
    if let Some(warning) = &spec.warning {
        garm.progress(boot.guest, warning)?;
    }
    let proxies = boot.env.clone();
    let certificates = certificates::install(boot.guest, &spec.http.ca_pem)?;
    boot.env.extend(certificates);
    prepare::packages(garm, boot, &spec.packages)?;
    prepare::scripts(garm, boot, &spec.pre_install)?;
    if !spec.packages.is_empty() || !spec.pre_install.is_empty() {
        // A package or script may have installed or rebuilt the distribution's CA bundle.
        let certificates = certificates::install(boot.guest, &spec.http.ca_pem)?;
        boot.env = [proxies, certificates].concat();
    }
    let ready = match &spec.runner {
        Some(runner) => prepare_runner(garm, boot, runner)?,
        None => garms_script(garm, boot)?,
    };
    Ok(add_variables(ready, spec))
}

/// Prepares the runner as GARM's script would: installs its dependencies, registers it, and reports the distribution.
fn prepare_runner<G: Guest>(
    garm: &GarmApi<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
) -> Result<ReadyRunner, BootError> {
    let owner = GuestIds { uid: runner.uid, gid: runner.gid };
    let name = credentials::user_name(boot.guest, runner.uid)?;
    let dir = match runner.forge {
        Forge::Github => runner.dir.clone(),
        Forge::Gitea => gitea::dir(),
    };
    let user = GuestUser { owner, name: name.as_deref(), home: &runner.home, cwd: &dir };
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
        // System information is only displayed, and not supported by all versions of GARM.
        Err(BootError::Http(error)) => boot.guest.note(&format!(
            "cannot send the system information (distribution and version) to GARM, which only displays it: {}",
            chain(&error)
        )),
        result => result?,
    }
    Ok(ReadyRunner { command, agent_id })
}

/// Gets the script that GARM renders from the pool's template.
fn garms_script<G: Guest>(
    garm: &GarmApi<'_>,
    boot: &mut BootContext<'_, G>,
) -> Result<ReadyRunner, BootError> {
    let script = garm.get("install-script/", MAX_TEMPLATE_BYTES);
    let script = script.map_err(|error| match error {
        BootError::Http(source @ HttpError::Status { status: 400 | 404 | 409, .. }) => {
            BootError::Template { source }
        }
        error => error,
    })?;
    let args = ["bash", "-c", EVAL].map(str::to_owned).to_vec();
    let mut command = boot.command(GuestUser::root(), args);
    command.stdin = script;
    Ok(ReadyRunner { command, agent_id: None })
}

/// Adds the pool's environment variables to the runner's command; they override its other variables.
fn add_variables(mut ready: ReadyRunner, spec: &BootSpec) -> ReadyRunner {
    let env = &mut ready.command.env;
    env.retain(|(name, _)| !spec.env.contains_key(name));
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    ready
}

/// Returns environment variables for proxies, in lower and upper case, because programs differ.
fn proxies(proxy: &ProxyUrls) -> Vec<(String, String)> {
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
