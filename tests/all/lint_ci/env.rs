//! Directories with hook files, and a `PATH` with only the permitted tools.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A valid hook file without findings.
pub(crate) const GOOD: &str = r#"{"version": "1.0.0",
"hook": {"path": "/usr/libexec/not-installed-in-ci", "env": ["PATH=/bin"], "timeout": 5},
"when": {"always": true}, "stages": ["poststop"]}"#;

/// A hook file with one error, in line 3.
pub(crate) fn error() -> String {
    GOOD.replace("poststop", "prestrat")
}

/// A checkout, and a directory of tools.
pub(crate) struct CheckoutEnv {
    pub(crate) temp: TempDir,
}

impl CheckoutEnv {
    /// Creates a checkout with hook files in `hooks.d`, and links tools of the system.
    pub(crate) fn new(files: &[(&str, &str)], tools: &[&str]) -> Self {
        let temp = tempfile::tempdir().unwrap();
        let world = CheckoutEnv { temp };
        for directory in ["checkout/hooks.d", "tools", "temporary"] {
            fs::create_dir_all(world.path(directory)).unwrap();
        }
        for (name, text) in files {
            fs::write(world.path("checkout/hooks.d").join(name), text).unwrap();
        }
        for tool in tools {
            symlink(find(tool), world.path("tools").join(tool)).unwrap();
        }
        world
    }

    /// Puts the program into `PATH`.
    pub(crate) fn install(self) -> Self {
        symlink(PROGRAM, self.path("tools/oci-hooks")).unwrap();
        self
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// Returns a command that runs in the checkout with no other environment variables.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(find(program));
        command
            .current_dir(self.path("checkout"))
            .env_clear()
            .env("PATH", self.path("tools"))
            .env("HOME", self.temp.path());
        command
    }
}

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_oci-hooks");
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the path of a file of this repository.
pub(crate) fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Returns the path of a tool. Panics if it is missing.
#[track_caller]
pub(crate) fn find(name: &str) -> PathBuf {
    ["/usr/bin", "/bin"]
        .map(|directory| Path::new(directory).join(name))
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("this test needs the program `{name}`: tests/run installs it"))
}

/// Returns a command's whole output, for messages.
pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}
