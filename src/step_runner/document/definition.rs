//! The second document of a step file: the definition.

use std::collections::BTreeMap;

use super::super::{Type, Value as StepValue};
use super::error::{Problem, foreign_format, foreign_hint};
use super::reader::Reader;
use super::reference::segments;
use super::types::{
    Action, DEFINITION_KEYS, Definition, Exec, Input, Output, Outputs, Reference, Run, Spec, Step,
};
use crate::yaml::{Node, Value, hint};

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

/// Keys of which a step call has exactly one.
const CALLS: [&str; 4] = ["step", "func", "script", "action"];

/// Repository and revision of the step that runs an `action`.
const ACTION_RUNNER: (&str, &str) = ("https://gitlab.com/components/action-runner", "main");

impl Reader {
    /// Reads the second document, the definition.
    pub(super) fn definition(&mut self, root: &Node) -> Definition {
        let mut definition = Definition {
            env: BTreeMap::new(),
            action: Action::Exec(Exec { command: Vec::new(), work_dir: None }),
        };
        if root.is_null() {
            self.report(root, Problem::NoDefinition);
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
                self.report(run, Problem::Exclusive { first: "exec", second: "run" });
            }
            (None, None) => self.missing(root, "`exec` or `run`"),
            (Some(exec), None) => {
                for key in ["outputs", "delegate"] {
                    if let Some(node) = root.get(key) {
                        self.report(node, Problem::Exclusive { first: "exec", second: key });
                    }
                }
                let exec = self.at("exec", |reader| reader.exec(exec));
                definition.action = Action::Exec(exec);
            }
            (None, Some(run)) => {
                let steps = self.at("run", |reader| reader.steps(run));
                let outputs =
                    self.key(root, "outputs", |reader, node| reader.named(node, Self::value));
                let delegate = self.key(root, "delegate", Self::name);
                let outputs = outputs.unwrap_or_default();
                definition.action = Action::Run(Run { steps, outputs, delegate });
            }
        }
        definition
    }

    fn exec(&mut self, node: &Node) -> Exec {
        let mut exec = Exec { command: Vec::new(), work_dir: None };
        if !self.mapping(node, &["command", "work_dir"]) {
            return exec;
        }
        match node.get("command") {
            None => self.missing(node, "`command`"),
            Some(command) => self.at("command", |reader| {
                exec.command = reader.list(command, Self::text);
                if matches!(&command.value, Value::List(items) if items.is_empty()) {
                    reader.report(command, Problem::EmptyValue);
                }
            }),
        }
        exec.work_dir = self.key(node, "work_dir", Self::text);
        exec
    }

    /// Reads a list of at least one step call.
    pub(super) fn steps(&mut self, node: &Node) -> Vec<Step> {
        let steps = self.list(node, Self::step);
        if matches!(&node.value, Value::List(items) if items.is_empty()) {
            self.report(node, Problem::EmptyValue);
        }
        steps
    }

    fn step(&mut self, node: &Node) -> Step {
        let step = self.call(node);
        // Misspelled keys may be the name.
        if matches!(node.value, Value::Map(_)) && node.get("name").is_none() {
            self.missing(node, "`name`");
        }
        step
    }

    /// Reads a step call, which may lack a name.
    pub(super) fn call(&mut self, node: &Node) -> Step {
        let mut step = Step {
            name: String::new(),
            reference: Reference::Dynamic(String::new()),
            env: BTreeMap::new(),
            inputs: BTreeMap::new(),
            condition: None,
            continue_on_error: false,
        };
        if !self.mapping(node, &STEP_KEYS) {
            return step;
        }
        if let Some(name) = node.get("name") {
            step.name = self.at("name", |reader| reader.name(name));
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
                self.report(other, Problem::Exclusive { first, second });
            }
        }
        let inputs = self.key(node, "inputs", |reader, inputs| reader.named(inputs, Self::value));
        let inputs = inputs.unwrap_or_default();

        let mut calls = CALLS.into_iter().filter(|key| node.get(key).is_some());
        let (call, other) = (calls.next(), calls.next());
        if let (Some(first), Some(second)) = (call, other) {
            let node = node.get(second).expect("it is there");
            self.report(node, Problem::Exclusive { first, second });
            return step;
        }
        match call {
            None => self.missing(node, "`step`, `func` or `script`"),
            Some("script") => {
                step.reference = Reference::Builtin { path: vec!["script".to_owned()] };
                let script = self.key(node, "script", Self::some_text).unwrap_or_default();
                step.inputs = BTreeMap::from([("script".to_owned(), StepValue::String(script))]);
                if let Some(inputs) = node.get("inputs") {
                    let problem = Problem::Exclusive { first: "script", second: "inputs" };
                    self.report(inputs, problem);
                }
            }
            Some("action") => {
                let (url, rev) = ACTION_RUNNER;
                step.reference = Reference::Git {
                    url: url.to_owned(),
                    rev: rev.to_owned(),
                    path: Vec::new(),
                    filename: None,
                };
                let action = self.key(node, "action", Self::some_text).unwrap_or_default();
                step.inputs = BTreeMap::from([
                    ("action".to_owned(), StepValue::String(action)),
                    ("inputs".to_owned(), StepValue::Object(inputs)),
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

    fn condition(&mut self, node: &Node) -> String {
        match &node.value {
            Value::Text(_) => self.some_text(node),
            Value::Bool(flag) => flag.to_string(),
            _ => {
                self.wrong(node, "an expression, or true or false");
                String::new()
            }
        }
    }

    fn reference(&mut self, node: &Node) -> Reference {
        let nothing = Reference::Dynamic(String::new());
        match &node.value {
            Value::Text(text) => match Reference::parse(text) {
                Ok(reference) => reference,
                Err(error) => {
                    self.report(node, error);
                    nothing
                }
            },
            Value::Map(_) => {
                if !self.mapping(node, &["git", "oci"]) {
                    return nothing;
                }
                match (node.get("git"), node.get("oci")) {
                    (Some(_), Some(oci)) => {
                        self.report(oci, Problem::Exclusive { first: "git", second: "oci" });
                        nothing
                    }
                    (Some(git), None) => self.at("git", |reader| reader.git(git)),
                    (None, Some(oci)) => self.at("oci", |reader| reader.oci(oci)),
                    (None, None) => {
                        self.missing(node, "`git` or `oci`");
                        nothing
                    }
                }
            }
            _ => {
                self.wrong(node, "a string, or a mapping with `git` or `oci`");
                nothing
            }
        }
    }

    fn git(&mut self, node: &Node) -> Reference {
        self.mapping(node, &["dir", "file", "rev", "url"]);
        let url = self.needed(node, "url", "`url`");
        let rev = self.needed(node, "rev", "`rev`: a tag, a branch or a commit");
        let (path, filename) = self.dir_and_file(node);
        Reference::Git { url: Reference::url(&url), rev, path, filename }
    }

    fn oci(&mut self, node: &Node) -> Reference {
        self.mapping(node, &["dir", "file", "registry", "repository", "tag"]);
        let registry = self.needed(node, "registry", "`registry`");
        let repository = self.needed(node, "repository", "`repository`");
        let tag = self.needed(node, "tag", "`tag`");
        let (path, filename) = self.dir_and_file(node);
        Reference::Oci { registry, repository, tag, path, filename }
    }

    /// Reads the text of a required key.
    fn needed(&mut self, node: &Node, key: &str, what: &'static str) -> String {
        let text = self.key(node, key, Self::some_text);
        if text.is_none() && matches!(node.value, Value::Map(_)) {
            self.missing(node, what);
        }
        text.unwrap_or_default()
    }

    fn dir_and_file(&mut self, node: &Node) -> (Vec<String>, Option<String>) {
        let dir = self.key(node, "dir", Self::text).unwrap_or_default();
        (segments(&dir), self.key(node, "file", Self::some_text))
    }
}

/// Keys of an input or output.
const KEYS: [&str; 4] = ["type", "default", "description", "sensitive"];

impl Reader {
    /// Reads the first document, `spec`.
    pub(super) fn spec_document(&mut self, root: &Node) -> Spec {
        if root.is_null() {
            return Spec::default();
        }
        if !matches!(root.value, Value::Map(_)) {
            self.wrong(root, "a mapping with `spec`");
            return Spec::default();
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

    fn spec(&mut self, node: &Node) -> Spec {
        if !self.mapping(node, &["inputs", "outputs"]) {
            return Spec::default();
        }
        let inputs = self.key(node, "inputs", |reader, inputs| reader.named(inputs, Self::input));
        let outputs = self.key(node, "outputs", Self::outputs);
        Spec { inputs: inputs.unwrap_or_default(), outputs: outputs.unwrap_or_default() }
    }

    fn outputs(&mut self, node: &Node) -> Outputs {
        match &node.value {
            Value::Text(text) if text == "delegate" => Outputs::Delegate,
            Value::Map(_) => {
                let output = |reader: &mut Self, node: &Node| {
                    let Input { kind, default, sensitive, description } = reader.input(node);
                    Output { kind, default, sensitive, description }
                };
                Outputs::Declared(self.named(node, output))
            }
            _ => {
                self.wrong(node, "a mapping, or `delegate`");
                Outputs::default()
            }
        }
    }

    fn input(&mut self, node: &Node) -> Input {
        let mut input =
            Input { kind: Type::String, default: None, sensitive: false, description: None };
        if node.is_null() {
            self.missing(node, "`type`");
            return input;
        }
        if !self.mapping(node, &KEYS) {
            return input;
        }
        let kind = self.key(node, "type", Self::kind);
        if kind.is_none() {
            self.missing(node, "`type`");
        }
        if let Some(kind) = kind.flatten() {
            input.kind = kind;
            input.default = self.key(node, "default", |reader, node| {
                let default = reader.value(node);
                if default.kind() != Some(kind) {
                    let found = node.value.kind();
                    reader.report(node, Problem::Default { declared: kind, found });
                }
                default
            });
        }
        input.sensitive = self.key(node, "sensitive", Self::flag).unwrap_or_default();
        input.description = self.key(node, "description", Self::text);
        input
    }

    fn kind(&mut self, node: &Node) -> Option<Type> {
        let name = self.text(node);
        let kind = Type::from_name(&name);
        if kind.is_none() {
            let hint = hint(&name, &Type::ALL.map(Type::name)).expect("few are known");
            self.report(node, Problem::UnknownType { name, hint });
        }
        kind
    }
}
