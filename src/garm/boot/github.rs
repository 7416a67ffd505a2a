//! GitHub's runner.

use std::path::Path;
use std::thread;

use super::credentials;
use super::error::BootError;
use super::guest::{Guest, GuestCommand, Owner, TMPFS};
use super::prepare::{As, BootContext};
use super::spec::RunnerSpec;
use super::status::Garm;

/// As often as GARM's own scripts try.
pub const TRIES: u32 = 6;

/// More than a token has.
pub const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// How much of what the runner says is passed on.
const MAX_OUTPUT_BYTES: u64 = 4 << 10;

/// Makes sure that a runner starts at all, by installing what it needs, if that is wanted. An image
/// that brings its runner brings what that needs.
pub fn dependencies<G: Guest>(
    garm: &Garm<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: As<'_>,
) -> Result<(), BootError> {
    if !runner.is_downloaded {
        return Ok(());
    }
    let (mut code, mut output) = version(boot, runner, user)?;
    if code != 0 && runner.install_dependencies {
        garm.progress(boot.guest, "installing what the runner needs")?;
        let script = runner.dir.join("bin/installdependencies.sh").display().to_string();
        let mut command = boot.command(As::root(), vec![script]);
        // Whether it helped is seen next.
        let _ = boot.run(&mut command)?;
        (code, output) = version(boot, runner, user)?;
    }
    if code == 0 { Ok(()) } else { Err(BootError::Start { code, output }) }
}

/// Asks the runner for its version; returns how that ended, and what was said.
fn version<G: Guest>(
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: As<'_>,
) -> Result<(i32, String), BootError> {
    let path = Path::new(TMPFS).join("version");
    // The directory is root's, so the file has to be there.
    boot.guest.write(&path, b"", 0o600, user.owner)?;
    let script = "exec \"$1\" --version >\"$2\" 2>&1";
    let program = runner.dir.join("bin/Runner.Listener");
    let mut args = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    args.extend([program.display().to_string(), path.display().to_string()]);
    let mut command = boot.command(user, args);
    allow_root(&mut command);
    let code = boot.run(&mut command)?;
    let output = boot.guest.read(&path, MAX_OUTPUT_BYTES);
    boot.guest.remove(&path)?;
    // What is more than that helps nobody, and it is what it says that counts.
    let output = output.ok().flatten().unwrap_or_default();
    let output = String::from_utf8_lossy(&output).trim().to_owned();
    if code != 0 {
        boot.guest.note(&format!("the runner does not start: {output}"));
    }
    Ok((code, output))
}

/// Registers the runner, if GARM has not, and returns its number if it is known.
pub fn register<G: Guest>(
    garm: &Garm<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: As<'_>,
) -> Result<Option<i64>, BootError> {
    if runner.jit {
        garm.progress(boot.guest, "getting the runner's credentials")?;
        return credentials::install(garm, boot.guest, runner);
    }
    garm.progress(boot.guest, "registering the runner")?;
    // There is only this one.
    let token = garm.get("runner-registration-token/", MAX_TOKEN_BYTES)?;
    let token = String::from_utf8_lossy(&token).trim().to_owned();
    let config = |boot: &mut BootContext<'_, G>, args: &[&str]| {
        let program = runner.dir.join("config.sh").display().to_string();
        let args = std::iter::once(program).chain(args.iter().map(|&arg| arg.to_owned()));
        let mut command = boot.command(user, args.collect());
        allow_root(&mut command);
        // The runner takes what is not among its arguments from there, and removes it.
        command.env.push(("ACTIONS_RUNNER_INPUT_TOKEN".to_owned(), token.clone()));
        boot.run(&mut command)
    };
    let labels = runner.labels.join(",");
    let mut args = vec!["--unattended", "--url", &runner.url, "--name", &runner.name];
    if !runner.group.is_empty() {
        args.extend(["--runnergroup", &runner.group]);
    }
    args.extend(["--labels", &labels, "--no-default-labels", "--ephemeral"]);
    let mut code = 0;
    for attempt in 1..=TRIES {
        code = config(boot, &args)?;
        if code == 0 {
            return credentials::registered_id(boot.guest, &runner.dir.join(".runner"), "AgentId")
                .map(Some);
        }
        boot.guest.note(&format!("config.sh ended with code {code}, try {attempt} of {TRIES}"));
        // What is half registered is in the way of the next try.
        config(boot, &["remove"])?;
        if attempt < TRIES {
            thread::sleep(garm.retry.pause);
        }
    }
    Err(BootError::Registration { code, tries: TRIES })
}

/// Returns how the runner is run.
pub fn run<G: Guest>(boot: &BootContext<'_, G>, runner: &RunnerSpec, user: As<'_>) -> GuestCommand {
    let program = runner.dir.join("run.sh").display().to_string();
    let mut command = boot.command(user, vec![program]);
    allow_root(&mut command);
    command
}

/// The runner does not run as root unless it is told that this is meant.
fn allow_root(command: &mut GuestCommand) {
    if command.owner.uid == Owner::ROOT.uid {
        command.env.push(("RUNNER_ALLOW_RUNASROOT".to_owned(), "1".to_owned()));
    }
}
