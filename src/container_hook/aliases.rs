//! The names that a service can be reached by.
//!
//! Workflows call a service by its name under `services:`, which the runner does not send
//! (actions/runner#2783). So a service gets every name that can be had: the `contextName` that forks
//! send, else what [`worker_log`](super::worker_log) or [`workflow_file`](super::workflow_file) know, those of
//! its options, and its image's, which most workflows use as the service's name too.
//!
//! All of them are the workflow's own choice. None takes the place of another service's, nor of what
//! containers call themselves.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::options::CreateOptions;

/// What names of the loopback addresses and of IPv6's groups end with, in `/etc/hosts` of containers.
const OWN: [&str; 8] = [
    "localhost",
    "localdomain",
    "ip6-localhost",
    "ip6-loopback",
    "ip6-localnet",
    "ip6-mcastprefix",
    "ip6-allnodes",
    "ip6-allrouters",
];

/// What a service is called in one place or another.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServiceNames {
    /// Its name under `services:`.
    pub key: Option<String>,
    /// Names of its options, in order.
    pub given: Vec<String>,
    /// The last part of its image's name, without tag.
    pub image: String,
}

impl ServiceNames {
    /// Collects the names of a service.
    pub fn new(key: Option<&str>, options: &CreateOptions, image: &str) -> Self {
        let network = &options.network;
        let names = network.aliases.iter().chain(&options.name).chain(&options.hostname);
        ServiceNames {
            key: key.map(str::to_owned),
            given: names.cloned().collect(),
            image: image.to_owned(),
        }
    }

    /// Returns the names that somebody gave it on purpose, in order.
    pub fn chosen(&self) -> impl Iterator<Item = &String> {
        self.key.iter().chain(&self.given)
    }
}

/// The names of all services of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Aliases {
    /// Those of each service, the one to show first.
    pub names: Vec<Vec<String>>,
    /// Names that were given to a service by which it is not reached.
    pub unused: Vec<Unused>,
}

/// A name by which a service is not reached, though it was given to it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unused {
    /// Which service it is.
    pub service: usize,
    pub name: String,
    pub reason: Reason,
}

/// Why a name is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It has other characters than names of hosts.
    Malformed,
    /// Containers call themselves so.
    Own,
    /// Another service has it.
    Taken,
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            Reason::Malformed => "a host's name has letters, digits, `-`, `_` and `.`",
            Reason::Own => "in containers it is their own",
            Reason::Taken => "another service has this name",
        };
        write!(f, "not reachable as {:?}: {reason}", self.name)
    }
}

/// Returns the names of each service: its own, those of its options, then its image's.
///
/// Names under `services:` go before those of options. Of two services with the same name the first has
/// it. Of services with the same image the first has the image's name, the others have `-1`, `-2` and
/// so on after it. A name that was given to one service is not made up for another.
pub fn aliases(services: &[ServiceNames]) -> Aliases {
    let mut all = Aliases { names: vec![Vec::new(); services.len()], unused: Vec::new() };
    // Names of hosts are the same in upper and lower case.
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    let mut take = |service: usize, name: &str| match fault(name) {
        Some(reason) => Err(reason),
        None => match *owners.entry(name.to_ascii_lowercase()).or_insert(service) {
            owner if owner == service => Ok(()),
            _ => Err(Reason::Taken),
        },
    };
    let keys = services.iter().enumerate().map(|(at, names)| (at, names.key.as_slice()));
    let given = services.iter().enumerate().map(|(at, names)| (at, &names.given[..]));
    for (at, names) in keys.chain(given) {
        for name in names {
            match take(at, name) {
                Ok(()) => push(&mut all.names[at], name),
                Err(reason) => {
                    all.unused.push(Unused { service: at, name: name.clone(), reason });
                }
            }
        }
    }
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, ServiceNames { image, .. }) in services.iter().enumerate() {
        let count = seen.entry(image).or_default();
        let name = if *count == 0 { image.clone() } else { format!("{image}-{count}") };
        *count += 1;
        if !image.is_empty() && take(at, &name).is_ok() {
            push(&mut all.names[at], &name);
        }
    }
    all
}

fn push(names: &mut Vec<String>, name: &str) {
    if !names.iter().any(|other| other.eq_ignore_ascii_case(name)) {
        names.push(name.to_owned());
    }
}

/// Returns why something is no name for a service.
fn fault(name: &str) -> Option<Reason> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let starts = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if !starts || !name.chars().all(allowed) || name.len() > 253 || name.parse::<IpAddr>().is_ok() {
        return Some(Reason::Malformed);
    }
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    OWN.iter().any(|own| last.eq_ignore_ascii_case(own)).then_some(Reason::Own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(context_name: Option<&str>, options: &str, image: &str) -> ServiceNames {
        ServiceNames::new(context_name, &CreateOptions::parse(options).unwrap(), image)
    }

    #[test]
    fn a_service_has_all_names_that_can_be_had() {
        let options = "--network-alias cache --name my-redis --hostname rhost --net-alias cache";
        let names = aliases(&[service(Some("db"), options, "redis")]);
        assert_eq!(names.names, [["db", "cache", "my-redis", "rhost", "redis"]]);
    }

    #[test]
    fn services_with_the_same_image_are_numbered() {
        let redis = || service(None, "", "redis");
        let names = aliases(&[redis(), service(None, "", "postgres"), redis(), redis()]);
        assert_eq!(names.names, [["redis"], ["postgres"], ["redis-1"], ["redis-2"]]);
    }

    #[test]
    fn a_name_given_to_one_service_is_not_made_up_for_another() {
        let names = aliases(&[
            service(None, "", "redis"),
            service(None, "--network-alias redis", "valkey"),
        ]);
        assert_eq!(names.names, [vec![], vec!["redis", "valkey"]]);
        assert_eq!(names.unused, [], "it asked for no name");
    }

    #[test]
    fn no_service_takes_the_name_of_another_or_of_the_containers_themselves() {
        let all = aliases(&[
            service(None, "--network-alias db --network-alias LocalHost", "redis"),
            service(Some("db"), "--network-alias cache --network-alias a.localhost.", "postgres"),
            service(Some("cache"), "--name DB --hostname 127.0.0.1", "x"),
            service(Some("a b\t1.2.3.4 x"), "--network-alias localhost.example", "y"),
        ]);
        let expected = [
            vec!["redis"],
            vec!["db", "postgres"],
            vec!["cache", "x"],
            vec!["localhost.example", "y"],
        ];
        assert_eq!(all.names, expected);
        let unused: Vec<_> =
            all.unused.iter().map(|one| (one.service, one.name.as_str(), one.reason)).collect();
        let expected = [
            (3, "a b\t1.2.3.4 x", Reason::Malformed),
            (0, "db", Reason::Taken),
            (0, "LocalHost", Reason::Own),
            (1, "cache", Reason::Taken),
            (1, "a.localhost.", Reason::Own),
            (2, "DB", Reason::Taken),
            (2, "127.0.0.1", Reason::Malformed),
        ];
        assert_eq!(unused, expected);
        assert_eq!(
            all.unused[1].to_string(),
            "not reachable as \"db\": another service has this name"
        );
    }
}
