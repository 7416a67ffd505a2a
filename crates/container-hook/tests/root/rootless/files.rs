//! Files in the runner's directories: containers of any user can use them, and all belong to the runner again
//! after the job, however it ends.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::merge;
use oci_hooks_testsupport::world::{UserIds, UserWorld};
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, UsersRunner, shell_step, with_each};

/// Users of containers: root, a usual user of web server images, and the first user of an image.
const USERS: [&str; 3] = ["0", "33", "1000:1000"];

fn as_user(container: Value, user: &str) -> Value {
    merge(container, json!({"createOptions": format!("--user {user}")}))
}

/// Creates files that the runner's user could not remove, execute or read.
const MESS: &str = r#"
mkdir -p made/deep; echo x >made/deep/file; echo x >"with
two lines"
chmod 700 made/deep; mkfifo pipe; ln -s /etc/passwd link; ln made/deep/file hard
echo exit >setuid; chmod 6755 setuid
echo x >closed; chmod 000 closed; mkdir -m 000 locked; mkdir -p sealed/below; chmod 555 sealed
mkdir -p $HOME/.cache; echo x >$HOME/.cache/file
"#;

/// Checks that all files in the work directory belong to the runner, as before its jobs, and can be removed.
#[track_caller]
fn check_files_owned_by_runner(installation: &UserInstallation<'_>, runner: &UsersRunner<'_>) {
    let user = installation.user.expect("root is nobody's runner here");
    assert_eq!(user.find_foreign_files(installation.world, &runner.work()), "");
    let work = runner.work().display().to_string();
    let host = installation.world.host();
    assert_eq!(host.shell(&format!("getfacl -R -s -p {work}")), "", "no list is left");
    assert_eq!(host.shell(&format!("find {work} -perm /6000 -type f")), "");
    assert_eq!(host.shell(&format!("find {work} '!' -type l -perm /022")), "", "nobody may write");
}

/// Checks that the other tests detect files of other users.
#[test]
fn foreign_files_are_found() {
    let world = UserWorld::new();
    let user = world.user(UserIds::Ranges);
    let made = user.home.join("made").display().to_string();
    world.host().shell(&format!("touch {made}; chown {}:7 {made}", user.id));
    assert_eq!(user.find_foreign_files(&world, &user.home), format!("{made} {}:7\n", user.id));
}

#[track_caller]
fn remove_directory_as_runner(installation: &UserInstallation<'_>, runner: &UsersRunner<'_>) {
    let user = installation.user.expect("root is nobody's runner here");
    let work = runner.work().display().to_string();
    let script = format!("chmod -R u+rwX {work} && rm -r {work}");
    installation.world.shell_as(user, &script);
}

#[test]
fn containers_of_any_user_leave_only_files_of_the_runner() {
    with_each(&[UserKind::Ranges], "", |installation| {
        for user in USERS {
            let mut runner = installation.runner(&format!("runner-{}", &user[..1]));
            // From an earlier job.
            let old = runner.workspace().join("old/file");
            installation.write(&old, "old\n");
            runner.prepare(as_user(runner.job_container("node:22"), user), &[]);
            steps_and_the_runner_share_files(installation, &mut runner, user);
            let git = runner.run("echo $GIT_CONFIG_KEY_0=$GIT_CONFIG_VALUE_0").success().stdout();
            assert_eq!(git, if user == "0" { "=\n" } else { "safe.directory=*\n" });
            // A container action with another user.
            let other = as_user(shell_step("id -u; echo action >>old/file; echo x >action"), "34");
            let (ended, _) = runner.container_step(other);
            assert!(ended.success().stdout().ends_with("34\n"));
            runner.run("cat action && rm action && echo last >>old/file").success();
            assert_eq!(fs::read_to_string(&old).unwrap(), "old\nstep\naction\nlast\n");
            if user == "0" {
                let own = "su app -s /bin/sh -c 'echo x >shared/file; mkdir -m 700 shared/dir'";
                runner.run(&format!("mkdir -m 777 shared; {own}; chmod 755 shared")).success();
                runner.run("mkdir given && echo x >given/file && chown -R 33:33 given").success();
            }
            runner.run(MESS).success();
            let log = runner.cleanup().log();
            assert!(!log.contains("_work"), "ownership of all files was restored: {log}");
            check_files_owned_by_runner(installation, &runner);
            assert_eq!(fs::metadata(&old).unwrap().mode() & 0o7777, 0o644);
            remove_directory_as_runner(installation, &runner);
        }
    });
}

/// The runner uses the files while steps do: it creates and removes some, and reads the file commands.
#[track_caller]
fn steps_and_the_runner_share_files(
    installation: &UserInstallation<'_>,
    runner: &mut UsersRunner<'_>,
    user: &str,
) {
    let script = "id -u; echo step >>old/file; mkdir -p sub/dir; echo x >sub/dir/file\n\
                  echo answer=42 >>$GITHUB_OUTPUT; echo LATER=set >>$GITHUB_ENV\n\
                  cat /github/workflow/event.json >/dev/null";
    let (ended, outputs) = runner.run_step(script, &[]);
    let uid = user.split(':').next().unwrap();
    assert_eq!(ended.success().stdout(), format!("{uid}\n"));
    assert_eq!(outputs["answer"], "42");
    let workspace = runner.workspace().display().to_string();
    let by_runner = format!(
        "cd {workspace}; rm sub/dir/file; echo y >sub/dir/by-runner; echo z >>sub/dir/by-runner; mkdir own"
    );
    installation.world.shell_as(installation.user.unwrap(), &by_runner);
    let (ended, outputs) = runner.run_step(
        "echo $LATER; echo x >>sub/dir/by-runner; cat sub/dir/by-runner; touch own/file\n\
         rm -r sub own; echo more=yes >>$GITHUB_OUTPUT; echo x >>$GITHUB_STEP_SUMMARY",
        &[],
    );
    assert_eq!(ended.success().stdout(), "set\ny\nz\nx\n");
    assert_eq!(outputs["more"], "yes");
}

#[test]
fn ownership_is_restored_without_subordinate_ids() {
    with_each(&[UserKind::Single], "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run(MESS).success();
        runner.cleanup();
        check_files_owned_by_runner(installation, &runner);
        remove_directory_as_runner(installation, &runner);
    });
}

#[test]
fn image_user_can_write_to_shared_directories() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("test/user:1"), &[]);
        let ended = runner.run("test $(id -u) != 0; echo x >new; mkdir -p a/b; echo x >a/b/c");
        ended.success();
        let step = merge(shell_step("echo x >>a/b/c; echo x >d"), json!({"image": "test/user:1"}));
        runner.container_step(step).0.success();
        runner.cleanup();
        check_files_owned_by_runner(installation, &runner);
    });
}

/// Steps of a job without a container run on the host as the runner's user, between container actions.
#[test]
fn files_of_an_action_belong_to_the_runner_in_the_next_step() {
    with_each(&[UserKind::Ranges], "", |installation| {
        for services in [false, true] {
            let mut runner = installation.runner(&format!("runner-{services}"));
            if services {
                runner.prepare(Value::Null, &[crate::rootless::setup::redis()]);
            }
            let script = "mkdir made && echo x >made/file && chown -R 33 made && chmod 700 made";
            runner.container_step(shell_step(script)).0.success();
            let step = as_user(shell_step("mkdir own && echo x >own/file && chmod 700 own"), "33");
            runner.container_step(step).0.success();
            check_files_owned_by_runner(installation, &runner);
            let workspace = runner.workspace().display().to_string();
            let script = format!("cd {workspace}; cat made/file own/file; rm -r made own");
            installation.world.shell_as(installation.user.unwrap(), &script);
            if services {
                runner.cleanup();
            }
        }
    });
}

#[test]
fn ownership_after_a_killed_job_is_restored_by_next_job_and_prune() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let user = installation.user.unwrap();
        let world = installation.world;
        for (what, is_boot) in [("next", false), ("next", true), ("prune", false), ("prune", true)]
        {
            let mut runner = installation.runner(&format!("runner-{what}-{is_boot}"));
            runner.prepare(as_user(runner.job_container("node:22"), "1000"), &[]);
            runner.run("mkdir made; chmod 700 made; echo x >made/file").success();
            world.kill(&world.find_processes("pause-process"));
            assert_ne!(
                user.find_foreign_files(world, &runner.work()),
                "",
                "somebody else's files are left"
            );
            if is_boot {
                // Dying processes may still change files there.
                world.kill_all_of(user);
                let run = installation.jobs_directory().display().to_string();
                world.host().shell(&format!("rm -r {run}"));
            }
            runner.state = Value::Null;
            match what {
                "prune" => drop(installation.admin(&["prune"]).success()),
                _ => drop(runner.prepare(runner.job_container("node:22"), &[])),
            }
            check_files_owned_by_runner(installation, &runner);
            runner.cleanup();
        }
    });
}

/// Container root has the runner's access to its files, other users only what the modes permit.
#[test]
fn kept_owners_share_nothing_and_are_restored() {
    with_each(&[UserKind::Ranges], "[mounts]\nownership = \"keep\"\n", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(as_user(runner.job_container("node:22"), "1000"), &[]);
        runner.run("! touch new 2>/dev/null; cat /github/workflow/event.json").success();
        runner.cleanup();
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("echo x >new; chown 1000 new; mkdir dir; chown 1000 dir").success();
        runner.cleanup();
        check_files_owned_by_runner(installation, &runner);
    });
}

/// The runner may create the files with a mode that denies writing to other users.
#[test]
fn step_command_files_are_shared_whatever_their_mode() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.file_mode = Some(0o644);
        runner.prepare(as_user(runner.job_container("node:22"), "1000"), &[]);
        let (ended, outputs) = runner.run_step("echo answer=42 >>$GITHUB_OUTPUT", &[]);
        ended.success();
        assert_eq!(outputs["answer"], "42");
        runner.cleanup();
        check_files_owned_by_runner(installation, &runner);
    });
}

/// Symlinks that a job creates in place of the runner's directories are not followed in the next job.
#[test]
fn links_in_place_of_runner_directories_are_not_followed() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let user = installation.user.unwrap();
        let outside = installation.world.host().path().join("home/outside");
        let path = outside.display().to_string();
        let make = format!(
            "install -d -o {id} -g {id} -m 755 {path}; install -o {id} /dev/null {path}/file",
            id = user.id
        );
        installation.world.host().shell(&make);
        let before = list_owners(&outside);
        let mut runner = installation.runner("runner-1");
        runner.prepare(as_user(runner.job_container("node:22"), "1000"), &[]);
        runner
            .run(&format!("rm -r /__w/_temp/_github_home; ln -s {path} /__w/_temp/_github_home; ln -s {path} dir; ln -s {path}/file file"))
            .success();
        let step = as_user(shell_step("true"), "33");
        runner.container_step(step);
        runner.cleanup();
        assert_eq!(list_owners(&outside), before);
        assert_eq!(installation.world.host().shell(&format!("getfacl -R -s -p {path}")), "");
        check_files_owned_by_runner(installation, &runner);
    });
}

fn list_owners(dir: &Path) -> Vec<(u32, u32, u32)> {
    let of = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.uid(), found.gid(), found.permissions().mode())
    };
    vec![of(dir), of(&dir.join("file"))]
}
