//! Steps of this program: `builtin://script`, formerly `dist://script`, and the functions that GitLab's
//! runner calls.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::document::{
    Builtin, InputSpec, OutputSpec, OutputSpecs, StepAction, StepDefinition, StepFile, StepSpec,
};
use super::super::{DeclaredType, ExprValue};
use super::context::{LoadedStep, ReferenceContext};
use super::error::ResolveError;

/// Candidate shells; the first that exists is used.
const SHELLS: [&str; 4] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/bin/sh"];

/// Returns the built-in step with this name.
pub fn load(path: &[String], caller: &ReferenceContext<'_>) -> Result<LoadedStep, ResolveError> {
    let file = match path.join("/").as_str() {
        "script" => {
            let shell = SHELLS.into_iter().find(|shell| Path::new(shell).exists()).unwrap_or("sh");
            function(Builtin::Script { shell }, [("script", input(DeclaredType::String))])
        }
        "script_legacy" => {
            let flag = || InputSpec {
                default: Some(ExprValue::Bool(false)),
                ..input(DeclaredType::Boolean)
            };
            let inputs = [
                ("script", input(DeclaredType::Array)),
                ("debug_trace", flag()),
                ("check_for_errors", flag()),
                ("posix_escape", flag()),
                ("trace_sections", flag()),
            ];
            function(Builtin::ScriptLegacy, inputs)
        }
        "concrete" => {
            // The config contains the tokens of the job.
            let config = InputSpec { sensitive: true, ..input(DeclaredType::String) };
            function(Builtin::Concrete, [("config", config)])
        }
        "function/oci/build" => step(Builtin::FunctionOciBuild, oci_build()),
        "function/oci/publish" => step(Builtin::FunctionOciPublish, oci_publish()),
        name => return Err(ResolveError::Builtin(name.to_owned())),
    };
    // Published images can be read by every user of the registry.
    let is_public = path.first().is_some_and(|name| name == "function");
    let (dir, tree) = (caller.dir.to_owned(), caller.tree.map(Path::to_owned));
    Ok(LoadedStep { file, dir, tree, accepts_secrets: !is_public })
}

fn input(kind: DeclaredType) -> InputSpec {
    InputSpec { kind, default: None, sensitive: false, description: None }
}

fn function<const N: usize>(function: Builtin, inputs: [(&str, InputSpec); N]) -> StepFile {
    let inputs = inputs.map(|(name, input)| (name.to_owned(), input));
    step(function, StepSpec { inputs: BTreeMap::from(inputs), outputs: OutputSpecs::default() })
}

fn step(function: Builtin, spec: StepSpec) -> StepFile {
    let definition = StepDefinition { env: BTreeMap::new(), action: StepAction::Builtin(function) };
    StepFile { spec, definition }
}

/// File name of the archive that `builtin://function/oci/build` writes.
pub const ARCHIVE: &str = "function-image.tar";

/// Returns the inputs and outputs of `builtin://function/oci/build`.
fn oci_build() -> StepSpec {
    let empty = || Some(ExprValue::Object(BTreeMap::new()));
    spec(
        [
            ("version", DeclaredType::String, None),
            ("common", DeclaredType::Struct, empty()),
            ("platforms", DeclaredType::Struct, empty()),
        ],
        &[
            ("archive", DeclaredType::String),
            ("version", DeclaredType::String),
            ("digest", DeclaredType::Struct),
        ],
    )
}

/// Returns the inputs and outputs of `builtin://function/oci/publish`.
fn oci_publish() -> StepSpec {
    spec(
        [
            ("archive", DeclaredType::String, Some(ExprValue::String(ARCHIVE.to_owned()))),
            ("to_repository", DeclaredType::String, None),
            ("overwrite", DeclaredType::Boolean, Some(ExprValue::Bool(false))),
        ],
        &[
            ("registry", DeclaredType::String),
            ("repository", DeclaredType::String),
            ("tag", DeclaredType::String),
            ("tags", DeclaredType::Array),
            ("ref", DeclaredType::String),
            ("digest", DeclaredType::Struct),
        ],
    )
}

fn spec<const N: usize>(
    inputs: [(&str, DeclaredType, Option<ExprValue>); N],
    outputs: &[(&str, DeclaredType)],
) -> StepSpec {
    let inputs = inputs.map(|(name, kind, default)| {
        (name.to_owned(), InputSpec { kind, default, sensitive: false, description: None })
    });
    let outputs = outputs.iter().map(|&(name, kind)| {
        (name.to_owned(), OutputSpec { kind, default: None, sensitive: false, description: None })
    });
    StepSpec { inputs: inputs.into(), outputs: OutputSpecs::Declared(outputs.collect()) }
}
