//! `doctor --probe`: tests that containers and builds cannot reach the host and other jobs.
//!
//! One static program is both server and client. On the host and in another container, it listens on addresses and
//! sockets, creates files, and verifies that it can reach them. In a container or build, it first reaches its own
//! loopback, sockets and files as a control, and then tries to reach the servers'.

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

use oci_hooks_files::fs::{PathContext as _, PathError, random_u64};
use oci_hooks_files::spawn;
use oci_hooks_host::metadata::METADATA;
use oci_hooks_init::trials::{
    ProbeAttempt, ProbeMessage, ProbeOutcome, ProbeTask, default_gateway,
};

use report::ProbeColumn;
pub use trial::TargetOwner;
use trial::{ProbeCase, ReachCriterion};

/// File name by which the program runs as a probe.
pub const PROGRAM: &str = "probe";

/// Heading of the report's column for this host.
const HOST: &str = "host";

/// Heading of the report's column for image builds of Dockerfile actions.
pub const BUILD: &str = "build";

/// Address by which slirp4netns forwards to the host's loopback by default.
const SLIRP4NETNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Kernel files through which a writer can change the host; only root on the host may write them.
const KERNEL_WRITTEN: [&str; 4] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper",
];
/// Kernel files that expose the host to a reader; only root on the host may read them.
const KERNEL_READ: [&str; 2] = ["/proc/kcore", "/sys/firmware/acpi/tables/DSDT"];

/// Directories of the host in which all users can create files and sockets.
const DIRECTORIES: [&str; 4] = ["/tmp", "/var/tmp", "/dev/shm", "/run"];

/// A test of isolation: trials, and their outcomes for each place that they are run from, such as a
/// job's container.
pub struct IsolationProbe {
    directory: PathBuf,
    /// Random part of the names of the probe's sockets and files.
    number: String,
    /// Prefix of the lines that the probe program prints.
    word: String,
    /// Answer of the probe's servers, by which clients recognize them.
    token: String,
    trials: Vec<ProbeCase>,
    columns: Vec<ProbeColumn>,
    /// Errors other than reached servers; they make the probe fail.
    problems: Vec<String>,
    /// Remarks on the outcomes, which do not make the probe fail.
    notes: Vec<String>,
    /// Server on the host, which jobs must not reach.
    serving: Option<Child>,
    /// Client on the host, which tries everything for comparison.
    trying: Option<Child>,
}

impl IsolationProbe {
    /// Creates a probe with the trials that need no server, and writes the program to `directory`, which is private.
    pub fn new(directory: &Path) -> Result<Self, PathError> {
        let program = directory.join(PROGRAM);
        fs::write(&program, oci_hooks_init::PROGRAM).with_path("write", &program)?;
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&program, executable).with_path("change the mode of", &program)?;
        let own = "its own loopback, sockets, files and process".to_owned();
        let mut trials = vec![ProbeCase::new(own, ProbeAttempt::Own, ReachCriterion::Control)];
        trials.extend(METADATA.iter().map(|metadata| {
            let address = SocketAddr::new(metadata.address, 80);
            ProbeCase::new(
                format!("metadata: tcp {address}"),
                ProbeAttempt::Rule(address),
                ReachCriterion::Answer,
            )
        }));
        let kernel = KERNEL_WRITTEN.map(|path| ProbeAttempt::Write(path.into())).into_iter();
        let kernel = kernel.chain(KERNEL_READ.map(|path| ProbeAttempt::Read(path.into())));
        trials.extend(kernel.map(|attempt| {
            ProbeCase::new(format!("kernel: {attempt}"), attempt, ReachCriterion::Access)
        }));
        Ok(IsolationProbe {
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

    /// Adds a trial that tests whether containers share the kernel's per-user limits with root of
    /// this host, which must not be so. `allowed` is the setting that makes them share, if it is
    /// set.
    pub fn add_limits(&mut self, allowed: Option<&'static str>) {
        let name = "limits: inotify, signals, queues, namespaces".to_owned();
        let mut trial = ProbeCase::new(name, ProbeAttempt::Limits, ReachCriterion::Access);
        trial.allowed = allowed;
        self.trials.push(trial);
    }

    /// Returns the task of a server that jobs must not reach. The server also creates files in
    /// `directories`, which jobs must not reach either.
    pub fn serve(&self, whose: TargetOwner, directories: Vec<PathBuf>) -> ProbeTask {
        let mark = format!("{}-{}", whose.word(), self.number);
        ProbeTask::Serve { word: self.word.clone(), token: self.token.clone(), mark, directories }
    }

    /// Returns the task of a client that runs all trials added so far.
    pub fn attempt(&self) -> ProbeTask {
        let attempts = self.trials.iter().map(|trial| trial.attempt.clone()).collect();
        ProbeTask::Try { word: self.word.clone(), attempts }
    }

    /// Starts a server on this host. `allowed` is the setting that lets jobs reach its addresses other than loopback,
    /// if it is set.
    pub fn serve_on_host(
        &mut self,
        directories: &[&Path],
        allowed: Option<&'static str>,
    ) -> Result<(), PathError> {
        let directories = directories.iter().copied().chain(DIRECTORIES.map(Path::new));
        let task = self.serve(TargetOwner::Host, directories.map(Path::to_owned).collect());
        let mut child = self.start(&task)?;
        let stdout = child.stdout.take().map(BufReader::new);
        let mut serving = Vec::new();
        let lines = stdout.into_iter().flat_map(|stdout| stdout.lines().map_while(Result::ok));
        for said in lines.filter_map(|line| self.parse_line(&line)) {
            match said {
                ProbeMessage::Serves(attempt) => serving.push(attempt),
                _ => break,
            }
        }
        self.serving = Some(child);
        if serving.is_empty() {
            self.problem(
                "cannot test what jobs can reach on this host: the servers of the probe did not start".to_owned(),
            );
        }
        self.add(TargetOwner::Host, serving, allowed);
        Ok(())
    }

    /// Starts all trials on this host, to find out which targets exist.
    pub fn try_on_host(&mut self) -> Result<(), PathError> {
        self.trying = Some(self.start(&self.attempt())?);
        Ok(())
    }

    /// Waits for the trials on this host.
    pub fn finish(&mut self) -> Result<(), PathError> {
        let Some(child) = self.trying.take() else { return Ok(()) };
        let output =
            child.wait_with_output().with_path("wait for", &self.directory.join(PROGRAM))?;
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        self.column(HOST, output.lines(), "the probe reported no outcome");
        // The host's column comes first, for comparison.
        self.columns.rotate_right(1);
        for (trial, outcome) in self.trials.iter_mut().zip(&self.columns[0].outcomes) {
            trial.is_there |= trial.is_reached(outcome, &self.token);
        }
        Ok(())
    }

    /// Parses a log line of a probe.
    pub fn parse_line(&self, line: &str) -> Option<ProbeMessage> {
        ProbeMessage::read(&self.word, line)
    }

    /// Adds trials for the addresses, sockets and files of a server.
    pub fn add(
        &mut self,
        whose: TargetOwner,
        serving: Vec<ProbeAttempt>,
        allowed: Option<&'static str>,
    ) {
        for attempt in serving {
            let ip = match &attempt {
                ProbeAttempt::Tcp(address) | ProbeAttempt::Udp(address) => Some(address.ip()),
                _ => None,
            };
            let is_network = ip.is_some() || matches!(attempt, ProbeAttempt::Gateway(_));
            let is_loopback = ip.is_some_and(|ip| ip.is_loopback());
            if whose == TargetOwner::Other && matches!(attempt, ProbeAttempt::Gateway(_)) {
                // The container's own addresses are tried.
                continue;
            }
            if whose == TargetOwner::Host
                && let ProbeAttempt::Tcp(address @ SocketAddr::V4(_)) = attempt
                && is_loopback
            {
                // pasta maps the address of the default gateway to the host by default.
                let pasta = default_gateway().map(|gateway| ("pasta", gateway));
                for (program, name) in [("slirp4netns", SLIRP4NETNS)].into_iter().chain(pasta) {
                    let attempt = ProbeAttempt::Tcp((name, address.port()).into());
                    let name = format!("{whose}: loopback through {program}, {attempt}");
                    self.trials.push(ProbeCase::with_verified_server(name, attempt));
                }
            }
            let mut trial = ProbeCase::with_verified_server(format!("{whose}: {attempt}"), attempt);
            trial.allowed = allowed.filter(|_| is_network && !is_loopback);
            self.trials.push(trial);
        }
    }

    /// Adds a column with the outcomes in a probe's log. Trials without an outcome were not run,
    /// for the given reason.
    pub fn column<'l>(&mut self, from: &str, lines: impl Iterator<Item = &'l str>, reason: &str) {
        let untried = ProbeOutcome::Untried(reason.to_owned());
        let mut outcomes = vec![untried; self.trials.len()];
        for said in lines.filter_map(|line| self.parse_line(line)) {
            if let ProbeMessage::Outcome { index, outcome } = said
                && let Some(place) = outcomes.get_mut(index)
            {
                *place = outcome;
            }
        }
        self.columns.push(ProbeColumn { from: from.to_owned(), outcomes });
    }

    /// Adds an error: the probe fails.
    pub fn problem(&mut self, text: String) {
        // Each job may fail for the same reason.
        if !self.problems.contains(&text) {
            self.problems.push(text);
        }
    }

    /// Adds a remark on the outcomes.
    pub fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Starts the program on this host.
    fn start(&self, task: &ProbeTask) -> Result<Child, PathError> {
        let kind = if matches!(task, ProbeTask::Try { .. }) { "try" } else { "serve" };
        let file = self.directory.join(format!("{kind}-on-host"));
        fs::write(&file, task.to_string()).with_path("write", &file)?;
        let program = self.directory.join(PROGRAM);
        let mut command = Command::new(&program);
        // In its own process group, the child gets no signals of the terminal; this process kills it.
        command.arg(file).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
        spawn::die_with_us(&mut command);
        command.spawn().with_path("execute", &program)
    }
}

impl Drop for IsolationProbe {
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
