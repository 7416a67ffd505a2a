//! Steps of this program: `builtin://script`, formerly `dist://script`, and the functions that GitLab's
//! runner calls.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::document::{Action, Builtin, Definition, Input, Output, Outputs, Spec, StepFile};
use super::super::{Type, Value};
use super::context::{Caller, Loaded};
use super::error::ResolveError;

/// Candidate shells; the first that exists is used.
const SHELLS: [&str; 4] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/bin/sh"];

/// Returns the built-in step with this name.
pub fn load(path: &[String], caller: &Caller<'_>) -> Result<Loaded, ResolveError> {
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
        "function/oci/build" => step(Builtin::FunctionOciBuild, oci_build()),
        "function/oci/publish" => step(Builtin::FunctionOciPublish, oci_publish()),
        name => return Err(ResolveError::Builtin(name.to_owned())),
    };
    // What is published is for everybody who can read the registry.
    let is_public = path.first().is_some_and(|name| name == "function");
    let (dir, tree) = (caller.dir.to_owned(), caller.tree.map(Path::to_owned));
    Ok(Loaded { file, dir, tree, accepts_secrets: !is_public })
}

/// Returns an input that is required.
fn input(kind: Type) -> Input {
    Input { kind, default: None, sensitive: false, description: None }
}

fn function<const N: usize>(function: Builtin, inputs: [(&str, Input); N]) -> StepFile {
    let inputs = inputs.map(|(name, input)| (name.to_owned(), input));
    step(function, Spec { inputs: BTreeMap::from(inputs), outputs: Outputs::default() })
}

fn step(function: Builtin, spec: Spec) -> StepFile {
    let definition = Definition { env: BTreeMap::new(), action: Action::Builtin(function) };
    StepFile { spec, definition }
}

/// The archive that `builtin://function/oci/build` writes.
pub const ARCHIVE: &str = "function-image.tar";

/// Returns what `builtin://function/oci/build` takes and gives.
fn oci_build() -> Spec {
    let empty = || Some(Value::Object(BTreeMap::new()));
    spec(
        [
            ("version", Type::String, None),
            ("common", Type::Struct, empty()),
            ("platforms", Type::Struct, empty()),
        ],
        &[("archive", Type::String), ("version", Type::String), ("digest", Type::Struct)],
    )
}

/// Returns what `builtin://function/oci/publish` takes and gives.
fn oci_publish() -> Spec {
    spec(
        [
            ("archive", Type::String, Some(Value::String(ARCHIVE.to_owned()))),
            ("to_repository", Type::String, None),
            ("overwrite", Type::Boolean, Some(Value::Bool(false))),
        ],
        &[
            ("registry", Type::String),
            ("repository", Type::String),
            ("tag", Type::String),
            ("tags", Type::Array),
            ("ref", Type::String),
            ("digest", Type::Struct),
        ],
    )
}

fn spec<const N: usize>(
    inputs: [(&str, Type, Option<Value>); N],
    outputs: &[(&str, Type)],
) -> Spec {
    let inputs = inputs.map(|(name, kind, default)| {
        (name.to_owned(), Input { kind, default, sensitive: false, description: None })
    });
    let outputs = outputs.iter().map(|&(name, kind)| {
        (name.to_owned(), Output { kind, default: None, sensitive: false, description: None })
    });
    Spec { inputs: inputs.into(), outputs: Outputs::Declared(outputs.collect()) }
}
