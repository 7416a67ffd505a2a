//! `step-runner doctor`.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};
use oci_hooks::program::check::{Check, Outcome, report};
use oci_hooks::program::context::{Color, Context};
use oci_hooks::program::exit;
use oci_hooks::step_runner::client::{Address, Client, Retry};
use oci_hooks::step_runner::gitlab_helper::{candidates, original};
use oci_hooks::step_runner::socket;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::fs::Who;
use rustix::fs::statvfs;

use crate::environment::{self, is_writable};
use crate::error::Error;
use crate::{Exit, serve};

/// How long a server has to answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Free space below which logs of jobs may not fit.
const SMALL_BYTES: u64 = 256 << 20;

/// Places of the shells of GitLab's runner.
const BASH: [&str; 3] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash"];
const SH: [&str; 4] = ["/usr/local/bin/sh", "/usr/bin/sh", "/bin/sh", "/busybox/sh"];

/// Files with CA certificates in the usual images.
const CERTIFICATES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];

const OUTCOME: Outcome = Outcome { good: "steps will run", bad: "steps will not run" };

/// Check where this program runs for problems, and print a fix for each
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
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable
    Text,
    /// Machine-readable
    Json,
}

pub fn run(args: &DoctorArgs) -> Result<Exit, Error> {
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
        Check::ok("time-outs", serve::time_outs()),
    ];
    let mut context = Context::new(Color::Auto, args.format == Format::Json);
    let exit = report(&checks, OUTCOME, &mut context);
    let exit = exit.and_then(|exit| context.flush().map(|()| exit));
    Ok(match exit? {
        exit::Exit::Done => Exit::Done,
        _ => Exit::Failed,
    })
}

fn program() -> Check {
    let version = env!("CARGO_PKG_VERSION");
    let Ok(exe) = env::current_exe() else { return Check::ok("program", version) };
    let name = exe.display();
    match original(&exe) {
        Some(path) => {
            Check::ok("program", format!("{version}, {name}; GitLab's: {}", path.display()))
        }
        None => {
            let missing = candidates(&exe).swap_remove(0);
            let text =
                format!("{version}, {name}; no program of GitLab's at {}", missing.display());
            Check::ok("program", text)
        }
    }
}

fn user() -> Check {
    let uid = rustix::process::geteuid().as_raw();
    let passwd = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let is_own = |line: &&str| line.split(':').nth(2) == Some(&*uid.to_string());
    match passwd.lines().find(is_own).and_then(|line| line.split(':').next()) {
        Some(name) => Check::ok("user", format!("{name} ({uid})")),
        None => Check::warn(
            "user",
            format!("{uid}, who is not in /etc/passwd"),
            "SSH and some other programs need a name: add a line to /etc/passwd of the image",
        ),
    }
}

fn home() -> Check {
    let hint = "set HOME to a directory that the user can write to; steps from elsewhere are kept in the \
                directory for files of jobs until then";
    match env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from) {
        Some(home) if is_writable(&home) => Check::ok("home", home.display().to_string()),
        Some(home) => Check::warn("home", format!("{} cannot be written to", home.display()), hint),
        None => Check::warn("home", "HOME is not set", hint),
    }
}

fn directory() -> Check {
    let dir = match environment::private_dir() {
        Ok(dir) => dir,
        Err(error) => {
            let hint =
                "mount a tmpfs at /tmp, or set TMPDIR to a directory that the user can write to";
            return Check::fail("files", chain(&error), hint);
        }
    };
    let free = statvfs(&dir).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize)).ok();
    let found = |free: u64| format!("{}, {} MB free", dir.display(), free / 1_000_000);
    match free {
        Some(free) if free < SMALL_BYTES => {
            let hint =
                "logs of jobs are kept there while they run: set TMPDIR to a larger file system";
            Check::warn("files", found(free), hint)
        }
        Some(free) => Check::ok("files", found(free)),
        None => Check::ok("files", dir.display().to_string()),
    }
}

/// Looks at the socket, and asks the server for its jobs.
fn server(path: &Path) -> Result<Check, Error> {
    let name = "server";
    let Ok(meta) = fs::symlink_metadata(path) else {
        let hint = "that is right unless a job should be running: step-runner serve starts one";
        return Ok(Check::warn(name, format!("none at {}", path.display()), hint));
    };
    let owner = Who::User(meta.uid()).named().to_string();
    let found = format!("{} of {owner}", path.display());
    if let Err(error) = socket::dial(path) {
        let hint = "start the server again, which replaces a socket that a killed one left";
        return Ok(Check::fail(name, format!("{found}: {error}"), hint));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let jobs = runtime.map_err(Error::Threads)?.block_on(async {
        let client = Client::new(Address::Socket(path.to_owned()))
            .with_retry(Retry::default().giving_up_after(ANSWER));
        tokio::time::timeout(2 * ANSWER, client.status("")).await
    });
    Ok(match jobs {
        Ok(Ok(jobs)) => Check::ok(name, format!("{found}, answers, {} jobs", jobs.len())),
        Ok(Err(error)) => {
            let hint = "look into the log of the server, and start it again";
            Check::fail(name, format!("{found}: {}", chain(&error)), hint)
        }
        Err(_) => {
            let hint = "look into the log of the server, and start it again";
            Check::fail(name, format!("{found}: no answer"), hint)
        }
    })
}

fn shell() -> Check {
    let find =
        |paths: &[&'static str]| paths.iter().copied().find(|path| is_program(Path::new(path)));
    match (find(&BASH), find(&SH)) {
        (Some(bash), _) => Check::ok("shell", format!("bash, {bash}")),
        (None, Some(sh)) => Check::warn(
            "shell",
            format!("sh, {sh}; no bash"),
            "scripts that are written for bash fail: install bash in the image",
        ),
        (None, None) => Check::warn(
            "shell",
            "none",
            "steps with `exec` run, scripts do not: use an image with bash or sh for those",
        ),
    }
}

fn git() -> Check {
    let hint = "steps from repositories by HTTP are fetched without it; those by SSH need it: install git in \
                the image";
    let path = env::var_os("PATH").unwrap_or_default();
    let Some(program) =
        env::split_paths(&path).map(|dir| dir.join("git")).find(|path| is_program(path))
    else {
        return Check::warn("git", "not in PATH", hint);
    };
    let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            let version = text.trim().trim_start_matches("git version ");
            Check::ok("git", format!("{version}, {}", program.display()))
        }
        _ => Check::warn("git", format!("{} cannot be executed", program.display()), hint),
    }
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.mode() & 0o111 != 0)
}

fn certificates() -> Check {
    let named = env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = CERTIFICATES.iter().map(PathBuf::from);
    match named.into_iter().chain(usual).find(|path| path.is_file()) {
        Some(path) => Check::ok("certificates", path.display().to_string()),
        // The registry and git clients have roots of their own; curl and others in scripts have not.
        None => Check::ok(
            "certificates",
            "none of the image: those beside this program, or compiled in, are for steps from elsewhere",
        ),
    }
}

fn cgroup() -> Check {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"));
    let dir = path.map(|path| Path::new("/sys/fs/cgroup").join(path));
    let is_usable =
        dir.as_ref().is_some_and(|dir| dir.join("cgroup.procs").exists() && is_writable(dir));
    Check::ok(
        "cgroup",
        match dir {
            Some(dir) if is_usable => format!("{}, writable", dir.display()),
            _ => "not writable: processes of jobs are found by their parents and marks".to_owned(),
        },
    )
}
