//! The second document of a step file: the definition.

use std::collections::BTreeMap;

use oci_hooks_yaml::{YamlNode, YamlValue, hint};

use super::super::{DeclaredType, ExprValue};
use super::error::{DocumentProblem, foreign_format, foreign_hint};
use super::reader::StepFileReader;
use super::reference::segments;
use super::types::{
    DEFINITION_KEYS, ExecCommand, OutputSpecs, RunAction, StepAction, StepCall, StepDefinition,
    StepReference, StepSpec, ValueSpec,
};

/// Keys of a step call.
const STEP_KEYS: [&str; 11] = [
    "action",
    "continue-on-error",
    "continue_on_error",
    "description",
    "env",
    "func",
    "if",
    "inputs",
    "name",
    "script",
    "step",
];

/// Mutually exclusive keys of a step call, one of which is required.
const CALLS: [&str; 4] = ["step", "func", "script", "action"];

/// URL and revision of the repository with the step that runs a GitHub action (`action`).
const ACTION_RUNNER: (&str, &str) = ("https://gitlab.com/components/action-runner", "main");

impl StepFileReader {
    /// Reads the second document, the definition.
    pub(super) fn definition(&mut self, root: &YamlNode) -> StepDefinition {
        let mut definition = StepDefinition {
            env: BTreeMap::new(),
            action: StepAction::Exec(ExecCommand { command: Vec::new(), work_dir: None }),
        };
        if root.is_null() {
            self.report(root, DocumentProblem::NoDefinition);
            return definition;
        }
        let has_action = root.get("exec").is_some() || root.get("run").is_some();
        if !has_action && let Some((format, field)) = foreign_format(root) {
            self.report_at(field.origin.position, format);
            return definition;
        }
        if !self.mapping(root, &DEFINITION_KEYS) {
            return definition;
        }
        definition.env = self.key(root, "env", Self::env).unwrap_or_default();
        match (root.get("exec"), root.get("run")) {
            (Some(_), Some(run)) => {
                self.report(run, DocumentProblem::Exclusive { first: "exec", second: "run" });
            }
            (None, None) => self.missing(root, "`exec` or `run`"),
            (Some(exec), None) => {
                for key in ["outputs", "delegate"] {
                    if let Some(node) = root.get(key) {
                        self.report(
                            node,
                            DocumentProblem::Exclusive { first: "exec", second: key },
                        );
                    }
                }
                let exec = self.read_at("exec", |reader| reader.exec(exec));
                definition.action = StepAction::Exec(exec);
            }
            (None, Some(run)) => {
                let steps = self.read_at("run", |reader| reader.steps(run));
                let outputs =
                    self.key(root, "outputs", |reader, node| reader.read_named(node, Self::value));
                let delegate = self.key(root, "delegate", Self::name);
                let outputs = outputs.unwrap_or_default();
                definition.action = StepAction::Run(RunAction { steps, outputs, delegate });
            }
        }
        definition
    }

    fn exec(&mut self, node: &YamlNode) -> ExecCommand {
        let mut exec = ExecCommand { command: Vec::new(), work_dir: None };
        if !self.mapping(node, &["command", "work_dir"]) {
            return exec;
        }
        match node.get("command") {
            None => self.missing(node, "`command`"),
            Some(command) => self.read_at("command", |reader| {
                exec.command = reader.list(command, Self::text);
                if matches!(&command.value, YamlValue::List(items) if items.is_empty()) {
                    reader.report(command, DocumentProblem::EmptyValue);
                }
            }),
        }
        exec.work_dir = self.key(node, "work_dir", Self::text);
        exec
    }

    /// Reads a list of at least one step call.
    pub(super) fn steps(&mut self, node: &YamlNode) -> Vec<StepCall> {
        let steps = self.list(node, Self::step);
        if matches!(&node.value, YamlValue::List(items) if items.is_empty()) {
            self.report(node, DocumentProblem::EmptyValue);
        }
        steps
    }

    fn step(&mut self, node: &YamlNode) -> StepCall {
        let step = self.call(node);
        // After `call`, which collects unknown keys: one of them may be the misspelled name.
        if matches!(node.value, YamlValue::Map(_)) && node.get("name").is_none() {
            self.missing(node, "`name`");
        }
        step
    }

    /// Reads a step call, which may lack a name.
    pub(super) fn call(&mut self, node: &YamlNode) -> StepCall {
        let mut step = StepCall::new(StepReference::Dynamic(String::new()));
        if !self.mapping(node, &STEP_KEYS) {
            return step;
        }
        if let Some(name) = node.get("name") {
            step.name = self.read_at("name", |reader| reader.name(name));
        }
        step.env = self.key(node, "env", Self::env).unwrap_or_default();
        step.condition = self.key(node, "if", Self::condition);
        self.key(node, "description", Self::text);
        let spellings = ["continue_on_error", "continue-on-error"];
        for (index, spelling) in spellings.into_iter().enumerate() {
            let Some(flag) = self.key(node, spelling, Self::flag) else { continue };
            step.continue_on_error = flag;
            if let Some(other) = node.get(spellings[0]).filter(|_| index == 1) {
                let [first, second] = spellings;
                self.report(other, DocumentProblem::Exclusive { first, second });
            }
        }
        let inputs =
            self.key(node, "inputs", |reader, inputs| reader.read_named(inputs, Self::value));
        let inputs = inputs.unwrap_or_default();

        let mut calls = CALLS.into_iter().filter(|key| node.get(key).is_some());
        let (call, other) = (calls.next(), calls.next());
        if let (Some(first), Some(second)) = (call, other) {
            let node = node.get(second).expect("it is there");
            self.report(node, DocumentProblem::Exclusive { first, second });
            return step;
        }
        match call {
            None => self.missing(node, "`step`, `func` or `script`"),
            Some("script") => {
                step.reference = StepReference::Builtin { path: vec!["script".to_owned()] };
                let script = self.key(node, "script", Self::read_nonempty_text).unwrap_or_default();
                step.inputs = BTreeMap::from([("script".to_owned(), ExprValue::String(script))]);
                if let Some(inputs) = node.get("inputs") {
                    let problem = DocumentProblem::Exclusive { first: "script", second: "inputs" };
                    self.report(inputs, problem);
                }
            }
            Some("action") => {
                let (url, rev) = ACTION_RUNNER;
                step.reference = StepReference::Git {
                    url: url.to_owned(),
                    rev: rev.to_owned(),
                    path: Vec::new(),
                    filename: None,
                };
                let action = self.key(node, "action", Self::read_nonempty_text).unwrap_or_default();
                step.inputs = BTreeMap::from([
                    ("action".to_owned(), ExprValue::String(action)),
                    ("inputs".to_owned(), ExprValue::Object(inputs)),
                ]);
            }
            Some(key) => {
                let reference = self.key(node, key, Self::reference);
                step.reference = reference.unwrap_or(step.reference);
                step.inputs = inputs;
            }
        }
        step
    }

    fn condition(&mut self, node: &YamlNode) -> String {
        match &node.value {
            YamlValue::Text(_) => self.read_nonempty_text(node),
            YamlValue::Bool(flag) => flag.to_string(),
            _ => {
                self.report_wrong_type(node, "an expression, or true or false");
                String::new()
            }
        }
    }

    fn reference(&mut self, node: &YamlNode) -> StepReference {
        let nothing = StepReference::Dynamic(String::new());
        match &node.value {
            YamlValue::Text(text) => match StepReference::parse(text) {
                Ok(reference) => reference,
                Err(error) => {
                    self.report(node, error);
                    nothing
                }
            },
            YamlValue::Map(_) => {
                if !self.mapping(node, &["git", "oci"]) {
                    return nothing;
                }
                match (node.get("git"), node.get("oci")) {
                    (Some(_), Some(oci)) => {
                        self.report(
                            oci,
                            DocumentProblem::Exclusive { first: "git", second: "oci" },
                        );
                        nothing
                    }
                    (Some(git), None) => self.read_at("git", |reader| reader.git(git)),
                    (None, Some(oci)) => self.read_at("oci", |reader| reader.oci(oci)),
                    (None, None) => {
                        self.missing(node, "`git` or `oci`");
                        nothing
                    }
                }
            }
            _ => {
                self.report_wrong_type(node, "a string, or a mapping with `git` or `oci`");
                nothing
            }
        }
    }

    fn git(&mut self, node: &YamlNode) -> StepReference {
        self.mapping(node, &["dir", "file", "rev", "url"]);
        let url = self.read_required_text(node, "url", "`url`");
        let rev = self.read_required_text(node, "rev", "`rev`: a tag, a branch or a commit");
        let (path, filename) = self.dir_and_file(node);
        StepReference::Git { url: StepReference::url(&url), rev, path, filename }
    }

    fn oci(&mut self, node: &YamlNode) -> StepReference {
        self.mapping(node, &["dir", "file", "registry", "repository", "tag"]);
        let registry = self.read_required_text(node, "registry", "`registry`");
        let repository = self.read_required_text(node, "repository", "`repository`");
        let tag = self.read_required_text(node, "tag", "`tag`");
        let (path, filename) = self.dir_and_file(node);
        StepReference::Oci { registry, repository, tag, path, filename }
    }

    /// Reads the text of a required key. `what` describes the key in the error if it is missing.
    fn read_required_text(&mut self, node: &YamlNode, key: &str, what: &'static str) -> String {
        let text = self.key(node, key, Self::read_nonempty_text);
        if text.is_none() && matches!(node.value, YamlValue::Map(_)) {
            self.missing(node, what);
        }
        text.unwrap_or_default()
    }

    fn dir_and_file(&mut self, node: &YamlNode) -> (Vec<String>, Option<String>) {
        let dir = self.key(node, "dir", Self::text).unwrap_or_default();
        (segments(&dir), self.key(node, "file", Self::read_nonempty_text))
    }
}

/// Keys in the declaration of an input or output.
const KEYS: [&str; 4] = ["type", "default", "description", "sensitive"];

impl StepFileReader {
    /// Reads the first document, `spec`.
    pub(super) fn spec_document(&mut self, root: &YamlNode) -> StepSpec {
        if root.is_null() {
            return StepSpec::default();
        }
        if !matches!(root.value, YamlValue::Map(_)) {
            self.report_wrong_type(root, "a mapping with `spec`");
            return StepSpec::default();
        }
        for field in root.fields() {
            let name = field.name.as_str();
            if DEFINITION_KEYS.contains(&name) {
                let hint = "it belongs in the second document, after a line `---`";
                self.unknown(field, hint.to_owned());
            } else if name != "spec" {
                let hint = match name {
                    "inputs" | "outputs" => format!("write it in `spec`: `spec: {{{name}: …}}`"),
                    _ => {
                        foreign_hint(name).or_else(|| hint(name, &["spec"])).expect("few are known")
                    }
                };
                self.unknown(field, hint);
            }
        }
        self.key(root, "spec", Self::spec).unwrap_or_default()
    }

    fn spec(&mut self, node: &YamlNode) -> StepSpec {
        if !self.mapping(node, &["inputs", "outputs"]) {
            return StepSpec::default();
        }
        let inputs =
            self.key(node, "inputs", |reader, inputs| reader.read_named(inputs, Self::declaration));
        let outputs = self.key(node, "outputs", Self::outputs);
        StepSpec { inputs: inputs.unwrap_or_default(), outputs: outputs.unwrap_or_default() }
    }

    fn outputs(&mut self, node: &YamlNode) -> OutputSpecs {
        match &node.value {
            YamlValue::Text(text) if text == "delegate" => OutputSpecs::Delegate,
            YamlValue::Map(_) => OutputSpecs::Declared(self.read_named(node, Self::declaration)),
            _ => {
                self.report_wrong_type(node, "a mapping, or `delegate`");
                OutputSpecs::default()
            }
        }
    }

    /// Reads the declaration of an input or output.
    fn declaration(&mut self, node: &YamlNode) -> ValueSpec {
        let mut declared = ValueSpec::new(DeclaredType::String);
        if node.is_null() {
            self.missing(node, "`type`");
            return declared;
        }
        if !self.mapping(node, &KEYS) {
            return declared;
        }
        let kind = self.key(node, "type", Self::kind);
        if kind.is_none() {
            self.missing(node, "`type`");
        }
        if let Some(kind) = kind.flatten() {
            declared.kind = kind;
            declared.default = self.key(node, "default", |reader, node| {
                let default = reader.value(node);
                if default.kind() != Some(kind) {
                    let found = node.value.kind();
                    reader.report(node, DocumentProblem::Default { declared: kind, found });
                }
                default
            });
        }
        declared.sensitive = self.key(node, "sensitive", Self::flag).unwrap_or_default();
        declared.description = self.key(node, "description", Self::text);
        declared
    }

    fn kind(&mut self, node: &YamlNode) -> Option<DeclaredType> {
        let name = self.text(node);
        let kind = DeclaredType::from_name(&name);
        if kind.is_none() {
            let hint =
                hint(&name, &DeclaredType::ALL.map(DeclaredType::name)).expect("few are known");
            self.report(node, DocumentProblem::UnknownType { name, hint });
        }
        kind
    }
}
