//! Requests of the job, as GitHub's runner sends them (ADR 1891).

use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;

use oci_hooks_engine::container::HostSystem;
use oci_hooks_image::{ImageReference, ReferenceError};
use serde_json::{Map, Value, json};

use super::runner::SimulatedRunner;

/// Default script of the step, which prints facts about the container.
const SCRIPT: &str = "\
id
uname -srm
if [ -r /etc/os-release ]; then (. /etc/os-release; echo \"$PRETTY_NAME\"); fi
echo 'This container works.'
";

/// Files through which a step sets variables, outputs and so on.
const FILE_COMMANDS: [(&str, &str); 5] = [
    ("GITHUB_ENV", "set_env"),
    ("GITHUB_OUTPUT", "set_output"),
    ("GITHUB_PATH", "add_path"),
    ("GITHUB_STATE", "save_state"),
    ("GITHUB_STEP_SUMMARY", "step_summary"),
];

/// Name of the step's script, and suffix of its file commands.
const STEP: &str = "try";

/// A service, the value of `--service`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceArg {
    image: ImageReference,
    /// Name under `services:`.
    name: String,
}

/// Errors of parsing a service.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceArgError {
    #[error(transparent)]
    Image(#[from] ReferenceError),
    #[error("invalid name {0:?}: expected letters, digits, `-`, `_` and `.`")]
    Name(String),
}

impl FromStr for ServiceArg {
    type Err = ServiceArgError;

    fn from_str(text: &str) -> Result<Self, ServiceArgError> {
        let (image, name) = match text.split_once('=') {
            Some((image, name)) => (image, Some(name)),
            None => (text, None),
        };
        let image: ImageReference = image.parse()?;
        let name = name.unwrap_or_else(|| image.base_name()).to_owned();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(is_plain) {
            return Err(ServiceArgError::Name(name));
        }
        Ok(ServiceArg { image, name })
    }
}

/// Returns the script of a step that runs a command, and its title.
pub fn script(command: &[String]) -> (String, String) {
    if command.is_empty() {
        return (SCRIPT.to_owned(), SCRIPT.lines().next().unwrap_or_default().to_owned());
    }
    let line = command.iter().map(|word| quote_word(word)).collect::<Vec<_>>().join(" ");
    (format!("{line}\n"), line.lines().next().unwrap_or_default().to_owned())
}

/// Quotes a word for a shell.
fn quote_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Returns the arguments of `prepare_job`. Without an image, the job container has the programs of this
/// host.
pub fn prepare(
    runner: &SimulatedRunner,
    image: Option<&ImageReference>,
    services: &[ServiceArg],
) -> Value {
    let work = runner.work();
    let image =
        image.map_or_else(|| HostSystem::reference().to_string(), ImageReference::familiar_name);
    let mut job = container(&image);
    job["workingDirectory"] = json!("/__w/repo/repo");
    job["environmentVariables"] = json!({"HOME": "/github/home"});
    job["systemMountVolumes"] = json!([
        mount(Path::new("/var/run/docker.sock"), "/var/run/docker.sock", false),
        mount(&work, "/__w", false),
        mount(&runner.directory.join("externals"), "/__e", true),
        mount(&work.join("_temp"), "/__w/_temp", false),
        mount(&work.join("_actions"), "/__w/_actions", false),
        mount(&work.join("_tool"), "/__w/_tool", false),
        mount(&work.join("_temp/_github_home"), "/github/home", false),
        mount(&work.join("_temp/_github_workflow"), "/github/workflow", false),
    ]);
    let services = services.iter().map(|service| {
        let mut container = container(&service.image.familiar_name());
        container["contextName"] = json!(service.name);
        container
    });
    json!({"container": job, "services": services.collect::<Vec<_>>()})
}

/// Returns the names of the step's file commands, below the runner's directory.
pub fn files() -> impl Iterator<Item = String> {
    FILE_COMMANDS.iter().map(|(_, file)| format!("_work/_temp/_runner_file_commands/{file}_{STEP}"))
}

/// Returns the name of the step's script, below the runner's directory.
pub fn script_name() -> String {
    format!("_work/_temp/{STEP}.sh")
}

/// Returns the arguments of `run_script_step`, for a `run:` with the default shell of containers.
pub fn step(runner: &SimulatedRunner) -> Value {
    step_of(runner, "sh", &["-e", &format!("/__w/_temp/{STEP}.sh")])
}

/// Returns the arguments of `run_script_step`, for a program.
pub fn step_of(runner: &SimulatedRunner, program: &str, args: &[&str]) -> Value {
    let mut env = Map::new();
    for (name, value) in [
        ("CI", "true"),
        ("GITHUB_ACTIONS", "true"),
        ("GITHUB_EVENT_PATH", "/github/workflow/event.json"),
        ("GITHUB_JOB", "try"),
        ("GITHUB_WORKSPACE", "/__w/repo/repo"),
        ("RUNNER_NAME", &runner.name),
        ("RUNNER_OS", "Linux"),
        ("RUNNER_TEMP", "/__w/_temp"),
        ("RUNNER_WORKSPACE", "/__w/repo"),
    ] {
        env.insert(name.to_owned(), json!(value));
    }
    for (name, file) in FILE_COMMANDS {
        let mut path = String::from("/__w/_temp/_runner_file_commands/");
        write!(path, "{file}_{STEP}").expect("strings take everything");
        env.insert(name.to_owned(), json!(path));
    }
    json!({
        "entryPoint": program, "entryPointArgs": args,
        "environmentVariables": env, "prependPath": [], "workingDirectory": "/__w/repo/repo",
    })
}

/// Returns the arguments of `run_container_step`, for an action with a Dockerfile.
pub fn build(dockerfile: &Path) -> Value {
    let mut step = container("");
    step["image"] = Value::Null;
    step["dockerfile"] = json!(dockerfile);
    step
}

fn container(image: &str) -> Value {
    json!({
        "image": image, "dockerfile": null, "entryPointArgs": [], "entryPoint": null,
        "workingDirectory": null, "createOptions": null, "registry": null,
        "environmentVariables": {}, "portMappings": [], "systemMountVolumes": [],
        "userMountVolumes": [],
    })
}

fn mount(source: &Path, target: &str, read_only: bool) -> Value {
    json!({
        "userProvidedValue": null, "sourceVolumePath": source, "targetVolumePath": target,
        "readOnly": read_only,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_is_named_by_the_option_or_its_image() {
        let name = |text: &str| text.parse::<ServiceArg>().map(|service| service.name);
        assert_eq!(name("redis:7").unwrap(), "redis");
        assert_eq!(name("localhost:5000/team/redis=cache").unwrap(), "cache");
        for text in ["", "=a", "redis=", "redis=a b", "redis=a=b", "Redis"] {
            name(text).unwrap_err();
        }
    }

    #[test]
    fn printed_command_is_one_quoted_line() {
        let words = ["sh", "-c", "echo \"it's\" $HOME", ""].map(str::to_owned);
        let (text, title) = script(&words);
        assert_eq!(text, "sh -c 'echo \"it'\\''s\" $HOME' ''\n");
        assert_eq!(title, text.trim_end());
        assert_eq!(script(&[]).1, "id");
    }
}
