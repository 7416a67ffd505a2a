//! Steps of this program: `builtin://script`, formerly `dist://script`, and the functions that GitLab's
//! runner calls.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::document::{Action, Builtin, Definition, Input, Outputs, Spec, StepFile};
use super::super::{Type, Value};
use super::context::Loaded;
use super::error::ResolveError;

/// Candidate shells; the first that exists is used.
const SHELLS: [&str; 4] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/bin/sh"];

/// Returns the built-in step with this name.
pub(super) fn load(path: &[String], work_dir: &Path) -> Result<Loaded, ResolveError> {
    let file = match path.join("/").as_str() {
        "script" => {
            let shell = SHELLS.into_iter().find(|shell| Path::new(shell).exists()).unwrap_or("sh");
            function(Builtin::Script { shell }, [("script", input(Type::String))])
        }
        "script_legacy" => {
            let flag = || Input { default: Some(Value::Bool(false)), ..input(Type::Boolean) };
            let inputs = [
                ("script", input(Type::Array)),
                ("debug_trace", flag()),
                ("check_for_errors", flag()),
                ("posix_escape", flag()),
                ("trace_sections", flag()),
            ];
            function(Builtin::ScriptLegacy, inputs)
        }
        "concrete" => {
            // It has the tokens of the job.
            let config = Input { sensitive: true, ..input(Type::String) };
            function(Builtin::Concrete, [("config", config)])
        }
        name => return Err(ResolveError::Builtin(name.to_owned())),
    };
    Ok(Loaded { file, dir: work_dir.to_path_buf(), accepts_secrets: true })
}

/// Returns an input that is required.
fn input(kind: Type) -> Input {
    Input { kind, default: None, sensitive: false, description: None }
}

fn function<const N: usize>(function: Builtin, inputs: [(&str, Input); N]) -> StepFile {
    let inputs = inputs.map(|(name, input)| (name.to_owned(), input));
    StepFile {
        spec: Spec { inputs: BTreeMap::from(inputs), outputs: Outputs::default() },
        definition: Definition { env: BTreeMap::new(), action: Action::Builtin(function) },
    }
}
