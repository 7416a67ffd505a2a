//! Scripts of a job.

use std::collections::BTreeMap;

use super::super::error::{BuiltinError, Within as _};
use super::super::program::find_program;
use super::super::script_file::ScriptFile;
use super::super::shell_script::{Tracing, step};
use super::config::Script;
use super::context::JobContext;

/// Shells, besides bash and sh in PATH; the first that exists is used.
const SHELLS: [&str; 7] = [
    "/usr/local/bin/bash",
    "/usr/bin/bash",
    "/bin/bash",
    "/usr/local/bin/sh",
    "/usr/bin/sh",
    "/bin/sh",
    "/busybox/sh",
];

/// Scripts around `git`, for which the one beside this program is meant too.
const AROUND_GIT: [&str; 2] = ["pre_clone_script", "post_clone_script"];

impl JobContext<'_> {
    /// Runs a script, unless it has no lines or is for another status of the job.
    pub(super) fn run_script(&mut self, script: &Script) -> Result<(), BuiltinError> {
        let name = &script.name;
        if script.script.is_empty() {
            return Ok(());
        }
        if !self.applies(script.on_success, script.on_failure) {
            self.notice(&format!("Skipping step {name}: not for this status of the job"));
            return Ok(());
        }
        if matches!(self.config.shell.as_str(), "pwsh" | "powershell") {
            return Err(
                BuiltinError::Shell(self.config.shell.clone()).within(format!("step {name}"))
            );
        }
        let tracing = Tracing {
            xtrace: script.debug,
            check: script.bash_exit_code_check,
            sections: script.script_sections,
        };
        let shell = self.shell();
        let text = step(&shell, name, &script.script, tracing, script.use_legacy_bash_eval);
        let file = ScriptFile::new(self.host.scratch(), &text)?;
        let path = file.path().to_string_lossy().into_owned();
        let argv = match self.config.login_shell {
            true => vec![self.config.shell.clone(), "-l".to_owned(), path],
            false => vec![shell, path],
        };
        let mut env = BTreeMap::new();
        if AROUND_GIT.contains(&name.as_str()) {
            env = self.tool_env(&env);
        }
        self.command(&argv, &env).within(format!("step {name}"))
    }

    fn shell(&self) -> String {
        let find = |name: &&str| find_program(name, &self.work_dir, self.variable("PATH"));
        let found = ["bash", "sh"].iter().chain(&SHELLS).find_map(find);
        found.map_or("/bin/sh".to_owned(), |path| path.to_string_lossy().into_owned())
    }
}
