//! `step-runner doctor`.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs, io};

use clap::{Args, ValueEnum};
use oci_hooks_cli::check::{CheckSummary, HostCheck, report};
use oci_hooks_cli::context::{CliContext, ColorMode};
use oci_hooks_cli::exit::CliExit;
use oci_hooks_files::error::chain;
use oci_hooks_files::fs::AccessSubject;
use rustix::fs::statvfs;
use step_runner::client::{ServerAddress, StepClient};
use step_runner::gitlab_helper::{candidates, original_program};
use step_runner::socket;

use crate::environment::{self, is_writable};
use crate::error::StepRunnerError;
use crate::serve;

/// Time limit for the server's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Free disk space in bytes below which logs of jobs may not fit.
const MIN_FREE_BYTES: u64 = 256 << 20;

/// Paths at which GitLab's runner looks for bash.
const BASH: [&str; 3] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash"];

/// Paths at which GitLab's runner looks for sh.
const SH: [&str; 4] = ["/usr/local/bin/sh", "/usr/bin/sh", "/bin/sh", "/busybox/sh"];

/// Files with CA certificates in common base images.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

const OUTCOME: CheckSummary = CheckSummary { good: "steps will run", bad: "steps will not run" };

/// Check this environment for problems, and print a fix for each
#[derive(Args, Debug)]
#[command(after_help = "\
Run it where steps run, as their user: in a build container that is
  docker exec BUILD /opt/gitlab-runner/gitlab-runner-helper steps doctor

Exit status is 0 if steps will run, and 1 otherwise.")]
pub struct DoctorArgs {
    /// Socket of the server [default: STEP_RUNNER_SOCKET, or else the default socket of serve]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Output format of findings
    #[arg(long, value_enum, default_value_t = DoctorFormat::Text, value_name = "FORMAT")]
    format: DoctorFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DoctorFormat {
    /// Human-readable
    Text,
    /// Machine-readable
    Json,
}

pub fn run(args: &DoctorArgs) -> Result<CliExit, StepRunnerError> {
    let path = args.socket.clone().unwrap_or_else(environment::server_socket);
    let checks = [
        program(),
        user(),
        home(),
        directory(),
        server(&path)?,
        shell(),
        git(),
        certificates(),
        cgroup(),
        HostCheck::ok("time-outs", serve::time_outs()),
    ];
    let mut context = CliContext::new(ColorMode::Auto, args.format == DoctorFormat::Json);
    let exit = report(&checks, OUTCOME, &mut context)?;
    context.flush()?;
    Ok(exit)
}

fn program() -> HostCheck {
    let version = env!("CARGO_PKG_VERSION");
    let Ok(exe) = env::current_exe() else { return HostCheck::ok("program", version) };
    let name = exe.display();
    match original_program(&exe) {
        Some(path) => HostCheck::ok(
            "program",
            format!("{version}, {name}; GitLab's program: {}", path.display()),
        ),
        None => {
            let missing = candidates(&exe).swap_remove(0);
            let text =
                format!("{version}, {name}; GitLab's program not found at {}", missing.display());
            HostCheck::ok("program", text)
        }
    }
}

fn user() -> HostCheck {
    let uid = rustix::process::geteuid().as_raw();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_own = |line: &&str| line.split(':').nth(2) == Some(&*uid.to_string());
    match passwd.lines().find(is_own).and_then(|line| line.split(':').next()) {
        Some(name) => HostCheck::ok("user", format!("{name} ({uid})")),
        None => HostCheck::warn(
            "user",
            format!("{uid}, not in /etc/passwd"),
            "SSH and some other programs need a name: add a line to /etc/passwd of the image",
        ),
    }
}

fn home() -> HostCheck {
    let hint = "set HOME to a directory that the user can write to; until then, steps from git and images are cached \
                in the directory of the check \"files\"";
    match env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from) {
        Some(home) if is_writable(&home) => HostCheck::ok("home", home.display().to_string()),
        Some(home) => HostCheck::warn("home", format!("{} is not writable", home.display()), hint),
        None => HostCheck::warn("home", "HOME is not set", hint),
    }
}

fn directory() -> HostCheck {
    let dir = match environment::private_dir() {
        Ok(dir) => dir,
        Err(error) => {
            let hint =
                "mount a tmpfs at /tmp, or set TMPDIR to a directory that the user can write to";
            return HostCheck::fail("files", chain(&error), hint);
        }
    };
    let free = statvfs(&dir).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).ok();
    let found = |free: u64| format!("{}, {} MB free", dir.display(), free / 1_000_000);
    match free {
        Some(free) if free < MIN_FREE_BYTES => {
            let hint = "logs of running jobs are stored there: set TMPDIR to a directory on a larger file system";
            HostCheck::warn("files", found(free), hint)
        }
        Some(free) => HostCheck::ok("files", found(free)),
        None => HostCheck::ok("files", dir.display().to_string()),
    }
}

/// Checks the socket, and asks the server for its jobs.
fn server(path: &Path) -> Result<HostCheck, StepRunnerError> {
    let name = "server";
    let Ok(meta) = fs::symlink_metadata(path) else {
        let hint = "expected unless a job is running; to start a server, run step-runner serve";
        return Ok(HostCheck::warn(name, format!("no socket at {}", path.display()), hint));
    };
    let owner = AccessSubject::User(meta.uid()).display_name().to_string();
    let found = format!("{}, owned by {owner}", path.display());
    if let Err(error) = socket::dial(path) {
        let hint = match error.kind() {
            _ if !meta.file_type().is_socket() => {
                "this is not a socket: remove it, or name the server's socket with --socket"
            }
            io::ErrorKind::ConnectionRefused => {
                "no server listens on it: start the server again, which replaces the socket of a killed one"
            }
            io::ErrorKind::PermissionDenied => {
                "run this as the user of the server, or name the socket of another server with --socket"
            }
            _ => "name the server's socket with --socket",
        };
        return Ok(HostCheck::fail(name, format!("{found}: {error}"), hint));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let jobs = runtime.map_err(StepRunnerError::Threads)?.block_on(async {
        let client =
            StepClient::new(ServerAddress::Socket(path.to_owned())).with_give_up(ANSWER_TIMEOUT);
        tokio::time::timeout(2 * ANSWER_TIMEOUT, client.status("")).await
    });
    Ok(match jobs {
        Ok(Ok(jobs)) => {
            HostCheck::ok(name, format!("{found}, responding, {}", serve::job_count(jobs.len())))
        }
        Ok(Err(error)) => {
            let hint = "check the log of the server, and restart it";
            HostCheck::fail(name, format!("{found}: {}", chain(&error)), hint)
        }
        Err(_) => {
            let hint = "check the log of the server, and restart it";
            HostCheck::fail(
                name,
                format!("{found}: no response within {} s", 2 * ANSWER_TIMEOUT.as_secs()),
                hint,
            )
        }
    })
}

fn shell() -> HostCheck {
    let find =
        |paths: &[&'static str]| paths.iter().copied().find(|path| is_program(Path::new(path)));
    match (find(&BASH), find(&SH)) {
        (Some(bash), _) => HostCheck::ok("shell", format!("bash, {bash}")),
        (None, Some(sh)) => HostCheck::warn(
            "shell",
            format!("sh, {sh}; no bash"),
            "bash scripts fail: install bash in the image",
        ),
        (None, None) => HostCheck::warn(
            "shell",
            "none",
            "steps with `exec` run, scripts do not: use an image with bash or sh for scripts",
        ),
    }
}

fn git() -> HostCheck {
    let hint = "steps from git repositories need git: install it in the image, or use steps from OCI images";
    let path = env::var_os("PATH").unwrap_or_default();
    let Some(program) =
        env::split_paths(&path).map(|dir| dir.join("git")).find(|path| is_program(path))
    else {
        return HostCheck::warn("git", "not in PATH", hint);
    };
    let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let version = text.trim().trim_start_matches("git version ");
            HostCheck::ok("git", format!("{version}, {}", program.display()))
        }
        _ => HostCheck::warn("git", format!("{} --version failed", program.display()), hint),
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
}

fn certificates() -> HostCheck {
    let named = env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = named.as_ref().filter(|path| fs::read(path).is_err()) {
        let text = format!("SSL_CERT_FILE names {}, which cannot be read", path.display());
        let hint = "correct or unset SSL_CERT_FILE: until then, step images cannot be fetched, and programs such as curl fail";
        return HostCheck::warn("certificates", text, hint);
    }
    let usual = CERTIFICATES.iter().map(PathBuf::from);
    match named.into_iter().chain(usual).find(|path| path.is_file()) {
        Some(path) => HostCheck::ok("certificates", path.display().to_string()),
        // The registry client has built-in root certificates; git, and programs such as curl in scripts, do not.
        None => HostCheck::ok(
            "certificates",
            "none in the image: step images are fetched with ca-certs.pem next to this program, or with compiled-in ones",
        ),
    }
}

fn cgroup() -> HostCheck {
    // On hosts with both versions, version 2 is mounted elsewhere.
    let dir = oci_hooks_host::cgroup::own_cgroup().map(|(dir, _)| dir);
    let is_usable = dir.as_ref().is_some_and(|dir| is_writable(dir));
    HostCheck::ok(
        "cgroup",
        match dir {
            Some(dir) if is_usable => format!("{}, writable", dir.display()),
            _ => "not writable: processes of jobs are identified by their parent and the variable STEP_RUNNER_JOB"
                .to_owned(),
        },
    )
}
