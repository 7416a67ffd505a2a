//! Pod templates of administrators, merged into the pods of a job and a step.

#![no_main]

use std::sync::Arc;

use container_hook::pod;
use container_hook_job::template::{BasePod, PodTemplate};
use libfuzzer_sys::fuzz_target;

const POD: &str = r#"{
    "metadata": {"labels": {"runner-pod": "r"}},
    "spec": {
        "containers": [
            {"name": "job", "image": "node", "env": [{"name": "A", "value": "1"}],
             "volumeMounts": [{"name": "work", "mountPath": "/__w"}]},
            {"name": "redis", "image": "redis:7"}
        ],
        "initContainers": [{"name": "fs-init", "image": "i"}],
        "volumes": [{"name": "work", "emptyDir": {}}]
    }
}"#;

fuzz_target!(|text: &str| {
    let base = || BasePod::parse("pod.json", POD).unwrap();
    let template = match PodTemplate::parse("t.yaml", text) {
        Ok(template) => template,
        Err(error) => {
            assert!(error.to_string().starts_with("t.yaml"));
            return;
        }
    };
    for merged in [template.merge_job(base()), template.merge_step(base())] {
        let Ok(merged) = merged else { continue };
        merged.notes.iter().for_each(|note| assert!(note.to_string().starts_with("t.yaml:")));
        let spec = merged.pod.spec.as_ref().unwrap();
        assert_eq!(merged.pod.metadata.labels.as_ref().unwrap()["runner-pod"], "r");
        assert_eq!(spec.containers[0].image.as_deref(), Some("node"));
        assert_eq!(spec.init_containers.as_ref().unwrap()[0].name, "fs-init");
        // What is written reads back as the same pod.
        for text in [merged.yaml(), merged.to_commented_yaml()] {
            let again = BasePod::parse("pod.yaml", &text).unwrap();
            assert_eq!(
                serde_json::to_value(again.pod).unwrap(),
                serde_json::to_value(&merged.pod).unwrap()
            );
        }
        match pod::check(&Arc::new(merged), "t.yaml") {
            Ok(lines) => assert!(lines.iter().all(|line| !line.is_empty())),
            Err(faults) => assert!(faults.to_string().starts_with("t.yaml:")),
        }
    }
});
