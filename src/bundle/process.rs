//! What else runs in a container: the process.json of an exec.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::environment::Environment;
use super::mounts::text;
use super::{BundleError, User, capabilities, config};

/// A process to run in a container that runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// Its words.
    pub args: Vec<String>,
    /// `NAME=value`, over the container's environment; a bare `NAME` takes the container's away.
    pub env: Vec<String>,
    /// Directories put before the container's `PATH`.
    pub prepend_path: Vec<String>,
    /// Its working directory; else the container's.
    pub cwd: Option<PathBuf>,
    /// Who it runs as; else who the container does.
    pub user: Option<User>,
    /// Whether its standard streams are a terminal.
    pub tty: bool,
}

/// Returns the process.json of a process that is like the container's own but for these options.
pub fn process(config: &Value, options: &ExecOptions) -> Result<Value, BundleError> {
    if options.args.is_empty() {
        return Err(BundleError::NoCommand);
    }
    let mut process = config["process"].clone();
    let mut environment = Environment::default();
    let env = process["env"].as_array().map_or(&[][..], Vec::as_slice);
    environment.extend(env.iter().filter_map(Value::as_str));
    if let Some(user) = &options.user {
        environment.set("HOME", &user.home);
    }
    environment.extend(options.env.iter().map(String::as_str));
    environment.prepend_path(&options.prepend_path);
    if options.tty {
        environment.set_default("TERM", "xterm");
    }
    process["args"] = json!(options.args);
    process["env"] = json!(environment.into_entries());
    process["terminal"] = json!(options.tty);
    if let Some(cwd) = &options.cwd {
        process["cwd"] = json!(text(&config::checked_cwd(cwd)?)?);
    }
    if let Some(user) = &options.user {
        process["user"] = config::user(user);
        let bounding = process["capabilities"]["bounding"].take();
        process["capabilities"] = capabilities::with_effective(bounding, user.uid);
    }
    Ok(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container() -> Value {
        json!({"process": {
            "args": ["/dev/init"], "cwd": "/", "terminal": false, "noNewPrivileges": true,
            "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/bin", "HOME=/root", "A=1"],
            "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"]},
        }})
    }

    fn options(args: &[&str]) -> ExecOptions {
        ExecOptions { args: args.iter().map(ToString::to_string).collect(), ..Default::default() }
    }

    #[test]
    fn a_process_is_like_the_container_but_for_what_is_said() {
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
            })
        );
    }

    #[test]
    fn another_user_has_another_home_and_no_capabilities() {
        let user = User { uid: 1000, gid: 100, groups: vec![100, 10], home: "/srv".to_owned() };
        let options = ExecOptions { user: Some(user), ..options(&["id"]) };
        let process = process(&container(), &options).unwrap();
        assert_eq!(process["user"], json!({"uid": 1000, "gid": 100, "additionalGids": [100, 10]}));
        assert_eq!(process["env"][1], "HOME=/srv");
        assert_eq!(process["capabilities"]["effective"], json!([]));
        assert_eq!(process["capabilities"]["bounding"], json!(["CAP_KILL"]));
    }

    #[test]
    fn a_working_directory_in_proc_is_refused() {
        for cwd in ["/proc/self/fd/7", "//proc/self/fd/7", "/x/../proc/self/cwd", "/proc"] {
            let options = ExecOptions { cwd: Some(cwd.into()), ..options(&["ls"]) };
            let error = process(&container(), &options).unwrap_err();
            assert!(matches!(error, BundleError::CwdInProc { .. }), "{cwd}");
        }
        let options = ExecOptions { cwd: Some("x".into()), ..options(&["ls"]) };
        assert!(process(&container(), &options).is_err());
    }
}
