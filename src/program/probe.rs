//! `doctor --probe`: tries from containers and builds to reach what jobs must not reach.
//!
//! One static program serves and tries. On the host and in another container, it listens on addresses and sockets and
//! has files, and checks that it reaches them itself. In a container or build, it first reaches its own loopback,
//! sockets and files as a control, and then tries the others.

mod image;
mod report;
mod trial;

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::sys::fs::{PathContext as _, PathError, random_u64};
use crate::sys::init;
use crate::sys::init::trials::{Attempt, Outcome, Said, Task, default_gateway};
use crate::sys::metadata::METADATA;
use crate::sys::spawn;

use report::Column;
pub use trial::Whose;
use trial::{Meaning, Trial};

/// What the program has to be called to be a probe.
pub const PROGRAM: &str = "probe";

/// What the column of this host is called.
const HOST: &str = "host";

/// Where slirp4netns has the loopback of the host, unless it is told not to.
const SLIRP4NETNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Files of the kernel that change or show the host, and are open to root of the host alone.
const KERNEL_WRITTEN: [&str; 4] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
];
const KERNEL_READ: [&str; 2] = ["/proc/kcore", "/sys/firmware/acpi/tables/DSDT"];

/// Directories of the host in which all users may have files and sockets.
const DIRECTORIES: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];

/// What is tried, from where, and what came of it.
pub struct Probe {
    directory: PathBuf,
    /// What is in the names of sockets and files.
    number: String,
    /// What the lines of probes begin with.
    word: String,
    /// What those say who are reached.
    token: String,
    trials: Vec<Trial>,
    columns: Vec<Column>,
    /// What makes the probe fail besides what was reached, and what does not.
    problems: Vec<String>,
    notes: Vec<String>,
    /// What is to be out of reach on the host, and what tries all from there.
    serving: Option<Child>,
    trying: Option<Child>,
}

impl Probe {
    /// Begins with what needs no other process. The directory, which is private, gets the program.
    pub fn new(directory: &Path) -> Result<Self, PathError> {
        let program = directory.join(PROGRAM);
        fs::write(&program, init::PROGRAM).at("write", &program)?;
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&program, executable).at("change the mode of", &program)?;
        let own = "its own loopback, sockets, files and process".to_owned();
        let mut trials = vec![Trial::new(own, Attempt::Own, Meaning::Control)];
        trials.extend(METADATA.iter().map(|metadata| {
            let address = SocketAddr::new(metadata.address, 80);
            Trial::new(format!("metadata: tcp {address}"), Attempt::Rule(address), Meaning::Answer)
        }));
        let kernel = KERNEL_WRITTEN.map(|path| Attempt::Write(path.into())).into_iter();
        let kernel = kernel.chain(KERNEL_READ.map(|path| Attempt::Read(path.into())));
        trials.extend(
            kernel
                .map(|attempt| Trial::new(format!("kernel: {attempt}"), attempt, Meaning::Access)),
        );
        Ok(Probe {
            directory: directory.to_owned(),
            number: format!("{:08x}", random_u64() >> 32),
            word: format!("probe-{:016x}", random_u64()),
            token: format!("token-{:016x}", random_u64()),
            trials,
            columns: Vec::new(),
            problems: Vec::new(),
            notes: Vec::new(),
            serving: None,
            trying: None,
        })
    }

    /// Returns the task of a server that must not be reached, which has files in these directories besides.
    pub fn serve(&self, whose: Whose, directories: Vec<PathBuf>) -> Task {
        let mark = format!("{}-{}", whose.word(), self.number);
        Task::Serve { word: self.word.clone(), token: self.token.clone(), mark, directories }
    }

    /// Returns the task that tries all that is known by now.
    pub fn attempt(&self) -> Task {
        let attempts = self.trials.iter().map(|trial| trial.attempt.clone()).collect();
        Task::Try { word: self.word.clone(), attempts }
    }

    /// Starts a server on this host. What it serves besides loopback, `allowed` may let jobs reach: a setting.
    pub fn serve_on_host(
        &mut self,
        directories: &[&Path],
        allowed: Option<&'static str>,
    ) -> Result<(), PathError> {
        let directories = directories.iter().copied().chain(DIRECTORIES.map(Path::new));
        let task = self.serve(Whose::Host, directories.map(Path::to_owned).collect());
        let mut child = self.start(&task)?;
        let stdout = child.stdout.take().map(BufReader::new);
        let mut serving = Vec::new();
        let lines = stdout.into_iter().flat_map(|stdout| stdout.lines().map_while(Result::ok));
        for said in lines.filter_map(|line| self.said(&line)) {
            match said {
                Said::Serves(attempt) => serving.push(attempt),
                _ => break,
            }
        }
        self.serving = Some(child);
        if serving.is_empty() {
            self.problem("nothing of this host was tried: the probe does not run here".to_owned());
        }
        self.add(Whose::Host, serving, allowed);
        Ok(())
    }

    /// Begins to try all on this host itself, which shows what there is to be reached.
    pub fn try_on_host(&mut self) -> Result<(), PathError> {
        self.trying = Some(self.start(&self.attempt())?);
        Ok(())
    }

    /// Waits until all was tried on this host.
    pub fn finish(&mut self) -> Result<(), PathError> {
        let Some(child) = self.trying.take() else { return Ok(()) };
        let output = child.wait_with_output().at("wait for", &self.directory.join(PROGRAM))?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        self.column(HOST, output.lines(), "the probe does not run");
        // First, for comparison.
        self.columns.rotate_right(1);
        for (trial, outcome) in self.trials.iter_mut().zip(&self.columns[0].outcomes) {
            trial.is_there |= trial.is_reached(outcome, &self.token);
        }
        Ok(())
    }

    /// Returns what a line of a log says that a probe wrote.
    pub fn said(&self, line: &str) -> Option<Said> {
        Said::read(&self.word, line)
    }

    /// Adds what a server says it is reached by.
    pub fn add(&mut self, whose: Whose, serving: Vec<Attempt>, allowed: Option<&'static str>) {
        for attempt in serving {
            let ip = match &attempt {
                Attempt::Tcp(address) | Attempt::Udp(address) => Some(address.ip()),
                _ => None,
            };
            let is_network = ip.is_some() || matches!(attempt, Attempt::Gateway(_));
            let is_loopback = ip.is_some_and(|ip| ip.is_loopback());
            if whose == Whose::Other && matches!(attempt, Attempt::Gateway(_)) {
                // It is at its own addresses, which are tried.
                continue;
            }
            if whose == Whose::Host
                && let Attempt::Tcp(address @ SocketAddr::V4(_)) = attempt
                && is_loopback
            {
                // That is what pasta calls the host, unless it is told not to.
                let pasta = default_gateway().map(|gateway| ("pasta", gateway));
                for (program, name) in [("slirp4netns", SLIRP4NETNS)].into_iter().chain(pasta) {
                    let attempt = Attempt::Tcp((name, address.port()).into());
                    let name = format!("{whose}: loopback by {program}, {attempt}");
                    self.trials.push(Trial::served(name, attempt));
                }
            }
            let mut trial = Trial::served(format!("{whose}: {attempt}"), attempt);
            trial.allowed = allowed.filter(|_| is_network && !is_loopback);
            self.trials.push(trial);
        }
    }

    /// Notes what probes wrote somewhere; what of it is missing was not tried, for this reason.
    pub fn column<'l>(&mut self, from: &str, lines: impl Iterator<Item = &'l str>, reason: &str) {
        let untried = Outcome::Untried(reason.to_owned());
        let mut outcomes = vec![untried; self.trials.len()];
        for said in lines.filter_map(|line| self.said(line)) {
            if let Said::Outcome { index, outcome } = said
                && let Some(place) = outcomes.get_mut(index)
            {
                *place = outcome;
            }
        }
        self.columns.push(Column { from: from.to_owned(), outcomes });
    }

    /// Notes that something was not as it should be: the probe fails.
    pub fn problem(&mut self, text: String) {
        self.problems.push(text);
    }

    /// Notes what one should know of the outcomes.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Starts the program on this host.
    fn start(&self, task: &Task) -> Result<Child, PathError> {
        let kind = if matches!(task, Task::Try { .. }) { "try" } else { "serve" };
        let file = self.directory.join(format!("{kind}-on-host"));
        fs::write(&file, task.to_string()).at("write", &file)?;
        let program = self.directory.join(PROGRAM);
        let mut command = Command::new(&program);
        // A terminal sends its signals to this process, which ends it.
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        spawn::die_with_us(&mut command);
        command.spawn().at("execute", &program)
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        for child in self.serving.iter_mut().chain(&mut self.trying) {
            let _ = child.kill();
            let _ = child.wait();
        }
        for trial in &self.trials {
            trial.remove_file();
        }
    }
}
