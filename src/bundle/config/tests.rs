use serde_json::{Value, json};

use super::super::stage::Stage;
use super::*;
use crate::bundle::Security;
use crate::sys::privilege::{Ids, Privilege};

fn root() -> User {
    User { uid: 0, gid: 0, groups: vec![0], home: "/root".to_owned() }
}

fn image() -> ImageConfig {
    ImageConfig {
        cmd: Some(vec!["serve".to_owned()]),
        env: vec!["A=image".to_owned(), "PATH=/opt/bin:/bin".to_owned()],
        ..ImageConfig::default()
    }
}

fn build_for(options: &Options, user: &User) -> Result<Value, BundleError> {
    let stage = Stage::new(Path::new("/disk"), Path::new("/rootfs"));
    let mounts = Mounts { entries: Vec::new(), propagation: None, stage };
    let privileged = options.security.privileged;
    let devices = super::super::devices::devices(&options.devices, &[], privileged).unwrap();
    let image = image();
    let parts = Parts {
        image: &image,
        options,
        rootfs: "/rootfs",
        user,
        cwd: "/",
        mounts: &mounts,
        devices: &devices,
    };
    config(&parts).map(|config| serde_json::to_value(config).unwrap())
}

fn build(options: &Options) -> Value {
    build_for(options, &root()).unwrap()
}

#[test]
fn defaults_confine() {
    let config = build(&Options::default());
    let process = &config["process"];
    assert_eq!(process["noNewPrivileges"], true);
    assert_eq!(process["args"], json!(["serve"]));
    let linux = &config["linux"];
    assert_eq!(linux["seccomp"]["defaultAction"], "SCMP_ACT_ERRNO");
    assert!(linux["maskedPaths"].as_array().unwrap().contains(&json!("/proc/kcore")));
    assert!(linux["readonlyPaths"].as_array().unwrap().contains(&json!("/proc/sys")));
    assert_eq!(linux["resources"]["pids"]["limit"], 32768);
    let kinds: Vec<&str> =
        linux["namespaces"].as_array().unwrap().iter().filter_map(|n| n["type"].as_str()).collect();
    assert_eq!(kinds, ["mount", "pid", "ipc", "uts", "cgroup", "network"]);
}

#[test]
fn the_environment_has_docker_s_order_and_a_home() {
    let options = Options {
        hostname: Some("box".to_owned()),
        env: vec!["A=mine".to_owned(), "B=2".to_owned()],
        prepend_path: vec!["/tools".to_owned()],
        tty: true,
        ..Options::default()
    };
    let expected = json!([
        "PATH=/tools:/opt/bin:/bin",
        "HOSTNAME=box",
        "TERM=xterm",
        "A=mine",
        "B=2",
        "HOME=/root"
    ]);
    assert_eq!(build(&options)["process"]["env"], expected);
}

#[test]
fn namespaces_come_from_where_they_are_said_to() {
    let mut options = Options { hostname: Some("box".to_owned()), ..Options::default() };
    options.namespaces.network = Namespace::Path("/run/netns/x".into());
    options.namespaces.uts = Namespace::Host;
    let config = build(&options);
    let namespaces = config["linux"]["namespaces"].as_array().unwrap();
    assert!(namespaces.contains(&json!({"type": "network", "path": "/run/netns/x"})));
    assert!(!namespaces.contains(&json!({"type": "uts"})));
    assert_eq!(config["hostname"], Value::Null);
}

#[test]
fn a_privileged_container_is_not_confined() {
    let options = Options {
        security: Security { privileged: true, ..Security::default() },
        ..Options::default()
    };
    let config = build(&options);
    for key in ["seccomp", "maskedPaths", "readonlyPaths"] {
        assert_eq!(config["linux"][key], Value::Null, "{key}");
    }
    assert_eq!(config["process"]["noNewPrivileges"], false);
    assert_eq!(config["linux"]["resources"]["devices"][0]["allow"], true);
}

#[test]
fn kernel_parameters_of_the_host_are_refused() {
    let set = |name: &str, host: bool| {
        let mut options = Options::default();
        options.sysctls.insert(name.to_owned(), "1".to_owned());
        if host {
            options.namespaces.network = Namespace::Host;
            options.namespaces.ipc = Namespace::Host;
        }
        build_for(&options, &root())
    };
    for name in ["net.core.somaxconn", "kernel.shmmax", "kernel.sem", "fs.mqueue.msg_max"] {
        assert!(set(name, false).is_ok(), "{name}");
        assert!(set(name, true).is_err(), "{name}");
    }
    for name in ["kernel.core_pattern", "vm.swappiness", "net.../kernel/core_pattern", "net/x"] {
        assert!(set(name, false).is_err(), "{name}");
    }
}

#[test]
fn the_restricted_profile_refuses_what_undermines_it() {
    let restricted = |change: fn(&mut Options), uid| {
        let mut options = Options::default();
        options.security.restricted = true;
        options.security.no_new_privileges = false;
        change(&mut options);
        build_for(&options, &User { uid, ..root() })
    };
    let config = restricted(|_| {}, 1000).unwrap();
    assert_eq!(config["process"]["noNewPrivileges"], true);
    assert_eq!(config["process"]["capabilities"]["bounding"], json!([]));
    assert!(restricted(|_| {}, 0).is_err());
    assert!(restricted(|o| o.security.privileged = true, 1000).is_err());
    assert!(restricted(|o| o.security.unmask = true, 1000).is_err());
    assert!(restricted(|o| o.security.seccomp = crate::bundle::Seccomp::Unconfined, 1000).is_err());
    assert!(restricted(|o| o.security.cap_add = vec!["ALL".to_owned()], 1000).is_err());
    assert!(restricted(|o| o.namespaces.pid = Namespace::Host, 1000).is_err());
}

#[test]
fn who_must_not_be_root_is_not() {
    let security = Security { non_root: true, ..Security::default() };
    let options = Options { security, ..Options::default() };
    assert!(matches!(build_for(&options, &root()), Err(BundleError::Root)));
    assert!(build_for(&options, &User { uid: 1000, ..root() }).is_ok());
}

#[test]
fn who_starts_steps_may_end_what_sudo_started() {
    let ambient = |change: fn(&mut Options), uid| {
        let init = Init { program: "/x".into(), args: vec!["steps".to_owned()], idle_only: true };
        let mut options = Options { init: Some(init), ..Options::default() };
        options.security.no_new_privileges = false;
        change(&mut options);
        let config = build_for(&options, &User { uid, ..root() }).unwrap();
        config["process"]["capabilities"]["ambient"].clone()
    };
    assert_eq!(ambient(|_| {}, 1000), json!(["CAP_KILL"]));
    assert_eq!(ambient(|_| {}, 0), json!([]));
    assert_eq!(ambient(|o| o.security.no_new_privileges = true, 1000), json!([]));
    assert_eq!(ambient(|o| o.security.cap_drop = vec!["KILL".to_owned()], 1000), json!([]));
    assert_eq!(ambient(|o| o.namespaces.pid = Namespace::Host, 1000), json!([]));
    assert_eq!(ambient(|o| o.init.as_mut().unwrap().args.clear(), 1000), json!([]));
}

#[test]
fn a_container_that_keeps_its_cgroup_has_no_limits_of_one() {
    let options = Options {
        cgroups_path: Some("/oci-hooks/1a".to_owned()),
        keeps_cgroup: true,
        ..Options::default()
    };
    let linux = &build(&options)["linux"];
    assert_eq!((&linux["cgroupsPath"], &linux["resources"]), (&Value::Null, &Value::Null));
}

#[test]
fn ids_and_limits_are_those_that_an_ordinary_user_has() {
    let range = "net.ipv4.ping_group_range";
    let of = |privilege| build(&Options { privilege, ..Options::default() });
    let mapped = Privilege::Mapped(Ids { uids: 11, gids: 1001 });
    assert_eq!(of(Privilege::Root)["linux"]["sysctl"][range], "0 2147483647");
    assert_eq!(of(mapped)["linux"]["sysctl"][range], "0 1000");
    assert_eq!(of(Privilege::Single)["linux"]["sysctl"].get(range), None);
    for privilege in [mapped, Privilege::Single] {
        let score = Some(-1000);
        let config = build(&Options { privilege, oom_score_adj: score, ..Options::default() });
        // Who may lower it is asked of the host's root, whatever capabilities there are here.
        assert_eq!(config["process"]["oomScoreAdj"], oom_score_adj(-1000, false));
        let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
        let limit = crate::bundle::Rlimit::new("nofile", None, None).unwrap();
        let config = build(&Options { privilege, rlimits: vec![limit], ..Options::default() });
        assert_eq!(config["process"]["rlimits"][0]["hard"].as_u64(), most);
    }
}
