//! slirp4netns: its arguments, and the socket by which it is told of ports. It stays in the foreground, and says
//! by a pipe when it leads out.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, openat,
};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Deserialize;
use serde_json::json;

use super::start::{Forward, TIMEOUT, Transport, UplinkRequest, on_one_line, remove_left};
use super::{MTU, PREFIX, UplinkError, UplinkKind};
use crate::sys::fs::PathContext as _;
use crate::sys::identity::Identity;
use crate::sys::spawn::pass_descriptor_as;

/// Its socket, by its name in the directory: a path of any length would be too long for some.
const SOCKET: &str = "slirp4netns.sock";

/// The descriptor by which it says that it is ready.
const READY: i32 = 3;

/// How much is kept of what it says, in bytes.
const OUTPUT_BYTES: u64 = 16 << 10;

/// How long it may take to listen on a port.
const ANSWER: Duration = Duration::from_secs(10);

/// What keeps it in bounds. Where it may not mount, or the kernel has no filters for it, it goes without.
const CONFINED: &[&str] = &["--enable-sandbox", "--enable-seccomp"];

pub(super) fn start(program: &Path, request: &UplinkRequest<'_>) -> Result<Identity, UplinkError> {
    match start_once(program, request, CONFINED) {
        Err(UplinkError::Failed { .. }) => start_once(program, request, &[]),
        result => result,
    }
}

fn start_once(
    program: &Path,
    request: &UplinkRequest<'_>,
    confined: &[&str],
) -> Result<Identity, UplinkError> {
    let because = |action| {
        let program = program.to_owned();
        move |source: io::Error| UplinkError::Follow { action, program, source }
    };
    remove_left(&request.directory.join(SOCKET))?;
    let (output, copy) = bounded_output().map_err(because("read what is said by"))?;
    let (ready, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| because("wait for")(e.into()))?;
    let mut command = Command::new(program);
    command
        .args(arguments(request))
        .args(confined)
        .arg(request.netns)
        .arg(request.device)
        .env_clear()
        .current_dir(request.directory)
        // What is meant for the caller's group is not meant for it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(copy);
    pass_descriptor_as(&mut command, tell, READY).map_err(because("pass a pipe to"))?;
    let mut child = command.spawn().map_err(because("execute"))?;
    // It holds our end of the pipe.
    drop(command);
    let started = is_ready(&ready)
        .map_err(because("wait for"))
        .and_then(|is_ready| match is_ready {
            true => forward_all(request),
            false => {
                // Killed, or ended by itself: it says no more.
                end(&mut child);
                let message = on_one_line(&told(&output));
                Err(UplinkError::Failed { program: program.to_owned(), message })
            }
        })
        .and_then(|()| {
            let gone = || because("follow")(Errno::SRCH.into());
            Identity::of(child.id()).filter(Identity::is_running).ok_or_else(gone)
        });
    if started.is_err() {
        end(&mut child);
    }
    // Nobody has more to tell it.
    remove_left(&request.directory.join(SOCKET))?;
    started
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}

fn arguments(request: &UplinkRequest<'_>) -> Vec<String> {
    let mut octets = request.v4.inside.octets();
    octets[3] = 0;
    let network = std::net::Ipv4Addr::from(octets);
    let mut all = vec![
        "--configure".to_owned(),
        format!("--mtu={MTU}"),
        format!("--cidr={network}/{PREFIX}"),
        "--disable-host-loopback".to_owned(),
        "--netns-type=path".to_owned(),
        format!("--ready-fd={READY}"),
    ];
    if !request.forwards.is_empty() {
        all.push(format!("--api-socket={SOCKET}"));
    }
    all
}

/// Returns a file in memory for what the program says, to read and for the program. What it writes beyond its
/// size is lost: a job can have it say things for as long as it likes.
fn bounded_output() -> io::Result<(File, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("slirp4netns", flags)?;
    ftruncate(&file, OUTPUT_BYTES)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
    let copy = file.try_clone()?;
    Ok((file.into(), copy))
}

fn told(output: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(OUTPUT_BYTES).unwrap_or_default()];
    // What cannot be read is not told.
    let read = output.read_at(&mut bytes, 0).unwrap_or_default();
    bytes.truncate(bytes[..read].iter().position(|byte| *byte == 0).unwrap_or(read));
    bytes
}

/// Waits until the program says that it leads out; it does not if it ends.
fn is_ready(ready: &OwnedFd) -> io::Result<bool> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let left = Timespec::try_from(end.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(ready, PollFlags::IN)], left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(rustix::io::read(ready.as_fd(), &mut [0; 1])? == 1),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// What it answers.
#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<Refusal>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    desc: String,
}

fn forward_all(request: &UplinkRequest<'_>) -> Result<(), UplinkError> {
    if request.forwards.is_empty() {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory =
        openat(CWD, request.directory, flags, Mode::empty()).at("open", request.directory)?;
    for forward in request.forwards {
        let failed = |message| UplinkError::Forward {
            program: UplinkKind::Slirp4netns,
            port: forward.port,
            message,
        };
        let answer =
            ask(&directory, request, forward).map_err(|error| failed(error.to_string()))?;
        match serde_json::from_slice::<Answer>(&answer) {
            Ok(Answer { error: None }) => {}
            Ok(Answer { error: Some(refusal) }) => return Err(failed(refusal.desc)),
            Err(_) => return Err(failed(on_one_line(&answer))),
        }
    }
    Ok(())
}

/// Has a port listened on, and returns the answer.
fn ask(directory: &OwnedFd, request: &UplinkRequest<'_>, forward: &Forward) -> io::Result<Vec<u8>> {
    let path = format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd());
    let mut socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let question = json!({
        "execute": "add_hostfwd",
        "arguments": {
            "proto": match forward.transport {
                Transport::Tcp => "tcp",
                Transport::Udp => "udp",
            },
            "host_addr": forward.address.to_string(),
            "host_port": forward.port,
            "guest_addr": request.v4.inside.to_string(),
            "guest_port": forward.port,
        },
    });
    socket.write_all(question.to_string().as_bytes())?;
    socket.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    socket.take(OUTPUT_BYTES).read_to_end(&mut answer)?;
    Ok(answer)
}
