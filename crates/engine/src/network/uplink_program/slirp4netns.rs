//! slirp4netns: its arguments, and its API socket for forwarding ports. It stays in the foreground, and reports by a
//! pipe when the network is ready.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oci_hooks_files::beneath::descriptor_path;
use oci_hooks_files::fs::{PathContext as _, remove_if_there};
use oci_hooks_files::spawn::pass_descriptor_as;
use oci_hooks_host::identity::{ProcessIdentity, wait};
use rustix::fs::{
    CWD, MemfdFlags, Mode, OFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create, openat,
};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use serde::Deserialize;
use serde_json::json;

use super::super::subnet::AddressPlan;
use super::start::{PortForward, TIMEOUT, UplinkRequest, to_one_line};
use super::{MTU, UplinkError, UplinkKind};

/// Name of the API socket in [`UplinkRequest::directory`]. It is used as a relative path: a full
/// path may exceed the limit of socket addresses.
const SOCKET: &str = "slirp4netns.sock";

/// Descriptor by which slirp4netns reports that it is ready (`--ready-fd`).
const READY: i32 = 3;

/// Size limit of the program's output, in bytes.
const OUTPUT_BYTES: u64 = 16 << 10;

/// Time limit for an answer on the API socket.
const ANSWER: Duration = Duration::from_secs(10);

/// Options that sandbox the program. They are dropped if it fails, as when mounts or seccomp filters are unavailable.
const CONFINED: &[&str] = &["--enable-sandbox", "--enable-seccomp"];

pub(super) fn start(
    program: &Path,
    request: &UplinkRequest<'_>,
) -> Result<ProcessIdentity, UplinkError> {
    match start_once(program, request, CONFINED) {
        Err(UplinkError::Failed { .. }) => start_once(program, request, &[]),
        result => result,
    }
}

fn start_once(
    program: &Path,
    request: &UplinkRequest<'_>,
    confined: &[&str],
) -> Result<ProcessIdentity, UplinkError> {
    let because = |action| {
        let program = program.to_owned();
        move |source: io::Error| UplinkError::Slirp4netns { action, program, source }
    };
    remove_if_there(&request.directory.join(SOCKET))?;
    let (output, copy) = create_bounded_output().map_err(because("read the output of"))?;
    let (ready, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| because("wait for")(e.into()))?;
    let mut command = Command::new(program);
    command
        .args(arguments(request))
        .args(confined)
        .arg(request.netns)
        .arg(request.device)
        .env_clear()
        .current_dir(request.directory)
        // Signals to the caller's process group must not reach the program.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(copy);
    pass_descriptor_as(&mut command, tell, READY).map_err(because("pass a pipe to"))?;
    let mut child = command.spawn().map_err(because("execute"))?;
    // The command holds the writing end of the pipe.
    drop(command);
    let started = is_ready(&ready)
        .map_err(because("wait for"))
        .and_then(|is_ready| match is_ready {
            true => forward_all(request),
            false => {
                // Once the program has ended, its output is complete.
                end(&mut child);
                let seconds = TIMEOUT.as_secs();
                let said = to_one_line(&read_output(&output));
                let message =
                    format!("it ended, or was not ready within {seconds} seconds: {said}");
                Err(UplinkError::Failed { program: program.to_owned(), message })
            }
        })
        .and_then(|()| {
            let gone = || because("find the process of")(Errno::SRCH.into());
            ProcessIdentity::of(child.id()).filter(ProcessIdentity::is_running).ok_or_else(gone)
        });
    if started.is_err() {
        end(&mut child);
    }
    // No further requests are sent.
    remove_if_there(&request.directory.join(SOCKET))?;
    started
}

fn end(child: &mut Child) {
    // Fails if the program has already ended.
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
        format!("--cidr={network}/{}", AddressPlan::PREFIX),
        "--disable-host-loopback".to_owned(),
        "--netns-type=path".to_owned(),
        format!("--ready-fd={READY}"),
    ];
    if !request.forwards.is_empty() {
        all.push(format!("--api-socket={SOCKET}"));
    }
    all
}

/// Returns two descriptors of a memfd of fixed size for the program's output: one for reading, and
/// one for the program. Output beyond this size is lost: a job can make the program print without
/// end.
fn create_bounded_output() -> io::Result<(File, OwnedFd)> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("slirp4netns", flags)?;
    ftruncate(&file, OUTPUT_BYTES)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK)?;
    let copy = file.try_clone()?;
    Ok((file.into(), copy))
}

fn read_output(output: &File) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(OUTPUT_BYTES).unwrap_or_default()];
    // Unreadable output counts as empty.
    let read = output.read_at(&mut bytes, 0).unwrap_or_default();
    bytes.truncate(bytes[..read].iter().position(|byte| *byte == 0).unwrap_or(read));
    bytes
}

/// Waits until the program reports that it is ready; returns false if it ends instead.
fn is_ready(ready: &OwnedFd) -> io::Result<bool> {
    Ok(wait(ready, TIMEOUT)? && rustix::io::read(ready, &mut [0; 1])? == 1)
}

/// An answer on the API socket.
#[derive(Debug, Deserialize)]
struct SlirpAnswer {
    error: Option<SlirpRefusal>,
}

#[derive(Debug, Deserialize)]
struct SlirpRefusal {
    desc: String,
}

fn forward_all(request: &UplinkRequest<'_>) -> Result<(), UplinkError> {
    if request.forwards.is_empty() {
        return Ok(());
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, request.directory, flags, Mode::empty())
        .with_path("open", request.directory)?;
    for forward in request.forwards {
        let failed = |message| UplinkError::Forward {
            program: UplinkKind::Slirp4netns,
            port: forward.port,
            message,
        };
        let answer =
            ask(&directory, request, forward).map_err(|error| failed(error.to_string()))?;
        match serde_json::from_slice::<SlirpAnswer>(&answer) {
            Ok(SlirpAnswer { error: None }) => {}
            Ok(SlirpAnswer { error: Some(refusal) }) => return Err(failed(refusal.desc)),
            Err(_) => return Err(failed(to_one_line(&answer))),
        }
    }
    Ok(())
}

/// Requests forwarding of a port, and returns the answer.
fn ask(
    directory: &OwnedFd,
    request: &UplinkRequest<'_>,
    forward: &PortForward,
) -> io::Result<Vec<u8>> {
    let path = format!("{}/{SOCKET}", descriptor_path(directory));
    let mut socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(ANSWER))?;
    let question = json!({
        "execute": "add_hostfwd",
        "arguments": {
            "proto": forward.protocol,
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
