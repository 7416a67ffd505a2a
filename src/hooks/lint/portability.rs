//! What others make of a file that the consumer accepts.

use super::sink::Sink;
use super::{Finding, rules, text};
use crate::hooks::HookError;
use crate::hooks::consumer::SchemaRule;
use crate::json::{Document, Location};

/// Reads the document as the stricter of the others do; stages are looked at where they stand.
pub(super) fn check(document: &Document<'_>, sink: &mut Sink<'_>) {
    if sink.options.consumer.schema == SchemaRule::Strict {
        return;
    }
    let strict = |other: &&crate::hooks::Consumer| other.schema == SchemaRule::Strict;
    let Some(other) = sink.options.others.iter().find(strict) else { return };
    let Err(fault) = text::load(document, other) else { return };
    let HookError::Rejected(reason) = fault.error else { return };
    let mut finding = Finding::new(
        &rules::NOT_PORTABLE,
        sink.path,
        format!("{} rejects it: {reason}", other.about),
    );
    finding.location = fault.location.map(|location| Location {
        pointer: location.pointer,
        ..Location::of_span(sink.text, location.span)
    });
    sink.push(finding);
}
