//! A network namespace that plays the host, and one that plays the world.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use oci_hooks::network::{Network, NetworkOptions, NetworkRequest, Subnet};
use oci_hooks::sys::netns;

use crate::support::program::{self, wait_until};

/// The host's address in the world.
pub(crate) const ADDRESS: &str = "198.51.100.1";
/// An address in the world.
pub(crate) const WORLD: &str = "198.51.100.2";
/// The same in IPv6.
pub(crate) const ADDRESS6: &str = "2001:db8::1";
pub(crate) const WORLD6: &str = "2001:db8::2";
/// Where clouds give credentials away.
pub(crate) const METADATA: [&str; 2] = ["169.254.169.254", "fd00:ec2::254"];

pub(crate) struct Host {
    dir: tempfile::TempDir,
}

impl Host {
    pub(crate) fn new() -> Self {
        program::require_root();
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let host = Host { dir };
        netns::create(&host.pin("host"), None, || ()).unwrap();
        netns::create(&host.pin("world"), None, || ()).unwrap();
        host.run(|| {
            // What one distribution filters by itself another one does not.
            for name in ["all", "default"] {
                set(&format!("net/ipv4/conf/{name}/rp_filter"), "0");
            }
            let mut process = Command::new("nsenter")
                .arg(format!("--net={}", host.pin("world").display()))
                .args(["sh", "-c", "echo; read end"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            // It is in its namespace once it says something.
            std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut [0]).unwrap();
            ip("link set lo up");
            ip(&format!("link add outside type veth peer name inside netns {}", process.id()));
            drop(process.stdin.take());
            process.wait().unwrap();
            ip(&format!("address add {ADDRESS}/24 dev outside"));
            ip(&format!("address add {ADDRESS6}/64 dev outside nodad"));
            ip("link set outside up");
            for address in METADATA {
                let via = if address.contains(':') { WORLD6 } else { WORLD };
                ip(&format!("route add {address} via {via}"));
            }
        });
        host.outside(|| {
            ip("link set lo up");
            ip(&format!("address add {WORLD}/24 dev inside"));
            ip(&format!("address add {WORLD6}/64 dev inside nodad"));
            ip("link set inside up");
            ip(&format!("address add {}/32 dev inside", METADATA[0]));
            ip(&format!("address add {}/128 dev inside nodad", METADATA[1]));
        });
        host
    }

    /// Runs something on the host.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::within(&self.pin("host"), work).unwrap()
    }

    /// Runs something out in the world.
    pub(crate) fn outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        netns::within(&self.pin("world"), work).unwrap()
    }

    pub(crate) fn options(&self) -> NetworkOptions {
        NetworkOptions {
            run: self.dir.path().join("run"),
            pool: Subnet::default(),
            pool6: Subnet::default(),
            host_access: true,
        }
    }

    /// Makes a network.
    pub(crate) fn network(&self, id: &str) -> Network {
        Network::create(
            &self.options(),
            &NetworkRequest { id: id.to_owned(), user_namespace: false },
        )
        .unwrap()
    }

    /// Waits until nothing is left of networks: links, elements of maps, files and mounts.
    #[track_caller]
    pub(crate) fn expect_nothing_left(&self) {
        // The kernel takes links away in its own time.
        wait_until("no links are left", || !output("ip", &["-o", "link"]).contains("ocih"));
        let rules = output("nft", &["list", "ruleset"]);
        assert!(
            !rules.contains("elements = {\n") && !rules.contains("elements = { tcp"),
            "{rules}"
        );
        let run = self.options().run;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(run.to_str().unwrap()), "{mounts}");
        let files = std::fs::read_dir(run.join("network")).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        assert_eq!(files, Vec::<PathBuf>::new());
    }

    fn pin(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // After a failed test, what it made goes too.
        let networks = std::fs::read_dir(self.options().run.join("network"));
        let ids: Vec<_> =
            networks.into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
        self.run(|| {
            for id in &ids {
                let _ = Network::remove_id(&self.options(), id.to_str().unwrap());
            }
        });
        for name in ["host", "world"] {
            let _ = netns::unpin(&self.pin(name));
        }
    }
}

/// Runs `ip`, in the namespace of the calling thread.
#[track_caller]
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Runs `nft`, in the namespace of the calling thread.
#[track_caller]
pub(crate) fn nft(command: &str) -> String {
    output("nft", &[command])
}

/// Sets a parameter of the namespace of the calling thread.
pub(crate) fn set(name: &str, value: &str) {
    std::fs::write(Path::new("/proc/sys").join(name), value).unwrap();
}

#[track_caller]
fn output(name: &str, arguments: &[&str]) -> String {
    let program = program::find(name);
    let output = Command::new(Path::new(&program)).args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
