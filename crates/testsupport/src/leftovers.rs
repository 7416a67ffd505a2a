//! Checks that jobs and instances leave nothing behind on their host.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::host::TestHost;

/// Time limit for cleanup that the kernel does asynchronously. It removes the network namespaces of all tests
/// one after another.
const SETTLED: Duration = Duration::from_secs(180);
/// Poll interval.
const PAUSE: Duration = Duration::from_millis(10);

/// A program that is installed on a host.
pub trait InstalledProgram {
    fn host(&self) -> &TestHost;

    /// Returns the run directory.
    fn run_directory(&self) -> PathBuf;

    /// Returns the image store.
    fn store(&self) -> PathBuf;
}

/// Everything on a host that a job or an instance can leave behind.
#[derive(Debug, PartialEq, Eq)]
pub struct LeftoverSnapshot {
    processes: BTreeSet<String>,
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
    rules: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
}

impl LeftoverSnapshot {
    pub fn take(installation: &impl InstalledProgram) -> Self {
        let host = installation.host();
        // Processes first: otherwise the snapshot could have the mounts of a process that ends meanwhile, but
        // not the process, which `take_settled` waits for.
        let processes = processes(host);
        let mounts = host.mounts();
        let links = host.shell("ip -o link");
        let rules = host.shell("nft list ruleset");
        Self {
            processes,
            // Mount point, type and source; the ids differ each time.
            mounts: mounts.iter().map(|line| select_words(line, &[4, 8, 9, 10])).collect(),
            links: links.lines().map(|line| select_words(line, &[1])).collect(),
            rules: rules.lines().map(str::to_owned).collect(),
            files: files(&installation.run_directory(), usize::MAX)
                .chain(files(&installation.store(), 3))
                .filter(|path| path.extension().is_none_or(|extension| extension != "lock"))
                .collect(),
        }
    }

    /// Checks that the host is as before, once dying processes have exited.
    #[track_caller]
    pub fn check(&self, installation: &impl InstalledProgram, context: &str) {
        let (faults, _) = self.faults(installation);
        assert!(faults.is_empty(), "{context}:\n{}", faults.join("\n"));
    }

    /// Returns the differences between the snapshot and the host, and the new snapshot.
    pub fn faults(&self, installation: &impl InstalledProgram) -> (Vec<String>, Self) {
        let now = self.take_settled(installation);
        let mut faults = self.live_faults(&now);
        compare("rule", &self.rules, &now.rules, &mut faults);
        compare("file", &self.files, &now.files, &mut faults);
        (faults, now)
    }

    /// Checks processes, mounts and links only: the first job on a host may leave files.
    #[track_caller]
    pub fn check_live(&self, installation: &impl InstalledProgram, context: &str) {
        let faults = self.live_faults(&self.take_settled(installation));
        assert!(faults.is_empty(), "{context}:\n{}", faults.join("\n"));
    }

    fn live_faults(&self, now: &Self) -> Vec<String> {
        let mut faults = Vec::new();
        // The snapshot may have monitors that were about to exit, because their containers were removed.
        let has_exited = |line: &&String| !now.processes.contains(*line) && is_of_removed(line);
        let before = self.processes.iter().filter(|line| !has_exited(line)).cloned().collect();
        compare("process", &before, &now.processes, &mut faults);
        compare("mount", &self.mounts, &now.mounts, &mut faults);
        compare("link", &self.links, &now.links, &mut faults);
        // Links of earlier jobs may still have been in the snapshot.
        faults.retain(|fault| !fault.starts_with("a link is missing: \"ocih"));
        faults
    }

    /// Takes a snapshot once killed processes are gone and the kernel has removed the links of dead network
    /// namespaces, which it does asynchronously.
    fn take_settled(&self, installation: &impl InstalledProgram) -> Self {
        let deadline = Instant::now() + SETTLED;
        loop {
            let now = Self::take(installation);
            let is_settled =
                now.processes.is_subset(&self.processes) && now.links.is_subset(&self.links);
            if is_settled || Instant::now() > deadline {
                return now;
            }
            thread::park_timeout(PAUSE);
        }
    }
}

/// Returns the command lines of the processes, once no runtime is about to execute a container's init.
fn processes(host: &TestHost) -> BTreeSet<String> {
    let deadline = Instant::now() + SETTLED;
    let is_runtime = |line: &String| {
        let program = line.split(' ').next().unwrap_or_default();
        // `ends_with` compares whole names: `garm-provider-runc` is no runtime.
        ["runc", "crun"].iter().any(|name| Path::new(program).ends_with(name))
    };
    loop {
        let processes: BTreeSet<_> = host.processes().into_iter().map(|p| p.line).collect();
        if !processes.iter().any(is_runtime) || Instant::now() > deadline {
            return processes;
        }
        thread::park_timeout(PAUSE);
    }
}

/// Returns whether a process is the monitor of a container without a record.
fn is_of_removed(line: &str) -> bool {
    let mut words = line.split(' ').skip_while(|word| *word != "monitor").skip(1);
    let (Some(run), Some(id)) = (words.next(), words.next()) else { return false };
    !Path::new(run).join("containers").join(id).exists()
}

fn compare<T: Ord + std::fmt::Debug>(
    what: &str,
    before: &BTreeSet<T>,
    now: &BTreeSet<T>,
    faults: &mut Vec<String>,
) {
    faults.extend(now.difference(before).map(|one| format!("a {what} is left: {one:?}")));
    faults.extend(before.difference(now).map(|one| format!("a {what} is missing: {one:?}")));
}

/// Returns the ids of the containers with a record.
pub fn containers(installation: &impl InstalledProgram) -> Vec<String> {
    containers_below(&installation.run_directory())
}

/// Returns the ids of the containers with a record below a run directory.
pub fn containers_below(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("containers"));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).collect()
}

/// Returns the cgroup names of a host's processes, except the cgroups of the test itself.
pub fn cgroups_of(host: &TestHost) -> BTreeSet<String> {
    let own = fs::read_to_string("/proc/self/cgroup").expect("/proc is mounted");
    let own: BTreeSet<_> = own.lines().filter_map(cgroup_name).collect();
    let pids: Vec<_> = host.processes().iter().map(|process| process.pid).collect();
    let all: BTreeSet<_> = host.enter(|| {
        let files = pids.iter().map(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")));
        let lines = files.flatten().collect::<String>();
        lines.lines().filter_map(cgroup_name).collect()
    });
    &all - &own
}

fn cgroup_name(line: &str) -> Option<String> {
    let mut names = line.splitn(3, ':').nth(2)?.rsplit('/');
    // A container step's cgroup is the child `step` of one with the container's name.
    let name = names.find(|name| *name != "step")?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Checks that no cgroup of these containers is left.
#[track_caller]
pub fn assert_no_cgroups(containers: &[String]) {
    let left = cgroups_not_removed(containers);
    assert!(left.is_empty(), "{left:?}");
}

/// Returns a fault for each cgroup left of these containers, once those of dying processes are removed.
pub fn cgroups_not_removed<'a>(
    containers: impl IntoIterator<Item = &'a String> + Clone,
) -> Vec<String> {
    let deadline = Instant::now() + SETTLED;
    loop {
        let left = cgroups_left(containers.clone());
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        thread::park_timeout(PAUSE);
    }
}

/// Returns a fault for each cgroup of these containers that exists now.
pub fn cgroups_left<'a>(containers: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let ids: Vec<_> = containers.into_iter().filter(|id| !id.is_empty()).collect();
    let is_of_one = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| ids.iter().any(|id| name.contains(id.as_str())))
    };
    let all = files(Path::new("/sys/fs/cgroup"), 4).filter(is_of_one);
    all.map(|path| format!("a cgroup is left: {}", path.display())).collect()
}

fn files(directory: &Path, depth: usize) -> Box<dyn Iterator<Item = PathBuf>> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    Box::new(entries.flat_map(move |entry| {
        let below = (depth > 1 && entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .then(|| files(&entry.path(), depth - 1));
        std::iter::once(entry.path()).chain(below.into_iter().flatten())
    }))
}

fn select_words(line: &str, which: &[usize]) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    which.iter().filter_map(|&at| words.get(at).copied()).collect::<Vec<_>>().join(" ")
}
