//! Programs of containers: the image's, the request's, or the agent, which runs either.

use container_hook_job::HookError;
use container_hook_job::kubernetes::KubernetesSettings;
use container_hook_job::plan::PlanRole;

use super::agent::{self, literal};
use super::error::PodError;
use super::manifest::StepProgram;
use super::requested::RequestedContainer;

/// Command that runners send to keep a job container idle. It is not run: an agent without a
/// program is idle.
const IDLE: [&str; 3] = ["tail", "-f", "/dev/null"];

/// Words of a command or of its arguments; `None` for those of the image.
type CommandWords = Option<Vec<String>>;

/// Returns the command and the arguments of a container; `None` for those of the image.
pub fn container_command(
    asked: &RequestedContainer<'_>,
    settings: &KubernetesSettings,
    externals: Option<&str>,
) -> Result<(CommandWords, CommandWords), HookError> {
    let words = |words: &[String]| words.iter().map(|word| literal(word)).collect::<Vec<_>>();
    let args = Some(words(&asked.program_args)).filter(|args| !args.is_empty());
    match (asked.role, asked.entry_point()) {
        (PlanRole::Service, None) => Ok((None, args)),
        (PlanRole::Service, Some("")) => Ok((Some(words(&program(asked)?)), None)),
        (PlanRole::Service, Some(program)) => Ok((Some(vec![literal(program)]), args)),
        (role, _) => {
            let program = asked.args.entry_point.iter().chain(&asked.program_args);
            let program: Vec<String> = program.cloned().collect();
            // The program of a step is started once its files are there.
            let runs = role == PlanRole::Job && asked.args.entry_point.is_some() && program != IDLE;
            let program = if runs { &program[..] } else { &[] };
            let (command, args) = agent::command(settings, externals, program);
            Ok((Some(command), Some(args)))
        }
    }
}

/// Returns the variables to add to a container that has the variables `pairs`: `GITHUB_ACTIONS`,
/// and `CI` unless it is set.
pub fn hook_variables(pairs: &[(&str, &str)]) -> Vec<(&'static str, &'static str)> {
    let mut variables = vec![("GITHUB_ACTIONS", "true")];
    if pairs.iter().all(|(name, _)| *name != "CI") {
        variables.push(("CI", "true"));
    }
    variables
}

/// Returns the program of a container step, with its environment and directory.
pub fn step_program(asked: &RequestedContainer<'_>) -> Result<StepProgram, HookError> {
    let pairs = asked.env();
    let env = pairs.iter().copied().chain(hook_variables(&pairs));
    Ok(StepProgram {
        args: program(asked)?,
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        directory: asked.directory().map(str::to_owned),
    })
}

/// Returns the program of a container: the request's, else the image's.
fn program(asked: &RequestedContainer<'_>) -> Result<Vec<String>, PodError> {
    let image = || asked.image.to_owned();
    let given = &asked.program_args;
    let mut args = match asked.entry_point() {
        // With the image's entry point cleared, the arguments are the program.
        Some("") if !given.is_empty() => Vec::new(),
        Some(program) if !program.is_empty() => vec![program.to_owned()],
        cleared => {
            let facts = asked.facts.ok_or_else(|| PodError::NoFacts { image: image() })?;
            let own = facts.entrypoint.clone().filter(|_| cleared.is_none());
            let mut args = own.unwrap_or_default();
            if given.is_empty() {
                args.extend(facts.cmd.iter().flatten().cloned());
            }
            args
        }
    };
    args.extend(given.iter().cloned());
    if args.is_empty() {
        return Err(PodError::NoProgram { image: image() });
    }
    Ok(args)
}
