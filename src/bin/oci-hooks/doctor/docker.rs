//! Docker, which calls a runtime that adds the hooks, if it is told to.

use std::path::{Path, PathBuf};

use oci_hooks::json::{Document, Location, Value};
use oci_hooks::program::check::Check;

use super::config_file::Place;
use super::host::Host;
use super::wrapper;

/// The first version whose `docker build` is done by the BuildKit in dockerd.
const BUILDKIT: (u64, u64) = (23, 0);

/// Names what the BuildKit in dockerd runs containers with. Docker keeps it for its own tests.
const BUILDKIT_VARIABLE: &str = "DOCKER_BUILDKIT_RUNC_COMMAND";

/// Where variables of dockerd are set.
const UNITS: [&str; 5] = [
    "/etc/default/docker",
    "/etc/sysconfig/docker",
    "/usr/lib/systemd/system/docker.service",
    "/lib/systemd/system/docker.service",
    "/etc/systemd/system/docker.service",
];
const DROP_INS: &str = "/etc/systemd/system/docker.service.d";

/// Looks at `docker run` and `docker build`, if dockerd is installed.
pub fn checks(host: &Host) -> Vec<Check> {
    let Some(dockerd) = host.program("dockerd") else { return Vec::new() };
    let runs = runs(host);
    let is_new = host.version(&dockerd).is_none_or(|version| version >= BUILDKIT);
    let builds = builds(is_new, host);
    vec![runs, builds]
}

/// The runtimes that daemon.json names.
#[derive(Debug, Default)]
struct Runtimes {
    /// The name of the default one, with its place.
    default: Option<(String, Place)>,
    /// Name, path and place of each.
    named: Vec<(String, String, Place)>,
}

fn runs(host: &Host) -> Check {
    const NAME: &str = "Docker";
    let path = daemon_json(host);
    let seen = host.root.join(&path).display().to_string();
    let runtimes = match runtimes(&path, host) {
        Ok(runtimes) => runtimes,
        Err(found) => return host.unreadable(NAME, "dockerd", found),
    };
    let wrapper = runtimes.named.iter().find(|(_, path, _)| wrapper::is_wrapper(path, host));
    let Some((name, _, place)) = wrapper else {
        let wrapper = wrapper::path(host);
        let lines = format!(
            "in {seen}, write \"default-runtime\": \"oci-hooks\",\n\"runtimes\": {{\"oci-hooks\": {{\"path\": {wrapper:?}}}}}"
        );
        return Check::fail(
            NAME,
            format!("has no hooks.d, and {seen} names no runtime that adds hooks"),
            lines,
        );
    };
    let reads = wrapper::reads(host);
    match &runtimes.default {
        Some((default, at)) if default == name => {
            Check::ok(NAME, format!("calls oci-hooks-runtime, by {at}, which {reads}"))
        }
        Some((default, at)) => {
            let found = format!(
                "calls {default:?}, by {at}; oci-hooks-runtime is the runtime {name:?}, by {place}"
            );
            Check::fail(NAME, found, format!("in {at}, write \"default-runtime\": {name:?}"))
        }
        None => {
            let found = format!("calls oci-hooks-runtime only for --runtime {name}, by {place}");
            Check::fail(NAME, found, format!("in {seen}, write \"default-runtime\": {name:?}"))
        }
    }
}

/// Returns the configuration file of dockerd.
fn daemon_json(host: &Host) -> PathBuf {
    let own = host.user_config().filter(|_| host.is_rootless());
    let own = own.map(|config| config.join("docker/daemon.json"));
    let exists = |path: &PathBuf| matches!(host.read(path), Ok(Some(_)));
    own.filter(exists).unwrap_or_else(|| PathBuf::from("/etc/docker/daemon.json"))
}

fn runtimes(path: &Path, host: &Host) -> Result<Runtimes, String> {
    let Some(text) = host.read(path)? else { return Ok(Runtimes::default()) };
    let seen = host.root.join(path);
    let place = |value: Value<'_>| Place::of(&seen, &text, value.span().start);
    let document = Document::parse(text.as_bytes()).map_err(|error| {
        let Location { line, column, .. } =
            Location::of_span(text.as_bytes(), error.offset..error.offset);
        format!("{}:{line}:{column}: {error}", seen.display())
    })?;
    let mut runtimes = Runtimes::default();
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

/// Looks at `docker build`, for which dockerd does not call its runtimes since BuildKit is in it.
fn builds(is_new: bool, host: &Host) -> Check {
    const NAME: &str = "docker build";
    if let Some((command, path)) = buildkit_command(host)
        && wrapper::is_wrapper(&command, host)
    {
        let at = path.display();
        return Check::ok(NAME, format!("calls oci-hooks-runtime, by {BUILDKIT_VARIABLE} in {at}"));
    }
    let hint = format!(
        "build with a buildkitd of your own, with [worker.oci] binary = {:?} in its buildkitd.toml:\n\
         docker buildx create --use --driver remote unix:///run/buildkit/buildkitd.sock",
        wrapper::path(host)
    );
    if is_new {
        let found = "the BuildKit in dockerd calls runc, and none of Docker's runtimes";
        return Check::fail(NAME, found, hint);
    }
    let found = "calls Docker's default runtime, but not with DOCKER_BUILDKIT=1 or docker buildx";
    Check::warn(NAME, found, hint)
}

/// Returns what the variable for BuildKit's runtime names, and the file that sets it.
fn buildkit_command(host: &Host) -> Option<(String, PathBuf)> {
    let drop_ins = host.root.list(Path::new(DROP_INS)).ok().flatten().unwrap_or_default();
    let drop_ins = drop_ins.into_iter().map(|entry| Path::new(DROP_INS).join(entry.name));
    let mut files = UNITS.iter().map(PathBuf::from).chain(drop_ins).rev();
    // What comes last decides.
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
