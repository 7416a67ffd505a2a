//! Built-in steps, which this program implements: `builtin://NAME`, formerly `dist://NAME`.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::document::{
    BuiltinFunction, OutputSpecs, StepAction, StepDefinition, StepFile, StepSpec, ValueSpec,
};
use super::super::{DeclaredType, ExprValue};
use super::context::{LoadedStep, ReferenceContext};
use super::error::ResolveError;

/// Candidate shells for `builtin://script`; the first that exists is used.
const SHELLS: [&str; 4] = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/bin/sh"];

/// File name of the archive that `builtin://function/oci/build` writes.
pub const ARCHIVE: &str = "function-image.tar";

/// Returns the built-in step with a name, whose segments are in `path`.
pub fn load(path: &[String], caller: &ReferenceContext<'_>) -> Result<LoadedStep, ResolveError> {
    let required = ValueSpec::new;
    let file = match path.join("/").as_str() {
        "script" => {
            let shell = SHELLS.into_iter().find(|shell| Path::new(shell).exists()).unwrap_or("sh");
            step(
                BuiltinFunction::Script { shell },
                [("script", required(DeclaredType::String))],
                [],
            )
        }
        "script_legacy" => {
            let flag = || optional(DeclaredType::Boolean, ExprValue::Bool(false));
            let inputs = [
                ("script", required(DeclaredType::Array)),
                ("debug_trace", flag()),
                ("check_for_errors", flag()),
                ("posix_escape", flag()),
                ("trace_sections", flag()),
            ];
            step(BuiltinFunction::ScriptLegacy, inputs, [])
        }
        "concrete" => {
            // The config contains the tokens of the job.
            let config = ValueSpec { sensitive: true, ..required(DeclaredType::String) };
            step(BuiltinFunction::Concrete, [("config", config)], [])
        }
        "function/oci/build" => {
            let files = || optional(DeclaredType::Struct, ExprValue::Object(BTreeMap::new()));
            let inputs = [
                ("version", required(DeclaredType::String)),
                ("common", files()),
                ("platforms", files()),
            ];
            let outputs = [
                ("archive", DeclaredType::String),
                ("version", DeclaredType::String),
                ("digest", DeclaredType::Struct),
            ];
            step(BuiltinFunction::FunctionOciBuild, inputs, outputs)
        }
        "function/oci/publish" => {
            let archive = ExprValue::String(ARCHIVE.to_owned());
            let inputs = [
                ("archive", optional(DeclaredType::String, archive)),
                ("to_repository", required(DeclaredType::String)),
                ("overwrite", optional(DeclaredType::Boolean, ExprValue::Bool(false))),
            ];
            let outputs = [
                ("registry", DeclaredType::String),
                ("repository", DeclaredType::String),
                ("tag", DeclaredType::String),
                ("tags", DeclaredType::Array),
                ("ref", DeclaredType::String),
                ("digest", DeclaredType::Struct),
            ];
            step(BuiltinFunction::FunctionOciPublish, inputs, outputs)
        }
        name => return Err(ResolveError::Builtin(name.to_owned())),
    };
    // Published images can be read by every user of the registry.
    let is_public = path.first().is_some_and(|name| name == "function");
    let (dir, tree) = (caller.dir.to_owned(), caller.tree.map(Path::to_owned));
    Ok(LoadedStep { file, dir, tree, accepts_secrets: !is_public })
}

fn optional(kind: DeclaredType, default: ExprValue) -> ValueSpec {
    ValueSpec { default: Some(default), ..ValueSpec::new(kind) }
}

fn step<const I: usize, const O: usize>(
    function: BuiltinFunction,
    inputs: [(&str, ValueSpec); I],
    outputs: [(&str, DeclaredType); O],
) -> StepFile {
    let inputs = inputs.map(|(name, input)| (name.to_owned(), input));
    let outputs = outputs.map(|(name, kind)| (name.to_owned(), ValueSpec::new(kind)));
    let outputs = OutputSpecs::Declared(outputs.into());
    let definition = StepDefinition { env: BTreeMap::new(), action: StepAction::Builtin(function) };
    StepFile { spec: StepSpec { inputs: inputs.into(), outputs }, definition }
}
