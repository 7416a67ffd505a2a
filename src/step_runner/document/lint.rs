//! Mistakes in a step file, as many as can be told without running it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::super::expression::{self, ExpressionError, Mention, is_dynamic};
use super::parse::{documents, read};
use super::types::{Outputs, Reference, Spec};
use crate::yaml::{Field, Node, Place, Position, Value, help};

/// What a file is called in which a step is, if its reference names none.
const STEP_FILES: [&str; 2] = ["step.yml", "func.yml"];

/// How many findings are enough to look no further for wrong expressions.
const MAX_FINDINGS: usize = 100;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Worth knowing; correct files may have it.
    Note,
    /// It works, but most likely not as meant.
    Warning,
    /// It does not work.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// Something in a step file that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// How bad it is.
    pub severity: Severity,
    /// What it is.
    pub message: String,
    /// What to do about it, if the message does not say so.
    pub hint: Option<String>,
}

/// Finds what is wrong with a step file, in the order of its lines.
///
/// `file` is what messages call it. With `dir`, the directory that the file is in, step files on this
/// machine that it names are looked for.
pub fn lint(file: &str, text: &str, dir: Option<&Path>) -> Vec<Finding> {
    let mut lint = Lint { file, text, dir, findings: Vec::new(), used: BTreeSet::new() };
    match documents(text) {
        Ok((spec, definition)) => lint.file(&spec, &definition),
        Err(fault) => lint.fault(fault.within(file)),
    }
    lint.findings.sort_by_key(|finding| finding.place.position);
    lint.findings
}

/// What expressions may name at some place.
#[derive(Clone, Copy)]
struct Scope<'a> {
    /// The inputs of the file.
    inputs: &'a BTreeSet<String>,
    /// The steps that have run.
    steps: &'a BTreeSet<String>,
}

struct Lint<'a> {
    file: &'a str,
    text: &'a str,
    dir: Option<&'a Path>,
    findings: Vec<Finding>,
    /// What was named: `inputs.path`, or `inputs` if that may be any of them.
    used: BTreeSet<String>,
}

impl Lint<'_> {
    fn add(&mut self, at: Position, severity: Severity, message: String) -> &mut Finding {
        let place = Place { file: self.file.to_owned(), position: Some(at) };
        self.findings.push(Finding { place, severity, message, hint: None });
        self.findings.last_mut().expect("it was just added")
    }

    fn fault(&mut self, error: super::DocumentError) {
        let place = error.place.clone();
        let prefix = if error.path.is_empty() { String::new() } else { error.path + ": " };
        let message = format!("{prefix}{}", error.problem);
        self.findings.push(Finding { place, severity: Severity::Error, message, hint: None });
    }

    fn file(&mut self, spec: &Node, definition: &Node) {
        let (step_file, faults) = read(spec, definition);
        let is_sound = faults.is_empty();
        for fault in faults {
            self.fault(fault.within(self.file));
        }
        let inputs: BTreeSet<_> = step_file.spec.inputs.keys().cloned().collect();
        let nothing = BTreeSet::new();
        let scope = Scope { inputs: &inputs, steps: &nothing };
        if let Some(env) = definition.get("env") {
            self.expressions(env, scope);
        }
        if let Some(exec) = definition.get("exec") {
            self.expressions(exec, scope);
        }
        let names = self.steps(definition, scope);
        let scope = Scope { inputs: &inputs, steps: &names };
        if let Some(outputs) = definition.get("outputs") {
            self.expressions(outputs, scope);
        }
        if is_sound {
            self.outputs(&step_file.spec, spec, definition, &names);
            self.inputs(spec);
        }
    }

    /// Looks at the steps of a sequence and returns their names.
    fn steps(&mut self, definition: &Node, scope: Scope<'_>) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut seen: BTreeMap<&str, Position> = BTreeMap::new();
        let steps = definition.get("run").map_or(&[][..], Node::items);
        for step in steps {
            let scope = Scope { steps: &names, ..scope };
            for key in ["env", "inputs", "script", "step", "func"] {
                if let Some(node) = step.get(key) {
                    self.expressions(node, scope);
                }
            }
            if let Some(node) = step.get("if")
                && let Value::Text(condition) = &node.value
            {
                self.mentions(node, condition, expression::condition_mentions(condition), scope);
            }
            if let Some(action) = step.get("action") {
                let message = "`action` was removed by GitLab; it needs docker";
                self.add(action.origin.position, Severity::Warning, message.to_owned());
            }
            for key in ["step", "func"] {
                if let Some(node) = step.get(key) {
                    self.local_file(node);
                }
            }
            let Some(name) = step.get("name") else { continue };
            let Value::Text(text) = &name.value else { continue };
            if let Some(first) = seen.insert(text, name.origin.position) {
                let message = format!(
                    "the step in line {} is called `{text}`, too: its outputs are lost",
                    first.line
                );
                self.add(name.origin.position, Severity::Warning, message);
            }
            names.insert(text.clone());
        }
        names
    }

    /// Looks at the expressions in all texts of a value.
    fn expressions(&mut self, node: &Node, scope: Scope<'_>) {
        match &node.value {
            Value::Text(text) if is_dynamic(text) => {
                self.mentions(node, text, expression::mentions(text), scope);
            }
            Value::List(items) => items.iter().for_each(|item| self.expressions(item, scope)),
            Value::Map(fields) => {
                fields.iter().for_each(|field| self.expressions(&field.node, scope));
            }
            _ => {}
        }
    }

    fn mentions(
        &mut self,
        node: &Node,
        text: &str,
        mentions: Result<Vec<Mention>, ExpressionError>,
        scope: Scope<'_>,
    ) {
        if self.findings.len() >= MAX_FINDINGS {
            return;
        }
        let mentions = match mentions {
            Ok(mentions) => mentions,
            Err(error) => {
                let at = self.position(node, text, error.offset);
                let hint = error.kind.hint().map(str::to_owned);
                self.add(at, Severity::Error, error.to_string()).hint = hint;
                return;
            }
        };
        for Mention { offset, root, key } in mentions {
            let known = match root.as_str() {
                "inputs" => scope.inputs,
                "steps" => scope.steps,
                _ => {
                    self.used.insert(root);
                    continue;
                }
            };
            let Some(key) = key else {
                self.used.insert(root);
                continue;
            };
            if !known.contains(&key) {
                let at = self.position(node, text, offset);
                let (message, none) = match root.as_str() {
                    "inputs" => (format!("there is no input `{key}`"), "`spec` declares none"),
                    _ => (format!("no step before this is called `{key}`"), "there is none"),
                };
                let known: Vec<_> = known.iter().map(String::as_str).collect();
                let finding = self.add(at, Severity::Error, message);
                finding.hint = help(&key, &known).or(known.is_empty().then(|| none.to_owned()));
            }
            self.used.insert(format!("{root}.{key}"));
        }
    }

    /// Returns where a byte of a value is, or where the value is if that cannot be told.
    fn position(&self, node: &Node, value: &str, offset: usize) -> Position {
        let start = node.origin.position;
        let before = value.get(..offset).unwrap_or_default();
        // The lines of a block are indented alike.
        let lines = before.matches('\n').count();
        let before = before.rsplit('\n').next().unwrap_or_default();
        let mut at = Position { line: start.line + lines, ..start };
        let line = self.text.lines().nth(at.line - 1).unwrap_or_default();
        let mut written =
            line.char_indices().nth(at.column - 1).map_or("", |(byte, _)| &line[byte..]);
        if lines == 0 && written.starts_with(['"', '\'']) {
            written = &written[1..];
            at.column += 1;
        }
        // With escapes before it, or folded, it is hard to find.
        if !written.starts_with(before) {
            return start;
        }
        at.column += before.chars().count();
        at
    }

    /// Looks for the file that a reference to this machine names.
    fn local_file(&mut self, node: &Node) {
        let (Some(dir), Value::Text(text)) = (self.dir, &node.value) else { return };
        let Ok(Reference::Local { path, filename }) = Reference::parse(text) else { return };
        let dir = dir.join(path.iter().collect::<PathBuf>());
        let is_there = match &filename {
            Some(name) => dir.join(name).is_file(),
            None => STEP_FILES.iter().any(|name| dir.join(name).is_file()),
        };
        if !is_there {
            let file = filename.unwrap_or_else(|| STEP_FILES.join(" or "));
            let message = format!("there is no {file} in {}", dir.display());
            self.add(node.origin.position, Severity::Error, message);
        }
    }

    /// Looks at what the file gives, and whether it can.
    fn outputs(
        &mut self,
        spec: &Spec,
        spec_document: &Node,
        definition: &Node,
        steps: &BTreeSet<String>,
    ) {
        let declaration = spec_document.get("spec").and_then(|spec| spec.get("outputs"));
        let delegate = definition.get("delegate");
        if let Some(node) = delegate {
            if let Value::Text(name) = &node.value
                && !steps.contains(name)
            {
                let message = format!("no step is called `{name}`");
                let steps: Vec<_> = steps.iter().map(String::as_str).collect();
                self.add(node.origin.position, Severity::Error, message).hint = help(name, &steps);
            }
            if spec.outputs != Outputs::Delegate {
                let message = "this has no effect".to_owned();
                let hint = "write `outputs: delegate` into `spec`".to_owned();
                self.add(node.origin.position, Severity::Warning, message).hint = Some(hint);
            }
        }
        let Some(declaration) = declaration else { return };
        let at = declaration.origin.position;
        let is_run = definition.get("run").is_some();
        let Outputs::Declared(declared) = &spec.outputs else {
            if is_run && delegate.is_none() {
                let message = "outputs are delegated, but not to whom".to_owned();
                let hint = "write `delegate:` and a step's name into the second document";
                self.add(at, Severity::Error, message).hint = Some(hint.to_owned());
            }
            return;
        };
        if !is_run {
            if declared.values().any(|output| output.default.is_none())
                && !self.used.contains("output_file")
            {
                let message = "there are outputs, but `${{ output_file }}` is used nowhere";
                self.add(at, Severity::Warning, message.to_owned());
            }
            return;
        }
        let given = definition.get("outputs").map_or(&[][..], Node::fields);
        for Field { name, origin, .. } in declaration.fields() {
            let has_default = declared.get(name).is_some_and(|output| output.default.is_some());
            if !has_default && !given.iter().any(|field| field.name == *name) {
                let message = format!("the output `{name}` is given no value");
                let hint = "write it into `outputs` of the second document".to_owned();
                self.add(origin.position, Severity::Warning, message).hint = Some(hint);
            }
        }
        for field in given.iter().filter(|field| !declared.contains_key(&field.name)) {
            let message = format!("the output `{}` is not declared in `spec`", field.name);
            self.add(field.origin.position, Severity::Warning, message);
        }
    }

    /// Looks at what the file takes.
    fn inputs(&mut self, spec_document: &Node) {
        let inputs = spec_document.get("spec").and_then(|spec| spec.get("inputs"));
        for Field { name, origin, node } in inputs.map_or(&[][..], Node::fields) {
            let is_used =
                self.used.contains("inputs") || self.used.contains(&format!("inputs.{name}"));
            if !is_used {
                let message = format!("the input `{name}` is not used");
                self.add(origin.position, Severity::Note, message);
            }
            if let Some(default) = node.get("default")
                && contains_expression(default)
            {
                let message = "expressions in a default are not replaced".to_owned();
                self.add(default.origin.position, Severity::Warning, message);
            }
        }
    }
}

fn contains_expression(node: &Node) -> bool {
    match &node.value {
        Value::Text(text) => is_dynamic(text),
        Value::List(items) => items.iter().any(contains_expression),
        Value::Map(fields) => fields.iter().any(|field| contains_expression(&field.node)),
        _ => false,
    }
}
