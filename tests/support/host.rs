//! A host to itself inside this one: its own network, mounts, processes and `/run`.
//!
//! Tests in parallel do not see each other, names such as `ghcr.io` mean registries of the test,
//! and whatever a failing test leaves behind ends with the host.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use nix::sched::{CloneFlags, setns, unshare};

use super::certificates::Certificates;
use super::program::{self, Finished};

/// The names that the registries of a test have, and where they are.
const NAMES: [(&str, &str); 4] = [
    ("127.0.0.1", "localhost"),
    ("127.0.0.2", "registry-1.docker.io index.docker.io docker.io auth.docker.io"),
    ("127.0.0.3", "ghcr.io"),
    ("::1", "localhost ip6-localhost"),
];

/// Becomes the first process of the host: makes its places, then reaps orphans until the test ends,
/// which closes standard input.
///
/// The host begins with a copy of all mounts of this machine. Those that others make for a while, such as
/// other tests, would go away with their directories in the middle of this one: they are left out.
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
pub(crate) struct Host {
    holder: Child,
    _until: ChildStdin,
    directory: tempfile::TempDir,
    pub(crate) certificates: Arc<Certificates>,
}

impl Host {
    pub(crate) fn new() -> Self {
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
        let certificates = Certificates::shared();
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

    /// Returns the directory of the host: everything that a test makes for it is there, on tmpfs.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Calls a function in the host's network and mounts; processes that it starts are the host's.
    ///
    /// It cannot start threads: those of one process are in one namespace of processes.
    pub(crate) fn enter<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        let namespaces = [
            ("net", CloneFlags::CLONE_NEWNET),
            ("pid_for_children", CloneFlags::CLONE_NEWPID),
            ("mnt", CloneFlags::CLONE_NEWNS),
        ]
        .map(|(name, kind)| (self.namespace(name), kind));
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // Of its own for this thread: a shared one cannot change its mounts.
                unshare(CloneFlags::CLONE_FS).expect("a thread may have its own root");
                for (file, kind) in namespaces {
                    setns(file, kind).expect("root may enter a namespace");
                }
                call()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a process of the host.
    #[track_caller]
    pub(crate) fn spawn(&self, command: &mut Command) -> Child {
        self.enter(|| command.spawn())
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
    }

    /// Runs a process of the host to its end.
    #[track_caller]
    pub(crate) fn run(&self, command: &mut Command) -> Finished {
        program::run_by(command, b"", |command| self.enter(|| command.spawn()))
    }

    /// Returns what a shell script prints that must succeed.
    #[track_caller]
    pub(crate) fn shell(&self, script: &str) -> String {
        self.run(Command::new("sh").args(["-ec", script])).success()
    }

    /// Gives the host an `/etc` of its own, which goes with it. Other users can reach the host's
    /// directory from then on.
    pub(crate) fn make_etc(&self) {
        self.shell(&format!(
            "cd {}; chmod 711 .; mkdir -p etc/ssl/certs etc-work; cp /etc/ssl/certs/ca-certificates.crt etc/ssl/certs/; \
             (cat /etc/hosts; echo 127.0.1.1 $(hostname)) >etc/hosts; \
             mount -t overlay -o lowerdir=/etc,upperdir=etc,workdir=etc-work overlay /etc",
            self.path().display()
        ));
    }

    /// Gives the host a `/tmp` and a `/var/tmp` of its own, below its directory; the repository may be there.
    pub(crate) fn make_temporary(&self) {
        self.shell(&format!(
            "for place in /tmp /var/tmp; do own={}/temporary$place; mkdir -p $own; chmod 1777 $own; \
             for keep in {} {}; do case $keep in $place/*) mkdir -p $own/${{keep#$place/}}; \
             mount --bind $keep $own/${{keep#$place/}} ;; esac; done; mount --rbind $own $place; done",
            self.path().display(),
            env!("CARGO_MANIFEST_DIR"),
            env!("CARGO_TARGET_TMPDIR"),
        ));
    }

    /// Returns the processes of the host that have not ended, those in containers too; those of the
    /// host itself are left out.
    pub(crate) fn processes(&self) -> Vec<Process> {
        // Its own `/proc` has those of all namespaces below its own.
        self.enter(|| {
            let entries = fs::read_dir("/proc").expect("/proc is mounted");
            let names = entries.flatten().map(|entry| entry.file_name());
            let pids = names.filter_map(|name| name.to_str()?.parse().ok());
            pids.filter_map(|pid| {
                let line = line_of(pid)?;
                let is_host = line.contains(FIRST_PROCESS) || line == "cat ";
                (!is_host).then_some(Process { pid, line })
            })
            .collect()
        })
    }

    /// Returns the processes of the host that have a name, as the kernel has it, by their numbers there.
    pub(crate) fn named(&self, name: &str) -> Vec<u32> {
        let processes = self.processes();
        self.enter(|| {
            let has_name = |pid: &u32| {
                let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
                comm.is_ok_and(|comm| comm.trim_end() == name)
            };
            processes.iter().map(|process| process.pid).filter(has_name).collect()
        })
    }

    /// Sends a signal to processes of the host, by their numbers there, that may have ended.
    pub(crate) fn signal(&self, pids: &[u32], signal: &str) {
        // By a process of the host: here the numbers are those of others.
        for pid in pids {
            self.shell(&format!("kill -{signal} {pid} 2>/dev/null || true"));
        }
    }

    /// Returns the mounts of the host, a line each as `/proc/self/mountinfo` has them.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let path = format!("/proc/{}/mountinfo", self.holder.id());
        let text = fs::read_to_string(path).expect("the host runs");
        text.lines().map(str::to_owned).collect()
    }

    fn namespace(&self, name: &str) -> File {
        let path = format!("/proc/{}/ns/{name}", self.holder.id());
        File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its child, the first process of the namespace, ends with it, and all others with that one.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
        program::remove(&mut self.directory);
    }
}

/// A process, by the number that it has on its host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Its words, each with a blank after it.
    pub(crate) line: String,
}

/// Returns the words of a process, each with a blank after it, or nothing if it has ended.
fn line_of(pid: u32) -> Option<String> {
    for _ in 0..1000 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        // One that is ending has no memory any more, and no words therefore.
        if status.contains("\nState:\tZ") || !status.contains("\nVmSize:") {
            return None;
        }
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        if !words.is_empty() {
            return Some(String::from_utf8_lossy(&words).replace('\0', " "));
        }
        // Who starts a program is told so a moment before the program has its words.
        std::thread::yield_now();
    }
    Some(String::new())
}
