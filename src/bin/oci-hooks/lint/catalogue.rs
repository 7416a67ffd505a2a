//! `lint --explain` and `lint --rules`.

use oci_hooks::hooks::lint::{FixPolicy, LintRule, RuleExample, rules};
use oci_hooks_cli::exit::CliExit;
use serde::Serialize;

use crate::context::CommandContext;
use crate::error::HooksCommandError;
use crate::style;

#[derive(Serialize)]
struct RuleJson {
    code: &'static str,
    rule: &'static str,
    severity: &'static str,
    summary: &'static str,
    /// Set if `--fix` fixes findings of this rule.
    fixable: bool,
    explanation: &'static str,
    bad: &'static str,
    good: &'static str,
    /// Effect of `--fix`, or the reason why it has none.
    fix: &'static str,
}

impl RuleJson {
    fn new(rule: &'static LintRule) -> Self {
        let (fixable, fix) = match rule.fix {
            FixPolicy::Automatic(what) => (true, what),
            FixPolicy::Manual(why) => (false, why),
        };
        RuleJson {
            code: rule.code,
            rule: rule.name,
            severity: rule.severity.name(),
            summary: rule.summary,
            fixable,
            explanation: rule.explanation,
            bad: rule.bad.text(),
            good: rule.good.text(),
            fix,
        }
    }
}

/// Writes the explanation of a rule, with examples.
pub fn explain(
    rule: &'static LintRule,
    context: &mut CommandContext,
) -> Result<CliExit, HooksCommandError> {
    if context.is_json() {
        context.json(&RuleJson::new(rule))?;
        return Ok(CliExit::Done);
    }
    let title = context.paint.paint(style::TITLE, format_args!("{} {}", rule.code, rule.name));
    context.line(format!("{title} ({})\n{}\n", rule.severity, rule.summary))?;
    context.line(rule.explanation)?;
    example("Wrong", style::BAD, rule.bad, context)?;
    example("Right", style::GOOD, rule.good, context)?;
    let fix = match rule.fix {
        FixPolicy::Automatic(what) => format!("Fixed by --fix: {what}."),
        FixPolicy::Manual(why) => format!("Not fixed by --fix: {why}."),
    };
    context.line(format!("\n{fix}"))?;
    Ok(CliExit::Done)
}

fn example(
    title: &str,
    style: anstyle::Style,
    example: RuleExample,
    context: &mut CommandContext,
) -> Result<(), HooksCommandError> {
    let title = context.paint.paint(style, format_args!("{title}:"));
    context.line(format!("\n{title}"))?;
    if example.text().is_empty() {
        return context.line("  (an empty file)");
    }
    for line in example.text().lines() {
        context.line(format!("  {}", line.replace('\u{feff}', "\\uFEFF")))?;
    }
    Ok(())
}

/// Writes a line for each rule.
pub fn list(context: &mut CommandContext) -> Result<CliExit, HooksCommandError> {
    if context.is_json() {
        let rules: Vec<_> = rules::ALL.iter().map(|rule| RuleJson::new(rule)).collect();
        context.json(&rules)?;
        return Ok(CliExit::Done);
    }
    let width = rules::ALL.iter().map(|rule| rule.name.len()).max().unwrap_or_default();
    for rule in rules::ALL {
        let fix = match rule.fix {
            FixPolicy::Automatic(_) => "fix",
            FixPolicy::Manual(_) => "",
        };
        let code = context.paint.paint(style::TITLE, rule.code);
        context.line(format!(
            "{code} {:<width$}  {:<7}  {fix:<3}  {}",
            rule.name, rule.severity, rule.summary
        ))?;
    }
    Ok(CliExit::Done)
}
