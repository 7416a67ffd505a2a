//! `garm-provider-runc doctor --probe`: creates an instance of each flavor, which tries to reach another instance and
//! this host. This program acts as GARM: it calls itself, and receives the reports of supervisors.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufRead as _, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use garm_provider_runc::logs::newest_log;
use garm_provider_runc::record::ControllerRecords;
use garm_provider_runc::{COMMAND_VARIABLE, InstanceUserNamespace};
use oci_hooks_cli::context::CliContext;
use oci_hooks_cli::exit::CliExit;
use oci_hooks_engine_cli::probe::{IsolationProbe, TargetOwner};
use oci_hooks_engine_cli::programs::program_path;
use oci_hooks_engine_cli::rootless::EnterOutcome;
use oci_hooks_engine_cli::settings_file::FileSettings as _;
use oci_hooks_files::fs::{PathContext as _, PathError, make_private};
use oci_hooks_files::spawn;
use oci_hooks_host::privilege::exit_at_once;
use oci_hooks_host::removal::remove_tree;
use oci_hooks_image::ImageReference;
use oci_hooks_init::trials::{ProbeAttempt, ProbeMessage, ProbeTask};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use crate::backend::{self, InstanceBackend};
use crate::error::AdminError;
use crate::settings::{FILE_VARIABLE, GarmFileSettings};

/// The setting that lets instances reach the addresses of this host.
const HOST_ACCESS: &str = "`host-access = true` under [network]";

/// The setting that puts instances in the host's user namespace.
const HOST_USERS: &str = "`user-namespace` under [security]";

/// Alias of the image in the settings of the probe.
const IMAGE: &str = "oci-hooks-probe";

/// Id of the pool, the same for all probes.
const POOL: &str = "doctor-probe";

/// Timeout for the output of an instance.
const PATIENCE: Duration = Duration::from_secs(60);

/// Interval at which an instance's log is read.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Timeout of each read from a supervisor that sends a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Size limit of a supervisor's request.
const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// Runs the probe and prints its report.
pub fn probe(settings: &GarmFileSettings, context: &mut CliContext) -> Result<CliExit, AdminError> {
    let received_signal = Arc::new(AtomicUsize::new(0));
    for (signal, number) in [(SIGHUP, 1), (SIGINT, 2), (SIGQUIT, 3), (SIGTERM, 15)] {
        flag::register_usize(signal, Arc::clone(&received_signal), number)
            .map_err(AdminError::Signals)?;
    }
    let name = format!("probe-{}", std::process::id());
    make_private(&settings.store.root)?;
    let directory = settings.store.root.join(&name);
    DirBuilder::new()
        .mode(0o700)
        .create(&directory)
        .with_path("create the directory", &directory)?;
    let played = SimulatedGarm::new(settings, name, directory.clone(), &received_signal).and_then(
        |mut garm| {
            let tried = garm.run_probe(context);
            // The instances are removed even after an error.
            let removed = garm.remove(context);
            let probe = tried?;
            removed.map(|()| probe)
        },
    );
    let removed = remove_tree(&directory);
    let probe = played?;
    removed?;
    match received_signal.load(Ordering::Relaxed) {
        0 => Ok(probe.report(context)?),
        signal => Ok(CliExit::Code(u8::try_from(128 + signal).unwrap_or(1))),
    }
}

/// A simulated GARM.
struct SimulatedGarm<'a> {
    settings: &'a GarmFileSettings,
    /// Id of the simulated GARM, which no other probe has, and prefix of instance names.
    name: String,
    directory: PathBuf,
    reference: ImageReference,
    /// Socket that receives the reports of supervisors.
    listener: TcpListener,
    /// Signal that this process received; 0 if none.
    received_signal: &'a AtomicUsize,
    /// Names of instances whose creation was requested.
    instances: Vec<String>,
}

impl<'a> SimulatedGarm<'a> {
    fn new(
        settings: &'a GarmFileSettings,
        name: String,
        directory: PathBuf,
        received_signal: &'a AtomicUsize,
    ) -> Result<Self, AdminError> {
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true).map(|()| listener)
        };
        let listener = listen().with_path("listen on 127.0.0.1 for the probe in", &directory)?;
        let reference =
            format!("localhost/{name}:latest").parse().expect("it is a valid reference");
        Ok(SimulatedGarm {
            settings,
            name,
            directory,
            reference,
            listener,
            received_signal,
            instances: Vec::new(),
        })
    }

    fn run_probe(&mut self, context: &CliContext) -> Result<IsolationProbe, AdminError> {
        let image =
            format!("[images.{IMAGE}]\nreference = \"{}\"\npull = \"never\"\n", self.reference);
        let text = format!("{}\n{image}", self.settings.to_toml());
        let path = self.settings_file();
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).with_path("write", &path)?;
        self.import(context)?;
        let mut probe = IsolationProbe::new(&self.directory)?;
        if self.settings.store.place.privilege.has_idmapped_mounts() {
            let has_host_users = self.settings.users() != InstanceUserNamespace::Own;
            probe.add_limits(has_host_users.then_some(HOST_USERS));
        }
        let store = &self.settings.store;
        let directories = [&store.root, &store.run, &self.settings.log.directory];
        let allowed = self.settings.network.host_access.then_some(HOST_ACCESS);
        probe.serve_on_host(&directories.map(PathBuf::as_path), allowed)?;
        let flavors: Vec<_> = self.settings.flavors.keys().cloned().collect();
        let first = flavors.first().cloned().unwrap_or_default();
        let task = probe.serve(TargetOwner::Other, vec!["/tmp".into()]);
        let log = self.create("other", &first, &task, &probe)?;
        let serving = log.text.lines().filter_map(|line| match probe.parse_line(line)? {
            ProbeMessage::Serves(attempt) => Some(attempt),
            _ => None,
        });
        let serving: Vec<ProbeAttempt> = serving.collect();
        if serving.is_empty() {
            probe.problem(format!(
                "the instance that the others try to reach did not start: {}",
                log.reason
            ));
        }
        probe.add(TargetOwner::Other, serving, None);
        probe.try_on_host()?;
        let task = probe.attempt();
        for flavor in if flavors.is_empty() { vec![String::new()] } else { flavors } {
            if self.is_interrupted() {
                break;
            }
            let log =
                self.create(&format!("flavor-{}", self.instances.len()), &flavor, &task, &probe)?;
            let name = match flavor.as_str() {
                "" => "instance".to_owned(),
                flavor => format!("flavor {flavor}"),
            };
            probe.column(&name, log.text.lines(), &log.reason);
        }
        probe.finish()?;
        Ok(probe)
    }

    fn settings_file(&self) -> PathBuf {
        self.directory.join("settings.toml")
    }

    fn is_interrupted(&self) -> bool {
        self.received_signal.load(Ordering::Relaxed) != 0
    }

    /// Imports the image of the probe into the store.
    fn import(&self, context: &CliContext) -> Result<(), AdminError> {
        let layout = self.directory.join("image.tar");
        IsolationProbe::write_image(&layout)?;
        run_in_store(self.settings, context, |settings| {
            Ok(settings.host().store()?.import(&layout, &self.reference).map(drop)?)
        })
    }

    /// Creates an instance that runs the task as its boot script, and waits for the end of its output.
    fn create(
        &mut self,
        name: &str,
        flavor: &str,
        task: &ProbeTask,
        probe: &IsolationProbe,
    ) -> Result<InstanceLog, AdminError> {
        let name = format!("{}-{name}", self.name);
        self.instances.push(name.clone());
        let address = self
            .listener
            .local_addr()
            .with_path("look up the listening address of the probe in", &self.directory)?;
        let document = json!({
            "name": name, "image": IMAGE, "flavor": flavor, "pool_id": POOL,
            "os_type": "linux", "arch": "", "repo_url": "", "instance-token": self.name,
            "callback-url": format!("http://{address}/{name}"),
            "metadata-url": format!("http://{address}/{name}"),
            // Supervisors report to this process without a proxy.
            "proxy_config": {"http_proxy": "", "https_proxy": "", "no_proxy": "127.0.0.1"},
            "extra_specs": {
                "use_garm_template": true,
                "pre_install_scripts": {"probe": STANDARD.encode(task.to_string())},
            },
        });
        let request = document.to_string();
        let answer = self.call("CreateInstance", &name, request.as_bytes())?;
        if let Some(reason) = answer {
            return Ok(InstanceLog { text: String::new(), reason });
        }
        let begin = Instant::now();
        loop {
            let is_over =
                self.is_interrupted() || begin.elapsed() > PATIENCE || self.take_reports(&name);
            let path = newest_log(&self.settings.log.directory, &name)?;
            let text =
                path.map(|path| fs::read_to_string(&path).with_path("read", &path)).transpose()?;
            let text = text.unwrap_or_default();
            let has_ended =
                text.lines().any(|line| probe.parse_line(line) == Some(ProbeMessage::End));
            if is_over || has_ended {
                let reason = text.lines().last().unwrap_or("no output").to_owned();
                return Ok(InstanceLog { text, reason });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Calls this program as GARM does. Returns its error message if it fails.
    fn call(
        &self,
        command: &str,
        instance: &str,
        request: &[u8],
    ) -> Result<Option<String>, PathError> {
        let path = program_path()?;
        let mut program = Command::new(&path);
        program.env(COMMAND_VARIABLE, command).env(FILE_VARIABLE, self.settings_file());
        program.envs([
            ("GARM_CONTROLLER_ID", &*self.name),
            ("GARM_INSTANCE_ID", instance),
            ("GARM_INTERFACE_VERSION", "v0.1.0"),
            ("GARM_POOL_ID", POOL),
        ]);
        let input = self.directory.join("request");
        fs::write(&input, request).with_path("write", &input)?;
        let input = File::open(&input).with_path("open", &input)?;
        // In its own process group, the child gets no signals of the terminal; this process removes the instances.
        program.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        spawn::die_with_us(&mut program);
        let ended = program.spawn().and_then(|child| child.wait_with_output());
        let ended = ended.with_path("execute", &path)?;
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        Ok((!ended.status.success()).then_some(said))
    }

    /// Reads the reports that supervisors have sent. Returns whether the boot of an instance has failed.
    fn take_reports(&self, name: &str) -> bool {
        let mut is_given_up = false;
        while let Ok((stream, _)) = self.listener.accept() {
            // The supervisor repeats a report that cannot be read.
            let report = take_report(&stream).unwrap_or_default();
            is_given_up |=
                report.contains(&format!("/{name}/")) && report.contains("\"status\":\"failed\"");
        }
        is_given_up
    }

    /// Removes the instances, their logs and the image.
    fn remove(&mut self, context: &CliContext) -> Result<(), AdminError> {
        let mut left = None;
        for name in std::mem::take(&mut self.instances) {
            let error = self.call("DeleteInstance", &name, b"")?;
            left =
                left.or(error.map(|error| format!("cannot remove its instance {name}: {error}")));
            while let Some(log) = newest_log(&self.settings.log.directory, &name)? {
                fs::remove_file(&log).with_path("remove", &log)?;
            }
        }
        run_in_store(self.settings, context, |settings| {
            Ok(settings.host().store()?.remove(&self.reference).map(drop)?)
        })?;
        // Otherwise the simulated GARM stays among the known controllers.
        ControllerRecords::of(&self.settings.store.run, &self.name).remove_if_empty()?;
        let Some(error) = left else { return Ok(()) };
        let said = format!(
            "{error}; remove it with `garm-provider-runc rm --controller {} --force`",
            self.name
        );
        Err(AdminError::Probe { said })
    }
}

/// Log of an instance that runs a probe.
struct InstanceLog {
    text: String,
    /// Last line of the log, or the error of the creation: the likely reason if the probe's output is missing.
    reason: String,
}

/// Runs `work` in a user namespace that maps the owners of the store's files.
fn run_in_store(
    settings: &GarmFileSettings,
    context: &CliContext,
    work: impl Fn(&GarmFileSettings) -> Result<(), AdminError>,
) -> Result<(), AdminError> {
    match InstanceBackend::of(settings.clone()) {
        InstanceBackend::Root(settings) => work(&settings),
        InstanceBackend::User(instances) => match backend::enter_store(instances.settings())? {
            EnterOutcome::Inside(store) => {
                let worked = work(&settings.with_store(&store));
                // This copy prints the error, because the waiting process does not get it.
                if let Err(error) = &worked {
                    context.show_error(error);
                }
                exit_at_once(i32::from(worked.is_err()))
            }
            EnterOutcome::Ended(CliExit::Done | CliExit::Code(0)) => Ok(()),
            EnterOutcome::Ended(_) => {
                Err(AdminError::Probe { said: "see the error above".to_owned() })
            }
        },
    }
}

/// Reads a request, and answers with status 200.
fn take_report(stream: &TcpStream) -> io::Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = Vec::new();
    let mut input = io::BufReader::new(stream.take(MAX_REQUEST_BYTES));
    let mut length = 0;
    // The headers end with an empty line.
    while !request.ends_with(b"\r\n\r\n") {
        let start = request.len();
        if input.read_until(b'\n', &mut request)? == 0 {
            break;
        }
        let line = String::from_utf8_lossy(&request[start..]).to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    input.take(length).read_to_end(&mut request)?;
    let mut stream = stream;
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    )?;
    Ok(String::from_utf8_lossy(&request).into_owned())
}
