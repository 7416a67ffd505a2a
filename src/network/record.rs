//! Records of networks: what later processes find them by, and what they must not take as well.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipnet::{Ipv4Net, Ipv6Net};
use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::firewall::Member;
use super::interface::{Interface, LINK};
use super::netlink::{self, Netlink};
use super::outside::{Outside, UplinkRecord};
use super::port::Published;
use super::request::{NetworkOptions, NetworkRequest};
use super::subnet::{CONTAINERS, Plan, Subnet};
use crate::sys::fs::{
    Durability, FileAt, PathContext as _, ReplaceOptions, Symlinks, make_private, random_u64,
    read_if_there,
};
use crate::sys::lock::{BRIEF, FileLock};
use crate::sys::record::{RecordError, decode, encode};
use crate::sys::uplink;
use crate::sys::userns::PrivateIds;

/// What is known of a network, in its directory.
pub const RECORD: &str = "record.json";

/// How long packets are at most, by links of the host.
const MTU: u32 = 1500;

/// What is known of a network, from before anything of it is made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    pub id: String,
    pub number: u32,
    pub pool: String,
    pub pool6: String,
    pub host_access: bool,
    /// The name of the host's end of the link.
    pub link: Interface,
    /// By which interfaces its packets may leave the host, though they are of a kind that leads to other
    /// containers of it.
    pub uplinks: Vec<Interface>,
    pub mtu: u32,
    /// Whether the host has IPv6.
    pub ipv6: bool,
    /// Whether its containers have a user namespace, which then is pinned beside the record.
    pub user_namespace: bool,
    /// What leads out of the host's namespace, where that is a user's own and anything does.
    pub uplink: Option<UplinkRecord>,
    pub endpoints: Vec<EndpointRecord>,
    /// The number of the next container, unless it is taken.
    pub next: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EndpointRecord {
    pub name: String,
    pub number: u32,
    /// What the packet filter leads to it.
    pub published: Vec<Published>,
    /// Where that is the packet filter of a user's own namespace, which ports of the real host lead there.
    pub outside: Vec<Published>,
}

impl EndpointRecord {
    /// Returns the ports that people can use.
    pub fn usable(&self) -> &[Published] {
        if self.outside.is_empty() { &self.published } else { &self.outside }
    }
}

impl Record {
    /// Returns the addresses of the network. The configuration may have changed since.
    pub(super) fn plan(&self, options: &NetworkOptions) -> Plan {
        self.block(options, self.number)
    }

    /// Returns the addresses of the block of the pools with this number.
    pub(super) fn block(&self, options: &NetworkOptions, number: u32) -> Plan {
        let pool = self.pool.parse().unwrap_or(options.pool);
        Plan::new(pool, self.pool6.parse().unwrap_or(options.pool6), number)
    }

    /// Returns what the firewall has of it.
    pub(super) fn member(&self, options: &NetworkOptions) -> Member<'_> {
        let plan = self.plan(options);
        let container = |endpoint: &EndpointRecord| plan.container(endpoint.number);
        let endpoints = self.endpoints.iter();
        let containers =
            endpoints.map(|endpoint| (endpoint.published.as_slice(), container(endpoint)));
        let forbidden = self.uplink.as_ref().filter(|_| !self.host_access);
        Member {
            link: &self.link,
            uplinks: &self.uplinks,
            hosts: forbidden.map_or(&[], |uplink| &uplink.addresses),
            containers: containers.collect(),
        }
    }

    /// Returns a number for another container. One that was given back is taken last: the kernel
    /// may still be taking apart what had it.
    pub(super) fn free_number(&self) -> Option<u32> {
        let taken = |number| self.endpoints.iter().any(|endpoint| endpoint.number == number);
        (0..CONTAINERS).map(|at| (self.next + at) % CONTAINERS).find(|number| !taken(*number))
    }
}

pub(super) fn directory(options: &NetworkOptions, id: &str) -> PathBuf {
    options.run.join("network").join(id)
}

pub(super) fn lock(options: &NetworkOptions) -> Result<FileLock, NetworkError> {
    let dir = options.run.join("network");
    make_private(&dir)?;
    Ok(FileLock::exclusive(&options.run.join("network.lock"), BRIEF)?)
}

/// Writes the record of a network with addresses that nobody else has. The lock is held.
pub fn claim(
    options: &NetworkOptions,
    NetworkRequest { id, user_namespace }: &NetworkRequest,
    records: &[Record],
    outside: &Outside,
) -> Result<Record, NetworkError> {
    if fs::symlink_metadata(directory(options, id).join(RECORD)).is_ok() {
        return Err(NetworkError::Exists { id: id.clone() });
    }
    // Those of networks whose records nobody can read have routes.
    let used: BTreeSet<_> = records.iter().map(|record| record.number).collect();
    let Outside { routes, routes6, .. } = outside;
    // Each has private ids too, by its number.
    let count = options.pool.count().min(options.pool6.count()).min(PrivateIds::JOBS);
    // From the one after the last: the kernel may still be taking that one apart.
    let first = used.last().map_or(0, |last| (last + 1) % count);
    let is_free = |number: &u32| {
        !used.contains(number)
            && !options.pool.clashes(*number, &routes.networks)
            && !options.pool6.clashes(*number, &routes6.networks)
    };
    let mut free = (0..count).map(|at| (first + at) % count).filter(is_free);
    let full = || NetworkError::PoolEmpty { pool: options.pool.to_string(), count };
    let number = free.next().ok_or_else(full)?;
    // One program leads out for all networks of a namespace; there hardly ever are several.
    let needs_uplink = records.iter().all(|record| record.uplink.is_none());
    let uplink = match outside.uplink(0).filter(|_| needs_uplink) {
        None => None,
        Some(_) => outside.uplink(free.next_back().ok_or_else(full)?),
    };
    let has_own_network = options.privilege.has_own_network();
    let mtu = match routes.defaults.first().filter(|_| !has_own_network) {
        None if has_own_network => uplink::MTU,
        link => link.and_then(|link| mtu(link)).unwrap_or(MTU).min(MTU),
    };
    let uplinks = match has_own_network {
        // Those are the host's, which its user gets at by a program alone.
        true => vec![super::outside::device()],
        false => uplinks(options, routes.defaults.iter().chain(&routes6.defaults)),
    };
    let record = Record {
        id: id.clone(),
        number,
        pool: options.pool.to_string(),
        pool6: options.pool6.to_string(),
        host_access: options.host_access,
        link: link_name(),
        mtu,
        uplinks,
        ipv6: has_ipv6(),
        user_namespace: user_namespace.is_some(),
        uplink,
        endpoints: Vec::new(),
        next: 0,
    };
    make_private(&directory(options, id))?;
    write(options, &record)?;
    Ok(record)
}

/// Returns a name for the host's end of a link. Not from the id: such names are short.
fn link_name() -> Interface {
    let name = format!("{LINK}{:011x}", random_u64() & 0xfff_ffff_ffff);
    name.parse().expect("it has 15 letters and digits")
}

/// Returns where packets may leave the host: by its own default routes, and where the admin says so.
fn uplinks<'a>(
    options: &NetworkOptions,
    defaults: impl Iterator<Item = &'a String>,
) -> Vec<Interface> {
    let mut uplinks: Vec<Interface> = defaults.filter_map(|name| name.parse().ok()).collect();
    uplinks.extend(options.uplinks.iter().cloned());
    uplinks.sort();
    uplinks.dedup();
    uplinks
}

/// Returns how long packets may be that leave the host: tunnels and clouds take less than usual, and
/// not all say so to who sends more.
fn mtu(link: &str) -> Option<u32> {
    Netlink::open().ok()?.link(netlink::index(link).ok()?).ok()?.mtu
}

/// Returns whether links that are made in the calling thread's namespace have IPv6.
fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6")
        .is_ok_and(|value| value.trim() == "0")
}

/// The networks that there are.
#[derive(Debug, Default)]
pub struct Records {
    pub known: Vec<Record>,
    /// The ids of networks whose record is unreadable: only the kernel knows what they have.
    pub unreadable: Vec<(String, NetworkError)>,
}

pub(super) fn records(options: &NetworkOptions) -> Result<Records, NetworkError> {
    let dir = options.run.join("network");
    let mut records = Records::default();
    let entries = match fs::read_dir(&dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(records),
        entries => entries.at("list", &dir)?,
    };
    for entry in entries.flatten() {
        match read(&entry.path().join(RECORD)) {
            Ok(record) => records.known.extend(record),
            Err(error) if error.is_unreadable() => {
                let id = entry.file_name().to_string_lossy().into_owned();
                records.unreadable.push((id, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(records)
}

pub(super) fn read(path: &Path) -> Result<Option<Record>, NetworkError> {
    let Some(text) = read_if_there(path, 1 << 20)? else { return Ok(None) };
    let invalid = |source| RecordError::Invalid { path: path.to_owned(), source };
    Ok(Some(checked(decode(path, &text)?).map_err(invalid)?))
}

/// Refuses numbers that no network or container of ours has: addresses are reckoned from them.
fn checked(record: Record) -> serde_json::Result<Record> {
    let refuse = |what| Err(serde::de::Error::custom(what));
    let pools = (record.pool.parse::<Subnet<Ipv4Net>>(), record.pool6.parse::<Subnet<Ipv6Net>>());
    let (Ok(pool), Ok(pool6)) = pools else { return refuse("a pool is no block of addresses") };
    let count = pool.count().min(pool6.count());
    if record.number >= count {
        return refuse("the number of the network is not one of its pools");
    }
    if record.uplink.as_ref().is_some_and(|uplink| uplink.number >= count) {
        return refuse("the number of the way out is not one of the pools");
    }
    let mut numbers = record.endpoints.iter().map(|endpoint| endpoint.number);
    if numbers.any(|number| number >= CONTAINERS) || record.next > CONTAINERS {
        return refuse("the number of a container is too high");
    }
    Ok(record)
}

pub(super) fn write(options: &NetworkOptions, record: &Record) -> Result<(), NetworkError> {
    let text = encode(record);
    let replace = ReplaceOptions {
        mode: Some(0o600),
        // The run directory does not outlive a boot.
        durability: Durability::Unsynced,
        ..ReplaceOptions::default()
    };
    let path = directory(options, &record.id).join(RECORD);
    Ok(FileAt::open(&path, Symlinks::Refuse)?.replace(&text, &replace)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::network::Network;
    use crate::sys::tests::Damage;

    #[test]
    fn one_record_that_cannot_be_read_hides_no_other() {
        for damage in Damage::ALL {
            let dir = tempfile::tempdir().unwrap();
            let options = NetworkOptions::for_test(dir.path());
            for id in ["good", "bad"] {
                let record = json!({
                    "id": id, "number": 1, "pool": "10.213.0.0/16", "pool6": "fd00::/48",
                    "host_access": false, "link": "ocih0", "uplinks": [], "mtu": 1500, "ipv6": false,
                    "user_namespace": false, "endpoints": [], "next": 0,
                });
                make_private(&directory(&options, id)).unwrap();
                fs::write(directory(&options, id).join(RECORD), record.to_string()).unwrap();
            }
            damage.inflict(&directory(&options, "bad").join(RECORD));
            let Records { known, unreadable } = records(&options).unwrap();
            assert_eq!((known.len(), unreadable.len()), (1, 1), "{damage:?}");
            assert!(unreadable[0].1.to_string().contains("bad/record.json"), "{unreadable:?}");
            // There is no bridge namespace: nothing of it is anywhere else.
            Network::remove_id(&options, "bad").unwrap();
            assert!(!directory(&options, "bad").exists(), "{damage:?}");
        }
    }

    #[test]
    fn a_record_with_numbers_that_have_no_address_is_broken() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        let good = json!({
            "id": "n", "number": 255, "pool": "10.213.0.0/16", "pool6": "fd00::/48",
            "host_access": false, "link": "ocih0", "uplinks": [], "mtu": 1500, "ipv6": false,
            "user_namespace": false, "next": 253,
            "endpoints": [{"name": "a", "number": 252, "published": [], "outside": []}],
        });
        let read_with = |pointer: &str, value: serde_json::Value| {
            let mut record = good.clone();
            *record.pointer_mut(pointer).unwrap() = value;
            fs::write(&path, record.to_string()).unwrap();
            read(&path)
        };
        assert!(read_with("/number", json!(255)).unwrap().is_some());
        for (pointer, value) in [
            ("/number", json!(256)),
            ("/number", json!(u32::MAX)),
            ("/pool", json!("10.213.0.0/33")),
            ("/pool6", json!("")),
            ("/next", json!(u32::MAX)),
            ("/endpoints/0/number", json!(253)),
            ("/endpoints/0/number", json!(u32::MAX)),
        ] {
            let read = read_with(pointer, value);
            assert!(matches!(read, Err(NetworkError::Record(_))), "{pointer}: {read:?}");
        }
    }
}
