//! Steps of this program: `builtin://script`, formerly `dist://script`.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::Type;
use super::super::document::{Action, Definition, Exec, Input, Outputs, Spec, StepFile};
use super::context::Loaded;
use super::error::ResolveError;

/// Candidate shells; the first that exists is used.
const SHELLS: [&str; 4] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/bin/sh"];

/// Returns the built-in step with this name.
pub(super) fn load(path: &[String], work_dir: &Path) -> Result<Loaded, ResolveError> {
    match path.join("/").as_str() {
        // The second is called by newer runners for the script of an ordinary job.
        "script" | "script_legacy" => {
            Ok(Loaded { file: script(), dir: work_dir.to_path_buf(), accepts_secrets: true })
        }
        name => Err(ResolveError::Builtin(name.to_owned())),
    }
}

/// Returns the step that runs its input `script` in a shell.
fn script() -> StepFile {
    let shell = SHELLS.iter().find(|shell| Path::new(shell).exists()).unwrap_or(&"sh");
    let input = Input { kind: Type::String, default: None, sensitive: false, description: None };
    let command = [shell, "-c", "${{inputs.script}}"].map(str::to_owned).to_vec();
    StepFile {
        spec: Spec {
            inputs: BTreeMap::from([("script".to_owned(), input)]),
            outputs: Outputs::default(),
        },
        definition: Definition {
            env: BTreeMap::new(),
            action: Action::Exec(Exec { command, work_dir: None }),
        },
    }
}
