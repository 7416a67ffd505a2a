//! Converts results of steps to JSON, by the [JSON mapping of protocol buffers], and to the text
//! format of protocol buffers. Parses results from JSON, and definitions of steps from the text
//! format.
//!
//! [JSON mapping of protocol buffers]: https://protobuf.dev/programming-guides/json/

use std::collections::BTreeMap;
use std::sync::LazyLock;

use prost::Message;
use prost_reflect::text_format::FormatOptions;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde_json::Number;

use super::ExprValue;
use super::document::{
    ExecCommand, RunAction, StepAction, StepCall, StepDefinition, StepReference,
};
use super::wire::proto::StepResult;
use super::wire::{DESCRIPTORS, proto};

static STEP_RESULT: LazyLock<MessageDescriptor> =
    LazyLock::new(|| message_type("proto.StepResult"));

fn message_type(name: &str) -> MessageDescriptor {
    let pool = DescriptorPool::decode(DESCRIPTORS).expect("they are committed with a test");
    pool.get_message_by_name(name).expect("it is in them")
}

fn message(result: &StepResult) -> DynamicMessage {
    DynamicMessage::decode(STEP_RESULT.clone(), result.encode_to_vec().as_slice())
        .expect("it is what the descriptors say")
}

/// Converts the result of a step to the text format of protocol buffers.
pub fn to_text(result: &StepResult) -> String {
    message(result).to_text_format_with_options(&FormatOptions::new().pretty(true)) + "\n"
}

/// Converts the result of a step to JSON.
pub fn to_json(result: &StepResult) -> serde_json::Value {
    let mut json = serde_json::to_value(message(result)).expect("its keys are strings");
    shorten(&mut json);
    json
}

/// Replaces integral floating-point numbers in JSON by integers: 5, not 5.0.
fn shorten(json: &mut serde_json::Value) {
    match json {
        serde_json::Value::Number(number) => {
            // Text that parses as an integer is exact.
            let text = number.as_f64().map(|number| number.to_string()).unwrap_or_default();
            let whole = text.parse::<i64>().map(Number::from);
            if let Ok(whole) = whole.or_else(|_| text.parse::<u64>().map(Number::from)) {
                *number = whole;
            }
        }
        serde_json::Value::Array(items) => items.iter_mut().for_each(shorten),
        serde_json::Value::Object(members) => members.values_mut().for_each(shorten),
        _ => {}
    }
}

/// Parses the result of a step from JSON.
pub fn from_json(json: &[u8]) -> Result<StepResult, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(json);
    let options = DeserializeOptions::new().deny_unknown_fields(true);
    let message =
        DynamicMessage::deserialize_with_options(STEP_RESULT.clone(), &mut json, &options)?;
    json.end()?;
    Ok(message.transcode_to().expect("it is what the descriptors say"))
}

/// Reasons to reject a text as a message `proto.Definition`, the definition of a step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// The text cannot be parsed as a message `proto.Definition`.
    #[error("{0}")]
    Text(String),
    /// The type is neither `exec` nor `steps`.
    #[error("invalid `type`: expected exec or steps")]
    Type,
    /// The command, or the list of steps, is empty.
    #[error("{0} must not be empty")]
    Empty(&'static str),
    /// A step has no reference, or one with an unsupported protocol.
    #[error("step {0:?} has no reference of protocol local, git, oci, dist or dynamic")]
    Reference(String),
}

/// Parses a message `proto.Definition` in the text format of protocol buffers.
pub fn definition_from_text(text: &str) -> Result<StepDefinition, DefinitionError> {
    let message = DynamicMessage::parse_text_format(message_type("proto.Definition"), text);
    let message = message.map_err(|error| DefinitionError::Text(error.to_string()))?;
    definition(message.transcode_to().expect("it is what the descriptors say"))
}

fn definition(definition: proto::Definition) -> Result<StepDefinition, DefinitionError> {
    let action = match definition.r#type() {
        proto::DefinitionType::Exec => {
            let exec = definition.exec.unwrap_or_default();
            if exec.command.is_empty() {
                return Err(DefinitionError::Empty("exec.command"));
            }
            let work_dir = Some(exec.work_dir).filter(|dir| !dir.is_empty());
            StepAction::Exec(ExecCommand { command: exec.command, work_dir })
        }
        proto::DefinitionType::Steps => {
            if definition.steps.is_empty() {
                return Err(DefinitionError::Empty("steps"));
            }
            StepAction::Run(RunAction {
                steps: definition.steps.into_iter().map(step).collect::<Result<_, _>>()?,
                outputs: values(definition.outputs),
                delegate: Some(definition.delegate).filter(|name| !name.is_empty()),
            })
        }
        proto::DefinitionType::Unspecified => return Err(DefinitionError::Type),
    };
    Ok(StepDefinition { env: definition.env, action })
}

fn step(step: proto::Step) -> Result<StepCall, DefinitionError> {
    let found = step.step.and_then(reference);
    let reference = found.ok_or_else(|| DefinitionError::Reference(step.name.clone()))?;
    let (name, env, inputs) = (step.name, step.env, values(step.inputs));
    Ok(StepCall { name, env, inputs, ..StepCall::new(reference) })
}

fn reference(reference: proto::step::Reference) -> Option<StepReference> {
    use proto::StepReferenceProtocol as Protocol;
    let protocol = reference.protocol();
    let proto::step::Reference { url, path, filename, version, registry, repository, tag, .. } =
        reference;
    let filename = Some(filename).filter(|name| !name.is_empty());
    Some(match protocol {
        Protocol::Local => StepReference::Local { path, filename },
        Protocol::Git => StepReference::Git { url, rev: version, path, filename },
        Protocol::Oci => StepReference::Oci { registry, repository, tag, path, filename },
        Protocol::Dist => StepReference::Builtin { path },
        Protocol::Dynamic => StepReference::Dynamic(url),
        _ => return None,
    })
}

fn values(values: BTreeMap<String, prost_types::Value>) -> BTreeMap<String, ExprValue> {
    values.into_iter().map(|(name, value)| (name, value.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_parsed_from_text() {
        let text = r#"
            type: steps  # a comment
            env { key: "A" value: "1" }
            steps {
              name: "a"
              step { protocol: local path: "." path: "b" filename: "step.yml" }
              inputs { key: "n" value { number_value: 5 } }
            }
            steps { name: "c" step { protocol: dist path: "script" } }
            delegate: "a"
        "#;
        let StepDefinition { env, action: StepAction::Run(run) } =
            definition_from_text(text).unwrap()
        else {
            panic!("steps are expected");
        };
        assert_eq!(env["A"], "1");
        assert_eq!((run.steps.len(), run.delegate.as_deref()), (2, Some("a")));
        assert_eq!(run.steps[0].reference.to_string(), "./b/step.yml");
        assert_eq!(run.steps[0].inputs["n"], ExprValue::Number(5.0));
        assert_eq!(run.steps[1].reference.to_string(), "builtin://script");
    }

    #[test]
    fn invalid_definition_is_rejected() {
        for (text, expected) in [
            ("", DefinitionError::Type),
            ("type: exec", DefinitionError::Empty("exec.command")),
            ("type: steps", DefinitionError::Empty("steps")),
            ("type: steps steps { name: \"a\" }", DefinitionError::Reference("a".to_owned())),
        ] {
            assert_eq!(definition_from_text(text), Err(expected), "{text}");
        }
        for text in ["type: x", "nope: 1", "{", "type: exec exec { command: 5 }"] {
            assert!(matches!(definition_from_text(text), Err(DefinitionError::Text(_))), "{text}");
        }
    }
}
