//! Steps that come with this program: `builtin://script`, formerly `dist://script`.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::Type;
use super::super::document::{Action, Definition, Exec, Input, Outputs, Spec, StepFile};
use super::error::ResolveError;
use super::resolver::Loaded;

/// Where a shell is looked for; the first that is there is taken.
const SHELLS: [&str; 4] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/bin/sh"];

/// Returns the step of that name.
pub(super) fn load(path: &[String], work_dir: &Path) -> Result<Loaded, ResolveError> {
    match path.join("/").as_str() {
        // The second is what newer runners call for an ordinary job's script.
        "script" | "script_legacy" => {
            Ok(Loaded { file: script(), dir: work_dir.to_path_buf(), takes_secrets: true })
        }
        name => Err(ResolveError::Builtin(name.to_owned())),
    }
}

/// Runs its input with a shell.
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
