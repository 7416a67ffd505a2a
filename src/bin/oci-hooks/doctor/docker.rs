//! Docker, which can be configured to call a runtime that adds hooks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use oci_hooks::hooks::directories::ConfigLine;
use oci_hooks::json::{JsonDocument, JsonValue, TextLocation};
use oci_hooks_cli::check::HostCheck;
use serde::Deserialize;

use super::host::{DoctorHost, version_in};
use super::wrapper;

/// The first version in which `docker build` uses the BuildKit in dockerd.
const BUILDKIT: (u64, u64) = (23, 0);

/// Environment variable that sets the runtime of the BuildKit in dockerd. Docker has it for its own tests.
const BUILDKIT_VARIABLE: &str = "DOCKER_BUILDKIT_RUNC_COMMAND";

/// Files that set variables of dockerd.
const UNITS: [&str; 5] = [
    "/etc/default/docker",
    "/etc/sysconfig/docker",
    "/usr/lib/systemd/system/docker.service",
    "/lib/systemd/system/docker.service",
    "/etc/systemd/system/docker.service",
];
const NAME: &str = "Docker";
const DROP_INS: &str = "/etc/systemd/system/docker.service.d";

/// Checks `docker run` and `docker build`, if dockerd is installed.
pub fn checks(host: &DoctorHost) -> Vec<HostCheck> {
    let Some(dockerd) = host.program("dockerd") else { return Vec::new() };
    let info = DockerInfo::query(host);
    let runs = check_wrapper(info.as_ref(), host);
    let version = match &info {
        Some(info) => version_in(&info.server_version),
        None => host.version(&dockerd).ok(),
    };
    let builds = builds(version.is_none_or(|version| version >= BUILDKIT), host);
    vec![runs, builds]
}

/// The fields of `docker info` that this program reads: the configuration that the daemon uses.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct DockerInfo {
    server_version: String,
    default_runtime: String,
    runtimes: BTreeMap<String, InfoRuntime>,
    #[serde(default)]
    security_options: Vec<String>,
}

#[derive(Deserialize)]
struct InfoRuntime {
    #[serde(default)]
    path: String,
}

impl DockerInfo {
    /// Runs `docker info`. Returns `None` if docker is not installed or the daemon does not run.
    pub fn query(host: &DoctorHost) -> Option<Self> {
        let text = host.output(&host.program("docker")?, &["info", "--format", "{{json .}}"])?;
        let info: DockerInfo = serde_json::from_str(&text.ok()?).ok()?;
        // Without a daemon, `docker info` prints only the client's part.
        (!info.server_version.is_empty()).then_some(info)
    }

    /// Returns the path of the runtime with this name; `None` if the daemon has no such runtime.
    pub fn runtime(&self, name: &str) -> Option<&str> {
        self.runtimes.get(name).map(|runtime| runtime.path.as_str())
    }
}

/// The runtimes that the daemon reports, or those that daemon.json sets.
#[derive(Debug, Default)]
struct DockerRuntimes {
    /// If set, the runtimes are those of daemon.json, which exists.
    has_file: bool,
    /// Name of the default runtime, and where it is set, as in `named`.
    default: Option<(String, String)>,
    /// Name and path of each runtime, and where it is set: `docker info`, or file and line of
    /// daemon.json.
    named: Vec<(String, String, String)>,
}

impl From<&DockerInfo> for DockerRuntimes {
    fn from(info: &DockerInfo) -> Self {
        let by = || "docker info".to_owned();
        let runtimes = info.runtimes.iter();
        DockerRuntimes {
            has_file: false,
            default: Some((info.default_runtime.clone(), by())),
            named: runtimes.map(|(name, at)| (name.clone(), at.path.clone(), by())).collect(),
        }
    }
}

fn check_wrapper(info: Option<&DockerInfo>, host: &DoctorHost) -> HostCheck {
    let path = daemon_json(info, host);
    let seen = host.root.join(&path).display().to_string();
    let file = match runtimes(&path, host) {
        Ok(file) => file,
        Err(found) => return host.unreadable(NAME, "dockerd", found),
    };
    let find = |runtimes: &DockerRuntimes| find_wrapper(runtimes, file.has_file, &seen, host);
    let in_file = find(&file);
    match info.map(|info| find(&info.into())) {
        Some(used) if used.is_failure() && !in_file.is_failure() => {
            let found = format!("has not read {seen} since it changed: {}", used.finding());
            HostCheck::fail(NAME, found, "restart dockerd")
        }
        Some(used) => used,
        None => in_file,
    }
}

/// Finds the runtime that is the wrapper, and checks that it exists and is the default.
fn find_wrapper(
    runtimes: &DockerRuntimes,
    has_file: bool,
    seen: &str,
    host: &DoctorHost,
) -> HostCheck {
    let default = runtimes.default.as_ref().map(|(name, _)| name);
    let mut wrappers = runtimes.named.iter().filter(|(_, path, _)| wrapper::is_wrapper(path, host));
    let first = wrappers.clone().next();
    let wrapper = wrappers.find(|(name, ..)| Some(name) == default).or(first);
    let Some((name, path, place)) = wrapper else {
        let path = wrapper::path(host);
        let lines = format!(
            "\"default-runtime\": \"oci-hooks\",\n\"runtimes\": {{\"oci-hooks\": {{\"path\": {path:?}}}}}"
        );
        let hint = match has_file {
            true => format!("in {seen}, write {lines}"),
            false => format!("create {seen} with\n{{{lines}}}"),
        };
        let found =
            format!("reads no hook files itself, and {seen} names no runtime that adds hooks");
        return HostCheck::fail(NAME, found, wrapper::with_install_hint(&hint, host));
    };
    let found = match &runtimes.default {
        Some((default, at)) if default == name => return wrapper::check(NAME, path, at, host),
        Some((default, at)) => format!(
            "calls {default:?} ({at}); oci-hooks-runtime is only the runtime {name:?} ({place})"
        ),
        None => format!("calls oci-hooks-runtime only for `docker run --runtime {name}` ({place})"),
    };
    let exists = wrapper::check(NAME, path, place, host);
    if !exists.hint().is_empty() {
        return exists;
    }
    HostCheck::fail(NAME, found, format!("in {seen}, write \"default-runtime\": {name:?}"))
}

/// Returns the configuration file of dockerd. It is the user's own if that file exists or the
/// daemon that answers is rootless, and otherwise the system's.
fn daemon_json(info: Option<&DockerInfo>, host: &DoctorHost) -> PathBuf {
    let own = host.user_config().filter(|_| host.is_rootless());
    let own = own.map(|config| config.join("docker/daemon.json"));
    let is_asked =
        info.is_some_and(|info| info.security_options.iter().any(|it| it == "name=rootless"));
    let exists = |path: &PathBuf| matches!(host.read(path), Ok(Some(_)));
    own.filter(|path| is_asked || exists(path))
        .unwrap_or_else(|| PathBuf::from("/etc/docker/daemon.json"))
}

fn runtimes(path: &Path, host: &DoctorHost) -> Result<DockerRuntimes, String> {
    let Some(text) = host.read(path)? else { return Ok(DockerRuntimes::default()) };
    let seen = host.root.join(path);
    let place = |value: JsonValue<'_>| ConfigLine::of(&seen, &text, value.span().start).to_string();
    let document = JsonDocument::parse(text.as_bytes()).map_err(|error| {
        let TextLocation { line, column, .. } =
            TextLocation::of_span(text.as_bytes(), error.offset..error.offset);
        format!("{}:{line}:{column}: {error}", seen.display())
    })?;
    let mut runtimes = DockerRuntimes { has_file: true, ..DockerRuntimes::default() };
    for member in document.root().members() {
        match member.key.as_str().as_deref() {
            Some("default-runtime") => {
                let name = member.value.as_str();
                runtimes.default = name.map(|name| (name.into_owned(), place(member.key)));
            }
            Some("runtimes") => {
                for runtime in member.value.members() {
                    let mut fields = runtime.value.members();
                    let path = fields.find(|field| field.key.as_str().as_deref() == Some("path"));
                    let path = path.and_then(|field| field.value.as_str());
                    let (Some(name), Some(path)) = (runtime.key.as_str(), path) else { continue };
                    let at = place(runtime.key);
                    runtimes.named.push((name.into_owned(), path.into_owned(), at));
                }
            }
            _ => {}
        }
    }
    Ok(runtimes)
}

/// Checks `docker build`. With `is_new`, it uses the BuildKit in dockerd, which calls none of dockerd's runtimes.
fn builds(is_new: bool, host: &DoctorHost) -> HostCheck {
    const NAME: &str = "docker build";
    if let Some((command, path)) = buildkit_command(host)
        && wrapper::is_wrapper(&command, host)
    {
        let by = format!("{BUILDKIT_VARIABLE} in {}", path.display());
        return wrapper::check(NAME, &command, &by, host);
    }
    let hint = &format!(
        "build with a buildkitd of your own, with [worker.oci] binary = {:?} in its buildkitd.toml:\n\
         docker buildx create --use --driver remote unix:///run/buildkit/buildkitd.sock",
        wrapper::path(host)
    );
    let hint = wrapper::with_install_hint(hint, host);
    if is_new {
        let found = "the BuildKit in dockerd calls runc, and none of Docker's runtimes";
        return HostCheck::fail(NAME, found, hint);
    }
    let found = "calls Docker's default runtime, but not with DOCKER_BUILDKIT=1 or docker buildx";
    HostCheck::warn(NAME, found, hint)
}

/// Returns the value of BuildKit's runtime variable, and the file that sets it.
fn buildkit_command(host: &DoctorHost) -> Option<(String, PathBuf)> {
    let drop_ins = host.root.list(Path::new(DROP_INS)).ok().flatten().unwrap_or_default();
    let drop_ins = drop_ins.into_iter().map(|entry| Path::new(DROP_INS).join(entry.name));
    let mut files = UNITS.iter().map(PathBuf::from).chain(drop_ins).rev();
    // The last file takes precedence.
    files.find_map(|path| {
        let text = host.read(&path).ok().flatten()?;
        let mut lines = text.lines().rev().map(str::trim).filter(|l| !l.starts_with(['#', ';']));
        let value = lines.find_map(|line| {
            let (_, value) = line.split_once(&format!("{BUILDKIT_VARIABLE}="))?;
            value.split(|c: char| c.is_whitespace() || c == '"' || c == '\'').next()
        });
        Some((value?.to_owned(), host.root.join(&path)))
    })
}
