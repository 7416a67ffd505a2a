//! Builds the `process.json` of an additional process in a running container, for `exec`.

use std::path::PathBuf;

use oci_hooks_host::userns::{OwnerIds, PrivateIds};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::command::ProcessEnvironment;
use super::mounts::text;
use super::{BundleError, ContainerUser, config};

/// A process to run in a running container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    pub args: Vec<String>,
    /// `NAME=value`, overriding the container's environment; a bare `NAME` unsets the variable.
    pub env: Vec<String>,
    /// Directories put before the container's `PATH`.
    pub prepend_path: Vec<String>,
    /// Working directory; by default the container's.
    pub cwd: Option<PathBuf>,
    /// User; by default the container's.
    pub user: Option<ContainerUser>,
    /// If set, the standard streams are a terminal.
    pub tty: bool,
}

const KILL: &str = "CAP_KILL";

/// Relevant part of a container's config.json, which precreate hooks may have changed.
#[derive(Deserialize)]
struct ContainerProcess {
    process: ExecProcess,
}

/// A process, with the fields that an exec may change. Other fields are kept, even if unknown.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecProcess {
    terminal: Option<bool>,
    args: Option<Vec<String>>,
    env: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capabilities: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Sets of capabilities. Names are not checked: newer kernels have more than `oci-spec` knows.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Capabilities {
    bounding: Vec<String>,
    effective: Vec<String>,
    permitted: Vec<String>,
    inheritable: Vec<String>,
    ambient: Vec<String>,
}

impl ExecProcess {
    /// Removes the ambient `CAP_KILL`, which is for the first process only.
    fn drop_ambient_kill(&mut self) {
        let Some(value) = &mut self.capabilities else { return };
        let is_given = value["ambient"].as_array().is_some_and(|ambient| ambient == &[KILL]);
        for set in ["permitted", "effective", "inheritable", "ambient"].iter().filter(|_| is_given)
        {
            value[set] = Value::Array(Vec::new());
        }
    }

    /// Sets a user other than the container's, with that user's capabilities.
    fn set_user(&mut self, user: &ContainerUser) {
        self.user = serde_json::to_value(config::user(user)).ok();
        let known = self.capabilities.take().and_then(|sets| Capabilities::deserialize(sets).ok());
        let bounding = known.unwrap_or_default().bounding;
        let effective = if user.uid == 0 { bounding.clone() } else { Vec::new() };
        let permitted = effective.clone();
        let sets = Capabilities { bounding, effective, permitted, ..Capabilities::default() };
        self.capabilities = serde_json::to_value(sets).ok();
    }
}

/// Returns the host ids of a user and group of a container, by the id mappings in its
/// `config.json`; `None` without mappings.
pub fn host_ids(config: &Value, (uid, gid): OwnerIds) -> Option<OwnerIds> {
    let id = |mappings: &str, id: u32| {
        let mapping = &config["linux"][mappings][0];
        let number = |key: &str| u32::try_from(mapping[key].as_u64()?).ok();
        PrivateIds { first: number("hostID")?, count: number("size")? }.host_id(id)
    };
    Some((id("uidMappings", uid)?, id("gidMappings", gid)?))
}

/// Returns the `process.json` of a process that differs from the container's own only by these options.
pub fn process(config: &Value, options: &ExecOptions) -> Result<Value, BundleError> {
    if options.args.is_empty() {
        return Err(BundleError::NoCommand);
    }
    let ContainerProcess { mut process } =
        ContainerProcess::deserialize(config).map_err(BundleError::Configuration)?;
    let mut environment = ProcessEnvironment::default();
    environment.extend(process.env.iter().flatten().map(String::as_str));
    if let Some(user) = &options.user {
        environment.set("HOME", &user.home);
        process.set_user(user);
    }
    process.drop_ambient_kill();
    environment.extend(options.env.iter().map(String::as_str));
    environment.prepend_path(&options.prepend_path);
    if options.tty {
        environment.set_default("TERM", "xterm");
    }
    process.args = Some(options.args.clone());
    process.env = Some(environment.into_entries());
    process.terminal = Some(options.tty);
    if let Some(cwd) = &options.cwd {
        process.cwd = Some(text(&config::checked_cwd(cwd)?)?.to_owned());
    }
    serde_json::to_value(process).map_err(BundleError::Configuration)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn container() -> Value {
        json!({"process": {
            "args": ["/dev/init"], "cwd": "/", "terminal": false, "noNewPrivileges": true,
            "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/bin", "HOME=/root", "A=1"],
            "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"]},
            "vendor": {"kept": null},
        }})
    }

    fn options(args: &[&str]) -> ExecOptions {
        ExecOptions { args: args.iter().map(ToString::to_string).collect(), ..Default::default() }
    }

    #[test]
    fn exec_process_inherits_from_the_container() {
        let options = ExecOptions {
            env: vec!["A=2".to_owned(), "INPUT_FETCH-DEPTH=0".to_owned()],
            prepend_path: vec!["/tools".to_owned()],
            cwd: Some("/__w/a b".into()),
            ..options(&["sh", "-e", "x"])
        };
        let process = process(&container(), &options).unwrap();
        assert_eq!(
            process,
            json!({
                "args": ["sh", "-e", "x"], "cwd": "/__w/a b", "terminal": false,
                "noNewPrivileges": true, "user": {"uid": 0, "gid": 0},
                "env": ["PATH=/tools:/bin", "HOME=/root", "A=2", "INPUT_FETCH-DEPTH=0"],
                "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"]},
                "vendor": {"kept": null},
            })
        );
    }

    #[test]
    fn another_user_has_another_home_and_no_capabilities() {
        let user =
            ContainerUser { uid: 1000, gid: 100, groups: vec![100, 10], home: "/srv".to_owned() };
        let options = ExecOptions { user: Some(user), ..options(&["id"]) };
        let process = process(&container(), &options).unwrap();
        assert_eq!(process["user"], json!({"uid": 1000, "gid": 100, "additionalGids": [100, 10]}));
        assert_eq!(process["env"][1], "HOME=/srv");
        assert_eq!(process["capabilities"]["effective"], json!([]));
        assert_eq!(process["capabilities"]["bounding"], json!(["CAP_KILL"]));
    }

    #[test]
    fn user_is_mapped_to_the_host_by_the_user_namespace() {
        let mapping = json!([{"containerID": 0, "hostID": 7000, "size": 100}]);
        let config = json!({"linux": {"uidMappings": mapping, "gidMappings": mapping}});
        assert_eq!(host_ids(&config, (0, 99)), Some((7000, 7099)));
        assert_eq!(host_ids(&config, (100, 0)), None);
        assert_eq!(host_ids(&container(), (0, 0)), None);
    }

    #[test]
    fn kill_capability_of_the_first_process_is_not_inherited_by_others() {
        let sets = |sets: &[&str]| -> Value {
            ["bounding", "permitted", "effective", "inheritable", "ambient"]
                .map(|set| (set, if sets.contains(&set) { json!(["CAP_KILL"]) } else { json!([]) }))
                .into_iter()
                .map(|(name, set)| (name.to_owned(), set))
                .collect::<Map<_, _>>()
                .into()
        };
        let all = ["bounding", "permitted", "effective", "inheritable", "ambient"];
        for (given, kept) in [(&all[..], &all[..1]), (&all[..3], &all[..3])] {
            let mut container = container();
            container["process"]["capabilities"] = sets(given);
            let process = process(&container, &options(&["id"])).unwrap();
            assert_eq!(process["capabilities"], sets(kept));
        }
    }

    #[test]
    fn a_working_directory_in_proc_is_rejected() {
        for cwd in ["/proc/self/fd/7", "//proc/self/fd/7", "/x/../proc/self/cwd", "/proc"] {
            let options = ExecOptions { cwd: Some(cwd.into()), ..options(&["ls"]) };
            let error = process(&container(), &options).unwrap_err();
            assert!(matches!(error, BundleError::CwdInProc { .. }), "{cwd}");
        }
        let options = ExecOptions { cwd: Some("x".into()), ..options(&["ls"]) };
        assert!(process(&container(), &options).is_err());
    }
}
