//! What the Kubernetes hook was seen to do, and where this module differs from it.

use std::fs;
use std::path::Path;

use serde_json::Value as Json;

use super::*;

/// A merge by the Kubernetes hook.
struct Case {
    id: String,
    json: Json,
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/container-hook/template-cases.jsonl");
    let text = fs::read_to_string(path).unwrap();
    let cases = text.lines().map(|line| {
        let json: Json = serde_json::from_str(line).unwrap();
        Case { id: json["id"].as_str().unwrap().to_owned(), json }
    });
    cases.collect()
}

impl Case {
    fn is_job(&self) -> bool {
        self.json["kind"] == "prepare_job"
    }

    /// The pod that the Kubernetes hook had before it merged.
    fn base(&self) -> Base {
        Base::parse("base.json", &self.json["base_pod"].to_string()).unwrap()
    }

    fn merge(&self, base: Base) -> Result<Merged, TemplateError> {
        let text = self.json["template_yaml"].as_str().unwrap_or("{}");
        let template = Template::parse("template.yaml", text)?;
        if self.is_job() { template.merge_job(base) } else { template.merge_step(base) }
    }
}

/// Returns a pod without what says nothing: nulls, empty lists and mappings; quantities as texts.
fn normal(json: &Json) -> Json {
    let is_empty = |json: &Json| {
        json.is_null()
            || json.as_array().is_some_and(Vec::is_empty)
            || json.as_object().is_some_and(|object| object.is_empty())
    };
    match json {
        Json::Array(items) => items.iter().map(normal).collect(),
        Json::Object(members) => {
            let is_quantities = |name: &str| name == "limits" || name == "requests";
            let members = members.iter().map(|(name, json)| match json {
                Json::Object(quantities) if is_quantities(name) => {
                    let text = |json: &Json| json.as_str().map_or(json.to_string(), str::to_owned);
                    let texts =
                        quantities.iter().map(|(name, json)| (name.clone(), text(json).into()));
                    (name.clone(), Json::Object(texts.collect()))
                }
                // That a volume is an empty directory is said by an empty mapping.
                json if name == "emptyDir" => (name.clone(), json.clone()),
                json => (name.clone(), normal(json)),
            });
            members.filter(|(name, json)| name == "emptyDir" || !is_empty(json)).collect()
        }
        other => other.clone(),
    }
}

#[test]
fn scratch() {
    for case in cases() {
        if case.json["base_pod"].is_null()
            || case.json["template_env"] != "file" && case.json["template_env"] != "unset"
        {
            println!("skip {}", case.id);
            continue;
        }
        let merged = case.merge(case.base());
        let exp = &case.json["expected"]["pod"];
        let ok = match &merged {
            Ok(m) => normal(&serde_json::to_value(&m.pod).unwrap()) == normal(exp),
            Err(_) => exp.is_null(),
        };
        if !ok || !case.json["reference_divergence"].is_null() || merged.is_err() {
            println!(
                "{} ok={ok} div={} -> {}",
                case.id,
                case.json["reference_divergence"],
                match &merged {
                    Ok(m) =>
                        format!("{:?}", m.notes.iter().map(|n| n.to_string()).collect::<Vec<_>>()),
                    Err(e) => e.to_string(),
                }
            );
        }
    }
}
