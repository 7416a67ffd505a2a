//! `oci-hooks doctor --prove`, with a fake podman.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::Command;

use super::{FakeSystem, HOOK};

/// A system with a hook directory and a podman.
struct ProvingSystem {
    system: FakeSystem,
    /// File with the calls of podman.
    calls: PathBuf,
}

impl ProvingSystem {
    fn new() -> Self {
        let system = FakeSystem::with(&["podman"]);
        system.write("hooks/keep.json", &HOOK.replace("/opt/hook", "/bin/sh"));
        let settings = format!("[engine]\nhooks_dir = [{:?}]\n", system.path("hooks"));
        system.write("containers.conf", &settings);
        let calls = system.path("calls");
        ProvingSystem { system, calls }
    }

    /// Returns a `doctor` command with a podman whose `run` executes this shell command.
    fn doctor(&self, run: &str) -> Command {
        let calls = &self.calls;
        let script = format!(
            "#!/bin/sh\ncase $1 in rm | rmi) echo \"$*\";; *) echo \"$1\";; esac >>{calls:?}\n\
             case $1 in --version) echo podman version 5.2.0;; info) exit 1;; run) {run};; esac\n"
        );
        self.system.write("usr/bin/podman", &script);
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        doctor.args(["doctor", "--prove", "--format", "json"]);
        doctor.env("PATH", format!("{}:/usr/bin:/bin", self.system.path("usr/bin").display()));
        doctor.env("CONTAINERS_CONF", self.system.path("containers.conf"));
        doctor.env("TMPDIR", self.system.path("usr"));
        doctor
    }

    /// Returns status and text of the check.
    fn prove(&self, run: &str) -> (String, String) {
        let said = self.system.run(&mut self.doctor(run));
        let (status, found, _) = FakeSystem::check_in(said, "podman --prove");
        (status, found)
    }

    /// Returns the names in a directory, sorted.
    fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.system.path(dir)).unwrap();
        let name =
            |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = entries.map(name).collect();
        names.sort();
        names
    }

    /// Checks that no file of a proof is left.
    fn check_nothing_left(&self) {
        assert_eq!(self.names("hooks"), ["keep.json"]);
        assert_eq!(self.names("usr"), ["bin"]);
    }

    fn calls(&self) -> String {
        fs::read_to_string(&self.calls).unwrap()
    }
}

#[test]
fn proof_starts_a_container_for_a_temporary_hook_and_removes_both() {
    let system = ProvingSystem::new();
    // Runs the hook as a runtime does: its path with its arguments.
    let hook = "/usr/bin/sed -n 's/.*\"\\(\\/[^\"]*ran\\)\".*/\\1/p' ${0%/*}/../../hooks/oci-hooks-prove-*";
    let error = "echo 'Error: no such file' >&2; exit 127";
    let (status, found) = system.prove(&format!("/usr/bin/touch -c $({hook}); {error}"));
    assert_eq!(status, "ok", "{found}");
    assert!(found.starts_with("ran the hook /hooks/oci-hooks-prove-"), "{found}");
    let (status, found) = system.prove(error);
    assert_eq!(status, "fail");
    assert!(found.starts_with("did not run the hook /hooks/oci-hooks-prove-"), "{found}");
    assert!(found.ends_with(".json: Error: no such file"), "{found}");
    system.check_nothing_left();
    let calls = system.calls();
    assert_eq!(calls.matches("import\nrun\nrm --force oci-hooks-prove-").count(), 2, "{calls}");
    assert_eq!(calls.matches("rmi --force oci-hooks-prove-").count(), 2, "{calls}");
}

#[test]
fn interrupted_proof_leaves_no_hook() {
    let system = ProvingSystem::new();
    let ended = system.doctor("kill $PPID; exec sleep 1000").output().unwrap();
    let said = (String::from_utf8(ended.stdout).unwrap(), ended.status.code().unwrap());
    let (status, found, _) = FakeSystem::check_in(said, "podman --prove");
    assert_eq!((status.as_str(), found.as_str()), ("fail", "not proved: interrupted"));
    system.check_nothing_left();
    let calls = system.calls();
    let last: Vec<_> = calls.lines().rev().take(2).collect();
    assert!(last[0].starts_with("rmi --force ") && last[1].starts_with("rm --force "), "{calls}");
}

#[test]
fn next_proof_removes_what_a_killed_one_left() {
    let system = ProvingSystem::new();
    assert!(system.doctor("kill -9 $PPID").output().unwrap().status.code().is_none());
    let hook = system.system.path("hooks").join(&system.names("hooks")[1]);
    let name = hook.file_stem().unwrap().to_str().unwrap().to_owned();
    assert_eq!(system.names("usr"), ["bin", &name]);
    // Another user who can create the missing private directory must not get a file of root.
    let text = fs::read_to_string(&hook).unwrap();
    assert!(text.contains(r#"["touch","-c","#), "{text}");
    // A process that has not ended keeps its hook.
    let dir = File::open(system.system.path("usr").join(&name)).unwrap();
    dir.lock().unwrap();
    system.prove("exit 127");
    assert!(hook.exists());
    drop(dir);
    system.prove("exit 127");
    system.check_nothing_left();
    let calls = system.calls();
    assert!(calls.contains(&format!("rm --force {name}\nrmi --force {name}\n")), "{calls}");
}
