//! Networks of jobs, made for real in a network namespace that plays the host.
//!
//! Each test makes that namespace for itself: nothing of the machine's own network is touched.

#![expect(clippy::unwrap_used, reason = "what fails here should panic")]

#[path = "../support/mod.rs"]
mod support;

mod beside;
mod doctor;
mod fences;
mod host;
mod life;
mod published;
mod reach;

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use oci_hooks::network::{Endpoint, EndpointRequest, PortMapping};
use oci_hooks::sys::netns;

use crate::support::program::DEADLINE;

/// How long is waited for what must come.
const TIMEOUT: Duration = DEADLINE;

/// A packet that is dropped is not answered: how long is waited for what must not come.
const SHORT: Duration = Duration::from_millis(300);

fn endpoint(name: &str, ports: &[&str]) -> EndpointRequest {
    let ports = ports.iter().flat_map(|port| PortMapping::parse(port).unwrap()).collect();
    let mut request = EndpointRequest::new(name);
    request.ports = ports;
    request
}

/// Answers connections to a port of the calling thread's namespace with the peer's address.
fn serve(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let peer = stream.peer_addr().unwrap().ip().to_canonical();
            let _ = stream.write_all(peer.to_string().as_bytes());
        }
    });
}

/// Has a container answer on port 80 of all its addresses.
fn serve_in(container: &Endpoint) {
    within(container, || serve("[::]:80"));
}

fn within<T: Send>(container: &Endpoint, work: impl FnOnce() -> T + Send) -> T {
    netns::within(&container.netns, work).unwrap()
}

/// Returns which address a server sees us under; an error if it cannot be reached.
///
/// Whoever does not answer within the three seconds in which the kernel looks for a neighbour is asked
/// again: on a very busy machine the link of a new container has been slower than that.
fn ask(address: &str) -> io::Result<IpAddr> {
    let end = Instant::now() + TIMEOUT;
    loop {
        match ask_for(address, TIMEOUT) {
            Err(error)
                if error.kind() == io::ErrorKind::HostUnreachable && Instant::now() < end => {}
            answer => return answer,
        }
    }
}

fn ask_for(address: &str, timeout: Duration) -> io::Result<IpAddr> {
    let address: SocketAddr = address.parse().unwrap();
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.parse().unwrap())
}

/// Returns whether a server is out of reach.
#[track_caller]
fn expect_unreachable(address: &str) {
    assert!(ask_for(address, SHORT).is_err(), "{address} can be reached");
}

fn at(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
