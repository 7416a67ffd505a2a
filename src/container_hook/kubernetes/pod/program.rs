//! What containers run: their image's program, the request's, or ours, which runs either.

use super::agent::{self, literal};
use super::asked::Asked;
use super::error::PodError;
use super::made::StepProgram;
use crate::container_hook::error::HookError;
use crate::container_hook::plan::Role;

/// What runners send for a job container, which then does nothing but to be there: so does our program.
const IDLE: [&str; 3] = ["tail", "-f", "/dev/null"];

type Words = Option<Vec<String>>;

/// Returns the command and the arguments of a container; none is the image's.
pub fn of_container(asked: &Asked<'_>) -> Result<(Words, Words), HookError> {
    let words = |words: &[String]| words.iter().map(|word| literal(word)).collect::<Vec<_>>();
    let args = Some(words(&asked.program_args)).filter(|args| !args.is_empty());
    match (asked.role, asked.entry_point()) {
        (Role::Service, None) => Ok((None, args)),
        (Role::Service, Some("")) => {
            // Without the image's own program its arguments are one.
            let cmd = asked.facts.and_then(|image| image.cmd.clone());
            let command = args.or_else(|| cmd.map(|cmd| words(&cmd)));
            let image = || asked.image.to_owned();
            Ok((Some(command.ok_or_else(|| PodError::NoProgram { image: image() })?), None))
        }
        (Role::Service, Some(program)) => Ok((Some(vec![literal(program)]), args)),
        (Role::Job, _) => {
            let program = asked.args.entry_point.iter().chain(&asked.program_args);
            let program: Vec<String> = program.cloned().collect();
            let runs = asked.args.entry_point.is_some() && program != IDLE;
            let (command, args) = agent::command(if runs { &program } else { &[] });
            Ok((Some(command), Some(args)))
        }
        _ => {
            let (command, args) = agent::command(&[]);
            Ok((Some(command), Some(args)))
        }
    }
}

/// Returns the variables that the hook adds to those of a container, in their order.
pub fn of_hook(pairs: &[(&str, &str)]) -> Vec<(&'static str, &'static str)> {
    let mut variables = vec![("GITHUB_ACTIONS", "true")];
    if pairs.iter().all(|(name, _)| *name != "CI") {
        variables.push(("CI", "true"));
    }
    variables
}

/// Returns what a container step runs: the request's program, else its image's.
pub fn of_step(asked: &Asked<'_>) -> Result<StepProgram, HookError> {
    let image = || asked.image.to_owned();
    let given = &asked.program_args;
    let mut args = match asked.entry_point() {
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
        return Err(PodError::NoProgram { image: image() }.into());
    }
    let pairs = asked.env();
    let env = pairs.iter().copied().chain(of_hook(&pairs));
    Ok(StepProgram {
        args,
        env: env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        directory: asked.directory().map(str::to_owned),
    })
}
