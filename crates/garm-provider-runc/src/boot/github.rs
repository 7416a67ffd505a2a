//! GitHub's runner.

use std::path::Path;
use std::thread;

use super::credentials;
use super::error::BootError;
use super::guest::{Guest, GuestCommand, GuestIds, TMPFS};
use super::prepare::{BootContext, GuestUser};
use super::spec::RunnerSpec;
use super::status::GarmApi;

/// Number of attempts to register, as in GARM's own scripts.
pub const TRIES: u32 = 6;

/// Size limit of the runner's output in an error.
const MAX_OUTPUT_BYTES: u64 = 4 << 10;

/// Checks that a downloaded runner starts, and installs its dependencies if it does not and the settings permit it. A
/// runner in the image is not checked, because its image has the dependencies.
pub fn dependencies<G: Guest>(
    garm: &GarmApi<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: GuestUser<'_>,
) -> Result<(), BootError> {
    if !runner.is_downloaded {
        return Ok(());
    }
    let (mut code, mut output) = version(boot, runner, user)?;
    if code != 0 && runner.install_dependencies {
        garm.progress(boot.guest, "installing the dependencies of the runner")?;
        let script = runner.dir.join("bin/installdependencies.sh").display().to_string();
        let mut command = boot.command(GuestUser::root(), vec![script]);
        // Its exit code does not matter: the runner is started again.
        let _ = boot.run(&mut command)?;
        (code, output) = version(boot, runner, user)?;
    }
    if code == 0 { Ok(()) } else { Err(BootError::Start { code, output }) }
}

/// Runs the runner with `--version`; returns the exit code and the output.
fn version<G: Guest>(
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: GuestUser<'_>,
) -> Result<(i32, String), BootError> {
    let path = Path::new(TMPFS).join("version");
    // The directory belongs to root, so the file is created for the user.
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
    // Output that is too long or unreadable is dropped: the exit code is more important.
    let output = output.ok().flatten().unwrap_or_default();
    let output = String::from_utf8_lossy(&output).trim().to_owned();
    if code != 0 {
        boot.guest.note(&format!("the runner does not start, code {code}: {output}"));
    }
    Ok((code, output))
}

/// Registers the runner, if GARM has not, and returns its id if it is known.
pub fn register<G: Guest>(
    garm: &GarmApi<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: GuestUser<'_>,
) -> Result<Option<i64>, BootError> {
    if runner.jit {
        garm.progress(boot.guest, "getting the runner's credentials")?;
        return credentials::install(garm, boot.guest, runner);
    }
    let token = garm.registration_token(boot.guest)?;
    let config = |boot: &mut BootContext<'_, G>, args: &[&str]| {
        let program = runner.dir.join("config.sh").display().to_string();
        let args = std::iter::once(program).chain(args.iter().map(|&arg| arg.to_owned()));
        let mut command = boot.command(user, args.collect());
        allow_root(&mut command);
        // The runner reads missing arguments from such variables, and removes them from its environment.
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
            return credentials::read_registered_id(
                boot.guest,
                &runner.dir.join(".runner"),
                "AgentId",
            )
            .map(Some);
        }
        boot.guest.note(&format!("config.sh ended with code {code}, attempt {attempt} of {TRIES}"));
        // A partial registration makes the next attempt fail.
        config(boot, &["remove"])?;
        if attempt < TRIES {
            thread::sleep(garm.retry.pause);
        }
    }
    Err(BootError::Registration { code, tries: TRIES })
}

/// Returns the command that runs the runner.
pub fn run<G: Guest>(
    boot: &BootContext<'_, G>,
    runner: &RunnerSpec,
    user: GuestUser<'_>,
) -> GuestCommand {
    let program = runner.dir.join("run.sh").display().to_string();
    let mut command = boot.command(user, vec![program]);
    allow_root(&mut command);
    command
}

/// Permits the runner to run as root, which it otherwise rejects.
fn allow_root(command: &mut GuestCommand) {
    if command.owner.uid == GuestIds::ROOT.uid {
        command.env.push(("RUNNER_ALLOW_RUNASROOT".to_owned(), "1".to_owned()));
    }
}
