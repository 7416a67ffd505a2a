//! `oci-hooks` reports the directories that podman reads according to its configuration.
//!
//! Podman and `oci-hooks` see the test's own `/etc/containers` and `/usr/share/containers`.
//! `OCI_HOOKS_TEST_PODMAN` is the path of another podman than the one in `PATH`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use oci_hooks_testsupport::cgroup::CgroupParent;
use oci_hooks_testsupport::podman;
use oci_hooks_testsupport::program::{self, FinishedCommand};
use oci_hooks_testsupport::rootfs;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Runs a program in a mount namespace where the directories of `$1` replace the system's.
const ENTER: &str = r#"set -e
mount --make-rprivate /
mount -t tmpfs none /dev/shm
mount --bind "$1/etc" /etc/containers
mount --bind "$1/usr" /usr/share/containers
shift
exec "$@""#;

/// Runs a container, and prints its configuration.
const RUN: &str = r#"set -e
name=$1
shift
"$@" run --name "$name" --network none --ulimit nofile=1024:1024 --ulimit nproc=1024:1024 \
    --cgroup-parent "$CGROUP_PARENT" --rootfs "$ROOTFS" /bin/true >&2
cat "$("$@" inspect --format '{{.OCIConfigPath}}' "$name")"
"$@" rm --force "$name" >&2"#;

/// A system with a podman, and hooks in three directories.
struct PodmanSystem {
    podman: PathBuf,
    version: (u64, u64),
    cgroup_parent: CgroupParent,
    temp: TempDir,
}

impl PodmanSystem {
    fn new() -> Self {
        program::require_root();
        let named = std::env::var_os("OCI_HOOKS_TEST_PODMAN").map(PathBuf::from);
        let podman = named.unwrap_or_else(|| program::find("podman"));
        assert!(podman.is_file(), "OCI_HOOKS_TEST_PODMAN: {} is not a file", podman.display());
        let system = PodmanSystem {
            version: version(&podman),
            podman,
            cgroup_parent: CgroupParent::new(),
            temp: program::temporary_directory(),
        };
        for dir in ["rootfs", "home"] {
            fs::create_dir(system.path(dir)).unwrap();
        }
        rootfs::fill(&system.path("rootfs"));
        for (dir, name) in [("etc/oci/hooks.d", "etc"), ("usr/oci/hooks.d", "usr"), ("own", "own")]
        {
            for file in [name, "same"] {
                let hook = json!({"path": "/bin/true", "args": ["true", format!("{dir}/{file}")]});
                let file = format!("{dir}/{file}.json");
                let stages = ["createRuntime"];
                let when = json!({"always": true});
                let hook =
                    json!({"version": "1.0.0", "hook": hook, "when": when, "stages": stages});
                system.write(&file, &hook.to_string());
            }
        }
        system
    }

    fn path(&self, name: &str) -> PathBuf {
        let path = self.temp.path().join(name);
        assert!(path.starts_with(self.temp.path()), "{name} leads out of the test's directory");
        path
    }

    /// Writes a file, with the directory of the test for `{D}`.
    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, self.expand(text)).unwrap();
    }

    fn expand(&self, text: &str) -> String {
        text.replace("{D}", self.temp.path().to_str().unwrap())
    }

    /// Runs a command in the system.
    fn run(&self, variables: &[(&str, &str)], command: &[&str]) -> FinishedCommand {
        let mut unshare = Command::new(program::find("unshare"));
        unshare.args(["--mount", "sh", "-c", ENTER, "sh"]).arg(self.temp.path()).args(command);
        for name in ["CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE", "XDG_CONFIG_HOME"] {
            unshare.env_remove(name);
        }
        unshare.env("HOME", self.path("home"));
        unshare.env("CGROUP_PARENT", self.cgroup_parent.name()).env("ROOTFS", self.path("rootfs"));
        for (name, value) in variables {
            unshare.env(name, self.expand(value));
        }
        program::run(&mut unshare)
    }

    /// Runs a container, and returns the arguments of the hooks that podman added; `None` if podman rejects its
    /// configuration.
    fn hooks_of_podman(&self, variables: &[(&str, &str)]) -> Option<Vec<String>> {
        let state = ["root", "run", "tmp"].map(|name| self.path(name).display().to_string());
        let name = program::unique_name();
        let mut command = vec!["sh", "-c", RUN, "sh", &name, self.podman.to_str().unwrap()];
        command.extend(["--root", &state[0], "--runroot", &state[1], "--tmpdir", &state[2]]);
        command.extend(["--storage-driver", "vfs", "--events-backend", "file"]);
        command.extend(["--cgroup-manager", "cgroupfs", "--runtime", "runc"]);
        let ran = self.run(variables, &command);
        if ran.stderr.contains("decode configuration") {
            return None;
        }
        fs::write(self.path("config.json"), ran.success()).unwrap();
        let config: Value =
            serde_json::from_slice(&fs::read(self.path("config.json")).unwrap()).unwrap();
        let hooks = config["hooks"]["createRuntime"].as_array().cloned().unwrap_or_default();
        Some(hooks.iter().map(|hook| hook["args"][1].as_str().unwrap().to_owned()).collect())
    }

    /// Returns the output of `oci-hooks explain` for the same container.
    fn explain_hooks(&self, variables: &[(&str, &str)]) -> Value {
        let consumer = podman::profile_of(&self.podman);
        let config = self.path("config.json").display().to_string();
        let oci_hooks = program::built_program("oci-hooks");
        let oci_hooks = oci_hooks.to_str().unwrap();
        let command = [oci_hooks, "explain", "--as", consumer, "--format", "json", &config];
        let ran = self.run(variables, &command);
        assert_ne!(ran.status.code(), Some(2), "{}", ran.stderr);
        serde_json::from_str(&ran.stdout).unwrap()
    }
}

fn version(podman: &Path) -> (u64, u64) {
    let printed = program::run(Command::new(podman).arg("--version")).success();
    let version = printed.split_whitespace().last().unwrap_or_default();
    let mut numbers = version.split('.').map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Returns the arguments of the injected hooks.
fn injected(explained: &Value) -> Vec<String> {
    let dirs = explained["directories"].as_array().unwrap();
    let files = dirs.iter().flat_map(|dir| dir["files"].as_array().unwrap());
    let mut files: Vec<_> = files.filter(|file| !file["order"].is_null()).collect();
    files.sort_by_key(|file| file["order"].as_u64());
    let args = |file: &Value| {
        let text = fs::read_to_string(file["path"].as_str().unwrap());
        // The test cannot read files inside the system: the hook's argument follows from the path.
        let name = file["path"].as_str().unwrap().trim_end_matches(".json");
        let name =
            name.replace("/etc/containers/", "etc/").replace("/usr/share/containers/", "usr/");
        let hook = text.ok().map(|text| serde_json::from_str::<Value>(&text).unwrap());
        hook.map_or(name, |hook| hook["hook"]["args"][1].as_str().unwrap().to_owned())
    };
    files.into_iter().map(args).collect()
}

/// A name, files by path and text, and environment variables.
type DirsCase = (&'static str, &'static [(&'static str, &'static str)], EnvVariables);
type EnvVariables = &'static [(&'static str, &'static str)];

const ETC: &str = "[engine]\nhooks_dir = [\"/etc/containers/oci/hooks.d\"]\n";
const OWN: &str = "[engine]\nhooks_dir = [\"{D}/own\"]\n";
const BOTH: &str = "[Engine]\n# usr first\nHooks_Dir = [\n  '/usr/share/containers/oci/hooks.d', \
                    '/etc/containers/oci/hooks.d']\n";
const APPEND: &str = "[engine]\nhooks_dir = [\"{D}/own\", {append=true}]\n";

const CASES: [DirsCase; 13] = [
    ("nothing is set", &[], &[]),
    ("other settings", &[("etc/containers.conf", "[engine]\nnum_locks = 64\n")], &[]),
    ("containers.conf of the distribution", &[("usr/containers.conf", OWN)], &[]),
    ("containers.conf", &[("usr/containers.conf", OWN), ("etc/containers.conf", ETC)], &[]),
    ("two directories", &[("etc/containers.conf", BOTH)], &[]),
    (
        "drop-ins",
        &[
            ("etc/containers.conf", ETC),
            ("etc/containers.conf.d/10-a.conf", BOTH),
            ("etc/containers.conf.d/20-b.conf", OWN),
            ("etc/containers.conf.d/30-c", ETC),
            ("etc/containers.conf.d/40.conf/a.conf", ETC),
        ],
        &[],
    ),
    ("an empty list", &[("etc/containers.conf", "[engine]\nhooks_dir = []\n")], &[]),
    ("append", &[("etc/containers.conf", ETC), ("etc/containers.conf.d/a.conf", APPEND)], &[]),
    (
        "CONTAINERS_CONF",
        &[("etc/containers.conf", ETC), ("c.conf", OWN)],
        &[("CONTAINERS_CONF", "{D}/c.conf")],
    ),
    (
        "CONTAINERS_CONF without it",
        &[("etc/containers.conf", ETC), ("c.conf", "[engine]\n")],
        &[("CONTAINERS_CONF", "{D}/c.conf")],
    ),
    (
        "CONTAINERS_CONF_OVERRIDE",
        &[("etc/containers.conf", ETC), ("c.conf", OWN)],
        &[("CONTAINERS_CONF_OVERRIDE", "{D}/c.conf")],
    ),
    (
        "the file of root",
        &[("etc/containers.conf", ETC), ("home/.config/containers/containers.conf", OWN)],
        &[],
    ),
    (
        "XDG_CONFIG_HOME",
        &[("etc/containers.conf", ETC), ("xdg/containers/containers.conf", OWN)],
        &[("XDG_CONFIG_HOME", "{D}/xdg")],
    ),
];

#[test]
fn podman_reads_the_directories_named_by_explain() {
    for (name, files, variables) in CASES {
        let system = PodmanSystem::new();
        for (path, text) in files {
            system.write(path, text);
        }
        let Some(hooks) = system.hooks_of_podman(variables) else {
            assert!(name == "append" && system.version < (4, 8), "{name}: podman cannot read it");
            continue;
        };
        // Older versions of podman do not know the variable.
        if name == "CONTAINERS_CONF_OVERRIDE" && system.version < (4, 5) {
            assert_eq!(hooks, ["etc/oci/hooks.d/etc", "etc/oci/hooks.d/same"]);
            continue;
        }
        let explained = system.explain_hooks(variables);
        // podman 5 then reads both default directories independently, which a list of directories cannot express.
        if explained["source"]["decided_by"].as_str().unwrap().starts_with("the empty hooks_dir") {
            assert!(name == "an empty list" && system.version >= (5, 0), "{name}: {explained}");
            assert_eq!(hooks.len(), 4, "{name}: {hooks:?}");
            continue;
        }
        assert_eq!(injected(&explained), hooks, "{name}: {explained}");
    }
}

#[test]
fn hooks_in_unread_directories_are_reported_with_a_fix() {
    let system = PodmanSystem::new();
    let hooks = system.hooks_of_podman(&[]).unwrap();
    assert_eq!(hooks, ["usr/oci/hooks.d/same", "usr/oci/hooks.d/usr"]);
    let unread = &system.explain_hooks(&[])["unread"][0];
    assert_eq!(unread["path"], "/etc/containers/oci/hooks.d");
    assert_eq!(unread["files"], json!(["etc.json", "same.json"]));
    let list =
        "hooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"/etc/containers/oci/hooks.d\"]";
    let hint =
        format!("in /etc/containers/containers.conf.d/zz-hooks.conf, under [engine], write {list}");
    assert_eq!(unread["hint"], hint);

    let oci_hooks = program::built_program("oci-hooks");
    let oci_hooks = oci_hooks.to_str().unwrap();
    // The rules of the installed version are the default.
    let consumer = podman::profile_of(&system.podman);
    let ran = system.run(&[], &[oci_hooks, "lint"]);
    let finding = format!("warning[OH412]: {consumer} does not read");
    assert!(ran.stdout.contains(&finding), "{}", ran.stdout);
    let ran = system.run(&[], &[oci_hooks, "list"]);
    let said = format!(
        "warning: /etc/containers/oci/hooks.d: {consumer} does not read this directory: its 2 hook \
         files have no effect\n"
    );
    assert!(ran.stderr.contains(&format!("{said}  hint: {hint}\n")), "{}", ran.stderr);
    let ran = system.run(&[], &[oci_hooks, "disable", "etc"]);
    assert_eq!(ran.status.code(), Some(2), "{}", ran.stdout);
    assert!(
        ran.stderr.contains(&format!("{consumer} does not read this hook\n  hint: in /etc")),
        "{}",
        ran.stderr
    );

    let doctor = || system.run(&[], &[oci_hooks, "doctor"]).stdout;
    let said = doctor();
    let line = said.lines().find(|line| line.starts_with("fail  podman  ")).unwrap_or(&said);
    assert!(
        line.contains("does not read /etc/containers/oci/hooks.d, which has 2 hook files"),
        "{line}"
    );
    assert!(said.contains(&hint), "{said}");

    // With the line of the hint, podman reads the directory.
    system.write("etc/containers.conf", &format!("[engine]\n{list}\n"));
    let hooks = system.hooks_of_podman(&[]).unwrap();
    assert_eq!(hooks, ["etc/oci/hooks.d/etc", "etc/oci/hooks.d/same", "usr/oci/hooks.d/usr"]);
    let explained = system.explain_hooks(&[]);
    assert_eq!(explained["source"]["line"], 2);
    let said = doctor();
    let line = said.lines().find(|line| line.starts_with("ok    podman  ")).unwrap_or(&said);
    assert!(line.contains("(hooks_dir in /etc/containers/containers.conf:2): 3 hooks"), "{line}");
    assert_eq!((explained["unread"].clone(), injected(&explained)), (json!([]), hooks));
}

/// A user that no system has.
const USER: &str = "54321";

#[test]
fn non_root_users_have_their_own_files() {
    let system = PodmanSystem::new();
    // The user must be able to execute the program.
    let oci_hooks = system.path("oci-hooks").display().to_string();
    fs::copy(program::built_program("oci-hooks"), &oci_hooks).unwrap();
    fs::set_permissions(system.temp.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // podman 5 requires directories that belong to the user.
    for dir in ["home", "home/.config"] {
        fs::create_dir_all(system.path(dir)).unwrap();
        let id = USER.parse().ok();
        std::os::unix::fs::chown(system.path(dir), id, id).unwrap();
    }
    let as_user = ["setpriv", "--reuid", USER, "--regid", USER, "--clear-groups"];
    // Default of podman's option.
    let dirs_of_podman = || {
        let command = [&as_user[..], &[system.podman.to_str().unwrap(), "--help"]].concat();
        let help = system.run(&[], &command).success();
        let option = help.lines().find(|line| line.contains("--hooks-dir")).unwrap_or(&help);
        let (_, dirs) = option.split_once("(default [").unwrap_or_else(|| panic!("{option}"));
        dirs.trim_end_matches("])").split(',').map(str::to_owned).collect::<Vec<_>>()
    };
    let explained = || {
        let consumer = podman::profile_of(&system.podman);
        let explain = [&oci_hooks, "explain", "--as", consumer, "--format", "json", "-"];
        let ran = system.run(
            &[],
            &[&as_user[..], &["sh", "-c", "echo '{}' | \"$@\"", "sh"], &explain].concat(),
        );
        let explained: Value =
            serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stderr));
        let dirs = explained["directories"].as_array().unwrap().iter();
        dirs.map(|dir| dir["path"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let home = "home/.config/containers/containers.conf";
    for (file, text) in [
        ("etc/other.conf", ""),
        ("etc/containers.conf", ETC),
        ("etc/containers.conf.d/10-a.conf", BOTH),
        (home, OWN),
        ("home/.config/containers/containers.conf.d/a.conf", ETC),
        ("home/.config/containers/containers.conf.d/b.conf", BOTH),
    ] {
        system.write(file, text);
        let dirs = dirs_of_podman();
        assert_eq!(explained(), dirs, "{file}");
        assert_eq!(dirs.contains(&system.expand("{D}/own")), file == home, "{dirs:?}");
    }
}

#[test]
fn a_hook_is_installed_where_podman_reads_it() {
    let system = PodmanSystem::new();
    let oci_hooks = program::built_program("oci-hooks");
    let oci_hooks = oci_hooks.to_str().unwrap();
    let hook = system.path("own/own.json");
    let install = [oci_hooks, "install", hook.to_str().unwrap(), "--name", "mine"];
    for (conf, dir) in [("", "usr/oci/hooks.d"), (BOTH, "etc/oci/hooks.d")] {
        system.write("etc/containers.conf", conf);
        let ran = system.run(&[], &install);
        assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
        assert!(system.path(dir).join("mine.json").is_file(), "{}", ran.stdout);
        let hooks = system.hooks_of_podman(&[]).unwrap();
        assert!(hooks.contains(&"own/own".to_owned()), "{hooks:?}");
        let ran = system.run(&[], &[oci_hooks, "disable", "mine"]);
        assert_eq!(ran.status.code(), Some(0), "{}", ran.stderr);
        let hooks = system.hooks_of_podman(&[]).unwrap();
        assert!(!hooks.contains(&"own/own".to_owned()), "{hooks:?}");
        fs::remove_file(system.path("usr/oci/hooks.d/mine.json.disabled")).unwrap_or_default();
    }
}
