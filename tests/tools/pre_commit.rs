//! `.pre-commit-hooks.yaml` with pre-commit itself.

use std::fs;
use std::process::{Command, Output};

use crate::env::{CheckoutEnv, GOOD, error, find, repository, text};

/// A repository with hook files whose pre-commit configuration names this repository's hooks.
struct PreCommitRepository {
    world: CheckoutEnv,
}

impl PreCommitRepository {
    fn new(files: &[(&str, &str)]) -> Self {
        let commits = PreCommitRepository { world: CheckoutEnv::new(files, &[]).install() };
        let hooks = commits.world.path("hooks");
        fs::create_dir(&hooks).unwrap();
        fs::copy(repository(".pre-commit-hooks.yaml"), hooks.join(".pre-commit-hooks.yaml"))
            .unwrap();
        let revision = commits.commit("hooks");
        let config = format!(
            "repos:\n  - repo: {}\n    rev: {revision}\n    hooks:\n      - id: oci-hooks-lint\n",
            hooks.display()
        );
        let checkout = commits.world.path("checkout");
        fs::write(checkout.join(".pre-commit-config.yaml"), config).unwrap();
        fs::write(checkout.join("other.json"), "{").unwrap();
        commits
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.world.command(program);
        let path = format!("{}:/usr/bin:/bin", self.world.path("tools").display());
        command
            .env("PATH", path)
            .env("PRE_COMMIT_HOME", self.world.path("cache"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs(["AUTHOR", "COMMITTER"].into_iter().flat_map(|who| {
                [(format!("GIT_{who}_NAME"), "a"), (format!("GIT_{who}_EMAIL"), "a@example.com")]
            }));
        command
    }

    /// Commits all files of a directory, and returns the commit id.
    fn commit(&self, directory: &str) -> String {
        let git = |args: &[&str]| {
            let mut command = self.command("git");
            let output =
                command.args(args).current_dir(self.world.path(directory)).output().unwrap();
            assert!(output.status.success(), "git {args:?}: {}", text(&output));
            String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
        };
        git(&["init", "--quiet"]);
        git(&["add", "--all"]);
        git(&["commit", "--quiet", "--message", "files"]);
        git(&["rev-parse", "HEAD"])
    }

    fn run(&self) -> Output {
        self.commit("checkout");
        self.command("pre-commit").args(["run", "--all-files", "--verbose"]).output().unwrap()
    }
}

#[test]
fn pre_commit_passes_good_files() {
    let output = PreCommitRepository::new(&[("a.json", GOOD)]).run();
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("1 hook file, no findings"), "{}", text(&output));
}

#[test]
fn pre_commit_fails_with_the_finding() {
    let output = PreCommitRepository::new(&[("a.json", GOOD), ("b.json", &error())]).run();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    for expected in ["error[OH015]: unknown stage \"prestrat\"", "hooks.d/b.json:3:"] {
        assert!(text(&output).contains(expected), "{}", text(&output));
    }
}

#[test]
fn file_names_of_a_repository_are_never_options() {
    let commits = PreCommitRepository::new(&[("a.json", GOOD)]);
    for name in ["--hooks-dir=", "-q"] {
        let directory = commits.world.path("checkout").join(name).join("hooks.d");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("b.json"), error()).unwrap();
    }
    let output = commits.run();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    for expected in ["--hooks-dir=/hooks.d/b.json:3:", "-q/hooks.d/b.json:3:"] {
        assert!(text(&output).contains(expected), "{}", text(&output));
    }
}

#[test]
fn pre_commit_accepts_the_definition() {
    let world = CheckoutEnv::new(&[], &[]);
    let mut command = Command::new(find("pre-commit"));
    command.arg("validate-manifest").arg(repository(".pre-commit-hooks.yaml"));
    let output = command.env("PRE_COMMIT_HOME", world.path("cache")).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}
