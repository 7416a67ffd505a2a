//! `garm-provider-runc doctor --probe`: instances as GARM has them made, of each flavor one, which try to reach another
//! and this host. This program plays GARM: it calls itself, and takes what supervisors report.

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
use oci_hooks::garm::COMMAND_VARIABLE;
use oci_hooks::garm::logs::last;
use oci_hooks::image::Reference;
use oci_hooks::program::context::Context;
use oci_hooks::program::exit::Exit;
use oci_hooks::program::probe::{Probe, Whose};
use oci_hooks::program::programs::this_program;
use oci_hooks::program::rootless::Entered;
use oci_hooks::program::settings_file::FileSettings as _;
use oci_hooks::sys::fs::{PathContext as _, PathError, make_private};
use oci_hooks::sys::init::trials::{Attempt, Said, Task};
use oci_hooks::sys::privilege::exit_at_once;
use oci_hooks::sys::removal::remove_tree;
use oci_hooks::sys::spawn;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use crate::backend::Backend;
use crate::error::Error;
use crate::settings::{FILE_VARIABLE, Settings};

/// The setting that lets instances reach the addresses of this host.
const HOST_ACCESS: &str = "`host-access = true` under [network]";

/// What the image is called in the settings of the probe.
const IMAGE: &str = "oci-hooks-probe";

/// The GARM that is played, and its pool.
const CONTROLLER: &str = "doctor-probe";

/// How long an instance may take to say what it has to say, and how often that is looked for.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a supervisor may take to send a request, and how much that is at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// Has the instances made, and prints what they reach.
pub fn probe(settings: &Settings, context: &mut Context) -> Result<Exit, Error> {
    let told = Arc::new(AtomicUsize::new(0));
    for (signal, number) in [(SIGHUP, 1), (SIGINT, 2), (SIGQUIT, 3), (SIGTERM, 15)] {
        flag::register_usize(signal, Arc::clone(&told), number).map_err(Error::Signals)?;
    }
    let name = format!("probe-{}", std::process::id());
    make_private(&settings.store.root)?;
    let directory = settings.store.root.join(&name);
    DirBuilder::new().mode(0o700).create(&directory).at("make", &directory)?;
    let played = Played::new(settings, name, directory.clone(), &told).and_then(|mut garm| {
        let tried = garm.play(context);
        // Whatever went wrong, nothing of the instances stays.
        let removed = garm.remove(context);
        let probe = tried?;
        removed.map(|()| probe)
    });
    let removed = remove_tree(&directory);
    let probe = played?;
    removed?;
    match told.load(Ordering::Relaxed) {
        0 => Ok(probe.report(context)?),
        signal => Ok(Exit::Code(u8::try_from(128 + signal).unwrap_or(1))),
    }
}

/// A GARM that is played.
struct Played<'a> {
    settings: &'a Settings,
    /// The beginning of the names of instances.
    name: String,
    directory: PathBuf,
    reference: Reference,
    /// Where supervisors report.
    listener: TcpListener,
    /// The signal that told this process to end; 0 if none did.
    told: &'a AtomicUsize,
    /// The instances that were asked for.
    instances: Vec<String>,
}

impl<'a> Played<'a> {
    fn new(
        settings: &'a Settings,
        name: String,
        directory: PathBuf,
        told: &'a AtomicUsize,
    ) -> Result<Self, Error> {
        let listen = || {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true).map(|()| listener)
        };
        let listener = listen().at("listen for", &directory)?;
        let text = format!("localhost/{name}:latest");
        let reference =
            text.parse().map_err(|source| Error::Image { name: text.clone(), source })?;
        Ok(Played { settings, name, directory, reference, listener, told, instances: Vec::new() })
    }

    fn play(&mut self, context: &Context) -> Result<Probe, Error> {
        let image =
            format!("[images.{IMAGE}]\nreference = \"{}\"\npull = \"never\"\n", self.reference);
        let text = format!("{}\n{image}", self.settings.to_toml());
        let path = self.settings_file();
        let mut options = File::options();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).at("write", &path)?;
        self.import(context)?;
        let mut probe = Probe::new(&self.directory)?;
        let store = &self.settings.store;
        let directories = [&store.root, &store.run, &self.settings.log.directory];
        let allowed = self.settings.network.host_access.then_some(HOST_ACCESS);
        probe.serve_on_host(&directories.map(PathBuf::as_path), allowed)?;
        let flavors: Vec<_> = self.settings.flavors.keys().cloned().collect();
        let first = flavors.first().cloned().unwrap_or_default();
        let task = probe.serve(Whose::Other, vec!["/tmp".into()]);
        let log = self.create("other", &first, &task, &probe)?;
        let serving = log.text.lines().filter_map(|line| match probe.said(line)? {
            Said::Serves(attempt) => Some(attempt),
            _ => None,
        });
        let serving: Vec<Attempt> = serving.collect();
        if serving.is_empty() {
            probe.problem(format!("another instance did not come up: {}", log.reason));
        }
        probe.add(Whose::Other, serving, None);
        probe.try_on_host()?;
        let task = probe.attempt();
        for flavor in if flavors.is_empty() { vec![String::new()] } else { flavors } {
            if self.is_told() {
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

    fn is_told(&self) -> bool {
        self.told.load(Ordering::Relaxed) != 0
    }

    /// Puts the image of the probe into the store.
    fn import(&self, context: &Context) -> Result<(), Error> {
        let layout = self.directory.join("image.tar");
        Probe::write_image(&layout)?;
        in_store(self.settings, context, |settings| {
            Ok(settings.host().store()?.import(&layout, &self.reference).map(drop)?)
        })
    }

    /// Has an instance made whose boot is the task, and waits until that has said all.
    fn create(
        &mut self,
        name: &str,
        flavor: &str,
        task: &Task,
        probe: &Probe,
    ) -> Result<Log, Error> {
        let name = format!("{}-{name}", self.name);
        self.instances.push(name.clone());
        let address = self.listener.local_addr().at("look up the address for", &self.directory)?;
        let document = json!({
            "name": name, "image": IMAGE, "flavor": flavor, "pool_id": CONTROLLER,
            "os_type": "linux", "arch": "", "repo_url": "", "instance-token": self.name,
            "callback-url": format!("http://{address}/{name}"),
            "metadata-url": format!("http://{address}/{name}"),
            // None is between a supervisor and this process.
            "proxy_config": {"http_proxy": "", "https_proxy": "", "no_proxy": "127.0.0.1"},
            "extra_specs": {
                "use_garm_template": true,
                "pre_install_scripts": {"probe": STANDARD.encode(task.to_string())},
            },
        });
        let request = document.to_string();
        let answer = self.call("CreateInstance", &name, request.as_bytes())?;
        if let Some(reason) = answer {
            return Ok(Log { text: String::new(), reason });
        }
        let begin = Instant::now();
        loop {
            let is_over = self.is_told() || begin.elapsed() > PATIENCE || self.take_reports(&name);
            let path = last(&self.settings.log.directory, &name)?;
            let text = path.map(|path| fs::read_to_string(&path).at("read", &path)).transpose()?;
            let text = text.unwrap_or_default();
            let has_ended = text.lines().any(|line| probe.said(line) == Some(Said::End));
            if is_over || has_ended {
                let reason = text.lines().last().unwrap_or("it wrote nothing").to_owned();
                return Ok(Log { text, reason });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Calls this program as GARM does. Returns what it wrote if it failed.
    fn call(
        &self,
        command: &str,
        instance: &str,
        request: &[u8],
    ) -> Result<Option<String>, PathError> {
        let path = this_program()?;
        let mut program = Command::new(&path);
        program.env(COMMAND_VARIABLE, command).env(FILE_VARIABLE, self.settings_file());
        program.envs([
            ("GARM_CONTROLLER_ID", CONTROLLER),
            ("GARM_INSTANCE_ID", instance),
            ("GARM_INTERFACE_VERSION", "v0.1.0"),
            ("GARM_POOL_ID", CONTROLLER),
        ]);
        let input = self.directory.join("request");
        fs::write(&input, request).at("write", &input)?;
        let input = File::open(&input).at("open", &input)?;
        // A terminal sends its signals to this process, which has all removed.
        program.stdin(input).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
        spawn::die_with_us(&mut program);
        let ended = program.spawn().and_then(|child| child.wait_with_output());
        let ended = ended.at("execute", &path)?;
        let said = String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        Ok((!ended.status.success()).then_some(said))
    }

    /// Takes what supervisors report by now. Returns whether that of an instance gave it up.
    fn take_reports(&self, name: &str) -> bool {
        let mut is_given_up = false;
        while let Ok((stream, _)) = self.listener.accept() {
            // One that cannot be read is sent again.
            let report = take_report(&stream).unwrap_or_default();
            is_given_up |=
                report.contains(&format!("/{name}/")) && report.contains("\"status\":\"failed\"");
        }
        is_given_up
    }

    /// Removes all that was made.
    fn remove(&mut self, context: &Context) -> Result<(), Error> {
        let mut left = None;
        for name in std::mem::take(&mut self.instances) {
            left = left.or(self.call("DeleteInstance", &name, b"")?);
            while let Some(log) = last(&self.settings.log.directory, &name)? {
                fs::remove_file(&log).at("remove", &log)?;
            }
        }
        in_store(self.settings, context, |settings| {
            Ok(settings.host().store()?.remove(&self.reference).map(drop)?)
        })?;
        left.map_or(Ok(()), |said| Err(Error::Probe { said }))
    }
}

/// What an instance wrote.
struct Log {
    text: String,
    /// Why there is nothing of a probe in it.
    reason: String,
}

/// Does something where the files of images have their owners.
fn in_store(
    settings: &Settings,
    context: &Context,
    work: impl Fn(&Settings) -> Result<(), Error>,
) -> Result<(), Error> {
    match Backend::of(settings.clone()) {
        Backend::Root(settings) => work(&settings),
        Backend::User(instances) => match instances.enter_store()? {
            Entered::Inside(store) => {
                let worked = work(&settings.with_store(&store));
                // The process that waits for this copy of it does not know the error.
                if let Err(error) = &worked {
                    context.show_error(error);
                }
                exit_at_once(i32::from(worked.is_err()))
            }
            Entered::Ended(Exit::Done | Exit::Code(0)) => Ok(()),
            Entered::Ended(_) => Err(Error::Probe { said: "see above".to_owned() }),
        },
    }
}

/// Takes a request, and answers that all is well.
fn take_report(stream: &TcpStream) -> io::Result<String> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    let mut request = Vec::new();
    let mut input = io::BufReader::new(stream.take(MAX_REQUEST_BYTES));
    let mut length = 0;
    // Its head ends with an empty line.
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
