//! A merged template for tests.

use std::sync::Arc;

use container_hook_job::template::{BasePod, FieldPath, MergedPod, PodTemplate};
use serde_json::Value;

/// Merges a template into the smallest pod of a job.
pub fn merge_template(template: &Value) -> (Arc<MergedPod>, FieldPath) {
    let base = BasePod::parse("pod", "spec: {containers: [{name: job, image: a}]}").unwrap();
    let template = PodTemplate::parse("/t", &template.to_string()).unwrap();
    let merged = Arc::new(template.merge_job(base).unwrap());
    let place = FieldPath::top(Arc::clone(&merged), "/t");
    (merged, place)
}
