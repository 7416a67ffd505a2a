//! Masks secrets in the results of steps before they are passed to clients, files and terminals.
//!
//! `[MASKED]` replaces the values of inputs and outputs that are declared sensitive, of any type,
//! and in all other texts the secrets that are masked in the log. Variables of the environment in
//! which the server was started are left out: they are the same for all steps, and may contain
//! anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use prost_types::value::Kind;

use super::ExprValue;
use super::log::{LogStream, MASK, Masker, Masking, OutputSink, OutputSource, TooMuchToMask};
use super::wire::proto::{self, StepResult};

/// Ends of the names of variables in the server's environment whose values are masked in results.
const SECRET_NAME_ENDS: [&str; 7] =
    ["TOKEN", "PASSWORD", "PASSWD", "SECRET", "_JWT", "_KEY", "CREDENTIALS"];

/// Minimum length in bytes of a masked value of the server's environment. Shorter values are
/// numbers and switches, not secrets, even if the name of the variable ends like that of a secret.
const MIN_VARIABLE_BYTES: usize = 8;

/// Masks secrets in texts and results. Clones share the secrets.
#[derive(Clone)]
pub struct Redactor {
    secrets: Arc<Mutex<Secrets>>,
    /// Environment of the server. Variables with the same value are left out of results.
    inherited: Arc<BTreeMap<String, String>>,
}

struct Secrets {
    masker: Result<Masker, TooMuchToMask>,
    /// Secrets that are added to the masker before the next text is masked.
    added: Masking,
}

impl Redactor {
    /// Returns a redactor for the secrets of a job. `inherited` is the environment in which this program
    /// was started.
    pub fn new(masking: &Masking, inherited: BTreeMap<String, String>) -> Self {
        Self::with(Masker::new(masking), inherited)
    }

    /// Returns a redactor with the secrets of a masker, and of `inherited`, as in
    /// [`new`](Self::new).
    pub(super) fn with(
        masker: Result<Masker, TooMuchToMask>,
        inherited: BTreeMap<String, String>,
    ) -> Self {
        let is_secret = |name: &str| SECRET_NAME_ENDS.iter().any(|end| name.ends_with(end));
        let mut added = Masking::default();
        for (name, value) in &inherited {
            if is_secret(&name.to_ascii_uppercase()) && value.len() >= MIN_VARIABLE_BYTES {
                added.add_secret(value);
            }
        }
        let secrets = Mutex::new(Secrets { masker, added });
        Redactor { secrets: Arc::new(secrets), inherited: Arc::new(inherited) }
    }

    /// Masks a secret in all texts and results from now on.
    pub fn add_secret(&self, secret: &str) {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        secrets.added.add_secret(secret);
    }

    /// Returns a text with its secrets masked.
    pub fn text(&self, text: &str) -> String {
        let mut secrets = self.secrets.lock().unwrap_or_else(PoisonError::into_inner);
        let Secrets { masker, added } = &mut *secrets;
        let Masking { phrases, loose_phrases, .. } = std::mem::take(added);
        if let Ok(known) = masker
            && let Err(error) = known.add(&phrases, &loose_phrases)
        {
            *masker = Err(error);
        }
        let Ok(masker) = masker else {
            // Too many secrets to search for: the whole text is masked.
            return mask();
        };
        let mut masked = Vec::with_capacity(text.len());
        masker.write(text.as_bytes(), &mut masked);
        masker.finish(&mut masked);
        String::from_utf8_lossy(&masked).into_owned()
    }

    /// Masks the secrets in a result and its nested results.
    pub fn redact(&self, result: &mut StepResult) {
        let outputs = sensitive_outputs(result);
        let inputs = sensitive_inputs(result);
        let steps: BTreeMap<_, _> = result
            .sub_step_results
            .iter()
            .filter_map(|step| Some((step.step.as_ref()?.name.clone(), sensitive_inputs(step))))
            .collect();
        if let Some(step) = &mut result.step {
            self.step(step, &inputs);
        }
        if let Some(file) = &mut result.spec_definition {
            self.step_file(file, &steps);
        }
        self.values(&mut result.outputs, &outputs);
        self.texts(&mut result.exports);
        self.env(&mut result.env);
        if let Some(exec) = &mut result.exec_result {
            exec.command.iter_mut().for_each(|argument| self.replace(argument));
            self.replace(&mut exec.work_dir);
        }
        result.sub_step_results.iter_mut().for_each(|step| self.redact(step));
    }

    fn step(&self, step: &mut proto::Step, sensitive: &BTreeSet<String>) {
        self.env(&mut step.env);
        self.values(&mut step.inputs, sensitive);
        let Some(reference) = &mut step.step else { return };
        let texts = [
            &mut reference.url,
            &mut reference.version,
            &mut reference.filename,
            &mut reference.registry,
            &mut reference.repository,
            &mut reference.tag,
        ];
        reference.path.iter_mut().chain(texts).for_each(|text| self.replace(text));
    }

    /// Masks secrets in a step file; `steps` has the names of the sensitive inputs of each called
    /// step, by the name of the step.
    fn step_file(
        &self,
        file: &mut proto::SpecDefinition,
        steps: &BTreeMap<String, BTreeSet<String>>,
    ) {
        if let Some(spec) = file.spec.as_mut().and_then(|spec| spec.spec.as_mut()) {
            for input in spec.inputs.values_mut() {
                input.default.iter_mut().for_each(|value| self.value(value, input.sensitive));
            }
            for output in spec.outputs.values_mut() {
                output.default.iter_mut().for_each(|value| self.value(value, output.sensitive));
            }
        }
        let Some(definition) = &mut file.definition else { return };
        if let Some(exec) = &mut definition.exec {
            exec.command.iter_mut().for_each(|argument| self.replace(argument));
            self.replace(&mut exec.work_dir);
        }
        self.texts(&mut definition.env);
        self.values(&mut definition.outputs, &BTreeSet::new());
        for step in &mut definition.steps {
            let none = BTreeSet::new();
            let sensitive = steps.get(&step.name).unwrap_or(&none);
            self.step(step, sensitive);
        }
    }

    fn values(
        &self,
        values: &mut BTreeMap<String, prost_types::Value>,
        sensitive: &BTreeSet<String>,
    ) {
        for (name, value) in values {
            self.value(value, sensitive.contains(name));
        }
    }

    fn value(&self, value: &mut prost_types::Value, is_sensitive: bool) {
        match &mut value.kind {
            _ if is_sensitive => value.kind = Some(Kind::StringValue(mask())),
            Some(Kind::StringValue(text)) => self.replace(text),
            Some(Kind::NumberValue(number)) => {
                let text = ExprValue::Number(*number).to_text();
                let masked = self.text(&text);
                if masked != text {
                    value.kind = Some(Kind::StringValue(masked));
                }
            }
            Some(Kind::ListValue(list)) => {
                list.values.iter_mut().for_each(|item| self.value(item, false));
            }
            Some(Kind::StructValue(members)) => {
                let fields = std::mem::take(&mut members.fields);
                members.fields = fields
                    .into_iter()
                    .map(|(name, mut value)| {
                        self.value(&mut value, false);
                        (self.text(&name), value)
                    })
                    .collect();
            }
            Some(Kind::NullValue(_) | Kind::BoolValue(_)) | None => {}
        }
    }

    /// Removes variables that have the same value in the server's environment, and masks secrets in
    /// the values of others.
    fn env(&self, env: &mut BTreeMap<String, String>) {
        env.retain(|name, value| self.inherited.get(name) != Some(value));
        self.texts(env);
    }

    fn texts(&self, texts: &mut BTreeMap<String, String>) {
        texts.values_mut().for_each(|text| self.replace(text));
    }

    fn replace(&self, text: &mut String) {
        if !text.is_empty() {
            *text = self.text(text);
        }
    }
}

fn mask() -> String {
    String::from_utf8_lossy(MASK).into_owned()
}

fn spec(result: &StepResult) -> Option<&proto::spec::Content> {
    result.spec_definition.as_ref()?.spec.as_ref()?.spec.as_ref()
}

fn sensitive_inputs(result: &StepResult) -> BTreeSet<String> {
    let inputs = spec(result).into_iter().flat_map(|spec| &spec.inputs);
    inputs.filter(|(_, input)| input.sensitive).map(|(name, _)| name.clone()).collect()
}

/// Returns the names of the sensitive outputs of a step, or of the step that it delegates to.
fn sensitive_outputs(result: &StepResult) -> BTreeSet<String> {
    let Some(spec) = spec(result) else { return BTreeSet::new() };
    if spec.output_method == i32::from(proto::OutputMethod::Delegate) {
        let definition = result.spec_definition.as_ref().and_then(|file| file.definition.as_ref());
        let name = definition.map_or("", |definition| &definition.delegate);
        let is_it = |step: &&StepResult| step.step.as_ref().is_some_and(|step| step.name == name);
        let delegate = result.sub_step_results.iter().rev().find(is_it);
        return delegate.map(sensitive_outputs).unwrap_or_default();
    }
    let outputs = spec.outputs.iter().filter(|(_, output)| output.sensitive);
    outputs.map(|(name, _)| name.clone()).collect()
}

/// An output sink that forwards to another one, and also adds each secret to mask to a [`Redactor`], so that
/// results are masked like the log.
pub struct RedactedOutput<'a, O> {
    pub output: &'a mut O,
    pub redactor: &'a Redactor,
}

impl<O: OutputSink> OutputSink for RedactedOutput<'_, O> {
    fn write(&mut self, source: OutputSource, stream: LogStream, bytes: &[u8]) {
        self.output.write(source, stream, bytes);
    }

    fn flush(&mut self) {
        self.output.flush();
    }

    fn release(&mut self, now: Instant) -> Option<Instant> {
        self.output.release(now)
    }

    fn mask(&mut self, secret: &str) {
        self.redactor.add_secret(secret);
        self.output.mask(secret);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::trace;
    use super::*;

    fn redact_json(result: &serde_json::Value, secret: &str) -> serde_json::Value {
        let mut result = trace::from_json(result.to_string().as_bytes()).unwrap();
        let inherited = [("HOME", "/root"), ("API_TOKEN", "inherited-1"), ("N_KEY", "short")];
        let inherited = inherited.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let redactor = Redactor::new(&Masking::default(), inherited.into());
        redactor.add_secret(secret);
        redactor.redact(&mut result);
        trace::to_json(&result)
    }

    #[test]
    fn secrets_are_masked_everywhere() {
        let result = json!({
            "step": {
                "name": "a",
                "step": {
                    "url": "https://u:canary@host", "path": ["canary"], "filename": "canary",
                    "version": "canary", "registry": "canary", "repository": "canary", "tag": "canary"
                },
                "env": {"HOME": "/root", "X": "is canary"},
                "inputs": {"flag": true, "v": {"canary": [1, "canary"]}}
            },
            "specDefinition": {
                "spec": {"spec": {
                    "inputs": {"flag": {"type": "boolean", "default": true, "sensitive": true}},
                    "outputs": {"n": {"type": "number", "sensitive": true}, "m": {"type": "number"}}
                }},
                "definition": {
                    "type": "steps",
                    "env": {"Y": "canary"},
                    "exec": {"command": ["canary"], "workDir": "/canary"},
                    "steps": [{"name": "b", "inputs": {"pin": 17, "out": 17}}],
                    "outputs": {"m": "canary"}
                }
            },
            "outputs": {"n": 5, "m": 6},
            "exports": {"E": "inherited-1 canary"},
            "env": {"HOME": "/elsewhere", "N_KEY": "short"},
            "execResult": {"command": ["echo", "canary"], "workDir": "/canary", "exitCode": 3},
            "subStepResults": [{
                "step": {"name": "b", "inputs": {"pin": 17}},
                "specDefinition": {"spec": {"spec": {"inputs": {"pin": {"type": "number", "sensitive": true}}}}}
            }]
        });
        let masked = redact_json(&result, "canary");
        let expected = json!({
            "step": {
                "name": "a",
                "step": {
                    "url": "https://u:[MASKED]@host", "path": ["[MASKED]"], "filename": "[MASKED]",
                    "version": "[MASKED]", "registry": "[MASKED]", "repository": "[MASKED]",
                    "tag": "[MASKED]"
                },
                "env": {"X": "is [MASKED]"},
                "inputs": {"flag": "[MASKED]", "v": {"[MASKED]": [1, "[MASKED]"]}}
            },
            "specDefinition": {
                "spec": {"spec": {
                    "inputs": {"flag": {"type": "boolean", "default": "[MASKED]", "sensitive": true}},
                    "outputs": {"n": {"type": "number", "sensitive": true}, "m": {"type": "number"}}
                }},
                "definition": {
                    "type": "steps",
                    "env": {"Y": "[MASKED]"},
                    "exec": {"command": ["[MASKED]"], "workDir": "/[MASKED]"},
                    "steps": [{"name": "b", "inputs": {"pin": "[MASKED]", "out": 17}}],
                    "outputs": {"m": "[MASKED]"}
                }
            },
            "outputs": {"n": "[MASKED]", "m": 6},
            "exports": {"E": "[MASKED] [MASKED]"},
            "env": {"HOME": "/elsewhere"},
            "execResult": {"command": ["echo", "[MASKED]"], "workDir": "/[MASKED]", "exitCode": 3},
            "subStepResults": [{
                "step": {"name": "b", "inputs": {"pin": "[MASKED]"}},
                "specDefinition": {"spec": {"spec": {"inputs": {"pin": {"type": "number", "sensitive": true}}}}}
            }]
        });
        assert_eq!(masked, expected);
    }

    #[test]
    fn delegated_outputs_inherit_sensitivity() {
        let inner = json!({"outputs": {"n": {"type": "number", "sensitive": true}}});
        let result = json!({
            "specDefinition": {
                "spec": {"spec": {"outputMethod": "delegate"}},
                "definition": {"delegate": "b"}
            },
            "outputs": {"n": 5, "m": 1234},
            "subStepResults": [{
                "step": {"name": "b"},
                "specDefinition": {"spec": {"spec": inner}},
                "outputs": {"n": 5}
            }]
        });
        let masked = redact_json(&result, "1234");
        assert_eq!(masked["outputs"], json!({"n": "[MASKED]", "m": "[MASKED]"}));
    }

    #[test]
    fn all_texts_are_masked_if_there_are_too_many_secrets() {
        let redactor = Redactor::new(&Masking::default(), BTreeMap::new());
        assert_eq!(redactor.text("text"), "text");
        redactor.add_secret(&"x".repeat(5 << 20));
        assert_eq!(redactor.text("text"), "[MASKED]");
    }
}
