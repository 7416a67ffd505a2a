//! Recorded merges of the Kubernetes hook.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::request::{HookCommand, HookRequest};
use crate::template::node::{PodNode, PodValue};
use crate::template::read::read_document;
use crate::template::{BasePod, MergedPod, PodTemplate, TemplateError, base};

/// A merge by the Kubernetes hook.
pub struct MergeCase {
    pub id: String,
    json: Json,
}

/// The result of this module where it differs from the Kubernetes hook.
enum OurResult {
    /// An error, with its position.
    Fails(&'static str),
    /// Another pod: the function changes the Kubernetes hook's pod.
    Pod(fn(&MergeCase, &mut Json)),
}

use OurResult::{Fails, Pod};

/// The cases in which this module differs: recorded bugs of the Kubernetes hook, and [`STRICTER`].
const DIFFERENT: [(&str, OurResult); 21] = [
    ("read-list", Fails("1:1: a template must be a mapping with `metadata` or `spec`, not a list")),
    (
        "read-yaml-scalars",
        Fails("5:8: metadata.annotations.c must be a string, not a number; write it in quotes"),
    ),
    ("meta-reserved-label", Pod(keep_label)),
    ("meta-reserved-label-step", Pod(keep_label)),
    ("meta-labels-list", Fails("2:11: metadata.labels must be a mapping, not a list")),
    ("meta-label-number", Fails("3:8: metadata.labels.n must be a string, not a number")),
    (
        "spec-initcontainers-replaced",
        Pod(|case, pod| {
            let own = &case.json["base_pod"]["spec"]["initContainers"][0];
            pod["spec"]["initContainers"].as_array_mut().unwrap().insert(0, own.clone());
        }),
    ),
    ("spec-volumes-dup", Fails("3:5: spec.volumes[0]: volume name `work` is already used")),
    ("spec-unknown-field", Fails("2:3: spec has no field `fooBar`")),
    ("spec-containers-null", Pod(keep_pod)),
    ("job-env-map", Fails("5:7: spec.containers[0].env must be a list, not a mapping")),
    ("job-mounts-null", Pod(keep_pod)),
    (
        "job-mounts-dup",
        Fails("5:7: spec.containers[0].volumeMounts: mount path /__w is already used"),
    ),
    ("job-no-name", Fails("3:5: spec.containers[0] needs `name`")),
    ("job-number-name", Fails("3:11: spec.containers[0].name must be a string, not a number")),
    ("job-unknown-field", Fails("4:5: spec.containers[0] has no field `foo`")),
    // A service that an entry names by its image is found, as in the Kubernetes hook.
    ("svc-by-image-not-context", Pod(|_, _| {})),
    (
        "svc-named-job",
        Pod(|case, pod| {
            let service = &case.json["base_pod"]["spec"]["containers"][1];
            pod["spec"]["containers"][1] = service.clone();
        }),
    ),
    (
        "svc-mounts-leak",
        Pod(|case, pod| {
            let job = &case.json["base_pod"]["spec"]["containers"][0];
            pod["spec"]["containers"][0] = job.clone();
            let own = case.json["base_pod"]["spec"]["containers"][1]["volumeMounts"].as_array();
            let added = json!({"name": "data", "mountPath": "/data"});
            let mounts: Vec<_> = own.unwrap().iter().cloned().chain([added]).collect();
            pod["spec"]["containers"][1]["volumeMounts"] = mounts.into();
        }),
    ),
    ("side-no-image", Fails("3:5: spec.containers[0] needs `image`")),
    (
        "side-same-as-service",
        Fails("3:5: spec.containers[0]: container name `redis` is already used"),
    ),
];

/// Cases in which this module is stricter although the Kubernetes hook has no bug, with the reason.
const STRICTER: [(&str, &str); 3] = [
    ("read-list", "it has no effect there, which nobody wants"),
    ("read-yaml-scalars", "an annotation is a string; the API server refuses others"),
    ("job-unknown-field", "a misspelt field has no effect there"),
];

fn keep_label(case: &MergeCase, pod: &mut Json) {
    pod["metadata"]["labels"] = case.json["base_pod"]["metadata"]["labels"].clone();
}

fn keep_pod(case: &MergeCase, pod: &mut Json) {
    *pod = case.json["base_pod"].clone();
}

pub(super) fn cases() -> Vec<MergeCase> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/template-cases.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let cases = text.lines().map(|line| {
        let json: Json = serde_json::from_str(line).unwrap();
        MergeCase { id: json["id"].as_str().unwrap().to_owned(), json }
    });
    cases.collect()
}

impl MergeCase {
    pub(super) fn is_job(&self) -> bool {
        self.json["kind"] == "prepare_job"
    }

    /// Returns the request that creates the pod.
    fn request(&self) -> HookCommand {
        let request = json!({
            "command": self.json["kind"],
            "responseFile": "/response.json",
            "args": self.json["args"],
        });
        HookRequest::parse(request.to_string().as_bytes()).unwrap().command
    }

    /// Returns the pod of the Kubernetes hook before the merge.
    pub fn base(&self) -> Option<BasePod> {
        let pod = &self.json["base_pod"];
        (!pod.is_null()).then(|| BasePod::parse("base.json", &pod.to_string()).unwrap())
    }

    pub(super) fn template(&self) -> Result<PodTemplate, TemplateError> {
        match (self.json["template_env"].as_str(), self.json["template_yaml"].as_str()) {
            (Some("missing-file"), _) => PodTemplate::read(Path::new("/nonexistent/template.yaml")),
            (Some("directory"), _) => PodTemplate::read(Path::new("/")),
            (_, Some(text)) => PodTemplate::parse("template.yaml", text),
            (_, None) => Ok(PodTemplate::default()),
        }
    }

    pub(super) fn merge(
        &self,
        template: &PodTemplate,
        base: BasePod,
    ) -> Result<MergedPod, TemplateError> {
        if self.is_job() { template.merge_job(base) } else { template.merge_step(base) }
    }
}

/// Returns a pod without null, empty lists and empty mappings. Quantities become texts.
pub fn normalize_pod(json: &Json) -> Json {
    let says_nothing = |json: &Json| match json {
        Json::Null => true,
        Json::Array(items) => items.is_empty(),
        Json::Object(members) => members.is_empty(),
        _ => false,
    };
    match json {
        Json::Array(items) => items.iter().map(normalize_pod).collect(),
        Json::Object(members) => {
            let members = members.iter().map(|(name, json)| match (name.as_str(), json) {
                ("limits" | "requests", Json::Object(quantities)) => {
                    let text = |json: &Json| json.as_str().map_or(json.to_string(), str::to_owned);
                    let texts = quantities.iter().map(|(name, json)| (name, text(json)));
                    (name.clone(), json!(texts.collect::<Vec<_>>()))
                }
                // An empty `emptyDir` is meaningful.
                ("emptyDir", _) => (name.clone(), json!([json])),
                _ => (name.clone(), normalize_pod(json)),
            });
            members.filter(|(_, json)| !says_nothing(json)).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn recorded_merges_match_except_for_known_bugs() {
    for case in cases() {
        let id = &case.id;
        let Some(base) = case.base() else { continue };
        let recorded = &case.json["expected"];
        let is_mistake = !case.json["reference_divergence"].is_null();
        let is_stricter = STRICTER.iter().any(|(other, _)| other == id);
        let different = DIFFERENT.iter().find(|(other, _)| other == id).map(|(_, ours)| ours);
        assert_eq!(different.is_some(), is_mistake || is_stricter, "{id}");

        let merged = case.template().and_then(|template| case.merge(&template, base));
        let error = merged.as_ref().err().map(ToString::to_string);
        match different {
            Some(Fails(message)) => {
                let error = error.unwrap_or_else(|| panic!("{id} is taken"));
                assert!(error.starts_with(&format!("template.yaml:{message}")), "{id}: {error}");
            }
            _ if different.is_none() && !recorded["error"].is_null() => {
                assert!(error.is_some(), "{id} is taken");
            }
            _ => {
                let mut expected = recorded["pod"].clone();
                if let Some(Pod(change)) = different {
                    change(&case, &mut expected);
                }
                let merged = merged.unwrap_or_else(|error| panic!("{id}: {error}"));
                let pod = serde_json::to_value(&merged.pod).unwrap();
                assert_eq!(normalize_pod(&pod), normalize_pod(&expected), "{id}");
            }
        }
    }
}

#[test]
fn warnings_of_the_kubernetes_hook_become_notes() {
    // Entries that the Kubernetes hook ignores silently.
    let silent = [
        "meta-other-fields",
        "svc-missing",
        "svc-same-image-suffix",
        "job-dollar-only",
        "job-double-dollar",
    ];
    for case in cases() {
        let (Some(base), Ok(template)) = (case.base(), case.template()) else { continue };
        let Ok(merged) = case.merge(&template, base) else { continue };
        let notes: Vec<_> = merged.notes.iter().map(ToString::to_string).collect();
        let recorded = case.json["expected"]["warnings"].as_array().unwrap();
        if silent.contains(&case.id.as_str()) {
            assert!(recorded.is_empty() && !notes.is_empty(), "{}", case.id);
        } else {
            assert_eq!(notes.len(), recorded.len(), "{}: {notes:?}", case.id);
        }
    }
}

#[test]
fn pod_of_a_request_matches_the_kubernetes_hook() {
    for case in cases() {
        if case.json["base_pod"].is_null() {
            continue;
        }
        let (base, added) = match case.request() {
            HookCommand::PrepareJob(args) => (base::job(&args, "runner-abc").unwrap(), ""),
            HookCommand::RunContainerStep(args) => (base::step(&args, "runner-abc"), "-XXXXXXXX"),
            other => panic!("{}: {other:?}", case.id),
        };
        let mut pod = serde_json::to_value(&base.pod).unwrap();
        pod["metadata"]["name"] =
            format!("{}{added}", pod["metadata"]["name"].as_str().unwrap()).into();
        assert_eq!(normalize_pod(&pod), normalize_pod(&case.json["base_pod"]), "{}", case.id);
        let count = pod["spec"]["containers"].as_array().unwrap().len();
        assert_eq!(base.targets.len(), count, "{}", case.id);
    }
}

#[test]
fn recorded_yaml_parses_identically() {
    let mut count = 0;
    for case in cases() {
        let (Some(text), expected) =
            (case.json["template_yaml"].as_str(), &case.json["template_json"])
        else {
            continue;
        };
        let found = read_document(text);
        if !expected.is_null() {
            assert_eq!(json_of(&found.unwrap()), *expected, "{}", case.id);
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}

fn json_of(node: &PodNode) -> Json {
    match &node.value {
        PodValue::Null => Json::Null,
        PodValue::Bool(flag) => (*flag).into(),
        PodValue::Number(number) => number.clone().into(),
        PodValue::Text(text) => text.as_str().into(),
        PodValue::List(items) => items.iter().map(json_of).collect(),
        PodValue::Map(fields) => {
            fields.iter().map(|field| (field.name.clone(), json_of(&field.node))).collect()
        }
    }
}
