//! The host names of services.
//!
//! Workflows refer to a service by its name under `services:`, which GitHub's runner does not send
//! (actions/runner#2783). So a service gets every name that can be found, in this order of precedence:
//!
//! 1. its name under `services:`, from the first of these sources that has it:
//!    1. `contextName` of the request, which forks of the runner send,
//!    2. the job's message in the newest log of the runner's worker, `_diag/Worker_*.log`;
//! 2. `--network-alias`, `--name` and `--hostname` of its `options:`;
//! 3. the last part of its image's name, with `-1`, `-2` for further services of the same image.
//!
//! If several services have the same name, the service whose name has the higher precedence gets it, then the
//! first. No service gets a name of the loopback or IPv6 group addresses, such as `localhost`.
//!
//! The log lists services in the order of the workflow. Its names are used if images and order match the request in
//! exactly one way. The log is no stable interface: it is read within a size limit, and a missing or unparsable log
//! does not fail the job.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use oci_hooks_files::error::chain;
use oci_hooks_files::fs::{PathContext as _, PathError};
use oci_hooks_host::host_file::HostRoot;
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_image::ImageReference;
use rustix::fs::Dir;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::context::HookContext;
use super::options::{CreateOptions, host_name};
use super::plan::PlanRole;
use super::runner_files::RunnerFiles;

/// Name of a runner's log directory.
pub const DIAG: &str = "_diag";

/// Maximum number of bytes read from a log; the job message is at its beginning.
const MAX_LOG_BYTES: u64 = 16 << 20;

/// Maximum number of services that are matched; workflows have fewer.
const MAX_SERVICES: usize = 256;

/// Last labels of names that no service gets: the loopback and IPv6 group names in `/etc/hosts` of
/// containers.
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

/// A service as the request describes it.
pub(super) struct RequestedService<'a> {
    /// Name of the service in the workflow: `contextName` of the request.
    key: Option<&'a str>,
    /// Names from `options:`, in order.
    given: Vec<&'a str>,
    /// Image name as requested; empty for a Dockerfile.
    image: &'a str,
}

impl<'a> RequestedService<'a> {
    pub(super) fn new(key: Option<&'a str>, options: &'a CreateOptions, image: &'a str) -> Self {
        let network = &options.network;
        let given = network.aliases.iter().chain(&options.name).chain(&options.hostname);
        RequestedService { key, given: given.map(String::as_str).collect(), image }
    }

    /// Returns the names from the request, in order.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.key.iter().chain(&self.given).map(|name| (*name).to_owned())
    }

    /// Returns the last part of the image name, without tag; empty if the name is invalid.
    fn image_name(&self) -> String {
        let image = self.image.parse::<ImageReference>();
        image.map_or_else(|_| String::new(), |image| image.base_name().to_owned())
    }
}

/// Returns the names of each service, the display name first. Logs requested names that are not used.
pub(super) fn find(
    context: &HookContext<'_>,
    services: &[RequestedService<'_>],
) -> Vec<Vec<String>> {
    let keys = keys(context, services);
    let (names, unused) = assign(services, &keys);
    for unused in unused {
        let title = PlanRole::Service.title(names[unused.service].first());
        context.log.line(&format!("{title}: {unused}"));
    }
    names
}

/// Returns the name of each service under `services:`.
fn keys(context: &HookContext<'_>, services: &[RequestedService<'_>]) -> Vec<Option<String>> {
    let sent = || services.iter().map(|service| service.key.map(str::to_owned));
    if services.iter().all(|service| service.key.is_some()) {
        return sent().collect();
    }
    let images: Vec<_> = services.iter().map(|service| service.image).collect();
    let runner = context.runner;
    let job = ["GITHUB_JOB", "GITHUB_RUN_ID"].map(|name| runner.job.get(name).map(String::as_str));
    let read = |diag| read_log_services(&runner.files, diag, job);
    let reason = match runner.diag.as_deref().map(read) {
        None => "names-from-runner-log is off under [network] of the settings".to_owned(),
        Some(Ok(Some(workflow))) => match match_services(&workflow, &images) {
            Some(names) => {
                return sent().zip(names).map(|(key, name)| key.or(Some(name))).collect();
            }
            None => {
                "the services in the log of the runner's worker do not match those of the request"
                    .to_owned()
            }
        },
        Some(Ok(None)) => "the log of the runner's worker does not list them".to_owned(),
        Some(Err(error)) => chain(&error),
    };
    context.log.line(&format!(
        "services are reachable only by names from their options and images; their names under `services:` \
         are unknown: {reason}"
    ));
    sent().collect()
}

/// A requested name that the service does not get.
struct UnusedName {
    service: usize,
    name: String,
    reason: UnusedNameReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnusedNameReason {
    Malformed,
    /// The name stands for the container itself, such as `localhost`.
    Own,
    Taken,
}

impl fmt::Display for UnusedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            UnusedNameReason::Malformed => {
                "a host name consists of letters, digits, `-`, `_` and `.`, and is not an IP address"
            }
            UnusedNameReason::Own => "in each container, this is a name of the container itself",
            UnusedNameReason::Taken => "another service has this name",
        };
        write!(f, "not reachable as {:?}: {reason}", self.name)
    }
}

/// Gives each service its names, in the order of precedence.
fn assign(
    services: &[RequestedService<'_>],
    keys: &[Option<String>],
) -> (Vec<Vec<String>>, Vec<UnusedName>) {
    let mut all = vec![Vec::new(); services.len()];
    let mut unused = Vec::new();
    // Host names are case-insensitive.
    let mut owners: BTreeMap<String, usize> = BTreeMap::new();
    let mut give = |service: usize, name: &str| match fault(name) {
        Some(reason) => Err(reason),
        None if *owners.entry(name.to_ascii_lowercase()).or_insert(service) != service => {
            Err(UnusedNameReason::Taken)
        }
        None => {
            let names: &mut Vec<String> = &mut all[service];
            if !names.iter().any(|other| other.eq_ignore_ascii_case(name)) {
                names.push(name.to_owned());
            }
            Ok(())
        }
    };
    let of_workflow = keys.iter().enumerate().filter_map(|(at, key)| Some((at, key.as_deref()?)));
    let of_options = services.iter().enumerate();
    let of_options = of_options.flat_map(|(at, one)| one.given.iter().map(move |name| (at, *name)));
    for (service, name) in of_workflow.chain(of_options) {
        if let Err(reason) = give(service, name) {
            unused.push(UnusedName { service, name: name.to_owned(), reason });
        }
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (at, service) in services.iter().enumerate() {
        let image = service.image_name();
        let count = counts.entry(image.clone()).or_default();
        let name = if *count == 0 { image } else { format!("{image}-{count}") };
        *count += 1;
        // The workflow did not ask for this name, so a service that does not get it is not reported.
        let _ = give(at, &name);
    }
    (all, unused)
}

/// Returns whether a container may have this name in the job's network.
pub fn is_allowed(name: &str) -> bool {
    fault(name).is_none()
}

/// Returns the reason to reject a name of a service, if any.
fn fault(name: &str) -> Option<UnusedNameReason> {
    if host_name(name).is_err() || name.parse::<IpAddr>().is_ok() {
        return Some(UnusedNameReason::Malformed);
    }
    let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
    OWN.iter().any(|own| last.eq_ignore_ascii_case(own)).then_some(UnusedNameReason::Own)
}

/// A service of a workflow.
#[derive(Debug, PartialEq, Eq)]
struct WorkflowService {
    /// Key under `services:`.
    name: String,
    /// Image name; none if it is an expression or contains a secret.
    image: Option<String>,
}

impl WorkflowService {
    fn new(name: &str, image: Option<&str>) -> Self {
        // The runner masks secrets in its logs.
        let is_known = |image: &&str| !image.contains("${{") && !image.contains("***");
        let image = image.map(str::trim).filter(is_known);
        let image = image.map(|image| image.strip_prefix("docker://").unwrap_or(image));
        WorkflowService { name: name.to_owned(), image: image.map(str::to_owned) }
    }

    /// Returns whether the service can have this image.
    fn can_be(&self, image: &str) -> bool {
        self.image.as_ref().is_none_or(|own| own == image)
    }

    /// Returns whether the runner may have left out the service: it does so if the image is empty.
    fn can_be_absent(&self) -> bool {
        self.image.as_ref().is_none_or(String::is_empty)
    }
}

/// Matches images to the services of a workflow in order and returns the names; none if the match is not
/// unique. A service whose image may be empty can be missing in `images`.
fn match_services(workflow: &[WorkflowService], images: &[&str]) -> Option<Vec<String>> {
    if workflow.len() > MAX_SERVICES || images.len() > workflow.len() {
        return None;
    }
    let ways = count_matches(workflow, images);
    if ways[0][0] != 1 {
        return None;
    }
    let mut names = Vec::with_capacity(images.len());
    for (at, service) in workflow.iter().enumerate() {
        let image = names.len();
        if images.get(image).is_some_and(|i| service.can_be(i)) && ways[at + 1][image + 1] == 1 {
            names.push(service.name.clone());
        }
    }
    Some(names)
}

/// Counts, for each pair of indexes, the ways to match the rest of the services with the rest of the images;
/// 2 means two or more.
fn count_matches(workflow: &[WorkflowService], images: &[&str]) -> Vec<Vec<u8>> {
    let mut ways = vec![vec![0; images.len() + 1]; workflow.len() + 1];
    ways[workflow.len()][images.len()] = 1;
    for (at, service) in workflow.iter().enumerate().rev() {
        for image in 0..=images.len() {
            let absent = if service.can_be_absent() { ways[at + 1][image] } else { 0 };
            let is_it = images.get(image).is_some_and(|image| service.can_be(image));
            let present = if is_it { ways[at + 1][image + 1] } else { 0 };
            ways[at][image] = (absent + present).min(2);
        }
    }
    ways
}

/// Returns the log directory of a runner with this work directory: beside it, or in the
/// [installation directory](directory_of) of its worker.
pub fn diag(files: &RunnerFiles, work: &Path, of_worker: Option<&Path>) -> PathBuf {
    let beside = work.parent().unwrap_or(Path::new("/")).join(DIAG);
    let of_worker = of_worker.map(|dir| dir.join(DIAG));
    let is_there = |diag: &PathBuf| files.open(diag).is_ok_and(|found| found.is_dir());
    [beside.clone()].into_iter().chain(of_worker).find(is_there).unwrap_or(beside)
}

/// Returns the installation directory of the runner that a process belongs to: the parent of its `bin`.
pub fn directory_of(pid: u32) -> Option<PathBuf> {
    Some(ProcessIdentity::of(pid)?.program()?.parent()?.parent()?.to_owned())
}

/// Reads the services of a job, identified by its id in the workflow and its run, from the newest log in
/// `_diag`; returns none if the log is missing, unparsable or about another job.
fn read_log_services(
    files: &RunnerFiles,
    diag: &Path,
    job: [Option<&str>; 2],
) -> Result<Option<Vec<WorkflowService>>, PathError> {
    let dir = files.directory(diag)?;
    let Some(name) = newest_log(&dir, diag)? else { return Ok(None) };
    let Some(bytes) = read(dir.read(Path::new(&name))?, &diag.join(&name), MAX_LOG_BYTES)? else {
        return Ok(None);
    };
    Ok(parse_log(&String::from_utf8_lossy(&bytes), job))
}

/// Returns the name of the newest log of a worker; the names contain the time.
fn newest_log(dir: &HostRoot, path: &Path) -> Result<Option<String>, PathError> {
    let mut newest: Option<String> = None;
    for entry in Dir::new(dir.read(Path::new("."))?).with_path("list", path)? {
        let entry = entry.with_path("list", path)?;
        if let Ok(name) = entry.file_name().to_str()
            && name.starts_with("Worker_")
            && name.ends_with(".log")
            && newest.as_deref().is_none_or(|newest| newest < name)
        {
            newest = Some(name.to_owned());
        }
    }
    Ok(newest)
}

/// Reads at most `limit` bytes; returns none if it is not a regular file.
fn read(file: File, path: &Path, limit: u64) -> Result<Option<Vec<u8>>, PathError> {
    if !file.metadata().with_path("inspect", path)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).with_path("read", path)?;
    Ok(Some(bytes))
}

/// The fields of a job message that name the job and its services.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobMessage {
    job_service_containers: Option<RunnerMapping>,
    #[serde(default)]
    variables: Map<String, Value>,
    #[serde(default)]
    context_data: Value,
}

/// A mapping of the workflow as the runner serializes it in its log: a list of pairs.
#[derive(Deserialize)]
struct RunnerMapping {
    #[serde(default)]
    map: Vec<MappingEntry>,
}

/// A key and its value in a [`RunnerMapping`].
#[derive(Deserialize)]
struct MappingEntry {
    #[serde(alias = "Key")]
    key: Value,
    #[serde(default, alias = "Value")]
    value: Value,
}

impl JobMessage {
    /// Returns whether the message is about this job and run; a missing id matches.
    fn is_about(&self, [job, run]: [Option<&str>; 2]) -> bool {
        let own_job = self.variables.get("system.github.job").and_then(|v| v["value"].as_str());
        let github = self.context_data["github"]["d"].as_array();
        let own_run = github.and_then(|all| all.iter().find(|pair| pair["k"] == "run_id"));
        let own_run = own_run.and_then(|pair| pair["v"].as_str());
        let differ = |own: Option<&str>, other| own.zip(other).is_some_and(|(own, o)| own != o);
        !differ(own_job, job) && !differ(own_run, run)
    }
}

fn parse_log(log: &str, job: [Option<&str>; 2]) -> Option<Vec<WorkflowService>> {
    let (_, message) = log.split_once("Job message:")?;
    let json = &message[message.find('{')?..];
    let mut documents = serde_json::Deserializer::from_str(json).into_iter::<JobMessage>();
    let message = documents.next()?.ok().filter(|message| message.is_about(job))?;
    let pairs = message.job_service_containers?.map;
    let named = |pair: &MappingEntry| {
        Some(WorkflowService::new(text(&pair.key)?, image(&pair.value).as_deref()))
    };
    pairs.iter().map(named).collect()
}

/// Returns the text of a token; none for an expression. A text with a known line is an object with
/// the text in `lit`.
fn text(token: &Value) -> Option<&str> {
    token.get("lit").unwrap_or(token).as_str()
}

/// Returns the image of a service: the service itself if it is a text, else its field `image`.
fn image(service: &Value) -> Option<String> {
    let of_field = || {
        let fields = RunnerMapping::deserialize(service).ok()?.map;
        let image = fields.iter().find(|field| text(&field.key) == Some("image"))?;
        text(&image.value).map(str::to_owned)
    };
    text(service).map(str::to_owned).or_else(of_field)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    /// Returns the names of services with these keys, options and images, and the names that are unused.
    fn assign_names(
        services: &[(Option<&str>, &str, &str)],
    ) -> (Vec<Vec<String>>, Vec<UnusedName>) {
        let options = services.iter().map(|(_, text, _)| CreateOptions::parse(text).unwrap());
        let options: Vec<_> = options.collect();
        let services = services.iter().zip(&options);
        let services: Vec<_> = services
            .map(|((key, _, image), options)| RequestedService::new(*key, options, image))
            .collect();
        let keys: Vec<_> = services.iter().map(|one| one.key.map(str::to_owned)).collect();
        assign(&services, &keys)
    }

    #[test]
    fn service_gets_all_available_names() {
        let options = "--network-alias cache --name my-redis --hostname rhost --net-alias cache";
        let (names, _) = assign_names(&[(Some("db"), options, "redis:7")]);
        assert_eq!(names, [["db", "cache", "my-redis", "rhost", "redis"]]);
    }

    #[test]
    fn services_with_the_same_image_are_numbered() {
        let redis = (None, "", "example.com/a/redis");
        let (names, _) =
            assign_names(&[redis, (None, "", "postgres"), redis, (None, "", "redis:7")]);
        assert_eq!(names, [["redis"], ["postgres"], ["redis-1"], ["redis-2"]]);
        let (names, unused) = assign_names(&[(None, "", ""), (None, "", "")]);
        assert_eq!(names, [[""; 0]; 2], "Dockerfiles have no names");
        assert!(unused.is_empty());
    }

    #[test]
    fn given_name_is_not_generated_for_another_service() {
        let (names, unused) =
            assign_names(&[(None, "", "redis"), (None, "--network-alias redis", "valkey")]);
        assert_eq!(names, [vec![], vec!["redis", "valkey"]]);
        assert!(unused.is_empty(), "it asked for no name");
    }

    #[test]
    fn service_never_takes_the_name_of_another_container() {
        let (names, unused) = assign_names(&[
            (None, "--network-alias db --network-alias LocalHost", "redis"),
            (Some("db"), "--network-alias cache --network-alias a.localhost.", "postgres"),
            (Some("cache"), "--name DB --hostname 127.0.0.1", "x"),
            (Some("a b\t1.2.3.4 x"), "--network-alias localhost.example", "y"),
        ]);
        let expected = [
            vec!["redis"],
            vec!["db", "postgres"],
            vec!["cache", "x"],
            vec!["localhost.example", "y"],
        ];
        assert_eq!(names, expected);
        let all: Vec<_> =
            unused.iter().map(|one| (one.service, one.name.as_str(), one.reason)).collect();
        let expected = [
            (3, "a b\t1.2.3.4 x", UnusedNameReason::Malformed),
            (0, "db", UnusedNameReason::Taken),
            (0, "LocalHost", UnusedNameReason::Own),
            (1, "cache", UnusedNameReason::Taken),
            (1, "a.localhost.", UnusedNameReason::Own),
            (2, "DB", UnusedNameReason::Taken),
            (2, "127.0.0.1", UnusedNameReason::Malformed),
        ];
        assert_eq!(all, expected);
        let message = "not reachable as \"db\": another service has this name";
        assert_eq!(unused[1].to_string(), message);
    }

    fn match_names(named: &[(&str, &str)], images: &[&str]) -> Option<Vec<String>> {
        let named: Vec<_> =
            named.iter().map(|(name, image)| WorkflowService::new(name, Some(image))).collect();
        match_services(&named, images)
    }

    #[test]
    fn services_match_by_image_and_order() {
        let named = [("db", "postgres:16"), ("cache", "redis"), ("queue", "docker://redis")];
        let names = match_names(&named, &["postgres:16", "redis", "redis"]).unwrap();
        assert_eq!(names, ["db", "cache", "queue"]);
        for images in [
            &["redis", "postgres:16", "redis"][..],
            &["postgres:15", "redis", "redis"],
            &["postgres:16", "redis"],
            &["postgres:16", "redis", "redis", "redis"],
            &[],
        ] {
            assert_eq!(match_names(&named, images), None, "{images:?}");
        }
        assert_eq!(match_names(&[], &[]), Some(Vec::new()));
    }

    #[test]
    fn expressions_match_if_the_assignment_is_unique() {
        let named = [("db", "${{ matrix.db }}"), ("cache", "redis"), ("web", "***/web:1")];
        let names = match_names(&named, &["mysql:8", "redis", "x/web:1"]).unwrap();
        assert_eq!(names, ["db", "cache", "web"]);
        // The runner leaves out services without an image.
        assert_eq!(match_names(&named, &["redis", "x/web:1"]).unwrap(), ["cache", "web"]);
        assert_eq!(match_names(&named, &["mysql:8", "redis"]).unwrap(), ["db", "cache"]);
        assert_eq!(match_names(&named, &["redis"]).unwrap(), ["cache"]);
        let two = [("one", "${{ matrix.one }}"), ("two", "${{ matrix.two }}")];
        assert_eq!(match_names(&two, &["redis"]), None, "it could be either");
    }

    #[test]
    fn thousand_services_are_matched_quickly() {
        let named = vec![("x", "${{ x }}"); 10_000];
        assert_eq!(match_names(&named, &vec!["y"; 5_000]), None);
    }

    const NO_JOB: [Option<&str>; 2] = [None; 2];

    const LOG: &str = r#"[2026-01-02 03:04:05Z INFO Worker] Version: 2.336.0
[2026-01-02 03:04:05Z INFO Worker] Job message:
 {
  "mask": [{"type": "regex", "value": "***"}],
  "jobDisplayName": "build {",
  "jobServiceContainers": {
    "type": 2, "file": 1, "line": 9, "col": 7,
    "map": [
      {"Key": {"type": 0, "file": 1, "line": 9, "col": 7, "lit": "cache"}, "Value": {"type": 2, "map": [
        {"Key": "ports", "Value": {"type": 1, "seq": ["6379"]}},
        {"Key": {"type": 0, "file": 1, "line": 10, "col": 9, "lit": "image"}, "Value": {"type": 0, "lit": "redis:7"}}
      ]}},
      {"key": "db", "value": "postgres"},
      {"key": "any", "value": {"map": [{"key": "image", "value": {"type": 3, "expr": "matrix.image"}}]}}
    ]
  },
  "variables": {"system.github.job": {"value": "build"}},
  "contextData": {"github": {"t": 2, "d": [{"k": "ref", "v": "x"}, {"k": "run_id", "v": "42"}]}}
}
[2026-01-02 03:04:06Z INFO JobRunner] more {
"#;

    #[test]
    fn services_of_a_log_are_in_workflow_order() {
        let named = parse_log(LOG, NO_JOB).unwrap();
        let all: Vec<_> = named.iter().map(|s| (s.name.as_str(), s.image.as_deref())).collect();
        assert_eq!(all, [("cache", Some("redis:7")), ("db", Some("postgres")), ("any", None)]);
    }

    #[test]
    fn log_of_another_job_is_ignored() {
        for (job, run, is_it) in
            [("build", "42", true), ("test", "42", false), ("build", "43", false)]
        {
            assert_eq!(parse_log(LOG, [Some(job), Some(run)]).is_some(), is_it, "{job} {run}");
        }
    }

    #[test]
    fn unparsable_log_is_ignored() {
        for log in ["", "Job message:", "Job message: {", "Job message: {}"] {
            assert_eq!(parse_log(log, NO_JOB), None, "{log}");
        }
        assert_eq!(parse_log(r#"Job message: {"jobServiceContainers": null}"#, NO_JOB), None);
        assert_eq!(
            parse_log(r#"Job message: {"jobServiceContainers": {"map": [{"key": 1}]}}"#, NO_JOB),
            None
        );
    }

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap();
        fs::create_dir_all(path.join("runner/_work")).unwrap();
        fs::create_dir(path.join("runner/_diag")).unwrap();
        (dir, path)
    }

    #[test]
    fn newest_log_is_read() {
        let (_dir, dir) = directory();
        let diag = dir.join("runner/_diag");
        let files = RunnerFiles::new(&dir.join("runner/_work")).unwrap();
        assert_eq!(read_log_services(&files, &diag, NO_JOB).unwrap(), None);
        for (name, text) in [
            ("Worker_20260101-000000-utc.log", ""),
            ("Worker_20260102-030405-utc.log", LOG),
            ("Runner_20260103-000000-utc.log", ""),
        ] {
            fs::write(diag.join(name), text).unwrap();
        }
        assert_eq!(read_log_services(&files, &diag, NO_JOB).unwrap().unwrap().len(), 3);
        assert!(read_log_services(&files, &diag.join("none"), NO_JOB).is_err());
    }

    #[test]
    fn log_behind_a_link_is_not_read() {
        let (_dir, dir) = directory();
        let diag = dir.join("runner/_diag");
        let files = RunnerFiles::new(&dir.join("runner/_work")).unwrap();
        fs::write(dir.join("log"), LOG).unwrap();
        fs::create_dir(diag.join("Worker_1.log")).unwrap();
        assert_eq!(read_log_services(&files, &diag, NO_JOB).unwrap(), None);
        symlink(dir.join("log"), diag.join("Worker_2.log")).unwrap();
        read_log_services(&files, &diag, NO_JOB).unwrap_err();
        let fifo = diag.join("Worker_3.log");
        mkfifoat(CWD, fifo, Mode::RWXU).unwrap();
        assert_eq!(read_log_services(&files, &diag, NO_JOB).unwrap(), None);
    }

    #[test]
    fn logs_are_beside_the_work_directory_or_in_the_workers_directory() {
        let (_dir, dir) = directory();
        let work = dir.join("runner/_work");
        let files = RunnerFiles::new(&work).unwrap();
        let beside = dir.join("runner/_diag");
        fs::create_dir_all(dir.join("program/_diag")).unwrap();
        let of_worker = dir.join("program");
        assert_eq!(diag(&files, &work, Some(&of_worker)), beside);
        fs::remove_dir(&beside).unwrap();
        assert_eq!(diag(&files, &work, Some(&of_worker)), of_worker.join("_diag"));
        assert_eq!(diag(&files, &work, None), beside);
    }
}
