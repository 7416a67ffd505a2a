//! `oci-hooks doctor`, on fake systems below a directory.

mod prove;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

const HOOK: &str = r#"{"version": "1.0.0", "hook": {"path": "/opt/hook"}, "when": {"always": true},
    "stages": ["poststop"]}"#;

/// A fake system with some programs and files.
struct FakeSystem {
    temp: tempfile::TempDir,
}

impl FakeSystem {
    fn with(programs: &[&str]) -> Self {
        let system = FakeSystem { temp: tempfile::tempdir().unwrap() };
        for name in programs {
            let name = format!("usr/bin/{name}");
            system.write(&name, "#!/bin/sh\nexit 1\n").make_executable(&name);
        }
        system
    }

    fn make_executable(&self, name: &str) {
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns the real path of a path in the system.
    fn path(&self, name: &str) -> PathBuf {
        let path = self.temp.path().join(name.trim_start_matches('/'));
        assert!(path.starts_with(self.temp.path()), "{name} leads out of the system");
        path
    }

    fn write(&self, name: &str, text: &str) -> &Self {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn doctor(&self, options: &[&str]) -> (String, i32) {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        doctor.args(["doctor", "--root"]).arg(self.temp.path()).args(options);
        // The variable of this machine must not apply.
        doctor.env("CONTAINERS_CONF", "/nonexistent");
        self.run(&mut doctor)
    }

    fn run(&self, doctor: &mut Command) -> (String, i32) {
        let output = doctor.output().unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, "");
        let said = stdout.replace(self.temp.path().to_str().unwrap(), "");
        (said, output.status.code().unwrap())
    }

    /// Returns status, finding and fix of a check, and asserts that the exit code matches.
    #[track_caller]
    fn check(&self, name: &str) -> (String, String, String) {
        Self::check_in(self.doctor(&["--format", "json"]), name)
    }

    /// Like [`Self::check`], on this machine, with the fake system's programs first in `PATH`.
    #[track_caller]
    fn check_here(&self, name: &str) -> (String, String, String) {
        let path = format!("{}:/usr/bin:/bin", self.path("usr/bin").display());
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        doctor.args(["doctor", "--format", "json"]).env("PATH", path);
        Self::check_in(self.run(&mut doctor), name)
    }

    #[track_caller]
    fn check_in((said, code): (String, i32), name: &str) -> (String, String, String) {
        let said: Value = serde_json::from_str(&said).unwrap();
        let checks = said["checks"].as_array().unwrap();
        let failed = checks.iter().any(|check| check["status"] == "fail");
        assert_eq!((said["ok"].as_bool(), code), (Some(!failed), i32::from(failed)), "{said}");
        let check = checks.iter().find(|check| check["name"] == name);
        let check = check.unwrap_or_else(|| panic!("no check {name}: {said}"));
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        (text("status"), text("found"), text("hint"))
    }
}

#[test]
fn a_system_without_engines_has_nothing_to_fix() {
    let (said, code) = FakeSystem::with(&[]).doctor(&[]);
    assert_eq!(code, 0);
    let expected = "ok    engines  none of podman, buildah, crio, dockerd, containerd and buildkitd \
                    is installed\nno problems found: no engine applies hook files here\n";
    assert_eq!(said, expected);
}

#[test]
fn doctor_checks_the_engine_of_a_consumer() {
    let system = FakeSystem::with(&["podman", "crio", "containerd"]);
    for (consumer, engines) in [("crio", vec!["CRI-O"]), ("nri", vec!["containerd"])] {
        let (said, _) = system.doctor(&["--as", consumer, "--format", "json"]);
        let said: Value = serde_json::from_str(&said).unwrap();
        let checks = said["checks"].as_array().unwrap().iter();
        assert_eq!(checks.map(|check| &check["name"]).collect::<Vec<_>>(), engines, "{said}");
    }
    let (said, code) = FakeSystem::with(&["podman"]).doctor(&["--as", "crio"]);
    assert!(said.contains("the engine of crio is not installed"), "{said}");
    assert_eq!(code, 0);
}

#[test]
fn podman_and_crio_findings_contain_the_line_to_add() {
    let etc = "/etc/containers/oci/hooks.d";
    let both = format!("hooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"{etc}\"]");
    for (program, name, file, table) in [
        ("podman", "podman", "/etc/containers/containers.conf.d/zz-hooks.conf", "engine"),
        ("crio", "CRI-O", "/etc/crio/crio.conf.d/10-hooks.conf", "crio.runtime"),
    ] {
        let system = FakeSystem::with(&[program]);
        let (status, found, _) = system.check(name);
        let usual = "reads /usr/share/containers/oci/hooks.d (the built-in default): 0 hooks";
        assert_eq!((status.as_str(), found.as_str()), ("ok", usual));

        system.write(&format!("{etc}/a.json"), HOOK);
        let (status, found, hint) = system.check(name);
        let expected = format!(
            "does not read {etc}, which has 1 hook file; it reads \
             /usr/share/containers/oci/hooks.d (the built-in default)"
        );
        assert_eq!((status.as_str(), found), ("fail", expected));
        assert_eq!(hint, format!("in {file}, under [{table}], write {both}"));

        system.write(file, &format!("[{table}]\n{both}\n"));
        let (status, found, _) = system.check(name);
        let decided = format!("(hooks_dir in {file}:2): 1 hook");
        assert_eq!(status, "ok", "{found}");
        assert!(found.ends_with(&decided), "{found}");

        system.write(&format!("{etc}/b.json"), "{");
        let (status, found, hint) = system.check(name);
        assert_eq!(status, "fail");
        assert!(found.starts_with(&format!("cannot start containers: {etc}/b.json:1:")), "{found}");
        let consumer = name.to_lowercase().replace('-', "");
        let lint = format!("oci-hooks lint --as {consumer} --content-only --hooks-dir {etc}");
        assert_eq!(hint, format!("correct the mistakes that `{lint}` reports"));

        system.write(file, &format!("[{table}]\nhooks_dir = 1\n"));
        let (status, found, hint) = system.check(name);
        let expected = "fix the file: the consumer does not start with it";
        assert_eq!((status.as_str(), hint.as_str()), ("fail", expected));
        assert!(found.starts_with(&format!("{file}:2:13: expected a list")), "{found}");
    }
}

#[test]
fn builds_ignore_the_configuration_of_podman() {
    let system = FakeSystem::with(&["podman"]);
    system.write("etc/containers/containers.conf", "[engine]\nhooks_dir = [\"/own\"]\n");
    let (status, found, hint) = system.check("podman build");
    assert_eq!(status, "fail");
    assert!(found.starts_with("does not read /own; it reads /usr/share/"), "{found}");
    assert!(hint.ends_with("--hooks-dir /own to each build"), "{hint}");
    let (status, _, _) = FakeSystem::with(&["podman"]).check("podman build");
    assert_eq!(status, "ok");
}

#[test]
fn docker_needs_the_wrapper_as_its_default_runtime() {
    let json = "/etc/docker/daemon.json";
    let system = FakeSystem::with(&["dockerd"]);
    let (status, found, hint) = system.check("Docker");
    let expected =
        format!("reads no hook files itself, and {json} names no runtime that adds hooks");
    assert_eq!((status.as_str(), found), ("fail", expected));
    // The hint is all that is needed.
    let (start, settings) = hint.split_once('\n').unwrap();
    assert_eq!(start, format!("install oci-hooks-runtime, then create {json} with"));
    system.write("usr/bin/oci-hooks-runtime", "").make_executable("usr/bin/oci-hooks-runtime");
    system.write(json, settings);
    assert_eq!(system.check("Docker").0, "ok");
    system.write(json, "{}");
    let hint = system.check("Docker").2;
    assert!(hint.starts_with(&format!("in {json}, write \"default-runtime\"")), "{hint}");

    let runtimes = "\"runtimes\": {\n\"hooked\": {\"path\": \"/opt/hooks.sh\"}}";
    system.write(json, &format!("{{{runtimes}}}"));
    assert_eq!(system.check("Docker").0, "fail");
    // A script that sets variables and calls the wrapper.
    system.write("opt/hooks.sh", "#!/bin/sh\nOCI_HOOKS_DIRS=/a exec oci-hooks-runtime \"$@\"\n");
    system.make_executable("opt/hooks.sh");
    let (status, found, hint) = system.check("Docker");
    assert_eq!(status, "fail");
    assert_eq!(
        found,
        format!("calls oci-hooks-runtime only for `docker run --runtime hooked` ({json}:2)")
    );
    assert_eq!(hint, format!("in {json}, write \"default-runtime\": \"hooked\""));

    system.write(json, &format!("{{\"default-runtime\": \"runc\", {runtimes}}}"));
    let (status, found, _) = system.check("Docker");
    assert_eq!(status, "fail");
    assert!(found.starts_with(&format!("calls \"runc\" ({json}:1);")), "{found}");

    system.write(json, &format!("{{\"default-runtime\": \"hooked\", {runtimes}}}"));
    system.write("etc/oci-hooks/runtime.toml", "strict = true\nhooks-dirs = [\"/b\", \"/c\"]\n");
    fs::set_permissions(system.path("opt/hooks.sh"), fs::Permissions::from_mode(0o644)).unwrap();
    let (status, found, hint) = system.check("Docker");
    let start = format!("calls /opt/hooks.sh ({json}:1): ");
    let problem = "/opt/hooks.sh is not executable, so no container starts";
    assert_eq!((status.as_str(), found), ("fail", format!("{start}{problem}")));
    assert_eq!(hint, "chmod +x /opt/hooks.sh");
    system.make_executable("opt/hooks.sh");
    // The program that the script calls.
    fs::remove_file(system.path("usr/bin/oci-hooks-runtime")).unwrap();
    let (status, found, _) = system.check("Docker");
    assert_eq!(
        (status.as_str(), found),
        ("warn", format!("{start}oci-hooks-runtime is not in PATH"))
    );
    system.write("opt/hooks.sh", "#!/bin/sh\nexec \"/opt/oci-hooks-runtime\" \"$@\"\n");
    let (status, found, hint) = system.check("Docker");
    let problem = "/opt/oci-hooks-runtime does not exist, so no container starts";
    assert_eq!((status.as_str(), found), ("fail", format!("{start}{problem}")));
    assert_eq!(hint, "install oci-hooks-runtime as /opt/oci-hooks-runtime");
    system.write("opt/oci-hooks-runtime", "").make_executable("opt/oci-hooks-runtime");
    // Another runtime that does not exist, before the default.
    let both =
        runtimes.replace("\"hooked\"", "\"a\": {\"path\": \"/a/oci-hooks-runtime\"}, \"hooked\"");
    system.write(json, &format!("{{\"default-runtime\": \"hooked\", {both}}}"));
    let (status, found, _) = system.check("Docker");
    assert_eq!(status, "ok");
    let reads = "which reads /b, /c (/etc/oci-hooks/runtime.toml:2)";
    assert_eq!(found, format!("calls oci-hooks-runtime ({json}:1), {reads}"));

    system.write(json, "{\n  \"runtimes\": }");
    let (status, found, _) = system.check("Docker");
    assert_eq!(status, "fail");
    assert!(found.starts_with(&format!("{json}:2:15: ")), "{found}");
}

#[test]
fn docker_build_does_not_call_the_runtimes_of_docker() {
    let system = FakeSystem::with(&["dockerd", "oci-hooks-runtime"]);
    let runtimes = r#"{"default-runtime": "h", "runtimes": {"h": {"path": "oci-hooks-runtime"}}}"#;
    system.write("etc/docker/daemon.json", runtimes);
    assert_eq!(system.check("Docker").0, "ok");
    let (status, found, hint) = system.check("docker build");
    let expected = "the BuildKit in dockerd calls runc, and none of Docker's runtimes";
    assert_eq!((status.as_str(), found.as_str()), ("fail", expected));
    assert!(hint.contains("[worker.oci] binary = \"/usr/bin/oci-hooks-runtime\""), "{hint}");
    let unit = "etc/systemd/system/docker.service.d/hooks.conf";
    let line = "Environment=\"DOCKER_BUILDKIT_RUNC_COMMAND=/usr/bin/oci-hooks-runtime\"";
    system.write(unit, &format!("[Service]\n#{line}\n"));
    assert_eq!(system.check("docker build").0, "fail");
    system.write(unit, &format!("[Service]\n{line}\n"));
    let (status, found, _) = system.check("docker build");
    assert_eq!(status, "ok");
    let by = format!("(DOCKER_BUILDKIT_RUNC_COMMAND in /{unit}), ");
    assert!(found.contains(&by), "{found}");
}

#[test]
fn containerd_applies_hooks_by_its_runtime_or_by_nri() {
    let file = "/etc/containerd/config.toml";
    let system = FakeSystem::with(&["containerd", "oci-hooks-runtime"]);
    let check = || system.check("containerd");
    let (status, found, hint) = check();
    assert_eq!(status, "fail");
    assert!(found.contains("NRI is disabled (the built-in default)"), "{found}");
    assert!(hint.contains("BinaryName = \"/usr/bin/oci-hooks-runtime\""), "{hint}");
    assert!(hint.contains("install /opt/nri/plugins/10-oci-hooks-nri"), "{hint}");

    for (version, plugin) in [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")]
    {
        let table = format!("[plugins.\"{plugin}\".containerd");
        let options = format!("{table}.runtimes.a.options]\n");
        let config = format!(
            "version = {version}\n{table}]\ndefault_runtime_name = \"a\"\n{options}BinaryName = "
        );
        system.write(file, &format!("{config}\"/usr/bin/crun\"\n"));
        let (status, found, hint) = check();
        assert_eq!(status, "fail");
        let expected =
            format!("the runtime a is \"/usr/bin/crun\" ({file}:5), which adds no hooks");
        assert!(found.starts_with(&expected), "{found}");
        assert!(hint.contains(&options), "{hint}");
        system.write(file, &format!("{config}\"/usr/bin/oci-hooks-runtime\"\n"));
        let (status, found, _) = check();
        assert_eq!(status, "ok");
        assert!(found.starts_with(&format!("calls oci-hooks-runtime ({file}:5; ")), "{found}");
    }

    // The name of the plugin must be that of the version, which is 1 by default.
    for (version, plugin, status) in [
        ("", "cri", "ok"),
        ("", "io.containerd.grpc.v1.cri", "fail"),
        ("version = 3\n", "io.containerd.grpc.v1.cri", "fail"),
        ("version = 2\n", "io.containerd.cri.v1.runtime", "fail"),
    ] {
        system.write(file, &format!("{version}{}", wrapper_of(plugin)));
        let (found_status, found, _) = check();
        assert_eq!(found_status, status, "{version}{plugin}: {found}");
        assert!(found.contains("; from its file, not from `containerd config dump`"), "{found}");
        assert_eq!(found.starts_with("ignores BinaryName ("), status == "fail", "{found}");
    }

    system.write("opt/nri/plugins/10-oci-hooks-nri", "");
    let nri = "[plugins.\"io.containerd.nri.v1.nri\"]\n";
    for (config, status, by) in [
        ("version = 3\n".to_owned(), "ok", "the built-in default".to_owned()),
        (format!("version = 3\n{nri}disable = true\n"), "fail", format!("{file}:3")),
        ("version = 2\n".to_owned(), "fail", "the built-in default".to_owned()),
        (format!("version = 2\n{nri}disable = false\n"), "ok", format!("{file}:3")),
    ] {
        system.write(file, &config);
        let (found_status, found, _) = check();
        let word = if status == "ok" { "enabled" } else { "disabled" };
        assert_eq!(found_status, status, "{config}: {found}");
        assert!(found.starts_with(&format!("NRI is {word} ({by}),")), "{config}: {found}");
    }
    // Imported files override the main file.
    system.write(file, "version = 2\nimports = [\"conf.d/*.toml\"]\n");
    system.write("etc/containerd/conf.d/nri.toml", &format!("{nri}disable = false\n"));
    assert_eq!(check().0, "ok");
    // Without its CRI plugin containerd has no containers.
    system.write(file, "disabled_plugins = [\"cri\"]\n");
    assert_eq!(check().0, "warn");
    system.write(file, "disabled_plugins = [\n");
    let (status, found, _) = check();
    assert_eq!(
        (status.as_str(), found.starts_with(&format!("{file}:"))),
        ("fail", true),
        "{found}"
    );
}

/// Returns a configuration of containerd that makes the wrapper the program of runc.
fn wrapper_of(plugin: &str) -> String {
    let options = format!("[plugins.\"{plugin}\".containerd.runtimes.runc.options]");
    format!("{options}\nBinaryName = \"/usr/bin/oci-hooks-runtime\"\n")
}

#[test]
fn containerd_is_queried_for_its_configuration() {
    const OLD: &str = "io.containerd.grpc.v1.cri";
    const NEW: &str = "io.containerd.cri.v1.runtime";
    // A file, the version of containerd, the expected status, and the first lines of the hint.
    for (file, version, status, lines) in [
        (
            wrapper_of(OLD),
            "v2.1.9",
            "fail",
            format!("version = 3  # at the top\n[plugins.\"{NEW}\""),
        ),
        (
            format!("version = 3\n{}", wrapper_of(OLD)),
            "v2.1.9",
            "fail",
            format!("[plugins.\"{NEW}\""),
        ),
        (format!("version = 3\n{}", wrapper_of(NEW)), "v2.1.9", "ok", String::new()),
        (format!("version = 2\n{}", wrapper_of(OLD)), "v2.1.9", "ok", String::new()),
        ("version = 2\n".to_owned(), "v2.1.9", "fail", format!("[plugins.\"{OLD}\"")),
        (
            wrapper_of(OLD),
            "1.7.24",
            "fail",
            format!("version = 2  # at the top\n[plugins.\"{OLD}\""),
        ),
        (
            format!("version = 2\n{}", wrapper_of(NEW)),
            "1.7.24",
            "fail",
            format!("[plugins.\"{OLD}\""),
        ),
        (format!("version = 2\n{}", wrapper_of(OLD)), "1.7.24", "ok", String::new()),
    ] {
        let system = FakeSystem::with(&["containerd", "oci-hooks-runtime"]);
        system.write("config.toml", &file);
        // As containerd prints it: with all defaults, and tables that it does not know.
        let (number, plugin) = if version == "1.7.24" { (2, OLD) } else { (3, NEW) };
        let wrapper = system.path("usr/bin/oci-hooks-runtime");
        let program = if status == "ok" { wrapper.to_str().unwrap() } else { "" };
        let imports = system.path("config.toml");
        let dump = format!(
            "version = {number}\nimports = [{imports:?}]\n[plugins.'{plugin}'.containerd]\n\
             default_runtime_name = 'runc'\n\
             [plugins.'{plugin}'.containerd.runtimes.runc.options]\nBinaryName = '{program}'\n\
             [plugins.'unknown']\nkey = 1\n"
        );
        system.write("dump", &dump);
        system
            .write("usr/bin/containerd", &containerd_script(version, "cat \"${0%/*}/../../dump\""));
        let (found_status, found, hint) = system.check_here("containerd");
        assert_eq!(found_status, status, "{version}, {file}: {found}");
        if status == "ok" {
            let by = "calls oci-hooks-runtime (containerd config dump:6), which reads ";
            assert!(found.starts_with(by), "{found}");
        } else {
            let expected = format!("in /etc/containerd/config.toml, write\n{lines}");
            assert!(hint.starts_with(&expected), "{version}, {file}: {hint}");
            let is_ignored = found.starts_with("ignores BinaryName (/config.toml:");
            assert_eq!(is_ignored, file.contains("BinaryName"), "{found}");
        }
    }
}

/// Returns a fake containerd with a command that prints its configuration.
fn containerd_script(version: &str, dump: &str) -> String {
    format!(
        "#!/bin/sh\ncase \"$*\" in\n--version) echo containerd containerd/v2 {version} abc;;\n\
         'config dump') {dump};;\n*) exit 1;;\nesac\n"
    )
}

#[test]
fn containerd_is_queried_for_nri_and_errors() {
    let system = FakeSystem::with(&["containerd", "oci-hooks-runtime"]);
    let plugins = system.path("plugins");
    system.write("plugins/10-oci-hooks-nri", "");
    for (disable, status, word) in [(false, "ok", "enabled"), (true, "fail", "disabled")] {
        let dump = format!(
            "echo 'version = 3\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = {disable}\n\
             plugin_path = {plugins:?}'"
        );
        system.write("usr/bin/containerd", &containerd_script("v2.1.9", &dump));
        let (found_status, found, _) = system.check_here("containerd");
        assert_eq!(found_status, status, "{found}");
        let expected = format!("NRI is {word} (containerd config dump:3),");
        assert!(found.starts_with(&expected), "{found}");
    }
    // Version 2.0.5 applies a file of version 2, but prints the defaults.
    let file = system.path("config.toml");
    let bin = system.path("usr/bin");
    let wrapper =
        wrapper_of("io.containerd.grpc.v1.cri").replace("/usr/bin", bin.to_str().unwrap());
    system.write("config.toml", &format!("version = 2\n{wrapper}"));
    let dump = format!("echo 'version = 3\nimports = [{file:?}]'");
    system.write("usr/bin/containerd", &containerd_script("v2.0.5", &dump));
    let (status, found, _) = system.check_here("containerd");
    assert_eq!(status, "ok", "{found}");
    let by = "(/config.toml:3; from its file, not from `containerd config dump`), ";
    assert!(found.contains(by), "{found}");

    let error = "containerd: failed to load TOML: (2, 1): unterminated array";
    let dump = format!("echo 'level=warning'; echo '{error}' >&2; exit 1");
    system.write("usr/bin/containerd", &containerd_script("1.7.24", &dump));
    let (status, found, hint) = system.check_here("containerd");
    assert_eq!((status.as_str(), found), ("fail", format!("containerd config dump: {error}")));
    assert_eq!(hint, "correct this error: containerd does not work until then");
}

#[test]
fn crio_is_queried_for_its_directories() {
    let system = FakeSystem::with(&["crio"]);
    system.write("hooks/a.json", &HOOK.replace("/opt/hook", "/bin/sh"));
    let hooks = system.path("hooks");
    let script = |config: &str| format!("#!/bin/sh\n[ \"$*\" = config ] && {config}\n");
    // Defaults are printed as comments.
    for mark in ["", "# "] {
        let config = format!("[crio.runtime]\n{mark}hooks_dir = [\n{mark}\t{hooks:?},\n{mark}]");
        system.write("usr/bin/crio", &script(&format!("echo '{config}'")));
        let (status, found, _) = system.check_here("CRI-O");
        assert_eq!(
            (status.as_str(), found.as_str()),
            ("ok", "reads /hooks (`crio config`): 1 hook")
        );
    }
    let error = "level=fatal msg=\"validating runtime config\"";
    system.write("usr/bin/crio", &script(&format!("{{ echo '{error}' >&2; exit 1; }}")));
    let (status, found, hint) = system.check_here("CRI-O");
    assert_eq!((status.as_str(), found), ("fail", format!("crio config: {error}")));
    assert_eq!(hint, "correct this error: crio does not work until then");
}

#[test]
fn podman_is_queried_for_its_version_and_its_host() {
    let system = FakeSystem::with(&["podman"]);
    let script = |info: &str| format!("#!/bin/sh\n[ \"$*\" = 'info --format json' ] && {info}\n");
    let info = |is_remote: bool| {
        let info = json!({"host": {"serviceIsRemote": is_remote}, "version": {"Version": "5.2.0"}});
        format!("echo '{info}'")
    };
    system.write("usr/bin/podman", &script(&info(true)));
    let (status, found, _) = system.check_here("podman");
    let expected = "runs containers on another machine, as `podman info` reports";
    assert_eq!((status.as_str(), found.as_str()), ("warn", expected));
    system.write("usr/bin/podman", &script(&info(false)));
    let (_, found, _) = system.check_here("podman");
    assert!(found.contains("read"), "{found}");
    system.write("usr/bin/podman", &script("{ echo 'Error: no storage' >&2; exit 125; }"));
    let (status, found, hint) = system.check_here("podman");
    assert_eq!((status.as_str(), found.as_str()), ("fail", "podman info: Error: no storage"));
    assert_eq!(hint, "correct this error: podman does not work until then");
}

#[test]
fn docker_is_queried_for_the_runtimes_of_its_daemon() {
    let system = FakeSystem::with(&["dockerd", "docker", "oci-hooks-runtime"]);
    let wrapper = system.path("usr/bin/oci-hooks-runtime");
    for (version, default, status, said, builds) in [
        ("27.1.0", "hooked", "ok", "calls oci-hooks-runtime (docker info), which reads ", "fail"),
        ("20.10.24+dfsg1", "runc", "fail", "calls \"runc\" (docker info); ", "warn"),
    ] {
        let info = json!({
            "ServerVersion": version, "DefaultRuntime": default,
            "Runtimes": {"hooked": {"path": wrapper}, "runc": {"path": "runc"}},
        });
        let script =
            format!("#!/bin/sh\n[ \"$*\" = 'info --format {{{{json .}}}}' ] && echo '{info}'\n");
        system.write("usr/bin/docker", &script);
        let (found_status, found, hint) = system.check_here("Docker");
        assert_eq!(found_status, status, "{found}");
        assert!(found.starts_with(said), "{found}");
        assert_eq!(
            hint.ends_with("write \"default-runtime\": \"hooked\""),
            status == "fail",
            "{hint}"
        );
        assert_eq!(system.check_here("docker build").0, builds);
    }
}

#[test]
fn buildkit_needs_the_wrapper_as_the_program_of_its_worker() {
    let file = "/etc/buildkit/buildkitd.toml";
    let system = FakeSystem::with(&["buildkitd", "oci-hooks-runtime"]);
    let check = || system.check("BuildKit");
    let (status, _, hint) = check();
    let expected =
        format!("in {file}, write\n[worker.oci]\n  binary = \"/usr/bin/oci-hooks-runtime\"");
    assert_eq!((status.as_str(), hint), ("fail", expected));
    system.write(file, "[worker.oci]\nbinary = \"crun\"\n");
    let (status, found, _) = check();
    let expected = format!("calls \"crun\" ({file}:2), which adds no hooks");
    assert_eq!((status.as_str(), found), ("fail", expected));
    system.write(file, "[worker.oci]\nbinary = \"/usr/bin/oci-hooks-runtime\"\n");
    assert_eq!(check().0, "ok");
    let containerd = "[worker.oci]\nenabled = false\n[worker.containerd]\nenabled = true\n";
    system.write(file, containerd);
    let (status, _, hint) = check();
    assert_eq!((status.as_str(), hint.contains("[worker.containerd.runtime]")), ("fail", true));
    let binary = "runtime.options.BinaryName = \"/usr/bin/oci-hooks-runtime\"\n";
    system.write(file, &format!("{containerd}{binary}"));
    assert_eq!(check().0, "ok");
}

#[test]
fn text_has_the_fix_below_each_line_and_a_summary() {
    let system = FakeSystem::with(&["podman"]);
    system.write("/etc/containers/oci/hooks.d/a.json", HOOK);
    let (said, code) = system.doctor(&[]);
    assert_eq!(code, 1);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[0].starts_with("fail  podman        does not read /etc/"), "{said}");
    assert!(
        lines[1].trim_start().starts_with("in /etc/containers/containers.conf.d/zz-hooks.conf,"),
        "{said}"
    );
    assert!(lines[2].starts_with("ok    podman build  reads /usr/share/"), "{said}");
    assert_eq!(lines[3], "1 error: not all engines apply hook files");
    let (said, _) = system.doctor(&["--format", "json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let keys: Vec<_> = said["checks"][0].as_object().unwrap().keys().collect();
    assert_eq!(json!(keys), json!(["found", "hint", "name", "status"]));
}

#[test]
fn directories_that_cannot_be_checked_are_errors() {
    for (option, error) in [
        ("--root", "invalid --root \"/nonexistent\""),
        (
            "--hooks-dir",
            "doctor checks the directories that engines read, not those of --hooks-dir\n",
        ),
    ] {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        let output = doctor.args(["doctor", option, "/nonexistent"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.starts_with(&format!("error: {error}")), "{said}");
    }
}
