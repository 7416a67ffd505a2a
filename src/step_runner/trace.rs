//! Results of steps in JSON, by the [JSON mapping of protocol buffers], and in the text format of protocol
//! buffers.
//!
//! [JSON mapping of protocol buffers]: https://protobuf.dev/programming-guides/json/

use std::sync::LazyLock;

use prost::Message;
use prost_reflect::text_format::FormatOptions;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage, MessageDescriptor};
use serde_json::Number;

use super::wire::{DESCRIPTORS, proto::StepResult};

mod definition;

pub use definition::{DefinitionError, definition_from_text};

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

/// Converts integral numbers to integers: 5, not 5.0.
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
