//! Whether the way out of an ordinary user's networks leads anywhere, and whether it answers a client that has
//! said all: tried with the host itself as the world.

use std::fs::DirBuilder;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use super::{DEVICE, PIN, source};
use crate::network::NetworkError;
use crate::sys::fs::PathContext as _;
use crate::sys::netns;
use crate::sys::privilege::outside;
use crate::sys::uplink::{Gateway4, Uplink, UplinkChoice, UplinkRequest};

/// How often it is asked: a program that loses some of what is asked so loses one of this many.
pub const ATTEMPTS: usize = 20;

/// How long an answer may take, of a program on the same machine.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Blocks for documentation, of which one at least is not the host's own.
const BLOCKS: [[u8; 3]; 2] = [[198, 51, 100], [203, 0, 113]];

/// Returns the network between the program and the namespace, which must not have the host's address in it.
fn gateway(host: Ipv4Addr) -> Gateway4 {
    let is_other = |block: &&[u8; 3]| !host.octets().starts_with(&block[..]);
    let [a, b, c] = BLOCKS.iter().find(is_other).copied().unwrap_or(BLOCKS[0]);
    let address = |last| Ipv4Addr::new(a, b, c, last);
    Gateway4 { inside: address(100), gateway: address(2), resolver: address(3) }
}

/// What was found.
#[derive(Clone, Debug)]
pub enum UplinkTrial {
    /// There is to be no way out.
    None,
    /// The host itself has no way to the world by IPv4.
    NoRoute(Uplink),
    /// It leads out, and so many of [`ATTEMPTS`] clients were answered until one was not.
    Answered(Uplink, usize),
}

/// Has the program that jobs would have lead out of the network namespace of the calling thread, and asks the
/// host by it. Its files are in `dir`, which is made.
///
/// To be called where there is nothing else in that namespace, and it ends with its process namespace.
///
/// # Errors
///
/// Fails if there is no such program, if it does not come up, or if the host is not reached at all.
pub fn try_uplink(choice: &UplinkChoice, dir: &Path) -> Result<UplinkTrial, NetworkError> {
    let found = outside::run(|| Uplink::find(choice))?;
    let Some(uplink) = found else { return Ok(UplinkTrial::None) };
    uplink.check_device()?;
    let Some(IpAddr::V4(address)) = outside::run(source) else {
        return Ok(UplinkTrial::NoRoute(uplink));
    };
    DirBuilder::new().mode(0o700).create(dir).at("make the directory", dir)?;
    let pin = dir.join(PIN);
    netns::pin(netns::current()?.as_fd(), &pin)?;
    let request = UplinkRequest {
        netns: &pin,
        directory: dir,
        device: DEVICE,
        v4: gateway(address),
        v6: None,
        forwards: &[],
    };
    let process = outside::run(|| uplink.start(&request))?;
    let asked = outside::run(|| serve(address.into())).and_then(ask);
    let ended = process.kill(TIMEOUT).and(netns::unpin(&pin).map_err(io::Error::other));
    let answered = asked.at("reach the host by", &uplink.program)?;
    ended.at("end", &uplink.program)?;
    Ok(UplinkTrial::Answered(uplink, answered))
}

/// Answers clients when they have said all, as long as this process lives. Returns where.
fn serve(address: IpAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((address, 0))?;
    let listens_on = listener.local_addr()?;
    thread::Builder::new().name("trial".to_owned()).spawn(move || {
        for mut client in listener.incoming().take(ATTEMPTS).map_while(Result::ok) {
            let mut said = Vec::new();
            let _ = client.set_read_timeout(Some(TIMEOUT));
            // Who is not answered finds it out.
            let _ = (&mut client).take(16).read_to_end(&mut said);
            let _ = client.write_all(&said);
        }
    })?;
    Ok(listens_on)
}

/// Returns how many clients were answered until one was not. It is an error if none is connected.
fn ask(server: SocketAddr) -> io::Result<usize> {
    for attempt in 0..ATTEMPTS {
        let mut client = TcpStream::connect_timeout(&server, TIMEOUT)?;
        client.set_read_timeout(Some(TIMEOUT))?;
        client.write_all(b"all")?;
        client.shutdown(Shutdown::Write)?;
        let mut answer = Vec::new();
        if client.take(16).read_to_end(&mut answer).is_err() || answer != b"all" {
            return Ok(attempt);
        }
    }
    Ok(ATTEMPTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_have_said_all_are_answered() {
        let server = serve(Ipv4Addr::LOCALHOST.into()).unwrap();
        assert_eq!(ask(server).unwrap(), ATTEMPTS);
        // It has answered all that it answers; it may still be about to stop listening.
        assert!(matches!(ask(server), Ok(0) | Err(_)));
    }

    #[test]
    fn the_hosts_address_is_not_in_the_network_to_it() {
        let of = |host: [u8; 4]| gateway(host.into()).inside.octets();
        assert_eq!(of([198, 51, 100, 7]), [203, 0, 113, 100]);
        assert_eq!(of([192, 0, 2, 2]), [198, 51, 100, 100]);
    }

    #[test]
    fn a_server_that_does_not_answer_is_found_at_once() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let answering = thread::spawn(move || drop(listener.accept().unwrap()));
        // The connection is reset, or ended without an answer.
        assert!(matches!(ask(server), Ok(0) | Err(_)));
        answering.join().unwrap();
    }
}
