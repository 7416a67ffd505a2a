//! Gitea's runner, `act_runner` or `gitea-runner`: one program.

use std::path::{Path, PathBuf};
use std::thread;

use super::credentials;
use super::error::BootError;
use super::github::{MAX_TOKEN_BYTES, TRIES};
use super::guest::{Guest, GuestCommand, TMPFS};
use super::prepare::{As, BootContext};
use super::spec::RunnerSpec;
use super::status::Garm;

/// Where the runner is run, since it keeps what it has to show in its working directory: in memory.
pub fn dir() -> PathBuf {
    Path::new(TMPFS).join("runner")
}

/// Registers the runner and returns its number.
pub fn register<G: Guest>(
    garm: &Garm<'_>,
    boot: &mut BootContext<'_, G>,
    runner: &RunnerSpec,
    user: As<'_>,
) -> Result<Option<i64>, BootError> {
    let program = runner.program.display().to_string();
    garm.progress(boot.guest, "registering the runner")?;
    // There is only this one.
    let token = garm.get("runner-registration-token/", MAX_TOKEN_BYTES)?;
    let token = String::from_utf8_lossy(&token).trim().to_owned();
    // The token is to be in no argument, which all can see. Runners since 1.0 take it from a
    // variable; those before do not, but they ask for what is missing and read the answer from
    // standard input. Those since have to be told not to ask, or they would take it for a label.
    // `--help` runs nothing, and only fails if there is an unknown option before it.
    let probe = [&*program, "register", "--token-file", "/dev/null", "--help"].map(str::to_owned);
    let takes_variable =
        boot.run(&mut boot.command(As { cwd: Path::new("/"), ..user }, probe.to_vec()))? == 0;
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
        // It asks for labels too if there are none; an empty line means the usual ones.
        let answer = if labels.is_empty() { "\n" } else { "" };
        command.stdin = format!("{token}\n{answer}").into_bytes();
    }
    let own = dir().join(".runner");
    // With it comes the directory.
    boot.guest.write(&own, b"", 0o600, user.owner)?;
    let mut code = 0;
    for attempt in 1..=TRIES {
        // It would ask whether to write over it.
        boot.guest.remove(&own)?;
        code = boot.run(&mut command)?;
        if code == 0 {
            return credentials::registered_id(boot.guest, &own, "id").map(Some);
        }
        boot.guest.note(&format!("register ended with code {code}, try {attempt} of {TRIES}"));
        if attempt < TRIES {
            thread::sleep(garm.retry.pause);
        }
    }
    Err(BootError::Registration { code, tries: TRIES })
}

/// Returns how the runner is run.
pub fn run<G: Guest>(boot: &BootContext<'_, G>, runner: &RunnerSpec, user: As<'_>) -> GuestCommand {
    let args = [&*runner.program.display().to_string(), "daemon", "--once"];
    boot.command(user, args.map(str::to_owned).to_vec())
}
