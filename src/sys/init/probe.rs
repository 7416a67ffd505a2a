//! Tries what must be out of reach where the program is called `probe`, and is what others try to reach.
//!
//! `probe FILE` carries out a task of `trials`. It ends with a code of its own: neither a build nor the boot of an
//! instance goes on after it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::thread::{self, Builder};
use std::time::Duration;

use crate::trials::{Attempt, Outcome, Said, Task, default_gateway};

/// The code of a probe that has done its task.
const DONE: i32 = 3;
const FAILED: i32 = 1;

/// How long is waited for an answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// How often it is tried again where a rule says no, and how long is waited each time.
const TRIES: u32 = 20;
const TRY_TIMEOUT: Duration = Duration::from_secs(1);

/// How much of an answer is read.
const MAX_ANSWER_BYTES: usize = 64;

/// How much a thread needs.
const STACK_BYTES: usize = 128 << 10;

/// The number of the error of a host without IPv6.
const EAFNOSUPPORT: i32 = 97;

/// Carries out the task in a file, and returns the exit code.
pub fn run(args: &[OsString]) -> i32 {
    match carry_out(args) {
        Ok(()) => DONE,
        Err(error) => {
            // If standard error is gone there is nobody to tell.
            let _ = writeln!(io::stderr(), "probe: {error}");
            FAILED
        }
    }
}

fn carry_out(args: &[OsString]) -> io::Result<()> {
    let path = args.first().ok_or_else(|| io::Error::other("no file names a task"))?;
    let text = fs::read_to_string(path)?;
    match Task::read(&text).ok_or_else(|| io::Error::other("the file has no task"))? {
        Task::Try { word, attempts } => try_all(&word, &attempts),
        Task::Serve { word, token, mark, directories } => {
            if args.get(1).is_none_or(|arg| *arg != *mark) {
                let mut again = Command::new("/proc/self/exe");
                return Err(again.arg0("probe").arg(path).arg(mark).exec());
            }
            let mut server = Server { token, mark, is_once: false, served: Vec::new() };
            server.addresses();
            server.sockets(&directories);
            server.announce(&word)?;
            loop {
                thread::park();
            }
        }
    }
}

/// Tries all at once, since some are waited for.
fn try_all(word: &str, attempts: &[Attempt]) -> io::Result<()> {
    // First, and alone: no other attempt is to reach what listens for it.
    let own = &own();
    let outcomes: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> = attempts
            .iter()
            .map(|attempt| {
                let run =
                    move || if *attempt == Attempt::Own { own.clone() } else { outcome(attempt) };
                Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, run)
            })
            .collect();
        let end = |thread: io::Result<thread::ScopedJoinHandle<'_, Outcome>>| match thread {
            Ok(thread) => {
                thread.join().unwrap_or_else(|_| Outcome::Untried("it panicked".to_owned()))
            }
            Err(error) => Outcome::Untried(error.to_string()),
        };
        started.into_iter().map(end).collect()
    });
    let mut out = io::stdout().lock();
    for (index, outcome) in outcomes.into_iter().enumerate() {
        writeln!(out, "{word} {}", Said::Outcome { index, outcome })?;
    }
    writeln!(out, "{word} {}", Said::End)
}

/// Tries one thing.
fn outcome(attempt: &Attempt) -> Outcome {
    let tried = match attempt {
        Attempt::Own => return own(),
        Attempt::Tcp(address) => tcp(*address, TIMEOUT),
        Attempt::Rule(address) => (1..TRIES)
            .map(|_| tcp(*address, TRY_TIMEOUT))
            .find(|tried| !matches!(tried, Err(error) if error.kind() == ErrorKind::TimedOut))
            .unwrap_or_else(|| tcp(*address, TRY_TIMEOUT)),
        Attempt::Gateway(port) => match default_gateway() {
            Some(gateway) => tcp((gateway, *port).into(), TIMEOUT),
            None => return Outcome::NoRoute,
        },
        Attempt::Udp(address) => udp(*address),
        Attempt::Abstract(name) => UnixAddress::from_abstract_name(name)
            .and_then(|address| UnixStream::connect_addr(&address))
            .map(|stream| hear(&stream, stream.set_read_timeout(Some(TIMEOUT)))),
        Attempt::Socket(path) => UnixStream::connect(path)
            .map(|stream| hear(&stream, stream.set_read_timeout(Some(TIMEOUT)))),
        Attempt::Read(path) => File::open(path).and_then(|file| {
            let text = hear(&file, Ok(()));
            // As a masked file is.
            if text.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(text) }
        }),
        Attempt::Write(path) => OpenOptions::new().write(true).open(path).map(|_| String::new()),
        Attempt::Process(mark) => process(mark),
    };
    tried.map_or_else(|error| of_error(attempt, &error), Outcome::Reached)
}

/// Returns what an error says of what was tried.
fn of_error(attempt: &Attempt, error: &io::Error) -> Outcome {
    let is_network = matches!(
        attempt,
        Attempt::Tcp(_) | Attempt::Rule(_) | Attempt::Gateway(_) | Attempt::Udp(_)
    );
    match error.kind() {
        ErrorKind::ConnectionRefused if is_network => Outcome::Refused,
        // No socket has the name, or nothing listens to it any more.
        ErrorKind::ConnectionRefused | ErrorKind::NotFound | ErrorKind::NotADirectory => {
            Outcome::Absent
        }
        ErrorKind::HostUnreachable => Outcome::Rejected,
        ErrorKind::PermissionDenied if is_network => Outcome::Rejected,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Outcome::Denied,
        ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => Outcome::NoRoute,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::NoAnswer,
        _ if error.raw_os_error() == Some(EAFNOSUPPORT) => Outcome::NoRoute,
        _ => Outcome::Untried(error.to_string()),
    }
}

/// Tries what is always there, each in the way in which others are tried.
fn own() -> Outcome {
    let name = format!("oci-hooks-probe-{}-own", std::process::id());
    let token = "own".to_owned();
    let mut server = Server { token, mark: name, is_once: true, served: Vec::new() };
    let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
    server.tcp(loopback);
    server.udp(loopback);
    server.abstract_socket();
    let further = [Attempt::Read("/proc/self/exe".into()), Attempt::Process("probe".to_owned())];
    let all = server.served.iter().map(|(attempt, _)| attempt).chain(&further);
    let is_reached = |attempt| matches!(outcome(attempt), Outcome::Reached(_));
    let missing = all.clone().find(|attempt| !is_reached(attempt));
    match missing {
        None if all.count() == 5 => Outcome::Reached("own".to_owned()),
        _ => {
            // If standard error is gone there is nobody to tell.
            let _ = writeln!(io::stderr(), "probe: of its own it does not reach {missing:?}");
            Outcome::Denied
        }
    }
}

fn tcp(address: SocketAddr, timeout: Duration) -> io::Result<String> {
    let stream = TcpStream::connect_timeout(&address, timeout)?;
    // Where nothing listens, it may have got the same port, and then reaches itself.
    if stream.local_addr()? == address {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(hear(&stream, stream.set_read_timeout(Some(timeout))))
}

fn udp(address: SocketAddr) -> io::Result<String> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.send(b"?")?;
    let mut answer = [0; MAX_ANSWER_BYTES];
    let length = socket.recv(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

/// Returns the beginning of what something says that was reached; it may say nothing in time.
fn hear(mut from: impl Read, ready: io::Result<()>) -> String {
    let mut answer = [0; MAX_ANSWER_BYTES];
    let length = ready.and_then(|()| from.read(&mut answer)).unwrap_or(0);
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Looks for a process with a word in its command line.
fn process(mark: &str) -> io::Result<String> {
    for entry in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if String::from_utf8_lossy(&line).contains(mark) {
            return Ok(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Err(ErrorKind::NotFound.into())
}

/// Answers whoever reaches it.
struct Server {
    token: String,
    mark: String,
    /// Whether it answers once by each address or socket.
    is_once: bool,
    /// What reaches it, and what shows here that it does.
    served: Vec<(Attempt, Attempt)>,
}

impl Server {
    fn addresses(&mut self) {
        let loopback = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        for address in loopback.into_iter().chain(own_addresses()) {
            self.tcp(address);
            self.udp(address);
        }
        let Some(address) = self.listen((Ipv4Addr::UNSPECIFIED, 0).into()) else { return };
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, address.port()));
        self.served.push((Attempt::Gateway(address.port()), Attempt::Tcp(here)));
    }

    fn tcp(&mut self, address: IpAddr) {
        if let Some(address) = self.listen((address, 0).into()) {
            self.served.push((Attempt::Tcp(address), Attempt::Tcp(address)));
        }
    }

    fn listen(&self, address: SocketAddr) -> Option<SocketAddr> {
        let listener = TcpListener::bind(address).ok()?;
        let address = listener.local_addr().ok()?;
        self.answer(move |token| answer(listener.accept().map(|(stream, _)| stream), token))?;
        Some(address)
    }

    fn udp(&mut self, address: IpAddr) {
        let Ok(socket) = UdpSocket::bind((address, 0)) else { return };
        let Ok(address) = socket.local_addr() else { return };
        let answer = move |token: &str| {
            if let Ok((_, from)) = socket.recv_from(&mut [0]) {
                let _ = socket.send_to(token.as_bytes(), from);
            }
        };
        if self.answer(answer).is_some() {
            self.served.push((Attempt::Udp(address), Attempt::Udp(address)));
        }
    }

    fn abstract_socket(&mut self) {
        let name = format!("oci-hooks-probe-{}", self.mark);
        let listener = UnixAddress::from_abstract_name(&name)
            .and_then(|address| UnixListener::bind_addr(&address));
        self.unix(listener, Attempt::Abstract(name));
    }

    fn unix(&mut self, listener: io::Result<UnixListener>, attempt: Attempt) {
        let Ok(listener) = listener else { return };
        let accept = move |token: &str| answer(listener.accept().map(|(stream, _)| stream), token);
        if self.answer(accept).is_some() {
            self.served.push((attempt.clone(), attempt));
        }
    }

    /// Makes an abstract socket, and a socket and a file that all users may open in each of the directories that it
    /// may write to.
    fn sockets(&mut self, directories: &[impl AsRef<Path>]) {
        self.abstract_socket();
        for directory in directories {
            let path = directory.as_ref().join(format!("oci-hooks-probe-{}", self.mark));
            let listener = UnixListener::bind(&path);
            let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
            let listener = listener.and_then(|listener| allow(&path, 0o666).map(|()| listener));
            self.unix(listener, Attempt::Socket(path.clone()));
            let path = path.with_extension("file");
            let written = File::create_new(&path).and_then(|mut file| {
                file.write_all(self.token.as_bytes())?;
                allow(&path, 0o644)
            });
            if written.is_ok() {
                self.served.push((Attempt::Read(path.clone()), Attempt::Read(path)));
            }
        }
        let process = Attempt::Process(self.mark.clone());
        self.served.push((process.clone(), process));
    }

    /// Answers on a thread of its own, again and again if it is to.
    fn answer(&self, mut once: impl FnMut(&str) + Send + 'static) -> Option<()> {
        let (token, is_once) = (self.token.clone(), self.is_once);
        let thread = Builder::new().stack_size(STACK_BYTES);
        let answering = move || {
            loop {
                once(&token);
                if is_once {
                    break;
                }
            }
        };
        thread.spawn(answering).ok().map(drop)
    }

    /// Says by what it is reached, of which it has made sure.
    fn announce(&self, word: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        for (attempt, here) in &self.served {
            if matches!(outcome(here), Outcome::Reached(_)) {
                writeln!(out, "{word} {}", Said::Serves(attempt.clone()))?;
            }
        }
        writeln!(out, "{word} {}", Said::End)?;
        out.flush()
    }
}

fn answer(stream: io::Result<impl Write>, token: &str) {
    match stream {
        // Who does not listen any more needs no answer.
        Ok(mut stream) => drop(stream.write_all(token.as_bytes())),
        // There may be descriptors again later.
        Err(_) => thread::sleep(Duration::from_millis(10)),
    }
}

/// Returns the addresses of this network namespace but for those of its loopback and of single links.
fn own_addresses() -> Vec<IpAddr> {
    let read =
        |name: &str| fs::read_to_string(Path::new("/proc/net").join(name)).unwrap_or_default();
    let mut addresses = Vec::new();
    let mut leaf: Option<Ipv4Addr> = None;
    for line in read("fib_trie").lines().map(str::trim_start) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line == "/32 host LOCAL" {
            addresses.extend(leaf.filter(|address| !address.is_loopback()).map(IpAddr::from));
        }
    }
    for line in read("if_inet6").lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        if let [address, _, _, "00", ..] = fields[..] {
            addresses.extend(
                u128::from_str_radix(address, 16).map(|bits| IpAddr::from(Ipv6Addr::from(bits))),
            );
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}
