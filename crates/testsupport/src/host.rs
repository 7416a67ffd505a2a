//! A test host inside this one, with its own network, mounts, processes and `/run`.
//!
//! It isolates parallel tests from each other, resolves names such as `ghcr.io` to registries of the test,
//! and removes leftovers of failed tests when it ends.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

use super::certificates::TestCertificates;
use super::program::{self, FinishedCommand};

/// Addresses and host names of the registries of a test.
const NAMES: [(&str, &str); 4] = [
    ("127.0.0.1", "localhost"),
    ("127.0.0.2", "registry-1.docker.io index.docker.io docker.io auth.docker.io"),
    ("127.0.0.3", "ghcr.io"),
    ("::1", "localhost ip6-localhost"),
];

/// Runs as init of the host: prepares its mounts, then reaps orphans until the test closes standard input.
///
/// The host starts with a copy of all mounts of this machine, without temporary ones, such as those of other
/// tests, which could disappear in the middle of this test.
const FIRST_PROCESS: &str = r#"
set -e
cut -d ' ' -f 5 /proc/self/mountinfo | sort -r | while read -r place; do
    case $PWD/ in "$place"/*) continue ;; esac
    case $place in /tmp/* | /var/tmp/* | /dev/shm/* | /run/*) umount --lazy "$place" || : ;; esac
done 2>/dev/null
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/lock
mount --bind "$1/hosts" /etc/hosts
mount --bind "$2" /etc/ssl/certs/ca-certificates.crt
ip link set lo up
exec 3<&0
cat <&3 >/dev/null &
echo ready
exec >&-
wait $!
"#;

/// Namespaces that last as long as the value.
pub struct TestHost {
    holder: Child,
    _until: ChildStdin,
    directory: tempfile::TempDir,
    pub certificates: Arc<TestCertificates>,
}

impl TestHost {
    #[expect(clippy::new_without_default, reason = "it is made on the machine")]
    pub fn new() -> Self {
        program::require_root();
        for tool in ["ip", "unshare"] {
            program::find(tool);
        }
        let directory = program::temporary_directory_in(Path::new("/dev/shm"));
        let mut hosts = String::new();
        for (address, names) in NAMES {
            writeln!(hosts, "{address} {names}").expect("a string takes it");
        }
        fs::write(directory.path().join("hosts"), hosts).expect("the directory is new");
        let certificates = TestCertificates::shared();
        let mut holder = Command::new("unshare")
            .args(["--net", "--mount", "--propagation", "private", "--pid", "--mount-proc"])
            .args(["--kill-child", "sh", "-c", FIRST_PROCESS, "host"])
            .arg(directory.path())
            .arg(certificates.authorities())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare can be run");
        let until = holder.stdin.take().expect("it is a pipe");
        let output = holder.stdout.take().expect("it is a pipe");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).expect("a pipe can be read");
        assert_eq!(line, "ready\n", "the namespaces of a host cannot be made");
        Self { holder, _until: until, directory, certificates }
    }

    /// Returns the directory of the host, on tmpfs, for all files that a test creates.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Calls a function in the host's namespaces. Processes that it starts belong to the host.
    ///
    /// The function cannot start threads: all threads of a process share one PID namespace.
    pub fn enter<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        let namespaces = [
            ("net", CloneFlags::CLONE_NEWNET),
            ("pid_for_children", CloneFlags::CLONE_NEWPID),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ]
        .map(|(name, kind)| (self.namespace(name), kind));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // `setns` to a mount namespace fails for a thread that shares its root with others.
                unshare(CloneFlags::CLONE_FS).expect("a thread may have its own root");
                for (file, kind) in namespaces {
                    setns(file, kind).expect("root may enter a namespace");
                }
                call()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a process on the host.
    #[track_caller]
    pub fn spawn(&self, command: &mut Command) -> Child {
        self.enter(|| command.spawn())
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
    }

    /// Runs a process on the host and waits for its exit.
    #[track_caller]
    pub fn run(&self, command: &mut Command) -> FinishedCommand {
        program::run_by(command, b"", |command| self.enter(|| command.spawn()))
    }

    /// Returns the output of a shell script that must succeed.
    #[track_caller]
    pub fn shell(&self, script: &str) -> String {
        self.run(Command::new("sh").args(["-ec", script])).success()
    }

    /// Gives the host an `/etc` of its own, removed with the host. From then on other users can reach the
    /// host's directory.
    pub fn make_etc(&self) {
        self.shell(&format!(
            "cd {}; chmod 711 .; mkdir -p etc/ssl/certs etc-work; cp /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/; \
             (cat /etc/hosts; echo 127.0.1.1 $(hostname)) >etc/hosts; \
             mount -t overlay -o lowerdir=/etc,upperdir=etc,workdir=etc-work overlay /etc",
            self.path().display()
        ));
    }

    /// Gives the host its own `/tmp` and `/var/tmp`, below its directory. The repository stays visible if it
    /// is in one of them.
    pub fn make_temporary(&self) {
        self.shell(&format!(
            "for place in /tmp /var/tmp; do own={}/temporary$place; mkdir -p $own; chmod 1777 $own; \
             for keep in {} {}; do case $keep in $place/*) mkdir -p $own/${{keep#$place/}}; \
             mount --bind $keep $own/${{keep#$place/}} ;; esac; done; mount --rbind $own $place; done",
            self.path().display(),
            program::repository("").display(),
            program::cache_dir().display(),
        ));
    }

    /// Returns the running processes of the host, containers included, without the host's own two.
    pub fn processes(&self) -> Vec<HostProcess> {
        // The host's `/proc` includes all nested PID namespaces.
        self.enter(|| {
            let entries = fs::read_dir("/proc").expect("/proc is mounted");
            let names = entries.flatten().map(|entry| entry.file_name());
            let pids = names.filter_map(|name| name.to_str()?.parse().ok());
            pids.filter_map(|pid| {
                let line = line_of(pid)?;
                let is_host = line.contains(FIRST_PROCESS) || line == "cat ";
                (!is_host).then_some(HostProcess { pid, line })
            })
            .collect()
        })
    }

    /// Returns the ids, in the host's PID namespace, of the processes with this `comm` name.
    pub fn find_processes(&self, name: &str) -> Vec<u32> {
        let processes = self.processes();
        self.enter(|| {
            let has_name = |pid: &u32| {
                let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
                comm.is_ok_and(|comm| comm.trim_end() == name)
            };
            processes.iter().map(|process| process.pid).filter(has_name).collect()
        })
    }

    /// Sends a signal to processes of the host, which may have ended.
    pub fn signal(&self, pids: &[u32], signal: &str) {
        // Sent from inside the host, because the ids are those of its PID namespace.
        for pid in pids {
            self.shell(&format!("kill -{signal} {pid} 2>/dev/null || true"));
        }
    }

    /// Returns the lines of the host's `/proc/self/mountinfo`.
    pub fn mounts(&self) -> Vec<String> {
        let path = format!("/proc/{}/mountinfo", self.holder.id());
        let text = fs::read_to_string(path).expect("the host runs");
        text.lines().map(str::to_owned).collect()
    }

    fn namespace(&self, name: &str) -> File {
        let path = format!("/proc/{}/ns/{name}", self.holder.id());
        File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for TestHost {
    fn drop(&mut self) {
        // The PID namespace's init dies with its parent, and all other processes with the init.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        program::remove(&mut self.directory);
    }
}

/// A process, with its id in the host's PID namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostProcess {
    pub pid: u32,
    /// Command line, with a space after each argument.
    pub line: String,
}

/// Returns the command line of a process, with a space after each argument, or nothing if it has ended.
fn line_of(pid: u32) -> Option<String> {
    for _ in 0..1000 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // A process that is exiting has no memory and no command line any more.
        if status.contains("\nState:\tZ") || !status.contains("\nVmSize:") {
            return None;
        }
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        if !words.is_empty() {
            return Some(String::from_utf8_lossy(&words).replace('\0', " "));
        }
        // `execve` reports success to the parent a moment before the command line is set.
        std::thread::yield_now();
    }
    Some(String::new())
}
