//! What is left of a job: nothing, if all goes well.
//!
//! What a job has on the host carries the id of its runner, of one of its containers or of its network, or is a link
//! that the record of the network names. That is noted before the job is cleaned up, and looked for afterwards. Of an
//! ordinary user's job everything is in namespaces that end with its holder.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use oci_hooks::container::{ContainerError, read_json_if_there};
use oci_hooks::container_hook::engine::Job;
use oci_hooks::program::host::HostError;
use oci_hooks::program::rootless::RootlessError;
use oci_hooks::sys::error::chain;
use oci_hooks::sys::identity::Identity;

use crate::jobs;
use crate::settings::Settings;

/// How long the kernel may take to be done with what was killed and removed.
const SETTLED: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How many directories below each other are looked through.
const DEPTH: usize = 5;

/// Directories of a store whose content is nobody's job.
const OF_IMAGES: [&str; 3] = ["layers", "images", "trash"];

/// What a job has on the host.
pub struct Traces {
    /// What is a part of the names of everything of the job.
    names: Vec<String>,
    holder: Option<Identity>,
}

/// Why the containers of a job cannot be listed.
#[derive(Debug, thiserror::Error)]
enum ListError {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    Container(#[from] ContainerError),
}

impl Traces {
    /// Notes what the job of a runner has, before it is cleaned up.
    pub fn of(settings: &Settings, owner: &str) -> Result<Self, RootlessError> {
        let jobs = jobs::of(&settings.store);
        let of_each = jobs.in_each(|store| {
            names(&settings.with_store(store), owner).map_err(|error| chain(&error))
        })?;
        let mut names = vec![owner.to_owned()];
        names.extend(of_each.into_iter().flatten());
        Ok(Traces { names, holder: jobs.holder(owner) })
    }

    /// Returns what is left of the job, once the kernel has had its time.
    pub fn left(&self, settings: &Settings) -> Vec<String> {
        let deadline = Instant::now() + SETTLED;
        loop {
            let left = self.look(settings);
            if left.is_empty() || Instant::now() > deadline {
                return left;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn look(&self, settings: &Settings) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(holder) = self.holder.filter(Identity::is_running) {
            left.push(format!("process {}, the holder of the job's namespaces", holder.pid));
        }
        self.processes(&mut left);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        left.extend(places.filter(|at| self.is_in(at)).map(|place| format!("mount {place}")));
        let mut found = |what, dir: &Path, depth| {
            self.below(dir, depth, &mut |path| left.push(format!("{what} {}", path.display())));
        };
        found("network interface", Path::new("/sys/class/net"), 1);
        found("cgroup", Path::new("/sys/fs/cgroup"), DEPTH);
        found("file", &settings.store.run, DEPTH);
        found("file", &settings.store.root, DEPTH);
        left
    }

    /// Adds processes that have one of the names in their command line or their cgroup.
    fn processes(&self, left: &mut Vec<String>) {
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|pid| pid.parse::<u32>().ok())
            else {
                continue;
            };
            let read = |name| fs::read(entry.path().join(name)).unwrap_or_default();
            let (line, cgroup) = (read("cmdline"), read("cgroup"));
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if self.is_in(&line) || self.is_in(&String::from_utf8_lossy(&cgroup)) {
                left.push(format!("process {pid}: {}", line.trim_end()));
            }
        }
    }

    /// Tells of everything below a directory that has one of the names, but for locks, which stay.
    fn below(&self, dir: &Path, depth: usize, tell: &mut dyn FnMut(&Path)) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let is_lock = path.extension().is_some_and(|end| end == "lock");
            if self.is_in(&name) && !is_lock {
                tell(&path);
            } else if depth > 1
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
                && !OF_IMAGES.contains(&&*name)
            {
                self.below(&path, depth - 1, tell);
            }
        }
    }

    fn is_in(&self, text: &str) -> bool {
        self.names.iter().any(|name| text.contains(name.as_str()))
    }
}

/// Returns the ids of a runner's containers and networks where this process is, and the names of their links.
fn names(settings: &Settings, owner: &str) -> Result<Vec<String>, ListError> {
    // Who looks makes no store.
    if !settings.host().run().exists() {
        return Ok(Vec::new());
    }
    let run = settings.host().run();
    let containers = settings.host().existing()?.containers_of(owner)?;
    let job: Option<Job> = read_json_if_there(&run.join("jobs").join(owner).join("job.json"))?;
    let mut networks: Vec<_> = containers.iter().filter_map(|one| one.network.clone()).collect();
    networks.extend(job.map(|job| job.network));
    let link = |network: &String| {
        let record = run.join("network").join(network).join("record.json");
        let record: Option<serde_json::Value> = read_json_if_there(&record).ok()?;
        Some(record?["link"].as_str()?.to_owned())
    };
    let links: Vec<_> = networks.iter().filter_map(link).collect();
    Ok(containers.into_iter().map(|one| one.id).chain(networks).chain(links).collect())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn files_and_processes_of_the_job_are_found_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = Settings::default();
        settings.store.root = dir.path().join("lib");
        settings.store.run = dir.path().join("run");
        let name = format!("traces-of-{}", std::process::id());
        let traces = Traces { names: vec![name.clone()], holder: None };
        fs::create_dir_all(settings.store.run.join("jobs/other")).unwrap();
        fs::create_dir_all(settings.store.root.join("layers").join(&name)).unwrap();
        fs::write(settings.store.run.join("jobs").join(format!("{name}.lock")), "").unwrap();
        assert_eq!(traces.look(&settings), <[String; 0]>::default());
        let job = settings.store.run.join("jobs").join(&name);
        fs::create_dir(&job).unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", "echo; read line", &name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        // It has no command line for a moment after it was executed.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let process = format!("process {}: sh -c echo; read line {name}", child.id());
        assert_eq!(traces.look(&settings), [process, format!("file {}", job.display())]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
