//! Writes the files that the engine mounts in a container: /etc/hosts, /etc/resolv.conf, /etc/hostname.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;

use oci_hooks_files::fs::{PathContext, PathError};

use super::options::{HostEntry, ResolverOptions};

/// Name of the hosts file in a bundle.
pub const HOSTS: &str = "hosts";
/// Name of the resolver configuration in a bundle.
pub const RESOLV_CONF: &str = "resolv.conf";
/// Name of the host name file in a bundle.
pub const HOSTNAME: &str = "hostname";

/// Writes the `/etc/hosts` of a bundle.
///
/// The file keeps its inode, so a running container sees the new names.
pub fn write_hosts(dir: &Path, entries: &[HostEntry]) -> Result<(), PathError> {
    write(&dir.join(HOSTS), &hosts(entries))
}

/// Writes a file that every user of the container may read.
pub fn write(path: &Path, text: &str) -> Result<(), PathError> {
    let mut file = File::create(path).with_path("create", path)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.set_permissions(mode).with_path("change the mode of", path)?;
    file.write_all(text.as_bytes()).with_path("write", path)
}

const LOOPBACK: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::\tip6-localnet\n\
    ff00::\tip6-mcastprefix\n\
    ff02::1\tip6-allnodes\n\
    ff02::2\tip6-allrouters\n";

fn hosts(entries: &[HostEntry]) -> String {
    let lines =
        entries.iter().map(|entry| format!("{}\t{}\n", entry.address, entry.names.join(" ")));
    std::iter::once(LOOPBACK.to_owned()).chain(lines).collect()
}

/// Returns the resolvers that a container would have in its `/etc/resolv.conf`.
pub fn resolvers(dns: &ResolverOptions) -> Result<Vec<String>, PathError> {
    let (text, _) = resolv_conf(dns)?;
    let servers = text.lines().filter_map(|line| line.strip_prefix("nameserver "));
    Ok(servers.map(|server| server.trim().to_owned()).collect())
}

/// Returns the content of `/etc/resolv.conf`, and a warning if it names no resolver.
pub fn resolv_conf(dns: &ResolverOptions) -> Result<(String, Option<String>), PathError> {
    let mut found = ResolvConf::default();
    for path in &dns.host_files {
        found = match fs::read_to_string(path) {
            Ok(text) => ResolvConf::parse(&text, dns.loopback_works),
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(PathError::new("read", path, error)),
        };
        if !found.servers.is_empty() {
            break;
        }
    }
    let servers: Vec<String> = dns.servers.iter().map(IpAddr::to_string).collect();
    for (found, asked) in [
        (&mut found.servers, &servers),
        (&mut found.search, &dns.search),
        (&mut found.options, &dns.options),
    ] {
        if !asked.is_empty() && !dns.append {
            found.clear();
        }
        found.extend(asked.iter().cloned());
    }
    if found.servers.is_empty() {
        found.servers.extend(dns.fallback.iter().map(IpAddr::to_string));
    }
    found.search.retain(|domain| domain != ".");
    let warning = found.servers.is_empty().then(|| {
        let files: Vec<String> = dns.host_files.iter().map(|p| p.display().to_string()).collect();
        format!(
            "no DNS server in {} is reachable from a container: name one as `dns` under [network]",
            files.join(" and ")
        )
    });
    Ok((found.to_text(), warning))
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ResolvConf {
    servers: Vec<String>,
    search: Vec<String>,
    options: Vec<String>,
}

impl ResolvConf {
    fn parse(text: &str, loopback_works: bool) -> Self {
        let mut conf = ResolvConf::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_ascii_whitespace();
            let keyword = words.next();
            let rest = words.map(str::to_owned);
            match keyword {
                Some("nameserver") => {
                    conf.servers.extend(rest.take(1).filter(|s| loopback_works || is_reachable(s)));
                }
                // The last line counts.
                Some("search" | "domain") => conf.search = rest.collect(),
                Some("options") => conf.options.extend(rest),
                _ => {}
            }
        }
        conf
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        for server in &self.servers {
            text += &format!("nameserver {server}\n");
        }
        for (keyword, words) in [("search", &self.search), ("options", &self.options)] {
            if !words.is_empty() {
                text += &format!("{keyword} {}\n", words.join(" "));
            }
        }
        text
    }
}

/// Returns whether a resolver of the host can be reached from another network: it is not on loopback, nor
/// bound to a link of the host, as with `%eth0`.
fn is_reachable(server: &str) -> bool {
    server.parse().is_ok_and(|address: IpAddr| match address.to_canonical() {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_unspecified(),
        IpAddr::V6(address) => {
            !address.is_loopback() && !address.is_unspecified() && !address.is_unicast_link_local()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUB: &str = "# comment\nnameserver 127.0.0.53 ; stub\nnameserver ::1\n\
        nameserver fe80::1%eth0\noptions edns0 trust-ad\ndomain x\nsearch a.example b.example\n";

    fn dns(files: &[(&str, &str)], dir: &Path) -> ResolverOptions {
        let host_files = files.iter().map(|(name, text)| {
            fs::write(dir.join(name), text).unwrap();
            dir.join(name)
        });
        ResolverOptions { host_files: host_files.collect(), ..ResolverOptions::default() }
    }

    #[test]
    fn resolvers_on_loopback_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let real = "nameserver 10.0.0.2\nsearch c.example\n";
        let mut dns = dns(&[("stub", STUB), ("real", real)], dir.path());
        let expected = "nameserver 10.0.0.2\nsearch c.example\n";
        assert_eq!(resolv_conf(&dns).unwrap(), (expected.to_owned(), None));
        dns.loopback_works = true;
        let (text, _) = resolv_conf(&dns).unwrap();
        assert_eq!(
            text,
            "nameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\n\
             search a.example b.example\noptions edns0 trust-ad\n"
        );
    }

    #[test]
    fn requested_dns_settings_replace_those_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let mut dns = dns(&[("stub", STUB)], dir.path());
        dns.servers = vec!["9.9.9.9".parse().unwrap()];
        dns.search = vec![".".to_owned()];
        dns.options = vec!["ndots:2".to_owned()];
        let expected = "nameserver 9.9.9.9\noptions ndots:2\n";
        assert_eq!(resolv_conf(&dns).unwrap(), (expected.to_owned(), None));
    }

    #[test]
    fn requested_dns_settings_can_follow_those_of_the_host() {
        let dir = tempfile::tempdir().unwrap();
        let mut dns = dns(&[("real", "nameserver 10.0.0.2\nsearch a.example\n")], dir.path());
        dns.append = true;
        dns.servers = vec!["9.9.9.9".parse().unwrap()];
        dns.search = vec!["b.example".to_owned()];
        let expected = "nameserver 10.0.0.2\nnameserver 9.9.9.9\nsearch a.example b.example\n";
        assert_eq!(resolv_conf(&dns).unwrap(), (expected.to_owned(), None));
    }

    #[test]
    fn missing_resolver_is_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let mut dns = dns(&[("stub", STUB)], dir.path());
        dns.host_files.push(dir.path().join("missing"));
        assert!(resolv_conf(&dns).unwrap().1.unwrap().contains("no DNS server"));
    }

    #[test]
    fn names_are_added_below_the_loopback_names() {
        let entry = HostEntry {
            address: "10.1.2.3".parse().unwrap(),
            names: vec!["redis".to_owned(), "cache".to_owned()],
        };
        let text = hosts(&[entry]);
        assert!(text.starts_with("127.0.0.1\tlocalhost\n"));
        assert!(text.ends_with("\n10.1.2.3\tredis cache\n"));
    }

    #[test]
    fn hosts_file_keeps_its_inode() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = tempfile::tempdir().unwrap();
        let id = || fs::metadata(dir.path().join(HOSTS)).unwrap().ino();
        write_hosts(dir.path(), &[]).unwrap();
        let before = id();
        write_hosts(dir.path(), &[]).unwrap();
        assert_eq!(id(), before);
    }
}
