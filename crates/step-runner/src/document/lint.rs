//! Static checks of step files.

mod call;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use oci_hooks_yaml::{SourceLocation, TextPosition, YamlField, YamlNode, YamlValue, hint};

use super::super::expression::{self, ExpressionError, NameMention, is_dynamic};
use super::error::message;
use super::reader::{documents, read};
use super::types::{OutputSpecs, StepSpec};

/// Number of findings from which on expressions are no longer checked.
const MAX_FINDINGS: usize = 100;

/// Severity of a lint finding, in increasing order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LintSeverity {
    /// Informational; correct files may have it.
    Note,
    /// Works, but probably not as intended.
    Warning,
    Error,
}

impl fmt::Display for LintSeverity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LintSeverity::Note => "note",
            LintSeverity::Warning => "warning",
            LintSeverity::Error => "error",
        })
    }
}

/// A lint finding in a step file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintFinding {
    pub location: SourceLocation,
    pub severity: LintSeverity,
    pub message: String,
    /// Fix for the finding, if the message does not contain it.
    pub hint: Option<String>,
}

/// Checks a step file, and returns findings in the order of lines.
///
/// `file` is the file name in messages, `dir` the directory of the file. Without `dir`, calls of
/// local step files are not checked.
pub fn lint(file: &str, text: &str, dir: Option<&Path>) -> Vec<LintFinding> {
    let mut lint = Lint { file, text, dir, findings: Vec::new(), used: BTreeSet::new() };
    match documents(text) {
        Ok((spec, definition)) => lint.file(&spec, &definition),
        Err(problem) => lint.report(problem.into_document_error(file)),
    }
    lint.findings.sort_by_key(|finding| finding.location.position);
    lint.findings
}

/// Names that the file of an expression defines, and that the expression may use.
#[derive(Clone, Copy)]
struct LintScope<'a> {
    /// Names of the inputs that the file declares.
    inputs: &'a BTreeSet<String>,
    /// Names of the steps that have run before.
    steps: &'a BTreeSet<String>,
}

struct Lint<'a> {
    file: &'a str,
    text: &'a str,
    dir: Option<&'a Path>,
    findings: Vec<LintFinding>,
    /// Names used in expressions: `inputs.path`, or `inputs` if the member is not known statically.
    used: BTreeSet<String>,
}

impl Lint<'_> {
    fn add(
        &mut self,
        at: TextPosition,
        severity: LintSeverity,
        message: String,
    ) -> &mut LintFinding {
        let location = SourceLocation { file: self.file.to_owned(), position: Some(at) };
        self.findings.push(LintFinding { location, severity, message, hint: None });
        self.findings.last_mut().expect("it was just added")
    }

    fn report(&mut self, error: super::DocumentError) {
        let message = message(&error.path, &error.problem);
        let (location, severity) = (error.location, LintSeverity::Error);
        self.findings.push(LintFinding { location, severity, message, hint: None });
    }

    fn file(&mut self, spec: &YamlNode, definition: &YamlNode) {
        let (step_file, problems) = read(spec, definition);
        for root in [spec, definition] {
            self.interpolations(root);
        }
        let is_sound = problems.is_empty();
        for problem in problems {
            self.report(problem.into_document_error(self.file));
        }
        let inputs: BTreeSet<_> = step_file.spec.inputs.keys().cloned().collect();
        let nothing = BTreeSet::new();
        let scope = LintScope { inputs: &inputs, steps: &nothing };
        if let Some(env) = definition.get("env") {
            self.expressions(env, scope);
        }
        if let Some(exec) = definition.get("exec") {
            self.expressions(exec, scope);
        }
        let names = self.steps(definition, scope);
        let scope = LintScope { inputs: &inputs, steps: &names };
        if let Some(outputs) = definition.get("outputs") {
            self.expressions(outputs, scope);
        }
        if is_sound {
            self.outputs(&step_file.spec, spec, definition, &names);
            self.inputs(spec);
        }
    }

    /// Checks the steps of `run`, and returns their names.
    fn steps(&mut self, definition: &YamlNode, scope: LintScope<'_>) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        let mut seen: BTreeMap<&str, TextPosition> = BTreeMap::new();
        let steps = definition.get("run").map_or(&[][..], YamlNode::items);
        for step in steps {
            let scope = LintScope { steps: &names, ..scope };
            for key in ["env", "inputs", "script", "step", "func"] {
                if let Some(node) = step.get(key) {
                    self.expressions(node, scope);
                }
            }
            if let Some(node) = step.get("if")
                && let YamlValue::Text(condition) = &node.value
            {
                self.check_mentions(
                    node,
                    condition,
                    expression::condition_mentions(condition),
                    scope,
                );
            }
            if let Some(action) = step.get("action") {
                let message = "`action` was removed from GitLab's step runner; it runs the action with docker";
                self.add(action.origin.position, LintSeverity::Warning, message.to_owned());
            }
            for key in ["step", "func"] {
                if let Some(node) = step.get(key) {
                    self.call(step, node);
                }
            }
            let Some(name) = step.get("name") else { continue };
            let YamlValue::Text(text) = &name.value else { continue };
            if let Some(first) = seen.insert(text, name.origin.position) {
                let message = format!(
                    "duplicate step name `{text}`: the outputs of the step in line {} are lost",
                    first.line
                );
                self.add(name.origin.position, LintSeverity::Warning, message);
            }
            names.insert(text.clone());
        }
        names
    }

    /// Warns of `$[[ ]]` in the strings of a value, which is expanded only in `.gitlab-ci.yml`.
    fn interpolations(&mut self, node: &YamlNode) {
        match &node.value {
            YamlValue::Text(text) => {
                let Some(offset) = text.find("$[[") else { return };
                let at = self.position(node, text, offset);
                let message = "`$[[ ]]` is expanded in .gitlab-ci.yml only: here it is text";
                let hint = "write `${{ inputs.NAME }}` for an input of the step";
                self.add(at, LintSeverity::Warning, message.to_owned()).hint =
                    Some(hint.to_owned());
            }
            YamlValue::List(items) => items.iter().for_each(|item| self.interpolations(item)),
            YamlValue::Map(fields) => {
                fields.iter().for_each(|field| self.interpolations(&field.node));
            }
            _ => {}
        }
    }

    /// Checks the expressions in all strings of a value.
    fn expressions(&mut self, node: &YamlNode, scope: LintScope<'_>) {
        match &node.value {
            YamlValue::Text(text) if is_dynamic(text) => {
                self.check_mentions(node, text, expression::find_mentions(text), scope);
            }
            YamlValue::List(items) => items.iter().for_each(|item| self.expressions(item, scope)),
            YamlValue::Map(fields) => {
                fields.iter().for_each(|field| self.expressions(&field.node, scope));
            }
            _ => {}
        }
    }

    fn check_mentions(
        &mut self,
        node: &YamlNode,
        text: &str,
        mentions: Result<Vec<NameMention>, ExpressionError>,
        scope: LintScope<'_>,
    ) {
        if self.findings.len() >= MAX_FINDINGS {
            return;
        }
        let mentions = match mentions {
            Ok(mentions) => mentions,
            Err(error) => {
                let at = self.position(node, text, error.offset);
                let hint = error.kind.hint().map(str::to_owned);
                self.add(at, LintSeverity::Error, error.to_string()).hint = hint;
                return;
            }
        };
        for NameMention { offset, root, key } in mentions {
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
                    "inputs" => (format!("unknown input `{key}`"), "`spec` declares no inputs"),
                    _ => (
                        format!("unknown step `{key}`: it must run before this one"),
                        "there are no earlier steps",
                    ),
                };
                let known: Vec<_> = known.iter().map(String::as_str).collect();
                let finding = self.add(at, LintSeverity::Error, message);
                finding.hint = hint(&key, &known).or(known.is_empty().then(|| none.to_owned()));
            }
            self.used.insert(format!("{root}.{key}"));
        }
    }

    /// Returns the position in the file of the byte at `offset` in a string; the position of the
    /// whole string if YAML escapes or folding hide that of the byte.
    fn position(&self, node: &YamlNode, value: &str, offset: usize) -> TextPosition {
        let start = node.origin.position;
        let before = value.get(..offset).unwrap_or_default();
        // All lines of a block scalar have the same indentation.
        let lines = before.matches('\n').count();
        let before = before.rsplit('\n').next().unwrap_or_default();
        let mut at = TextPosition { line: start.line + lines, ..start };
        let line = self.text.lines().nth(at.line - 1).unwrap_or_default();
        let mut written =
            line.char_indices().nth(at.column - 1).map_or("", |(byte, _)| &line[byte..]);
        if lines == 0 && written.starts_with(['"', '\'']) {
            written = &written[1..];
            at.column += 1;
        }
        // Escapes or folding before the byte hide its position.
        if !written.starts_with(before) {
            return start;
        }
        at.column += before.chars().count();
        at
    }

    /// Checks that the outputs in `spec` agree with `outputs`, `delegate` and the use of
    /// `output_file` in the definition.
    fn outputs(
        &mut self,
        spec: &StepSpec,
        spec_document: &YamlNode,
        definition: &YamlNode,
        steps: &BTreeSet<String>,
    ) {
        let declaration = spec_document.get("spec").and_then(|spec| spec.get("outputs"));
        let delegate = definition.get("delegate");
        if let Some(node) = delegate {
            if let YamlValue::Text(name) = &node.value
                && !steps.contains(name)
            {
                let message = format!("`delegate` names an unknown step `{name}`");
                let steps: Vec<_> = steps.iter().map(String::as_str).collect();
                self.add(node.origin.position, LintSeverity::Error, message).hint =
                    hint(name, &steps);
            }
            if spec.outputs != OutputSpecs::Delegate {
                let message = "`delegate` has no effect".to_owned();
                let hint = "set `outputs: delegate` in `spec`".to_owned();
                self.add(node.origin.position, LintSeverity::Warning, message).hint = Some(hint);
            }
        }
        let Some(declaration) = declaration else { return };
        let at = declaration.origin.position;
        let is_run = definition.get("run").is_some();
        let OutputSpecs::Declared(declared) = &spec.outputs else {
            if is_run && delegate.is_none() {
                let message =
                    "`outputs: delegate` requires `delegate` in the second document".to_owned();
                let hint = "set `delegate:` to the name of a step in the second document";
                self.add(at, LintSeverity::Error, message).hint = Some(hint.to_owned());
            }
            return;
        };
        if !is_run {
            if declared.values().any(|output| output.default.is_none())
                && !self.used.contains("output_file")
            {
                let message = "outputs are declared, but `${{ output_file }}` is not used";
                self.add(at, LintSeverity::Warning, message.to_owned());
            }
            return;
        }
        let given = definition.get("outputs").map_or(&[][..], YamlNode::fields);
        for YamlField { name, origin, .. } in declaration.fields() {
            let has_default = declared.get(name).is_some_and(|output| output.default.is_some());
            if !has_default && !given.iter().any(|field| field.name == *name) {
                let message = format!("output `{name}` has no value");
                let hint = "set it in `outputs` of the second document".to_owned();
                self.add(origin.position, LintSeverity::Warning, message).hint = Some(hint);
            }
        }
        for field in given.iter().filter(|field| !declared.contains_key(&field.name)) {
            let message = format!("output `{}` is not declared in `spec`", field.name);
            self.add(field.origin.position, LintSeverity::Warning, message);
        }
    }

    /// Checks that the declared inputs are used, and that their defaults contain no expressions.
    fn inputs(&mut self, spec_document: &YamlNode) {
        let inputs = spec_document.get("spec").and_then(|spec| spec.get("inputs"));
        for YamlField { name, origin, node } in inputs.map_or(&[][..], YamlNode::fields) {
            let is_used =
                self.used.contains("inputs") || self.used.contains(&format!("inputs.{name}"));
            if !is_used {
                let message = format!("unused input `{name}`");
                self.add(origin.position, LintSeverity::Note, message);
            }
            if let Some(default) = node.get("default")
                && contains_expression(default)
            {
                let message = "expressions in a default are not expanded".to_owned();
                self.add(default.origin.position, LintSeverity::Warning, message);
            }
        }
    }
}

fn contains_expression(node: &YamlNode) -> bool {
    match &node.value {
        YamlValue::Text(text) => is_dynamic(text),
        YamlValue::List(items) => items.iter().any(contains_expression),
        YamlValue::Map(fields) => fields.iter().any(|field| contains_expression(&field.node)),
        _ => false,
    }
}
