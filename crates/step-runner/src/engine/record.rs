//! Conversion of steps and results to protobuf messages.

use std::collections::BTreeMap;
use std::path::Path;

use super::super::document::{
    BuiltinFunction, OutputSpecs, STEP_FILE_NAMES, StepAction, StepCall, StepDefinition, StepFile,
    StepReference, StepSpec, ValueSpec,
};
use super::super::wire::proto;
use super::super::{DeclaredType, ExprValue};
use super::error::ExecError;

/// Argument of the shell that stands for the script in the protobuf definition of a `script` step.
const SCRIPT: &str = "${{inputs.script}}";

pub(super) fn values(values: &BTreeMap<String, ExprValue>) -> BTreeMap<String, prost_types::Value> {
    values.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect()
}

/// Returns the message that records the result of a command.
pub fn exec_result(
    ended: &Result<(), ExecError>,
    work_dir: &Path,
    command: Vec<String>,
) -> proto::step_result::ExecResult {
    let exit_code = match ended {
        Ok(()) => 0,
        Err(ExecError::Exit(code)) => *code,
        Err(_) => -1,
    };
    let work_dir = work_dir.to_string_lossy().into_owned();
    proto::step_result::ExecResult { command, work_dir, exit_code }
}

/// Converts a step call.
pub fn step(step: &StepCall) -> proto::Step {
    proto::Step {
        name: step.name.clone(),
        step: Some(reference(&step.reference)),
        env: step.env.clone(),
        inputs: values(&step.inputs),
    }
}

pub(super) fn reference(reference: &StepReference) -> proto::step::Reference {
    use proto::StepReferenceProtocol as Protocol;
    let default = || STEP_FILE_NAMES[0].to_owned();
    let file = |name: &Option<String>| name.clone().unwrap_or_else(default);
    let of = |protocol: Protocol| proto::step::Reference {
        protocol: protocol.into(),
        ..proto::step::Reference::default()
    };
    match reference {
        StepReference::Local { path, filename } => proto::step::Reference {
            path: path.clone(),
            filename: file(filename),
            ..of(Protocol::Local)
        },
        StepReference::Git { url, rev, path, filename } => proto::step::Reference {
            url: url.clone(),
            version: rev.clone(),
            path: path.clone(),
            filename: file(filename),
            ..of(Protocol::Git)
        },
        StepReference::Oci { registry, repository, tag, path, filename } => {
            proto::step::Reference {
                registry: registry.clone(),
                repository: repository.clone(),
                tag: tag.clone(),
                path: path.clone(),
                filename: file(filename),
                ..of(Protocol::Oci)
            }
        }
        StepReference::Builtin { path } => {
            proto::step::Reference { path: path.clone(), filename: default(), ..of(Protocol::Dist) }
        }
        StepReference::Dynamic(text) => {
            proto::step::Reference { url: text.clone(), ..of(Protocol::Dynamic) }
        }
    }
}

/// Converts a step file.
pub fn step_file(file: &StepFile) -> proto::SpecDefinition {
    proto::SpecDefinition {
        spec: Some(proto::Spec { spec: Some(spec(&file.spec)) }),
        definition: Some(definition(&file.definition)),
    }
}

fn spec(spec: &StepSpec) -> proto::spec::Content {
    use proto::OutputMethod as Method;
    let input = |input: &ValueSpec| proto::spec::content::Input {
        r#type: kind(input.kind).into(),
        default: input.default.clone().map(prost_types::Value::from),
        sensitive: input.sensitive,
    };
    let output = |output: &ValueSpec| proto::spec::content::Output {
        r#type: kind(output.kind).into(),
        default: output.default.clone().map(prost_types::Value::from),
        sensitive: output.sensitive,
    };
    let inputs = spec.inputs.iter().map(|(name, value)| (name.clone(), input(value))).collect();
    let (method, outputs) = match &spec.outputs {
        OutputSpecs::Delegate => (Method::Delegate, BTreeMap::new()),
        OutputSpecs::Declared(outputs) => {
            let outputs = outputs.iter().map(|(name, value)| (name.clone(), output(value)));
            (Method::Outputs, outputs.collect())
        }
    };
    proto::spec::Content { inputs, outputs, output_method: method.into() }
}

fn kind(kind: DeclaredType) -> proto::ValueType {
    match kind {
        DeclaredType::String => proto::ValueType::String,
        DeclaredType::Number => proto::ValueType::Number,
        DeclaredType::Boolean => proto::ValueType::Boolean,
        DeclaredType::Struct => proto::ValueType::Struct,
        DeclaredType::Array => proto::ValueType::Array,
    }
}

fn definition(definition: &StepDefinition) -> proto::Definition {
    let env = definition.env.clone();
    match &definition.action {
        StepAction::Exec(exec) => proto::Definition {
            r#type: proto::DefinitionType::Exec.into(),
            exec: Some(proto::definition::Exec {
                command: exec.command.clone(),
                work_dir: exec.work_dir.clone().unwrap_or_default(),
            }),
            env,
            ..proto::Definition::default()
        },
        StepAction::Run(run) => proto::Definition {
            r#type: proto::DefinitionType::Steps.into(),
            steps: run.steps.iter().map(step).collect(),
            outputs: values(&run.outputs),
            delegate: run.delegate.clone().unwrap_or_default(),
            env,
            ..proto::Definition::default()
        },
        // Recorded like in GitLab's runner, where this function is a step file.
        StepAction::Builtin(BuiltinFunction::Script { shell }) => proto::Definition {
            r#type: proto::DefinitionType::Exec.into(),
            exec: Some(proto::definition::Exec {
                command: [shell, "-c", SCRIPT].map(str::to_owned).to_vec(),
                work_dir: String::new(),
            }),
            env,
            ..proto::Definition::default()
        },
        StepAction::Builtin(_) => proto::Definition { env, ..proto::Definition::default() },
    }
}
