//! The names of the services, from the workflow's file, if an earlier job left it in the workspace.
//!
//! Nothing is checked out when a job is prepared, so this helps with a second job or attempt on the same
//! runner alone. The file may be of another branch, and steps could write it: it is read within bounds,
//! and what it says counts only as far as it [matches](super::named_services) the request.

use std::io::Read as _;
use std::path::Path;

use super::named_services::NamedService;
use super::runner::Runner;
use crate::sys::fs::{PathContext as _, PathError};
use crate::yaml::{Dialect, Documents, Node, Value};

/// GitHub takes no larger ones.
const MAX_BYTES: u64 = 1 << 20;

/// Where workflows are in a repository.
const WORKFLOWS: &str = ".github/workflows";

/// Reads the services of the runner's job; none if the file is not there or has no such job.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub fn services(runner: &Runner) -> Result<Option<Vec<NamedService>>, PathError> {
    let of_job = |name: &str| runner.job.get(name).map(String::as_str);
    let (Some(workflow), Some(repository), Some(job)) =
        (runner.workflow.as_deref(), of_job("GITHUB_REPOSITORY"), of_job("GITHUB_JOB"))
    else {
        return Ok(None);
    };
    let Some(name) = file_name(workflow, repository) else { return Ok(None) };
    let path = runner.workspace.join(WORKFLOWS).join(name);
    let file = runner.files.read(&path)?;
    if !file.metadata().at("look at", &path)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).at("read", &path)?;
    let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= MAX_BYTES);
    Ok(text.and_then(|text| of_text(&text, job)))
}

/// Returns the file that `GITHUB_WORKFLOW_REF` names, as `octo/repo/.github/workflows/ci.yml@refs/heads/main`.
fn file_name<'a>(workflow: &'a str, repository: &str) -> Option<&'a str> {
    let path = workflow.strip_prefix(repository)?.strip_prefix('/')?;
    let name = path.strip_prefix(WORKFLOWS)?.strip_prefix('/')?.split_once('@')?.0;
    let is_plain = Path::new(name).file_name().is_some_and(|plain| plain == name);
    is_plain.then_some(name)
}

fn of_text(text: &str, job: &str) -> Option<Vec<NamedService>> {
    let document = Documents::new(text, Dialect::Core).next()?.ok()?;
    let services = document.root.get("jobs")?.get(job)?.get("services")?;
    let text = |node: &Node| match &node.value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    };
    let named = services.fields().iter().map(|field| {
        let image = text(&field.node).or_else(|| field.node.get("image").and_then(text));
        NamedService::new(&field.name, image.as_deref())
    });
    Some(named.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::container_hook::runner::tests::runner;
    use crate::container_hook::runner_files::RunnerFiles;

    const WORKFLOW: &str = "on: push\njobs:\n  build:\n    runs-on: x\n    services:\n      db:\n        \
        image: postgres:16\n        ports: [5432]\n      cache: redis\n      any:\n        image: ${{ matrix.image }}\n";

    #[test]
    fn names_and_images_stand_in_the_order_of_the_workflow() {
        let named = of_text(WORKFLOW, "build").unwrap();
        let all: Vec<_> = named.iter().map(|s| (s.name.as_str(), s.image.as_deref())).collect();
        assert_eq!(all, [("db", Some("postgres:16")), ("cache", Some("redis")), ("any", None)]);
        for (text, job) in [(WORKFLOW, "other"), ("", "build"), ("jobs: [", "build"), ("a", "a")] {
            assert_eq!(of_text(text, job), None, "{text}");
        }
    }

    #[test]
    fn the_file_is_one_of_the_jobs_own_repository() {
        let name = |workflow| file_name(workflow, "octo/repo");
        assert_eq!(name("octo/repo/.github/workflows/ci.yml@refs/heads/a@b"), Some("ci.yml"));
        for other in [
            "octo/repo2/.github/workflows/ci.yml@main",
            "octo/repo/.github/workflows/../../x@main",
            "octo/repo/.github/workflows/..@main",
            "octo/repo/.github/workflows/@main",
            "octo/repo/ci.yml@main",
            "octo/repo/.github/workflows/ci.yml",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_job_left_is_read_within_bounds() {
        let dir = tempfile::tempdir().unwrap();
        let work = dir.path().canonicalize().unwrap();
        let workflows = work.join("repo/repo/.github/workflows");
        fs::create_dir_all(&workflows).unwrap();
        let mut runner = runner();
        runner.files = RunnerFiles::new(&work).unwrap();
        runner.workspace = work.join("repo/repo");
        runner.job.insert("GITHUB_JOB".into(), "build".into());
        assert_eq!(services(&runner).unwrap(), None, "no workflow is named");
        runner.workflow = Some("octo/repo/.github/workflows/ci.yml@refs/heads/main".into());
        services(&runner).unwrap_err();
        fs::write(workflows.join("ci.yml"), WORKFLOW).unwrap();
        assert_eq!(services(&runner).unwrap().unwrap().len(), 3);
        fs::write(workflows.join("ci.yml"), WORKFLOW.to_owned() + &"#".repeat(1 << 20)).unwrap();
        assert_eq!(services(&runner).unwrap(), None);
        fs::remove_file(workflows.join("ci.yml")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", workflows.join("ci.yml")).unwrap();
        services(&runner).unwrap_err();
        fs::remove_file(workflows.join("ci.yml")).unwrap();
        fs::create_dir(workflows.join("ci.yml")).unwrap();
        assert_eq!(services(&runner).unwrap(), None);
    }
}
