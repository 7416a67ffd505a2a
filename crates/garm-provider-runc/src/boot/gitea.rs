//! Gitea's runner: a single program, `act_runner` or `gitea-runner`.

use std::path::{Path, PathBuf};
use std::thread;

use super::credentials;
use super::error::BootError;
use super::github::TRIES;
use super::guest::{Guest, GuestCommand, TMPFS};
use super::prepare::{BootContext, GuestUser};
use super::spec::RunnerSpec;
use super::status::GarmApi;

/// Returns the runner's working directory, which is on a tmpfs, because the runner writes its credentials there.
pub fn dir() -> PathBuf {
    Path::new(TMPFS).join("runner")
}

/// Registers the runner and returns its id.
pub fn register<G: Guest>(
    garm: &GarmApi<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: GuestUser<'_>,
) -> Result<Option<i64>, BootError> {
    let program = runner.program.display().to_string();
    let token = garm.registration_token(boot.guest)?;
    // The token must not be an argument, which all users can see. Since 1.0, runners read it from an environment
    // variable; older ones prompt for it and read standard input. Newer runners need `--no-interactive`, or they would
    // prompt for labels. `register --help` registers nothing, and fails before 1.0, because `--token-file` is unknown.
    let probe = [&*program, "register", "--token-file", "/dev/null", "--help"].map(str::to_owned);
    let takes_variable = boot
        .run(&mut boot.command(GuestUser { cwd: Path::new("/"), ..user }, probe.to_vec()))?
        == 0;
    let labels = runner.labels.join(",");
    let mut args = vec![&*program, "register", "--ephemeral"];
    args.extend(["--instance", &runner.url, "--name", &runner.name]);
    if !labels.is_empty() {
        args.extend(["--labels", &labels]);
    }
    if takes_variable {
        args.push("--no-interactive");
    }
    let mut command = boot.command(user, args.into_iter().map(str::to_owned).collect());
    if takes_variable {
        command.env.push(("GITEA_RUNNER_REGISTRATION_TOKEN".to_owned(), token));
    } else {
        // Without labels, the runner prompts for them too; an empty line selects the default labels.
        let answer = if labels.is_empty() { "\n" } else { "" };
        command.stdin = format!("{token}\n{answer}").into_bytes();
    }
    let own = dir().join(".runner");
    // Writing the file also creates the directory.
    boot.guest.write(&own, b"", 0o600, user.owner)?;
    let mut code = 0;
    for attempt in 1..=TRIES {
        // The runner would ask before overwriting the file.
        boot.guest.remove(&own)?;
        code = boot.run(&mut command)?;
        if code == 0 {
            return credentials::read_registered_id(boot.guest, &own, "id").map(Some);
        }
        boot.guest.note(&format!(
            "{program} register ended with code {code}, attempt {attempt} of {TRIES}"
        ));
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
    let args = [&*runner.program.display().to_string(), "daemon", "--once"];
    boot.command(user, args.map(str::to_owned).to_vec())
}
