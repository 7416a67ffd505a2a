//! The provider as GARM calls it: with only GARM's environment variables, with pipes as the three standard
//! streams, and waiting for the exit and for the end of both output pipes.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use serde_json::Value;

use super::super::call::{EndedCall, RunningCall};
use super::super::program;
use super::answer::{AnswerStatus, ProviderInstance};
use super::installation::ProviderInstallation;
use super::instances::encode;

/// Controller id of most tests.
pub const CONTROLLER: &str = "31556484-bc26-4971-aaa6-bf77c99fe7f1";

/// Pool id of most tests.
pub const POOL: &str = "ce865c26-efa0-4c29-8797-1e5c3a0db6d9";

/// A GARM that calls the provider.
#[derive(Clone)]
pub struct ProviderCaller<'a> {
    pub installation: &'a ProviderInstallation<'a>,
    pub controller: String,
    pub pool: String,
    /// `GARM_INTERFACE_VERSION`, which old versions of GARM do not set.
    pub interface: Option<&'static str>,
    /// Extra specs of the pool, passed from interface v0.1.1 on.
    pub extra_specs: Value,
    /// Environment variables that the operator configures GARM to pass.
    pub variables: Vec<(String, String)>,
    /// User id and group id of GARM, or none for root.
    pub user: Option<(u32, u32)>,
    /// Limit of open files of a call, if lower than usual.
    pub descriptors: Option<u32>,
}

impl<'a> ProviderCaller<'a> {
    pub fn new(installation: &'a ProviderInstallation<'a>) -> Self {
        Self {
            installation,
            controller: CONTROLLER.to_owned(),
            pool: POOL.to_owned(),
            interface: Some("v0.1.0"),
            extra_specs: Value::Null,
            variables: Vec::new(),
            user: installation.user(),
            descriptors: None,
        }
    }

    /// Returns the same GARM with another pool.
    pub fn of_pool(&self, pool: &str) -> Self {
        Self { pool: pool.to_owned(), ..self.clone() }
    }

    /// Returns the same GARM with another controller id.
    pub fn of_controller(&self, controller: &str) -> Self {
        Self { controller: controller.to_owned(), ..self.clone() }
    }

    /// Starts a command, on an instance unless `instance` is empty.
    pub fn start(&self, command: &str, instance: &str, stdin: Vec<u8>) -> RunningCall {
        self.start_with(self.variables(command, instance), stdin)
    }

    /// Returns the environment variables of a command.
    pub fn variables(&self, command: &str, instance: &str) -> Vec<(String, String)> {
        let mut variables = vec![
            ("GARM_COMMAND", command.to_owned()),
            ("GARM_CONTROLLER_ID", self.controller.clone()),
            ("GARM_PROVIDER_CONFIG_FILE", self.installation.settings().display().to_string()),
        ];
        if let Some(interface) = self.interface {
            variables.push(("GARM_INTERFACE_VERSION", interface.to_owned()));
        }
        let is_new = self.interface == Some("v0.1.1");
        if is_new {
            let extra_specs = encode(self.extra_specs.to_string().as_bytes());
            variables.push(("GARM_POOL_EXTRASPECS", extra_specs));
        }
        if is_new || matches!(command, "CreateInstance" | "ListInstances") {
            variables.push(("GARM_POOL_ID", self.pool.clone()));
        }
        if !instance.is_empty() {
            variables.push(("GARM_INSTANCE_ID", instance.to_owned()));
        }
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value));
        variables.chain(self.variables.iter().cloned()).collect()
    }

    /// Starts a call with exactly these environment variables.
    pub fn start_with(
        &self,
        variables: impl IntoIterator<Item = (String, String)>,
        stdin: Vec<u8>,
    ) -> RunningCall {
        let directory = self.installation.host().path().join("garm");
        fs::create_dir_all(&directory).expect("the directory of the host is there");
        let mut command = match self.descriptors {
            Some(count) => program::limited(self.installation.program(), count),
            None => Command::new(self.installation.program()),
        };
        command.env_clear().envs(variables).current_dir(directory);
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        RunningCall::start(self.installation.host(), command, stdin, None)
    }

    /// Starts the creation of an instance.
    pub fn start_create(&self, document: &Value) -> RunningCall {
        let pool = document["pool_id"].as_str().unwrap_or_default();
        let provider = Self { extra_specs: document["extra_specs"].clone(), ..self.of_pool(pool) };
        provider.start("CreateInstance", "", document.to_string().into_bytes())
    }

    /// Creates an instance.
    #[track_caller]
    pub fn create(&self, document: &Value) -> ProviderInstance {
        let answer =
            ProviderInstance::parse(&self.start_create(document).wait().success().stdout());
        assert_eq!(Some(answer.name.as_str()), document["name"].as_str());
        answer
    }

    /// Runs a creation that must fail, and returns its one-line error message.
    #[track_caller]
    pub fn create_fails(&self, document: &Value) -> String {
        failure(&self.start_create(document).wait(), 1)
    }

    #[track_caller]
    pub fn delete(&self, id: &str) {
        let ended = self.start("DeleteInstance", id, Vec::new()).wait();
        // Exit code 30 means that the instance does not exist, which GARM accepts too.
        let code = ended.status.code();
        assert!(matches!(code, Some(0 | 30)), "{code:?}: {}", ended.log());
        ended.code(code.expect("it is one of these"));
    }

    /// Returns the instances of the pool.
    #[track_caller]
    pub fn list(&self) -> Vec<ProviderInstance> {
        let ended = self.start("ListInstances", "", Vec::new()).wait();
        ProviderInstance::parse_list(&ended.success().stdout())
    }

    /// Returns the names of the instances of the pool.
    #[track_caller]
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.list().into_iter().map(|instance| instance.name).collect();
        names.sort();
        names
    }

    #[track_caller]
    pub fn get(&self, id: &str) -> ProviderInstance {
        ProviderInstance::parse(
            &self.start("GetInstance", id, Vec::new()).wait().success().stdout(),
        )
    }

    /// Waits until an instance has a status.
    #[track_caller]
    pub fn wait_for(&self, id: &str, status: AnswerStatus) -> ProviderInstance {
        program::wait_until(&format!("{id} is {status:?}"), || self.get(id).status == status);
        self.get(id)
    }

    #[track_caller]
    pub fn start_instance(&self, id: &str) -> EndedCall {
        self.start("StartInstance", id, Vec::new()).wait()
    }

    #[track_caller]
    pub fn stop_instance(&self, id: &str) -> EndedCall {
        self.start("StopInstance", id, Vec::new()).wait()
    }

    #[track_caller]
    pub fn remove_all(&self) {
        self.start("RemoveAllInstances", "", Vec::new()).wait().success();
    }
}

/// Checks that a call failed with an exit code and a readable one-line error message, and returns the message.
#[track_caller]
pub fn failure(ended: &EndedCall, code: i32) -> String {
    assert_eq!(ended.stdout(), "", "GARM reads nothing of a failure");
    assert_eq!(ended.status.code(), Some(code), "{}", ended.log());
    let said = ended.stderr();
    assert!(!said.contains("panicked"), "{said}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 1, "a failure is one line: {said}");
    assert!(lines[0].len() > 10 && lines[0].len() < 1000, "{said}");
    said.trim_end().to_owned()
}

/// A recorded call.
pub struct RecordedCall {
    pub name: String,
    pub env: Vec<(String, String)>,
    /// JSON document on standard input, or null.
    pub stdin: Value,
}

/// Returns calls recorded from the real GARM.
pub fn recorded_calls() -> Vec<RecordedCall> {
    let entries = fs::read_dir(program::repository("crates/garm-provider-runc/tests/data/calls"))
        .expect("it is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).expect("it is a file");
        let call: Value = serde_json::from_str(&text).expect("it is JSON");
        let env = call["env"].as_object().expect("it was recorded").iter();
        let text = |value: &Value| value.as_str().expect("a variable is text").to_owned();
        RecordedCall {
            name: path.file_stem().expect("it has a name").to_string_lossy().into_owned(),
            env: env.map(|(name, value)| (name.clone(), text(value))).collect(),
            stdin: call["stdin"].clone(),
        }
    };
    paths.iter().map(read).collect()
}
