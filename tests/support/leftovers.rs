//! What a job or an instance leaves behind on its host: nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::host::Host;

/// How long is waited for what the kernel does in its own time; it takes the networks of all tests away
/// one after another.
const SETTLED: Duration = Duration::from_secs(60);

/// A program that is installed on a host.
pub(crate) trait Installed {
    fn host(&self) -> &Host;

    /// Returns the directory of what runs.
    fn run_directory(&self) -> PathBuf;

    /// Returns the directory of images.
    fn store(&self) -> PathBuf;
}

/// Everything on a host that a job or an instance can leave behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    processes: BTreeSet<String>,
    mounts: BTreeSet<String>,
    links: BTreeSet<String>,
    rules: BTreeSet<String>,
    files: BTreeSet<PathBuf>,
}

impl Snapshot {
    pub(crate) fn take(installation: &impl Installed) -> Self {
        let host = installation.host();
        // First: what is there of a process that ends meanwhile would be seen, but not the process.
        let processes = processes(host);
        let mounts = host.mounts();
        let links = host.shell("ip -o link");
        let rules = host.shell("nft list ruleset");
        Self {
            processes,
            // The place, the type and the source: numbers differ each time.
            mounts: mounts.iter().map(|line| words(line, &[4, 8, 9, 10])).collect(),
            links: links.lines().map(|line| words(line, &[1])).collect(),
            rules: rules.lines().map(str::to_owned).collect(),
            files: files(&installation.run_directory(), usize::MAX)
                .chain(files(&installation.store(), 3))
                .filter(|path| path.extension().is_none_or(|extension| extension != "lock"))
                .collect(),
        }
    }

    /// Checks that the host is as it was, after processes that die now are dead.
    #[track_caller]
    pub(crate) fn check(&self, installation: &impl Installed, context: &str) {
        let (faults, _) = self.faults(installation);
        assert!(faults.is_empty(), "{context}:\n{}", faults.join("\n"));
    }

    /// Returns how the host differs from what it was, and as what it was found.
    pub(crate) fn faults(&self, installation: &impl Installed) -> (Vec<String>, Self) {
        let now = self.settled(installation);
        let mut faults = self.live_faults(&now);
        compare("rule", &self.rules, &now.rules, &mut faults);
        compare("file", &self.files, &now.files, &mut faults);
        (faults, now)
    }

    /// Checks what runs, is mounted and is connected: files may stay after the first job on a host.
    #[track_caller]
    pub(crate) fn check_live(&self, installation: &impl Installed, context: &str) {
        let faults = self.live_faults(&self.settled(installation));
        assert!(faults.is_empty(), "{context}:\n{}", faults.join("\n"));
    }

    fn live_faults(&self, now: &Self) -> Vec<String> {
        let mut faults = Vec::new();
        compare("process", &self.processes, &now.processes, &mut faults);
        compare("mount", &self.mounts, &now.mounts, &mut faults);
        compare("link", &self.links, &now.links, &mut faults);
        // Links of jobs that ended before may have been there still.
        faults.retain(|fault| !fault.starts_with("a link is missing: \"ocih"));
        faults
    }

    /// Takes one when what was killed a moment ago is dead, and the kernel has taken away the links
    /// of network namespaces that are gone, which it does in its own time.
    fn settled(&self, installation: &impl Installed) -> Self {
        let deadline = Instant::now() + SETTLED;
        loop {
            let now = Self::take(installation);
            let is_settled =
                now.processes.is_subset(&self.processes) && now.links.is_subset(&self.links);
            if is_settled || Instant::now() > deadline {
                return now;
            }
        }
    }
}

/// Returns what runs, once no runtime is about to become a container's first process.
fn processes(host: &Host) -> BTreeSet<String> {
    let deadline = Instant::now() + SETTLED;
    let is_runtime = |line: &String| {
        let program = line.split(' ').next().unwrap_or_default();
        program.ends_with("runc") || program.ends_with("crun")
    };
    loop {
        let processes: BTreeSet<_> = host.processes().into_iter().map(|p| p.line).collect();
        if !processes.iter().any(is_runtime) || Instant::now() > deadline {
            return processes;
        }
    }
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

/// Returns the identifiers of the containers that have a record.
pub(crate) fn containers(installation: &impl Installed) -> Vec<String> {
    containers_below(&installation.run_directory())
}

/// Returns the identifiers of the containers that have a record below a run directory.
pub(crate) fn containers_below(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("containers"));
    let names = entries.into_iter().flatten().flatten().map(|entry| entry.file_name());
    names.filter_map(|name| name.into_string().ok()).collect()
}

/// Returns the names of the cgroups that processes of a host are in, other than the test's own.
pub(crate) fn cgroups_of(host: &Host) -> BTreeSet<String> {
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
    // That of a container step is below one of its own: others have such a one too.
    let name = names.find(|name| *name != "step")?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// Checks that none of these containers has a cgroup.
#[track_caller]
pub(crate) fn no_cgroup_of(containers: &[String]) {
    let left = cgroups_left(containers);
    assert!(left.is_empty(), "{left:?}");
}

/// Returns a fault for each cgroup that is there of these containers.
pub(crate) fn cgroups_left<'a>(containers: impl IntoIterator<Item = &'a String>) -> Vec<String> {
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

fn words(line: &str, which: &[usize]) -> String {
    let words: Vec<_> = line.split_whitespace().collect();
    which.iter().filter_map(|&at| words.get(at).copied()).collect::<Vec<_>>().join(" ")
}
