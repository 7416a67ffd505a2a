//! `oci-hooks doctor`, on systems that are made up below a directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

const HOOK: &str = r#"{"version": "1.0.0", "hook": {"path": "/opt/hook"}, "when": {"always": true},
    "stages": ["poststop"]}"#;

/// A system with some programs and files.
struct System {
    temp: tempfile::TempDir,
}

impl System {
    fn with(programs: &[&str]) -> Self {
        let system = System { temp: tempfile::tempdir().unwrap() };
        for name in programs {
            system.write(&format!("usr/bin/{name}"), "#!/bin/sh\nexit 1\n");
            let path = system.path(&format!("usr/bin/{name}"));
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        system
    }

    /// Returns where a path of the system is, which may be absolute there.
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
        let output = Command::new(env!("CARGO_BIN_EXE_oci-hooks"))
            .args(["doctor", "--root"])
            .arg(self.temp.path())
            .args(options)
            // Of this system, which is another one.
            .env("CONTAINERS_CONF", "/nonexistent")
            .output()
            .unwrap();
        let stdout = String::from_utf8(output.stdout).unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr, "");
        let said = stdout.replace(self.temp.path().to_str().unwrap(), "");
        (said, output.status.code().unwrap())
    }

    /// Returns status, finding and fix of a check, and asserts that the exit code fits.
    #[track_caller]
    fn check(&self, name: &str) -> (String, String, String) {
        let (said, code) = self.doctor(&["--format", "json"]);
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
    let (said, code) = System::with(&[]).doctor(&[]);
    assert_eq!(code, 0);
    let expected = "ok    engines  none of podman, buildah, crio, dockerd, containerd and buildkitd \
                    is installed\nno problems found: no engine applies hook files here\n";
    assert_eq!(said, expected);
}

#[test]
fn podman_and_crio_are_told_which_line_to_add() {
    let etc = "/etc/containers/oci/hooks.d";
    let both = format!("hooks_dir = [\"/usr/share/containers/oci/hooks.d\", \"{etc}\"]");
    for (program, name, file, table) in [
        ("podman", "podman", "/etc/containers/containers.conf", "engine"),
        ("crio", "CRI-O", "/etc/crio/crio.conf.d/10-hooks.conf", "crio.runtime"),
    ] {
        let system = System::with(&[program]);
        let (status, found, _) = system.check(name);
        let usual = "reads /usr/share/containers/oci/hooks.d, by the built-in default: 0 hooks";
        assert_eq!((status.as_str(), found.as_str()), ("ok", usual));

        system.write(&format!("{etc}/a.json"), HOOK);
        let (status, found, hint) = system.check(name);
        let expected = format!(
            "does not read {etc}, which has 1 hook file; it reads \
             /usr/share/containers/oci/hooks.d, by the built-in default"
        );
        assert_eq!((status.as_str(), found), ("fail", expected));
        assert_eq!(hint, format!("in {file}, under [{table}], write {both}"));

        system.write(file, &format!("[{table}]\n{both}\n"));
        let (status, found, _) = system.check(name);
        let decided = format!("by hooks_dir in {file}:2: 1 hook");
        assert_eq!(status, "ok", "{found}");
        assert!(found.ends_with(&decided), "{found}");

        system.write(&format!("{etc}/b.json"), "{");
        let (status, found, hint) = system.check(name);
        assert_eq!(status, "fail");
        assert!(found.starts_with(&format!("cannot start containers: {etc}/b.json:1:")), "{found}");
        assert!(hint.contains("oci-hooks lint"), "{hint}");

        system.write(file, &format!("[{table}]\nhooks_dir = 1\n"));
        let (status, found, _) = system.check(name);
        assert_eq!(status, "fail");
        assert!(found.starts_with(&format!("{file}:2:13: expected a list")), "{found}");
    }
}

#[test]
fn builds_do_not_go_by_the_configuration_of_podman() {
    let system = System::with(&["podman"]);
    system.write("etc/containers/containers.conf", "[engine]\nhooks_dir = [\"/own\"]\n");
    let (status, found, hint) = system.check("podman build");
    assert_eq!(status, "fail");
    assert!(found.starts_with("does not read /own; it reads /usr/share/"), "{found}");
    assert!(hint.ends_with("--hooks-dir /own to each build"), "{hint}");
    let (status, _, _) = System::with(&["podman"]).check("podman build");
    assert_eq!(status, "ok");
}

#[test]
fn docker_needs_the_wrapper_as_its_default_runtime() {
    let json = "/etc/docker/daemon.json";
    let system = System::with(&["dockerd", "oci-hooks-runtime"]);
    let (status, found, hint) = system.check("Docker");
    let expected = format!("has no hooks.d, and {json} names no runtime that adds hooks");
    assert_eq!((status.as_str(), found), ("fail", expected));
    assert!(hint.contains("\"path\": \"/usr/bin/oci-hooks-runtime\""), "{hint}");

    let runtimes = "\"runtimes\": {\n\"hooked\": {\"path\": \"/opt/hooks.sh\"}}";
    system.write(json, &format!("{{{runtimes}}}"));
    assert_eq!(system.check("Docker").0, "fail");
    // A script that calls the wrapper, as one that sets variables for it does.
    system.write("opt/hooks.sh", "#!/bin/sh\nOCI_HOOKS_DIRS=/a exec oci-hooks-runtime \"$@\"\n");
    let (status, found, hint) = system.check("Docker");
    assert_eq!(status, "fail");
    assert_eq!(found, format!("calls oci-hooks-runtime only for --runtime hooked, by {json}:2"));
    assert_eq!(hint, format!("in {json}, write \"default-runtime\": \"hooked\""));

    system.write(json, &format!("{{\"default-runtime\": \"runc\", {runtimes}}}"));
    let (status, found, _) = system.check("Docker");
    assert_eq!(status, "fail");
    assert!(found.starts_with(&format!("calls \"runc\", by {json}:1;")), "{found}");

    system.write(json, &format!("{{\"default-runtime\": \"hooked\", {runtimes}}}"));
    system.write("etc/oci-hooks/runtime.toml", "strict = true\nhooks-dirs = [\"/b\", \"/c\"]\n");
    let (status, found, _) = system.check("Docker");
    assert_eq!(status, "ok");
    let reads = "which reads /b, /c, by /etc/oci-hooks/runtime.toml:2";
    assert_eq!(found, format!("calls oci-hooks-runtime, by {json}:1, {reads}"));

    system.write(json, "{\n  \"runtimes\": }");
    let (status, found, _) = system.check("Docker");
    assert_eq!(status, "fail");
    assert!(found.starts_with(&format!("{json}:2:15: ")), "{found}");
}

#[test]
fn docker_build_does_not_call_the_runtimes_of_docker() {
    let system = System::with(&["dockerd"]);
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
    assert!(found.ends_with(&format!("DOCKER_BUILDKIT_RUNC_COMMAND in /{unit}")), "{found}");
}

#[test]
fn containerd_applies_hooks_by_its_runtime_or_by_nri() {
    let file = "/etc/containerd/config.toml";
    let system = System::with(&["containerd"]);
    let check = || system.check("containerd");
    let (status, found, hint) = check();
    assert_eq!(status, "fail");
    assert!(found.contains("NRI is disabled, by the built-in default"), "{found}");
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
            format!("the runtime a is \"/usr/bin/crun\", by {file}:5, which adds no hooks");
        assert!(found.starts_with(&expected), "{found}");
        assert!(hint.contains(&options), "{hint}");
        system.write(file, &format!("{config}\"/usr/bin/oci-hooks-runtime\"\n"));
        let (status, found, _) = check();
        assert_eq!(status, "ok");
        assert!(found.starts_with(&format!("calls oci-hooks-runtime, by {file}:5,")), "{found}");
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
        assert!(found.starts_with(&format!("NRI is {word}, by {by},")), "{config}: {found}");
    }
    // What a file imports decides.
    system.write(file, "version = 2\nimports = [\"conf.d/*.toml\"]\n");
    system.write("etc/containerd/conf.d/nri.toml", &format!("{nri}disable = false\n"));
    assert_eq!(check().0, "ok");
    // Without its plugin for the CRI it has no containers of its own.
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

#[test]
fn buildkit_needs_the_wrapper_as_the_program_of_its_worker() {
    let file = "/etc/buildkit/buildkitd.toml";
    let system = System::with(&["buildkitd"]);
    let check = || system.check("BuildKit");
    let (status, _, hint) = check();
    let expected =
        format!("in {file}, write\n[worker.oci]\n  binary = \"/usr/bin/oci-hooks-runtime\"");
    assert_eq!((status.as_str(), hint), ("fail", expected));
    system.write(file, "[worker.oci]\nbinary = \"crun\"\n");
    let (status, found, _) = check();
    let expected = format!("calls \"crun\", by {file}:2, which adds no hooks");
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
    let system = System::with(&["podman"]);
    system.write("/etc/containers/oci/hooks.d/a.json", HOOK);
    let (said, code) = system.doctor(&[]);
    assert_eq!(code, 1);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[0].starts_with("fail  podman        does not read /etc/"), "{said}");
    assert!(lines[1].trim_start().starts_with("in /etc/containers/containers.conf,"), "{said}");
    assert!(lines[2].starts_with("ok    podman build  reads /usr/share/"), "{said}");
    assert_eq!(lines[3], "1 error: hook files do not apply to all containers");
    let (said, _) = system.doctor(&["--format", "json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    let keys: Vec<_> = said["checks"][0].as_object().unwrap().keys().collect();
    assert_eq!(json!(keys), json!(["found", "hint", "name", "status"]));
}

#[test]
fn a_root_that_is_no_directory_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_oci-hooks"))
        .args(["doctor", "--root", "/nonexistent"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("error: invalid --root \"/nonexistent\""), "{said}");
}
