//! Sources from real repositories.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::job::{JobSite, assert_order, assert_success, git, job};

/// A repository with three commits and a tag, and a repository with it as a submodule.
struct SourceRepositories {
    dir: tempfile::TempDir,
    /// Commit ids, oldest first.
    commits: Vec<String>,
    /// Id of the commit with the submodule.
    parent: String,
}

impl SourceRepositories {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["child", "parent"] {
            fs::create_dir(at(name)).unwrap();
            git(&at(name), &["init", "--quiet", "--initial-branch=main"]);
        }
        let mut commits = Vec::new();
        for text in ["one", "two", "three"] {
            fs::write(at("child/file"), text).unwrap();
            git(&at("child"), &["add", "file"]);
            git(&at("child"), &["commit", "--quiet", "--message", text]);
            commits.push(git(&at("child"), &["rev-parse", "HEAD"]));
        }
        git(&at("child"), &["tag", "v1", &commits[0]]);
        let child = format!("file://{}", at("child").display());
        git(&at("parent"), &["submodule", "--quiet", "add", &child, "sub"]);
        git(&at("parent"), &["commit", "--quiet", "--message", "sub"]);
        let parent = git(&at("parent"), &["rev-parse", "HEAD"]);
        SourceRepositories { dir, commits, parent }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the runner's `get_sources` object for a commit.
    fn sources(&self, name: &str, strategy: &str, sha: &str) -> Value {
        json!({
            "git_strategy": strategy, "repo_url": format!("file://{}", self.path(name).display()),
            "sha": sha, "ref": "main", "checkout": true, "max_attempts": 1, "object_format": "sha1",
            "refspecs": ["+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*"],
            "git_clean_flags": ["-ffdx"], "git_fetch_flags": ["--prune", "--quiet"],
            "submodule_strategy": "none", "is_shared_env": true, "safe_directory_checkout": true,
        })
    }
}

fn config(sources: Value, lines: &[&str]) -> Value {
    let mut config = job(&[("script", lines)]);
    config["cleanup"] = json!({"git_strategy": sources["git_strategy"]});
    config["get_sources"] = sources;
    config
}

fn site() -> JobSite {
    let mut site = JobSite::new();
    // Required for submodules with `file` URLs.
    let allow = [
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "protocol.file.allow"),
        ("GIT_CONFIG_VALUE_0", "always"),
    ];
    site.env.extend(allow.map(|(name, value)| (name.to_owned(), value.to_owned())));
    site.env.push(("GIT_CONFIG_NOSYSTEM".to_owned(), "1".to_owned()));
    // Some git commands are scripts, which need git's own tools.
    site.env.push(("GIT_EXEC_PATH".to_owned(), exec_path()));
    site
}

fn exec_path() -> String {
    git(Path::new("/"), &["--exec-path"])
}

#[test]
fn commit_is_checked_out_fresh_or_over_an_earlier_job() {
    let repositories = SourceRepositories::new();
    for strategy in ["fetch", "clone"] {
        let site = site();
        let sources =
            |commit: usize| repositories.sources("child", strategy, &repositories.commits[commit]);
        let played = site.run(&config(sources(0), &["cat file; echo; echo x > left"]));
        assert_success(&played);
        assert_order(
            &played.text,
            &[
                "Fetching changes...",
                &format!(
                    "Checking out {} as detached HEAD (ref is main)...",
                    &repositories.commits[0][..8]
                ),
                "Skipping Git submodules setup",
                "\none\n",
            ],
        );
        fs::write(site.path("build/.git/index.lock"), "").unwrap();
        fs::write(site.path("build/.git/refs/a.lock"), "").unwrap();
        let played = site.run(&config(sources(2), &["cat file; echo; ls"]));
        assert_success(&played);
        assert_order(&played.text, &["\nthree\n", "file\n"]);
        assert!(!played.text.contains("\nleft\n"), "{}", played.text);
        assert_eq!(played.text.contains("Created fresh repository."), strategy == "clone");
        assert!(!played.text.contains("already exists"), "{}", played.text);
    }
}

#[test]
fn history_has_the_requested_depth() {
    let repositories = SourceRepositories::new();
    let site = site();
    let mut sources = repositories.sources("child", "fetch", &repositories.commits[2]);
    sources["depth"] = json!(1);
    let count = &["git rev-list --count HEAD"];
    let played = site.run(&config(sources.clone(), count));
    assert_success(&played);
    assert_order(&played.text, &["Fetching changes with git depth set to 1...", "\n1\n"]);
    sources["depth"] = json!(0);
    let played = site.run(&config(sources, count));
    assert_success(&played);
    assert_order(&played.text, &["Fetching changes...", "\n3\n"]);
}

#[test]
fn submodules_are_updated_and_their_leftovers_removed() {
    let repositories = SourceRepositories::new();
    for strategy in ["normal", "recursive"] {
        let site = site();
        let mut sources = repositories.sources("parent", "fetch", &repositories.parent);
        sources["submodule_strategy"] = json!(strategy);
        sources["submodule_paths"] = json!(["sub"]);
        let lines: &[&str] = &["cat sub/file; echo; ls sub; echo x > sub/left; echo y > sub/file"];
        for _ in 0..2 {
            let played = site.run(&config(sources.clone(), lines));
            assert_success(&played);
            assert_order(
                &played.text,
                &["Updating/initializing submodules", "Updated submodules", "\nthree\nfile\n"],
            );
            assert!(!played.text.contains("\nleft\n"), "{}", played.text);
        }
    }
    let mut sources = repositories.sources("parent", "fetch", &repositories.parent);
    sources["submodule_strategy"] = json!("some");
    let played = site().run(&config(sources, &["true"]));
    let message = "step \"concrete\": exec: fetching sources: unknown GIT_SUBMODULE_STRATEGY: some";
    assert_eq!(played.outcome.message, message);
}

#[test]
fn hooks_run_around_the_checkout_and_their_variables_reach_the_script() {
    let repositories = SourceRepositories::new();
    let site = site();
    let mut sources = repositories.sources("child", "fetch", &repositories.commits[1]);
    let hook = |name: &str, line: &str| json!({"step": name, "script": [line], "on_success": true});
    sources["pre_clone_step"] = hook("pre_clone_script", "ls; echo PRE=1 >> $GITLAB_ENV");
    sources["post_clone_step"] =
        hook("post_clone_script", "cat file; echo; echo POST=2 >> $GITLAB_ENV");
    let played = site.run(&config(sources.clone(), &["echo $PRE$POST"]));
    assert_success(&played);
    assert_order(&played.text, &["$ ls;", "Fetching", "$ cat file;", "\ntwo\n", "\n12\n"]);
    sources["pre_clone_step"] = hook("pre_clone_script", "exit 4");
    let played = site.run(&config(sources.clone(), &["true"]));
    let message = "step \"concrete\": exec: fetching sources: pre_clone_script: step pre_clone_script: exit status 4";
    assert_eq!((played.outcome.exit_code, &*played.outcome.message), (4, message));
    sources["pre_clone_step"] = json!({});
    sources["post_clone_step"] = hook("post_clone_script", "exit 5");
    assert_eq!(site.run(&config(sources, &["true"])).outcome.exit_code, 5);
}

#[test]
fn failed_fetch_is_retried_as_configured() {
    let repositories = SourceRepositories::new();
    let site = site();
    let mut sources = repositories.sources("nothing", "fetch", &repositories.commits[1]);
    sources["max_attempts"] = json!(3);
    sources["clear_worktree_on_retry"] = json!(true);
    let played = site.run(&config(sources.clone(), &["echo never"]));
    assert_eq!(
        played.outcome.message,
        "step \"concrete\": exec: fetching sources: exit status 128"
    );
    assert_order(
        &played.text,
        &[
            "\x1b[0;33mRetrying git fetch (attempt 2/3)...\x1b[0;m\n",
            "Deleting tracked and untracked files...",
            "Retrying git fetch (attempt 3/3)...",
        ],
    );
    assert!(!played.text.contains("never"), "{}", played.text);
    // A cancellation interrupts the pause at once.
    sources["use_exponential_backoff_stage_retry"] = json!(true);
    let cancel = step_runner::engine::CancelHandle::new().unwrap();
    let played = site.cancel_at(&config(sources, &["true"]), "Retrying in ", &cancel);
    assert_eq!(played.text.matches("Retrying in ").count(), 1, "{}", played.text);
}

#[test]
fn other_strategies_create_or_empty_the_directory() {
    for (strategy, seen) in [("none", "left\n"), ("empty", "")] {
        let site = site();
        fs::write(site.path("build/left"), "").unwrap();
        let played = site.run(&config(json!({"git_strategy": strategy}), &["echo \"[$(ls)]\""]));
        assert_success(&played);
        assert!(played.text.contains(&format!("[{}]\n", seen.trim())), "{}", played.text);
    }
    let played = site().run(&config(json!({"git_strategy": "copy"}), &["true"]));
    let message = "step \"concrete\": exec: fetching sources: unknown GIT_STRATEGY: copy";
    assert_eq!(played.outcome.message, message);
}

#[test]
fn git_in_scripts_gets_the_token_from_a_helper() {
    let repositories = SourceRepositories::new();
    for strategy in ["fetch", "none"] {
        let site = site();
        fs::write(site.path("home/.gitconfig"), "[user]\n\tname = mine\n").unwrap();
        let mut sources = repositories.sources("child", strategy, &repositories.commits[0]);
        sources["use_credential_helper"] = json!(true);
        sources["remote_host"] = json!("https://gitlab.example");
        let fill = "printf 'protocol=https\\nhost=gitlab.example\\n\\n' | git credential fill; git config user.name";
        let played = site.run(&config(sources, &[fill]));
        assert_success(&played);
        assert_order(
            &played.text,
            &["username=gitlab-ci-token\n", "password=job-token\n", "mine\n"],
        );
        // The temporary credentials are removed, and the user's configuration is unchanged.
        assert_eq!(fs::read_dir(site.path("build.tmp")).unwrap().count(), 0);
        assert_eq!(site.text("home/.gitconfig"), "[user]\n\tname = mine\n");
    }
}

#[test]
fn server_certificates_are_trusted_only_for_the_server() {
    let repositories = SourceRepositories::new();
    let mut site = site();
    site.vars.push(("CI_SERVER_TLS_CA_FILE".to_owned(), "/ca.pem".to_owned()));
    let mut sources = repositories.sources("child", "fetch", &repositories.commits[0]);
    sources["remote_host"] = json!("https://gitlab.example");
    let show = &["git config http.https://gitlab.example.sslCAInfo || echo none"];
    // In the repository's configuration during the checkout, or in the user's configuration.
    let mut shared = sources.clone();
    shared["post_clone_step"] =
        json!({"step": "post_clone_script", "on_success": true, "script": show});
    assert_success(&site.run(&config(shared, show)));
    sources["is_shared_env"] = json!(false);
    let played = site.run(&config(sources.clone(), show));
    assert_success(&played);
    assert!(played.text.contains("\n/ca.pem\n"), "{}", played.text);
    // The configuration of a job with a credential helper is kept from before the checkout.
    sources["use_credential_helper"] = json!(true);
    sources["safe_directory_checkout"] = json!(true);
    sources["pre_clone_step"] = json!({"step": "pre_clone_script", "on_success": true,
        "script": ["git config --global a.b kept"]});
    let played =
        site.run(&config(sources, &[show[0], "git config a.b", "git config safe.directory"]));
    assert_success(&played);
    let directory = format!("{}\n", site.path("build").display());
    assert_order(&played.text, &["\n/ca.pem\n", "kept\n", &directory]);
}

#[test]
fn cleanup_keeps_files_required_by_the_strategy() {
    let repositories = SourceRepositories::new();
    for (strategy, left) in [("fetch", vec![".git", "file"]), ("clone", vec![])] {
        let site = site();
        let mut config = config(
            repositories.sources("child", strategy, &repositories.commits[0]),
            &["echo x > left; echo y > file; mkfifo .git/hooks-is-no-directory; git config a.b c"],
        );
        config["cleanup"] = json!({"git_strategy": strategy, "git_clean_flags": ["-ffdx"],
            "enable_job_cleanup": true, "clean_git_config": true});
        assert_success(&site.run(&config));
        let mut names: Vec<_> = fs::read_dir(site.path("build"))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, left);
        if strategy == "fetch" {
            assert_eq!(site.text("build/file"), "one");
            assert!(!site.path("build/.git/config").exists());
        }
    }
}

#[test]
fn hook_left_by_a_job_does_not_affect_the_next() {
    let repositories = SourceRepositories::new();
    let site = site();
    let mut sources = repositories.sources("child", "fetch", &repositories.commits[0]);
    sources["clean_git_config"] = json!(true);
    assert_success(&site.run(&config(sources.clone(), &["true"])));
    fs::create_dir_all(site.path("build/.git/hooks")).unwrap();
    for hook in ["post-checkout", "reference-transaction"] {
        let hook = site.path("build/.git/hooks").join(hook);
        super::job::write_program(&hook, "#!/bin/sh\necho caught\n");
    }
    git(&site.path("build"), &["config", "core.fsmonitor", "echo caught >&2; false"]);
    sources["sha"] = json!(repositories.commits[1]);
    let played = site.run(&config(sources, &["cat file; echo"]));
    assert_success(&played);
    assert!(!played.text.contains("caught"), "{}", played.text);
}
