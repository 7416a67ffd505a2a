//! Searches for leftovers of a job; there should be none.
//!
//! Objects of a job on the host are recognized by their names: they contain the id of the runner, of a
//! container or of the network, or are links named in the network's record. The names are collected before
//! the cleanup. Processes, mounts and links of a rootless job end with the namespaces of its pause process.

use std::fs;
use std::path::Path;
use std::time::Duration;

use container_hook::JobRecord;
use oci_hooks_cli::terminal::escape_control;
use oci_hooks_engine::container::read_json_if_there;
use oci_hooks_engine_cli::rootless::RootlessError;
use oci_hooks_files::error::chain;
use oci_hooks_files::retry::retry_for;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::processes::{ProcessSnapshot, read_at_most};

use crate::error::HookCommandError;
use crate::jobs;
use crate::settings::HookFileSettings;

/// Time for the kernel to finish kills and removals.
const SETTLED: Duration = Duration::from_secs(30);

/// Maximum depth of the searched directories.
const DEPTH: usize = 5;

/// Directories of a store that belong to no job.
const OF_IMAGES: [&str; 3] = ["layers", "images", "trash"];

/// Names of a job's objects on the host.
pub struct JobObjects {
    /// Parts of the names of the job's objects.
    names: Vec<String>,
    pause_process: Option<ProcessIdentity>,
}

impl JobObjects {
    /// Collects the names of a runner's job, before the cleanup.
    pub fn of(settings: &HookFileSettings, owner: &str) -> Result<Self, RootlessError> {
        let jobs = jobs::of(&settings.store);
        let of_each = jobs.run_in_each(|store| {
            names(&settings.with_store(store), owner).map_err(|error| chain(&error))
        })?;
        let mut names = vec![owner.to_owned()];
        names.extend(of_each.into_iter().flatten());
        Ok(JobObjects { names, pause_process: jobs.pause_process(owner) })
    }

    /// Returns the leftovers of the job that remain after `SETTLED`.
    pub fn find_leftovers(&self, settings: &HookFileSettings) -> Vec<String> {
        let mut left = Vec::new();
        retry_for(SETTLED, || {
            left = self.list_leftovers(settings);
            left.is_empty().then_some(())
        });
        left
    }

    fn list_leftovers(&self, settings: &HookFileSettings) -> Vec<String> {
        let mut left = Vec::new();
        if let Some(pause_process) = self.pause_process.filter(ProcessIdentity::is_running) {
            left.push(format!("process {}, the pause process of the job", pause_process.pid));
        }
        self.processes(&mut left);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let places = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        left.extend(places.filter(|at| self.is_in(at)).map(|place| format!("mount {place}")));
        let mut found = |what, dir: &Path, depth| {
            self.report_entries_below(dir, depth, &mut |path| {
                left.push(format!("{what} {}", path.display()));
            });
        };
        found("network interface", Path::new("/sys/class/net"), 1);
        found("cgroup", Path::new("/sys/fs/cgroup"), DEPTH);
        found("file", &settings.store.run, DEPTH);
        found("file", &settings.store.root, DEPTH);
        left
    }

    /// Adds processes with one of the names in their command line or their cgroup.
    fn processes(&self, left: &mut Vec<String>) {
        for pid in ProcessSnapshot::ids() {
            let read = |name: &str| {
                read_at_most(format!("/proc/{pid}/{name}"), 64 << 10).unwrap_or_default()
            };
            let (line, cgroup) = (read("cmdline"), read("cgroup"));
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if self.is_in(&line) || self.is_in(&String::from_utf8_lossy(&cgroup)) {
                left.push(format!("process {pid}: {}", escape_control(line.trim_end().as_bytes())));
            }
        }
    }

    /// Reports entries of a directory tree whose names contain one of the names, except lock files.
    fn report_entries_below(&self, dir: &Path, depth: usize, tell: &mut dyn FnMut(&Path)) {
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
                self.report_entries_below(&path, depth - 1, tell);
            }
        }
    }

    fn is_in(&self, text: &str) -> bool {
        self.names.iter().any(|name| text.contains(name.as_str()))
    }
}

/// Returns the ids of a runner's containers and networks, and the names of its links.
fn names(settings: &HookFileSettings, owner: &str) -> Result<Vec<String>, HookCommandError> {
    // Listing does not create a store.
    if !settings.host().run().exists() {
        return Ok(Vec::new());
    }
    let run = settings.host().run();
    let containers = settings.host().into_existing_engine()?.containers_of(owner)?;
    let job: Option<JobRecord> =
        read_json_if_there(&run.join("jobs").join(owner).join("job.json"))?;
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
    fn only_traces_of_the_job_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = HookFileSettings::default();
        settings.store.root = dir.path().join("lib");
        settings.store.run = dir.path().join("run");
        let name = format!("objects-of-{}", std::process::id());
        let objects = JobObjects { names: vec![name.clone()], pause_process: None };
        fs::create_dir_all(settings.store.run.join("jobs/other")).unwrap();
        fs::create_dir_all(settings.store.root.join("layers").join(&name)).unwrap();
        fs::write(settings.store.run.join("jobs").join(format!("{name}.lock")), "").unwrap();
        assert_eq!(objects.list_leftovers(&settings), <[String; 0]>::default());
        let job = settings.store.run.join("jobs").join(&name);
        fs::create_dir(&job).unwrap();
        let mut child = Command::new("sh");
        child.args(["-c", "echo; read line", &name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        // For a moment after `execve` the process has no command line.
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let process = format!("process {}: sh -c echo; read line {name}", child.id());
        assert_eq!(objects.list_leftovers(&settings), [process, format!("file {}", job.display())]);
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
