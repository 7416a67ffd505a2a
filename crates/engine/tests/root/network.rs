//! Networks of jobs, created in a network namespace that plays the host.
//!
//! Each test creates that namespace: the machine's own network is not touched.

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

use oci_hooks_engine::network::{EndpointRequest, NetworkEndpoint, PortMapping};
use oci_hooks_host::netns;
use oci_hooks_testsupport::program::DEADLINE;

/// Timeout for expected events.
const TIMEOUT: Duration = DEADLINE;

/// Timeout for packets that must be dropped, and so are not answered.
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

/// Makes a container answer on port 80 of all its addresses.
fn serve_in(container: &NetworkEndpoint) {
    run_in_network(container, || serve("[::]:80"));
}

fn run_in_network<T: Send>(container: &NetworkEndpoint, work: impl FnOnce() -> T + Send) -> T {
    netns::run_in_namespace(&container.netns, work).unwrap()
}

/// Returns our address as a server sees it; fails if the server cannot be reached.
///
/// Tries again if the kernel found no neighbour within three seconds: on a very busy machine the link of a
/// new container has been slower than that.
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

/// Expects that a server is out of reach.
#[track_caller]
fn expect_unreachable(address: &str) {
    assert!(ask_for(address, SHORT).is_err(), "{address} can be reached");
}

fn join_address(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
