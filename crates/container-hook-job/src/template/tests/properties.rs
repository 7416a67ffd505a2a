//! Properties of all templates.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::cases::cases;
use crate::template::emit::emit;
use crate::template::node::{PodEntry, PodNode, PodValue, ValueOrigin};
use crate::template::read::read_document;
use crate::template::{BasePod, PodTemplate};

/// Returns a template from JSON, which is YAML too.
fn template(json: &Json) -> PodTemplate {
    PodTemplate::parse("t.yaml", &json.to_string()).unwrap()
}

fn bases() -> Vec<(bool, BasePod)> {
    let cases = cases();
    let bases = cases.iter().filter_map(|case| Some((case.is_job(), case.base()?)));
    bases.collect()
}

fn merge_pod(is_job: bool, template: &PodTemplate, base: BasePod) -> Pod {
    let merged = if is_job { template.merge_job(base) } else { template.merge_step(base) };
    merged.unwrap().pod
}

fn spec(pod: &Pod) -> &PodSpec {
    pod.spec.as_ref().unwrap()
}

#[test]
fn empty_templates_change_nothing() {
    for empty in [
        json!({}),
        json!({"metadata": null, "spec": null}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {}}),
        json!({"metadata": {"labels": {}, "annotations": {}}}),
        json!({"spec": {"containers": [], "volumes": [], "initContainers": []}}),
        json!({"spec": {"containers": [{"name": "$job"}, {"name": "$redis"}]}}),
        json!({"spec": {"containers": [{"name": "$job", "env": [], "ports": [], "volumeMounts": []}]}}),
    ] {
        for (is_job, base) in bases() {
            let before = base.pod.clone();
            assert_eq!(merge_pod(is_job, &template(&empty), base), before, "{empty}");
        }
    }
}

/// Generates distinct names that no recorded pod has.
fn names() -> impl Strategy<Value = Vec<String>> {
    prop::collection::btree_set("x[a-z]{1,6}", 0..5).prop_map(|names| names.into_iter().collect())
}

fn shuffled_names() -> impl Strategy<Value = Vec<String>> {
    names().prop_shuffle()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn merges_without_appending_are_idempotent(
        labels in prop::collection::btree_map("[a-z]{1,4}", ".{0,6}", 0..4),
        hostname in prop::option::of(".{0,6}"),
        host_network in prop::option::of(any::<bool>()),
        command in prop::option::of(prop::collection::vec(".{0,4}", 0..3)),
        cpu in prop::option::of(1..100_u32),
        which in any::<prop::sample::Index>(),
    ) {
        let resources = cpu.map(|cpu| json!({"limits": {"cpu": cpu}}));
        let template = template(&json!({
            "metadata": {"labels": labels, "annotations": labels},
            "spec": {
                "hostname": hostname,
                "hostNetwork": host_network,
                "containers": [{"name": "$job", "command": command, "resources": resources}],
            },
        }));
        let bases = bases();
        let (is_job, base) = which.get(&bases).clone();
        let targets = base.targets.clone();
        let once = merge_pod(is_job, &template, base);
        let twice = merge_pod(is_job, &template, BasePod::new(once.clone(), targets));
        prop_assert_eq!(once, twice);
    }

    #[test]
    fn lists_are_appended_in_order(
        variables in shuffled_names(),
        mounts in shuffled_names(),
        volumes in shuffled_names(),
        side_cars in shuffled_names(),
        which in any::<prop::sample::Index>(),
    ) {
        let side_car = |name: &String| json!({"name": format!("side-{name}"), "image": "i"});
        let job = json!({
            "name": "$job",
            "env": variables.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
            "volumeMounts": mounts.iter().map(|name| json!({"name": name, "mountPath": format!("/{name}")})).collect::<Vec<_>>(),
        });
        let containers: Vec<_> = side_cars.iter().map(side_car).chain([job]).collect();
        let template = template(&json!({"spec": {
            "containers": containers,
            "initContainers": volumes.iter().map(|name| json!({"name": name, "image": "i"})).collect::<Vec<_>>(),
            "volumes": volumes.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        }}));
        let bases = bases();
        let (is_job, base) = which.get(&bases).clone();
        let before = base.pod.clone();
        let after = merge_pod(is_job, &template, base);

        let env = |pod: &Pod| -> Vec<String> {
            spec(pod).containers[0].env.iter().flatten().map(|env| env.name.clone()).collect()
        };
        let mounted = |pod: &Pod| -> Vec<String> {
            let mounts = spec(pod).containers[0].volume_mounts.iter().flatten();
            mounts.map(|mount| mount.name.clone()).collect()
        };
        let volume_names = |pod: &Pod| -> Vec<String> {
            spec(pod).volumes.iter().flatten().map(|volume| volume.name.clone()).collect()
        };
        let named = |containers: &[Container]| -> Vec<String> {
            containers.iter().map(|container| container.name.clone()).collect()
        };
        let init = |pod: &Pod| named(spec(pod).init_containers.as_deref().unwrap_or_default());
        let side_cars: Vec<_> = side_cars.iter().map(|name| format!("side-{name}")).collect();
        prop_assert_eq!(env(&after), [env(&before), variables].concat());
        prop_assert_eq!(mounted(&after), [mounted(&before), mounts].concat());
        prop_assert_eq!(volume_names(&after), [volume_names(&before), volumes.clone()].concat());
        prop_assert_eq!(init(&after), [init(&before), volumes].concat());
        let containers = [named(&spec(&before).containers), side_cars].concat();
        prop_assert_eq!(named(&spec(&after).containers), containers);
    }

    #[test]
    fn arbitrary_text_is_parsed_or_rejected(text in ".{0,200}|[-\\[\\]{}:,#&*!|>'\"%@`a \\n]{0,60}") {
        if let Err(error) = PodTemplate::parse("t.yaml", &text) {
            prop_assert!(error.to_string().starts_with("t.yaml:"));
        }
    }

    #[test]
    fn written_yaml_parses_back(node in nodes()) {
        let text = emit(&node, &|_| None);
        let explained = emit(&node, &|_| Some("a: comment".to_owned()));
        for text in [text, explained] {
            let parsed = read_document(&text).unwrap().with_origins(|_| ValueOrigin::Given);
            prop_assert_eq!(&parsed, &node, "{}", text);
        }
    }
}

/// Generates trees of all kinds of values.
fn nodes() -> impl Strategy<Value = PodNode> {
    let node = |value| PodNode { origin: ValueOrigin::Given, value };
    let text = prop_oneof![
        any::<String>(),
        "[-?:,\\[\\]{}#&*!|>'\"%@`~ a0.\\n\\t]{0,8}",
        prop::sample::select(vec![
            "",
            "null",
            "yes",
            "0x1",
            "1e3",
            "1:30",
            "---",
            "...",
            "- a",
            "a: b",
            "a #b",
            "=",
            "2024-01-01",
            ".inf"
        ])
        .prop_map(str::to_owned),
    ];
    let leaf = prop_oneof![
        Just(PodValue::Null),
        any::<bool>().prop_map(PodValue::Bool),
        any::<i64>().prop_map(|number| PodValue::Number(number.into())),
        text.clone().prop_map(PodValue::Text),
    ];
    leaf.prop_map(node).prop_recursive(4, 32, 4, move |inner| {
        let field = (text.clone(), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(PodValue::List),
            prop::collection::vec(field, 0..4).prop_map(|fields| {
                let mut fields: Vec<_> = fields
                    .into_iter()
                    .map(|(name, node)| PodEntry { name, origin: ValueOrigin::Given, node })
                    .collect();
                fields.sort_by(|a, b| a.name.cmp(&b.name));
                fields.dedup_by(|a, b| a.name == b.name);
                PodValue::Map(fields)
            }),
        ]
        .prop_map(node)
    })
}
