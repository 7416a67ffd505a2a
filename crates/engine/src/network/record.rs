//! Writes and reads the records of networks, by which later processes find them and avoid their addresses.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use ipnet::{Ipv4Net, Ipv6Net};
use oci_hooks_files::fs::{
    PathError, entries_in, make_private, random_u64, read_if_there, replace_unsynced,
};
use oci_hooks_files::lock::{FileLock, LOCK_TIMEOUT};
use oci_hooks_files::record::{RecordError, decode, encode};
use oci_hooks_host::removal::repair_lock_file;
use oci_hooks_host::userns::PrivateIds;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::error::NetworkError;
use super::firewall::TableMember;
use super::interface::{InterfaceName, LINK};
use super::netlink::{self, Netlink};
use super::outside::{OutsideHost, UplinkRecord};
use super::port::PublishedPort;
use super::request::{NetworkOptions, NetworkRequest};
use super::subnet::{AddressPlan, CONTAINERS, Subnet};
use super::uplink_program;

/// Record of a network, in its directory.
pub const RECORD: &str = "record.json";

/// File, beside the record, at which a network's bridge namespace is pinned. Files of containers
/// cannot have this name.
pub const BRIDGE: &str = "bridge.netns";

/// Maximum MTU of links on the host.
const MTU: u32 = 1500;

/// Record of a network, written before anything of it is created.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NetworkRecord {
    pub id: String,
    pub number: u32,
    pub pool: String,
    pub pool6: String,
    pub host_access: bool,
    /// Name of the host's end of the link.
    pub link: InterfaceName,
    /// Interfaces through which packets may leave the host, even if their kind usually leads to other
    /// containers of the host.
    pub uplinks: Vec<InterfaceName>,
    pub mtu: u32,
    /// If set, the host has IPv6.
    pub ipv6: bool,
    /// If set, the containers have a user namespace, which is pinned beside the record.
    pub user_namespace: bool,
    /// Uplink of a rootless user's network; `None` for root, or without an uplink program.
    pub uplink: Option<UplinkRecord>,
    pub endpoints: Vec<EndpointRecord>,
    /// Number to try first for the next container.
    pub next: u32,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct EndpointRecord {
    pub name: String,
    pub number: u32,
    /// Ports that the packet filter forwards to the container.
    pub published: Vec<PublishedPort>,
    /// Ports of the host that the uplink program forwards to `published`; empty without an uplink
    /// program.
    pub outside: Vec<PublishedPort>,
}

impl EndpointRecord {
    /// Returns the published ports to which clients connect: those of the uplink program, if it has
    /// any.
    pub fn usable_ports(&self) -> &[PublishedPort] {
        if self.outside.is_empty() { &self.published } else { &self.outside }
    }
}

impl NetworkRecord {
    /// Returns the addresses of the network, by the pools in its record, which may differ from the
    /// options.
    pub(super) fn plan(&self, options: &NetworkOptions) -> AddressPlan {
        self.block(options, self.number)
    }

    /// Returns the addresses of the block with this number in the network's pools.
    pub(super) fn block(&self, options: &NetworkOptions, number: u32) -> AddressPlan {
        let pool = self.pool.parse().unwrap_or(options.pool);
        AddressPlan::new(pool, self.pool6.parse().unwrap_or(options.pool6), number)
    }

    /// Returns the network's elements in the sets and maps of the firewall's table.
    pub(super) fn member(&self, options: &NetworkOptions) -> TableMember<'_> {
        let plan = self.plan(options);
        let container = |endpoint: &EndpointRecord| plan.container(endpoint.number);
        let endpoints = self.endpoints.iter();
        let containers =
            endpoints.map(|endpoint| (endpoint.published.as_slice(), container(endpoint)));
        let forbidden = self.uplink.as_ref().filter(|_| !self.host_access);
        TableMember {
            link: &self.link,
            uplinks: &self.uplinks,
            hosts: forbidden.map_or(&[], |uplink| &uplink.addresses),
            containers: containers.collect(),
        }
    }

    /// Returns a number for another container, from which its addresses follow; `None` if all are
    /// in use. Released numbers come last: the kernel may still be removing their links.
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
    let path = options.run.join("network.lock");
    repair_lock_file(&path, LOCK_TIMEOUT)?;
    Ok(FileLock::acquire_exclusive(&path, LOCK_TIMEOUT)?)
}

/// Writes the record of a network, with addresses that no other network has. The caller holds the lock.
pub fn claim(
    options: &NetworkOptions,
    NetworkRequest { id, user_namespace }: &NetworkRequest,
    records: &[NetworkRecord],
    outside: &OutsideHost,
) -> Result<NetworkRecord, NetworkError> {
    if fs::symlink_metadata(directory(options, id).join(RECORD)).is_ok() {
        return Err(NetworkError::Exists { id: id.clone() });
    }
    // Networks with unreadable records have routes, which are avoided.
    let used: BTreeSet<_> = records.iter().map(|record| record.number).collect();
    let OutsideHost { routes, routes6, .. } = outside;
    // Each network also has private ids, by its number.
    let count = options.pool.count().min(options.pool6.count()).min(PrivateIds::JOBS);
    // Start after the highest number in use: the kernel may still be removing a network with a lower one.
    let first = used.last().map_or(0, |last| (last + 1) % count);
    let is_free = |number: &u32| {
        !used.contains(number)
            && !options.pool.overlaps_route(*number, &routes.networks)
            && !options.pool6.overlaps_route(*number, &routes6.networks)
    };
    let mut free = (0..count).map(|at| (first + at) % count).filter(is_free);
    let full = || NetworkError::PoolEmpty { pool: options.pool.to_string(), count };
    let number = free.next().ok_or_else(full)?;
    // One program is the uplink of all networks in a namespace.
    let uplink = match records.iter().find_map(|record| record.uplink.clone()) {
        None if outside.has_uplink() => outside.uplink(id, free.next_back().ok_or_else(full)?),
        uplink => uplink,
    };
    let has_own_network = options.privilege.has_own_network();
    let mtu = match routes.defaults.first().filter(|_| !has_own_network) {
        None if has_own_network => uplink_program::MTU,
        link => link.and_then(|link| mtu(link)).unwrap_or(MTU).min(MTU),
    };
    let uplinks = match has_own_network {
        // Default routes are the real host's, which its user reaches only through the uplink program.
        true => vec![super::outside::device()],
        false => uplinks(options, routes.defaults.iter().chain(&routes6.defaults)),
    };
    let record = NetworkRecord {
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

/// Returns a name for the host's end of a link. Not derived from the id, because interface names are short.
fn link_name() -> InterfaceName {
    let name = format!("{LINK}{:011x}", random_u64() & 0xfff_ffff_ffff);
    name.parse().expect("it has 15 letters and digits")
}

/// Returns the interfaces through which packets may leave the host: those of its default routes,
/// and those of the options.
fn uplinks<'a>(
    options: &NetworkOptions,
    defaults: impl Iterator<Item = &'a String>,
) -> Vec<InterfaceName> {
    let mut uplinks: Vec<InterfaceName> = defaults.filter_map(|name| name.parse().ok()).collect();
    uplinks.extend(options.uplinks.iter().cloned());
    uplinks.sort();
    uplinks.dedup();
    uplinks
}

/// Returns the MTU of a link that leads out of the host: it is smaller for tunnels and clouds, and not all of
/// them report that to senders of larger packets.
fn mtu(link: &str) -> Option<u32> {
    Netlink::open().ok()?.link(netlink::index(link).ok()?).ok()?.mtu
}

/// Returns whether new links in the calling thread's namespace have IPv6.
fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6")
        .is_ok_and(|value| value.trim() == "0")
}

/// Records of all networks.
#[derive(Debug, Default)]
pub struct NetworkRecords {
    pub known: Vec<NetworkRecord>,
    /// Ids of networks whose record is unreadable or missing: only the kernel knows their addresses and ports.
    pub unreadable: Vec<(String, NetworkError)>,
}

pub(super) fn records(options: &NetworkOptions) -> Result<NetworkRecords, NetworkError> {
    let mut records = NetworkRecords::default();
    for entry in entries_in(&options.run.join("network"))? {
        let (path, bridge) = (entry.path().join(RECORD), entry.path().join(BRIDGE));
        // Checked before and after the record is read, to skip networks that are being created (the record first) or
        // removed (the bridge first).
        let had_bridge = bridge.exists();
        let error = match read(&path) {
            Ok(Some(record)) => {
                records.known.push(record);
                continue;
            }
            Ok(None) if had_bridge && bridge.exists() => {
                PathError::new("open", &path, Errno::NOENT).into()
            }
            Ok(None) => continue,
            Err(error) if error.is_unreadable() => error,
            Err(error) => return Err(error),
        };
        records.unreadable.push((entry.file_name().to_string_lossy().into_owned(), error));
    }
    Ok(records)
}

pub(super) fn read(path: &Path) -> Result<Option<NetworkRecord>, NetworkError> {
    let Some(text) = read_if_there(path, 1 << 20)? else { return Ok(None) };
    let invalid = |source| RecordError::Invalid { path: path.to_owned(), source };
    Ok(Some(checked(decode(path, &text)?).map_err(invalid)?))
}

/// Rejects out-of-range numbers of networks and containers, from which addresses are computed.
fn checked(record: NetworkRecord) -> serde_json::Result<NetworkRecord> {
    let refuse = |what| Err(serde::de::Error::custom(what));
    let pools = (record.pool.parse::<Subnet<Ipv4Net>>(), record.pool6.parse::<Subnet<Ipv6Net>>());
    let (Ok(pool), Ok(pool6)) = pools else { return refuse("a pool is not a block of addresses") };
    let count = pool.count().min(pool6.count());
    if record.number >= count {
        return refuse("the number of the network is outside of its pools");
    }
    if record.uplink.as_ref().is_some_and(|uplink| uplink.number >= count) {
        return refuse("the number of the uplink is outside of the pools");
    }
    let mut numbers = record.endpoints.iter().map(|endpoint| endpoint.number);
    if numbers.any(|number| number >= CONTAINERS) || record.next > CONTAINERS {
        return refuse("the number of a container is too high");
    }
    Ok(record)
}

pub(super) fn write(options: &NetworkOptions, record: &NetworkRecord) -> Result<(), NetworkError> {
    let path = directory(options, &record.id).join(RECORD);
    Ok(replace_unsynced(&path, &encode(record), 0o600)?)
}

#[cfg(test)]
mod tests {
    use oci_hooks_testsupport::damage::RecordDamage;
    use serde_json::json;

    use super::*;
    use crate::network::Network;

    #[test]
    fn corrupt_record_does_not_hide_others() {
        for damage in RecordDamage::ALL {
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
            let NetworkRecords { known, unreadable } = records(&options).unwrap();
            assert_eq!((known.len(), unreadable.len()), (1, 1), "{damage:?}");
            assert!(unreadable[0].1.to_string().contains("bad/record.json"), "{unreadable:?}");
            // Without a bridge namespace, nothing of the network is left elsewhere.
            Network::remove_id(&options, "bad").unwrap();
            assert!(!directory(&options, "bad").exists(), "{damage:?}");
        }
    }

    #[test]
    fn record_with_out_of_range_numbers_is_corrupt() {
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
