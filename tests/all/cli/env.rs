//! A directory with hook files and a configuration, and the program to run in it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Hook directories `usr` and `etc` and a `config.json`, removed with the value.
pub(crate) struct HookEnv {
    temp: tempfile::TempDir,
}

/// Output and exit code of a run, with the temporary directory replaced by `{ROOT}`.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) code: Option<i32>,
}

pub(crate) const CONFIG: &str = r#"{
  "ociVersion": "1.0.2",
  "process": {
    "args": ["/usr/bin/python3", "-m", "http.server"],
    "cwd": "/"
  },
  "root": {"path": "rootfs"},
  "annotations": {"com.example.gpu": "all"},
  "x-vendor": 1.50e400
}
"#;

impl HookEnv {
    pub(crate) fn new() -> Self {
        let env = HookEnv { temp: tempfile::tempdir().unwrap() };
        for dir in ["usr", "etc"] {
            fs::create_dir(env.path(dir)).unwrap();
        }
        fs::write(env.path("config.json"), CONFIG).unwrap();
        env
    }

    /// Returns the hooks of most tests: a matching one, one that does not match, a masked one, one broken in
    /// a way that podman ignores, and a file that is no hook.
    pub(crate) fn with_hooks() -> Self {
        let env = HookEnv::new();
        env.hook("usr/10-python.json", r#""commands": ["/python3$"]"#, r#""prestart", "poststop""#);
        env.hook("usr/20-gpu.json", r#""always": true"#, r#""createRuntime""#);
        env.hook(
            "etc/20-gpu.json",
            r#""annotations": {"^com\\.example\\.gpu$": "^none$"}"#,
            r#""createRuntime""#,
        );
        env.hook("usr/30-filter.json", r#""always": true"#, r#""precreate""#);
        env.write(
            "usr/40-gone.json",
            r#"{"version": "1.0.0", "hook": {"path": "/nonexistent/hook"}, "when": {"always": true}, "stages": ["poststop"]}"#,
        );
        env.write("usr/README", "not a hook file");
        env
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Writes a hook file that runs `/bin/true`.
    pub(crate) fn hook(&self, name: &str, when: &str, stages: &str) {
        let text = format!(
            "{{\n  \"version\": \"1.0.0\",\n  \"hook\": {{\"path\": \"/bin/true\"}},\n  \"when\": {{{when}}},\n  \"stages\": [{stages}]\n}}\n"
        );
        self.write(name, &text);
    }

    /// Returns the program with the two hook directories, running in the directory.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        command.current_dir(self.temp.path()).env_clear().args(args);
        for dir in ["usr", "etc"] {
            command.arg("--hooks-dir").arg(self.path(dir));
        }
        command
    }

    /// Runs the program with a consumer's configuration, which these variables name.
    pub(crate) fn run_configured(
        &self,
        variables: &[(&str, &str)],
        args: &[&str],
    ) -> CommandOutput {
        let mut command = Command::new(env!("CARGO_BIN_EXE_oci-hooks"));
        command.current_dir(self.temp.path()).env_clear().args(args);
        for (name, value) in variables {
            command.env(name, self.path(value));
        }
        self.finish_run(command.output().unwrap())
    }

    /// Writes a containers.conf with these hook directories.
    pub(crate) fn containers_conf(&self, name: &str, dirs: &[&str]) {
        let dirs: Vec<_> = dirs.iter().map(|dir| self.path(dir)).collect();
        self.write(name, &format!("[engine]\nhooks_dir = {dirs:?}\n"));
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.finish_run(self.command(args).output().unwrap())
    }

    pub(crate) fn run_with_input(&self, args: &[&str], input: &str) -> CommandOutput {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        self.finish_run(child.wait_with_output().unwrap())
    }

    fn finish_run(&self, output: Output) -> CommandOutput {
        let root = self.temp.path().to_str().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap().replace(root, "{ROOT}");
        CommandOutput {
            stdout: text(output.stdout),
            stderr: text(output.stderr),
            code: output.status.code(),
        }
    }

    /// Creates a world-writable sticky directory like `/tmp`, with a symlink owned by an unknown user.
    /// Returns false without root, which is required to change the owner.
    pub(crate) fn create_foreign_link(&self, target: &str, dir: &str, name: &str) -> bool {
        if !rustix::process::geteuid().is_root() {
            return false;
        }
        fs::create_dir_all(self.path(dir)).unwrap();
        fs::set_permissions(self.path(dir), fs::Permissions::from_mode(0o1777)).unwrap();
        let link = self.path(dir).join(name);
        symlink(self.path(target), &link).unwrap();
        lchown(link, Some(54321), Some(54321)).unwrap();
        true
    }

    /// Returns the sorted names of the files in a directory.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(dir)).unwrap();
        let mut names: Vec<_> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Compares text with `tests/data/cli/NAME`.
#[track_caller]
pub(crate) fn golden(name: &str, found: &str) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/cli");
    oci_hooks_testsupport::golden::compare(&data.join(name), found);
}
