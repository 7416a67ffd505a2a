//! Arguments that name a step: those of `run` and `submit`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use oci_hooks_files::fs::PathContext as _;
use step_runner::document::{StepCall, StepReference, StepSpec, parse_call, parse_value};
use step_runner::resolve::{ReferenceContext, Resolver};
use step_runner::{DeclaredType, ExprValue};

use crate::error::StepRunnerError;

/// Name of clap's group of arguments of which exactly one names the step.
pub const SOURCE: &str = "source";

/// A step with its inputs, variables and working directory.
#[derive(Args, Debug)]
pub struct StepArgs {
    /// Directory or file of the step, or a reference: URL@REV, IMAGE:TAG, builtin://NAME
    ///
    /// Or a step call in YAML: "step: ./build", "{script: make, env: {A: b}}"
    #[arg(value_name = "STEP", group = SOURCE)]
    step: Option<String>,
    /// Input of the step, as YAML or JSON unless declared as a string (can be repeated)
    #[arg(short, long = "input", value_name = "NAME=VALUE")]
    input: Vec<String>,
    /// Inputs of the step, separated by commas
    #[arg(long = "inputs", value_name = "NAME=VALUE,…", value_delimiter = ',')]
    inputs: Vec<String>,
    /// Environment variable of the step (can be repeated)
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Job variable, `vars.NAME` in expressions (can be repeated)
    #[arg(long = "var", alias = "job", value_name = "NAME=VALUE")]
    vars: Vec<String>,
    /// Working directory of the step
    #[arg(short = 'C', long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Git repository of the step
    #[arg(long, value_name = "URL", group = SOURCE, requires = "git_rev")]
    git_url: Option<String>,
    /// Tag, branch or commit in the repository
    #[arg(long, value_name = "REV", requires = "git_url")]
    git_rev: Option<String>,
    /// Directory of the step file in the repository
    #[arg(long, value_name = "DIR", requires = "git_url")]
    git_dir: Option<String>,
    /// Registry of the step's container image
    #[arg(long, value_name = "HOST", requires = "oci_repository")]
    oci_registry: Option<String>,
    /// Image repository of the step
    #[arg(long, value_name = "NAME", group = SOURCE, requires = "oci_registry")]
    oci_repository: Option<String>,
    /// Tag of the step's image
    #[arg(long, value_name = "TAG", requires = "oci_repository", default_value = "latest")]
    oci_tag: String,
    /// Directory of the step file in the image
    #[arg(long, value_name = "DIR", requires = "oci_repository")]
    oci_dir: Option<String>,
    /// Name of the step file in the image
    #[arg(long, value_name = "FILE", requires = "oci_repository")]
    oci_filename: Option<String>,
}

impl StepArgs {
    /// Returns the working directory, with symbolic links resolved.
    pub fn work_dir(&self) -> Result<PathBuf, StepRunnerError> {
        Ok(fs::canonicalize(&self.directory).with_path("resolve", &self.directory)?)
    }

    /// Returns the job variables.
    pub fn vars(&self) -> Result<BTreeMap<String, String>, StepRunnerError> {
        pairs(&self.vars, "--var or --job")
    }

    /// Returns the call of the step that the arguments name, with its inputs and environment.
    pub fn call(
        &self,
        resolver: &Resolver,
        caller: &ReferenceContext<'_>,
    ) -> Result<StepCall, StepRunnerError> {
        let inline = self.step.as_deref().filter(|text| is_call(text));
        let mut step = match inline {
            Some(text) => {
                parse_call(text).map_err(|error| StepRunnerError::Call(Box::new(error)))?
            }
            None => StepCall::new(self.reference(caller.dir)?),
        };
        step.env.extend(pairs(&self.env, "--env")?);
        let given = self.input.iter().chain(&self.inputs).cloned().collect::<Vec<_>>();
        if !given.is_empty() {
            let given = pairs(&given, "--input or --inputs")?;
            // The step's declarations determine the types of its inputs.
            let loaded = resolver.load(&step.reference, caller)?;
            step.inputs.extend(parse_inputs(&given, &loaded.file.spec)?);
        }
        Ok(step)
    }

    fn reference(&self, work_dir: &Path) -> Result<StepReference, StepRunnerError> {
        let segments = |dir: &Option<String>| -> Vec<String> {
            let dir = dir.as_deref().unwrap_or_default();
            dir.split('/').filter(|segment| !segment.is_empty()).map(str::to_owned).collect()
        };
        if let (Some(url), Some(rev)) = (&self.git_url, &self.git_rev) {
            let path = segments(&self.git_dir);
            return Ok(StepReference::Git {
                url: StepReference::url(url),
                rev: rev.clone(),
                path,
                filename: None,
            });
        }
        if let (Some(registry), Some(repository)) = (&self.oci_registry, &self.oci_repository) {
            return Ok(StepReference::Oci {
                registry: registry.clone(),
                repository: repository.clone(),
                tag: self.oci_tag.clone(),
                path: segments(&self.oci_dir),
                filename: self.oci_filename.clone(),
            });
        }
        let text = self.step.as_deref().expect("the command line asks for one of them");
        // An existing path takes precedence, with or without `./`.
        let is_path = !text.starts_with(['.', '/']) && work_dir.join(text).exists();
        let text = if is_path { format!("./{text}") } else { text.to_owned() };
        Ok(StepReference::parse(&text)?)
    }
}

/// Returns whether a text is a step call in YAML, such as `step: ./build`, and not a reference.
fn is_call(text: &str) -> bool {
    let text = text.trim_start();
    ["step:", "func:", "script:", "name:", "{"].iter().any(|start| text.starts_with(start))
}

fn pairs(
    texts: &[String],
    option: &'static str,
) -> Result<BTreeMap<String, String>, StepRunnerError> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(StepRunnerError::Pair { option, text: text.clone() }),
    };
    texts.iter().map(pair).collect()
}

/// Parses inputs as their declared types.
fn parse_inputs(
    given: &BTreeMap<String, String>,
    spec: &StepSpec,
) -> Result<BTreeMap<String, ExprValue>, StepRunnerError> {
    let value = |(name, text): (&String, &String)| {
        let kind = spec.inputs.get(name).map_or(DeclaredType::String, |input| input.kind);
        if kind == DeclaredType::String {
            return Ok((name.clone(), ExprValue::String(text.clone())));
        }
        match parse_value(text).ok().filter(|value| value.kind() == Some(kind)) {
            Some(value) => Ok((name.clone(), value)),
            None => Err(StepRunnerError::Input { name: name.clone(), kind }),
        }
    };
    given.iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestLine {
        #[command(flatten)]
        step: StepArgs,
    }

    #[test]
    fn git_url_is_read_like_that_of_a_step_file() {
        for url in ["gitlab.com/g/p", "http://host/g/p", "git@host:g/p.git"] {
            let words = ["x", "--git-url", url, "--git-rev", "v1", "--git-dir", "a/b"];
            let given = TestLine::parse_from(words).step.reference(Path::new("/")).unwrap();
            let file = parse_call(&format!("step: {{git: {{url: '{url}', rev: v1, dir: a/b}}}}"));
            assert_eq!(given, file.unwrap().reference, "{url}");
        }
    }
}
