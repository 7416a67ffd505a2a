//! GARM calling the provider: nothing in the environment but what it sets, pipes for the three
//! streams, and waiting for the process and for the end of both pipes.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use serde_json::Value;

use super::super::call::{Call, Ended};
use super::super::program;
use super::answer::{Answer, Status};
use super::installation::Installation;
use super::instances::encode;

/// The controller of most tests.
pub(crate) const CONTROLLER: &str = "31556484-bc26-4971-aaa6-bf77c99fe7f1";

/// The pool of most tests.
pub(crate) const POOL: &str = "ce865c26-efa0-4c29-8797-1e5c3a0db6d9";

/// Calls as one GARM makes them.
#[derive(Clone)]
pub(crate) struct Provider<'a> {
    pub(crate) installation: &'a Installation<'a>,
    pub(crate) controller: String,
    pub(crate) pool: String,
    /// What GARM says of itself; old ones say nothing.
    pub(crate) interface: Option<&'static str>,
    /// The extra specs of the pool, for a GARM that passes them.
    pub(crate) extra_specs: Value,
    /// What the operator has GARM pass on.
    pub(crate) variables: Vec<(String, String)>,
    /// Who runs GARM; root if nobody is named.
    pub(crate) user: Option<(u32, u32)>,
    /// How many files a call may have open at a time, if fewer than usual.
    pub(crate) descriptors: Option<u32>,
}

impl<'a> Provider<'a> {
    pub(crate) fn new(installation: &'a Installation<'a>) -> Self {
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

    /// Returns the same with another pool.
    pub(crate) fn of_pool(&self, pool: &str) -> Self {
        Self { pool: pool.to_owned(), ..self.clone() }
    }

    /// Returns the same of another GARM.
    pub(crate) fn of_controller(&self, controller: &str) -> Self {
        Self { controller: controller.to_owned(), ..self.clone() }
    }

    /// Starts a call of a command, on an instance if it has one.
    pub(crate) fn start(&self, command: &str, instance: &str, stdin: Vec<u8>) -> Call {
        self.start_with(self.variables(command, instance), stdin)
    }

    /// Returns the variables of a call.
    pub(crate) fn variables(&self, command: &str, instance: &str) -> Vec<(String, String)> {
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

    /// Starts a call with exactly these variables.
    pub(crate) fn start_with(
        &self,
        variables: impl IntoIterator<Item = (String, String)>,
        stdin: Vec<u8>,
    ) -> Call {
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
        Call::start(self.installation.host(), command, stdin, None)
    }

    /// Starts the creation of an instance.
    pub(crate) fn start_create(&self, document: &Value) -> Call {
        let pool = document["pool_id"].as_str().unwrap_or_default();
        let provider = Self { extra_specs: document["extra_specs"].clone(), ..self.of_pool(pool) };
        provider.start("CreateInstance", "", document.to_string().into_bytes())
    }

    /// Creates an instance.
    #[track_caller]
    pub(crate) fn create(&self, document: &Value) -> Answer {
        let answer = Answer::parse(&self.start_create(document).wait().success().stdout());
        assert_eq!(Some(answer.name.as_str()), document["name"].as_str());
        answer
    }

    /// Has a creation fail, and returns the one line that it says.
    #[track_caller]
    pub(crate) fn create_fails(&self, document: &Value) -> String {
        failure(&self.start_create(document).wait(), 1)
    }

    #[track_caller]
    pub(crate) fn delete(&self, id: &str) {
        let ended = self.start("DeleteInstance", id, Vec::new()).wait();
        // 30 says that there is none, which GARM takes as well.
        let code = ended.status.code();
        assert!(matches!(code, Some(0 | 30)), "{code:?}: {}", ended.log());
        ended.code(code.expect("it is one of these"));
    }

    /// Returns the instances of the pool.
    #[track_caller]
    pub(crate) fn list(&self) -> Vec<Answer> {
        let ended = self.start("ListInstances", "", Vec::new()).wait();
        Answer::parse_list(&ended.success().stdout())
    }

    /// Returns the names of the instances of the pool.
    #[track_caller]
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.list().into_iter().map(|instance| instance.name).collect();
        names.sort();
        names
    }

    #[track_caller]
    pub(crate) fn get(&self, id: &str) -> Answer {
        Answer::parse(&self.start("GetInstance", id, Vec::new()).wait().success().stdout())
    }

    /// Waits until an instance has a status.
    #[track_caller]
    pub(crate) fn wait_for(&self, id: &str, status: Status) -> Answer {
        program::wait_until(&format!("{id} is {status:?}"), || self.get(id).status == status);
        self.get(id)
    }

    #[track_caller]
    pub(crate) fn start_instance(&self, id: &str) -> Ended {
        self.start("StartInstance", id, Vec::new()).wait()
    }

    #[track_caller]
    pub(crate) fn stop_instance(&self, id: &str) -> Ended {
        self.start("StopInstance", id, Vec::new()).wait()
    }

    #[track_caller]
    pub(crate) fn remove_all(&self) {
        self.start("RemoveAllInstances", "", Vec::new()).wait().success();
    }
}

/// Checks that a call failed with a code and one readable line, which it returns.
#[track_caller]
pub(crate) fn failure(ended: &Ended, code: i32) -> String {
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
pub(crate) struct Recorded {
    pub(crate) name: String,
    pub(crate) env: Vec<(String, String)>,
    /// The document; null if there was nothing on standard input.
    pub(crate) stdin: Value,
}

/// Returns the calls that were recorded of the real GARM.
pub(crate) fn recorded() -> Vec<Recorded> {
    let entries = fs::read_dir(program::repository("tests/data/garm")).expect("it is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let read = |path: &std::path::PathBuf| {
        let text = fs::read_to_string(path).expect("it is a file");
        let call: Value = serde_json::from_str(&text).expect("it is JSON");
        let env = call["env"].as_object().expect("it was recorded").iter();
        let text = |value: &Value| value.as_str().expect("a variable is text").to_owned();
        Recorded {
            name: path.file_stem().expect("it has a name").to_string_lossy().into_owned(),
            env: env.map(|(name, value)| (name.clone(), text(value))).collect(),
            stdin: call["stdin"].clone(),
        }
    };
    paths.iter().map(read).collect()
}
