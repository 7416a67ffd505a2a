//! The docker executor.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use oci_hooks_testsupport::program::{self, temporary_directory};
use oci_hooks_testsupport::runtime::TestRuntime;
use rustix::process::{Pid, Signal, kill_process};
use step_runner::client::StepClient;
use step_runner::wire::proto::step_result::Status;
use tempfile::TempDir;

use crate::gitlab_runner::client::{PROJECT, block_on, request, run, script, text};
use crate::gitlab_runner::container::{ContainerSetup, GitlabContainer};
use crate::gitlab_runner::images::{BuildImage, fill_our_helper, root_command};

/// Directory that the runner copies the program to.
const DIR: &str = "/opt/gitlab-runner";
const HELPER: &str = "/opt/gitlab-runner/gitlab-runner-helper";

/// Returns the command of build containers, which executes the first shell that exists.
pub(crate) fn shell_command() -> [String; 3] {
    let shells = ["/usr/local/bin/bash", "/usr/bin/bash", "/bin/bash", "/usr/local/bin/sh"];
    let shells = shells.into_iter().chain(["/usr/bin/sh", "/bin/sh", "/busybox/sh"]);
    let tests = shells.map(|shell| format!("if [ -x {shell} ]; then\n\texec {shell} \nel"));
    let text = format!("{}se\n\techo shell not found\n\texit 1\nfi\n\n", tests.collect::<String>());
    ["sh".to_owned(), "-c".to_owned(), text]
}

/// A volume with the program, and a volume with a project.
pub(crate) struct JobVolumes {
    bin: TempDir,
    builds: TempDir,
}

impl JobVolumes {
    /// Runs a helper container that copies the program to a volume, as `user`.
    pub(crate) fn bootstrap(runtime: TestRuntime, user: u32, dir: &'static str) -> Self {
        let volumes = JobVolumes { bin: temporary_directory(), builds: temporary_directory() };
        for dir in [&volumes.bin, &volumes.builds] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            chown(dir.path(), Some(user), Some(user)).unwrap();
        }
        let mut project = volumes.builds.path().to_owned();
        for name in ["group", "project"] {
            project.push(name);
            fs::create_dir(&project).unwrap();
            chown(&project, Some(user), Some(user)).unwrap();
        }
        let step = project.join("version");
        fs::create_dir(&step).unwrap();
        let command = format!("exec: {{command: [{dir}/gitlab-runner-helper, --version]}}");
        fs::write(step.join("step.yml"), format!("spec: {{}}\n---\n{command}\n")).unwrap();
        let file = format!("{dir}/gitlab-runner-helper");
        let words = ["gitlab-runner-helper", "steps", "bootstrap", &file].map(str::to_owned);
        let container = GitlabContainer::start(&ContainerSetup {
            runtime,
            fill: &fill_our_helper,
            args: words.into(),
            env: Vec::new(),
            user,
            volumes: vec![(volumes.bin.path().to_owned(), dir)],
            has_shared_memory: false,
        });
        let (status, out, err) = container.wait_for_stop();
        assert!(status.success() && out.is_empty() && err.is_empty(), "{runtime}: {out}{err}");
        volumes
    }

    /// Starts a build container with a read-only root.
    pub(crate) fn build(&self, job: &ContainerJob, args: &[&str]) -> GitlabContainer {
        let ContainerJob { runtime, image, user, dir } = *job;
        GitlabContainer::start(&ContainerSetup {
            runtime,
            fill: &move |root: &Path| image.fill(root),
            args: args.iter().map(|&word| word.to_owned()).collect(),
            env: Vec::new(),
            user,
            volumes: vec![
                (self.bin.path().to_owned(), dir),
                (self.builds.path().to_owned(), "/builds"),
            ],
            has_shared_memory: true,
        })
    }
}

/// Settings of a job's container.
#[derive(Clone, Copy)]
pub(crate) struct ContainerJob {
    pub(crate) runtime: TestRuntime,
    pub(crate) image: BuildImage,
    pub(crate) user: u32,
    /// Mount point of the volume with the program.
    pub(crate) dir: &'static str,
}

impl ContainerJob {
    fn new(runtime: TestRuntime, image: BuildImage, user: u32) -> Self {
        ContainerJob { runtime, image, user, dir: DIR }
    }
}

/// Starts a build container that serves, and returns it with the path of its socket.
fn serve(volumes: &JobVolumes, job: &ContainerJob) -> (GitlabContainer, String) {
    let [sh, option, text] = shell_command();
    let mut container = volumes.build(job, &[HELPER, "steps", "serve", &sh, &option, &text]);
    let socket = container.ready();
    (container, socket)
}

fn proxy(container: &GitlabContainer, socket: &str) -> StepClient {
    container.client(&[HELPER, "steps", "proxy", "--socket", socket])
}

#[test]
fn helper_copies_itself_with_a_read_only_root() {
    for (runtime, user) in [(TestRuntime::Runc, 0), (TestRuntime::Crun, 1000)] {
        let volumes = JobVolumes::bootstrap(runtime, user, DIR);
        let bin = volumes.bin.path();
        let mode = |name: &str| fs::metadata(bin.join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("gitlab-runner-helper"), 0o755);
        assert_eq!(mode("gitlab-runner-helper.gitlab"), 0o755);
        assert_eq!(mode("ca-certs.pem"), 0o644);
        assert_eq!(fs::read_link(bin.join("git/git")).unwrap(), Path::new("libexec/git"));
        assert_eq!(fs::read_to_string(bin.join("git/git")).unwrap(), "git\n");
        assert_eq!(fs::read_dir(bin).unwrap().count(), 4);
    }
}

#[test]
fn jobs_run_with_and_without_a_shell_as_root_and_other_users() {
    for (number, image) in BuildImage::ALL.into_iter().enumerate() {
        for user in [0, 1000] {
            // Each image runs with each runtime, as different users.
            let runtime = TestRuntime::ALL[(number + usize::from(user == 0)) % 2];
            let volumes = JobVolumes::bootstrap(runtime, 0, DIR);
            chown(volumes.builds.path().join("group/project"), Some(user), Some(user)).unwrap();
            let (container, socket) = serve(&volumes, &ContainerJob::new(runtime, image, user));
            block_on(async {
                job_after_job(&proxy(&container, &socket), image, user).await;
                // Runners before 18.11 do not pass the path of the socket.
                let client = container.client(&[HELPER, "steps", "proxy"]);
                assert_eq!(client.status("").await.unwrap(), []);
            });
            container.stop();
            let (status, out, err) = container.wait_for_stop();
            assert_eq!((status.code(), &*out, &*err), (Some(0), "", ""), "{runtime}, {image:?}");
        }
    }
}

async fn job_after_job(client: &StepClient, image: BuildImage, user: u32) {
    // A step whose program exists in every image: the helper itself.
    let exec = request("exec", "run:\n  - name: version\n    step: ./version\n");
    let (status, code, log) = run(client, exec).await;
    assert_eq!((status, code), (Status::Success, 0), "{image:?}: {log}");
    assert!(log.contains("\nOS/Arch:      linux/"), "{image:?}: {log}");
    if image.has_shell() {
        let text = "echo \"${{ vars.CI_PROJECT_NAME }} $(id -u)\"; pwd > where; cat where; exit 3";
        let (status, code, log) = run(client, script("script", text)).await;
        assert_eq!((status, code), (Status::Failure, 3), "{image:?}: {log}");
        let expected = format!("Running step name=a\nproject {user}\n{PROJECT}\n");
        assert_eq!(log, expected, "{image:?}");
        // Steps see the path of the socket, but not the runner's arguments.
        let text = "echo \"[$_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV] $STEP_RUNNER_SOCKET\"";
        let (_, _, log) = run(client, script("variables", text)).await;
        assert!(
            log.ends_with(
                "[] /dev/shm/step-runner-{user}/step-runner.sock\n"
                    .replace("{user}", &user.to_string())
                    .as_str()
            ),
            "{log}"
        );
    }
    assert_eq!(client.status("").await.unwrap(), []);
}

#[test]
fn container_input_is_run_by_its_shell_and_ends_it() {
    for &runtime in TestRuntime::selected(0) {
        let volumes = JobVolumes::bootstrap(runtime, 0, DIR);
        let job = ContainerJob::new(runtime, BuildImage::Debian, 1000);
        let (mut container, _) = serve(&volumes, &job);
        let mut stdin = container.stdin.take().unwrap();
        stdin
            .write_all(b"echo \"from ${BASH##*/}\"; echo \"$STEP_RUNNER_SOCKET\" >&2; exit 9\n")
            .unwrap();
        drop(stdin);
        let (status, out, err) = container.wait_for_stop();
        let said = "/dev/shm/step-runner-1000/step-runner.sock\n";
        assert_eq!((status.code(), &*out, &*err), (Some(9), "from bash\n", said), "{runtime}");
        // Without a script the container exits successfully.
        let (mut container, _) = serve(&volumes, &job);
        drop(container.stdin.take());
        let (status, out, err) = container.wait_for_stop();
        assert_eq!((status.code(), &*out, &*err), (Some(0), "", ""), "{runtime}");
    }
}

#[test]
fn stopping_the_container_stops_the_command_and_its_children() {
    for (runtime, trap, end) in
        [(TestRuntime::Runc, "echo stopped; exit 3", 3), (TestRuntime::Crun, "", 137)]
    {
        let volumes = JobVolumes::bootstrap(runtime, 0, DIR);
        let (mut container, _) =
            serve(&volumes, &ContainerJob::new(runtime, BuildImage::Busybox, 1000));
        // The child is not awaited, and is ended by a signal to the process group.
        let child = "(trap 'echo child; exit' TERM; echo up; while :; do sleep 1; done) &";
        let text = format!("trap '{trap}' TERM; {child} while :; do sleep 1; done\n");
        container.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
        assert_eq!(container.line(), "up\n", "{runtime}");
        container.stop();
        // Shells report killed children on standard error.
        let (status, out, err) = container.wait_for_stop();
        assert_eq!(status.code(), Some(end), "{runtime}: {out}{err}");
        assert!(out.contains("child\n"), "{runtime}: {out}");
        assert_eq!(out.contains("stopped\n"), end == 3, "{runtime}: {out}");
    }
}

#[test]
fn arguments_dropped_by_an_entry_point_are_in_a_variable() {
    let runtime = TestRuntime::Crun;
    let volumes = JobVolumes::bootstrap(runtime, 0, DIR);
    let [sh, option, text] = shell_command();
    let arguments = serde_json::to_string(&["steps", "serve", &sh, &option, &text]).unwrap();
    let mut container = GitlabContainer::start(&ContainerSetup {
        runtime,
        fill: &|root: &Path| BuildImage::Busybox.fill(root),
        // Result of an entry point `sh -c` followed by the command.
        args: ["sh", "-c", HELPER, "steps", "serve", &sh, &option, &text].map(str::to_owned).into(),
        env: vec![format!(
            "_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV={}",
            BASE64_STANDARD.encode(arguments)
        )],
        user: 1000,
        volumes: vec![
            (volumes.bin.path().to_owned(), DIR),
            (volumes.builds.path().to_owned(), "/builds"),
        ],
        has_shared_memory: true,
    });
    container.ready();
    let text = b"echo \"up $_GITLAB_RUNNER_HELPER_NATIVE_STEPS_ARGV\"\n";
    container.stdin.take().unwrap().write_all(text).unwrap();
    let (status, out, err) = container.wait_for_stop();
    assert_eq!((status.code(), &*out, &*err), (Some(0), "up \n", ""));
}

#[test]
fn another_client_takes_over_and_a_job_is_cancelled() {
    for &runtime in TestRuntime::selected(0) {
        let volumes = JobVolumes::bootstrap(runtime, 0, DIR);
        chown(volumes.builds.path().join("group/project"), Some(1000), Some(1000)).unwrap();
        let (container, socket) =
            serve(&volumes, &ContainerJob::new(runtime, BuildImage::Busybox, 1000));
        block_on(async {
            let client = proxy(&container, &socket);
            let text = "echo begun; mkfifo go; cat go; echo done; sleep 1000 &";
            client.run(script("1", text)).await.unwrap();
            let mut log = client.follow_log("1", 0);
            let mut begin = Vec::new();
            while !self::text(&begin).contains("begun") {
                begin.extend(log.next().await.unwrap().expect("it runs"));
            }
            let proxies = program_ids(&container, &[HELPER, "steps", "proxy", "--socket", &socket]);
            assert!(!proxies.is_empty());
            for pid in proxies {
                kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            }
            let other = proxy(&container, &socket);
            // A second job while the first runs.
            let (status, _, log) = run(&other, script("2", "echo go > go; echo went")).await;
            assert_eq!(
                (status, &*log),
                (Status::Success, "Running step name=a\nwent\n"),
                "{runtime}"
            );
            let (status, code, log) = run(&other, script("1", "never run")).await;
            assert_eq!((status, code), (Status::Success, 0), "{runtime}");
            assert_eq!(log, "Running step name=a\nbegun\ngo\ndone\n", "{runtime}");

            other
                .run(script("3", "trap 'echo cleaned; exit 1' TERM; echo up; sleep 1000 & wait"))
                .await
                .unwrap();
            let mut log = other.follow_log("3", 0);
            let mut all = Vec::new();
            while !self::text(&all).contains("up\n") {
                all.extend(log.next().await.unwrap().expect("it runs"));
            }
            other.cancel("3").await.unwrap();
            while let Some(bytes) = log.next().await.unwrap() {
                all.extend(bytes);
            }
            assert!(self::text(&all).ends_with("cleaned\n"), "{runtime}: {}", self::text(&all));
            let status = other.status("3").await.unwrap()[0].status();
            assert_eq!(status, Status::Cancelled, "{runtime}");
            other.close("3").await.unwrap();
        });
        container.stop();
        assert_eq!(container.wait_for_stop().0.code(), Some(0), "{runtime}");
    }
}

/// Returns the ids of a container's processes with a command line.
fn program_ids(container: &GitlabContainer, words: &[&str]) -> Vec<i32> {
    // Containers of other tests run the same commands.
    let mut look = container.exec(&["/bin/busybox", "readlink", "/proc/self/ns/pid"]);
    let namespace = program::run(&mut look).success();
    let is_inside = |id: &i32| {
        let found = fs::read_link(format!("/proc/{id}/ns/pid"));
        found.is_ok_and(|found| found.to_str() == Some(namespace.trim_end()))
    };
    let line: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    let names = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name());
    let ids = names.filter_map(|name| name.to_str()?.parse().ok());
    ids.filter(|id| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|read| read == line))
        .filter(is_inside)
        .collect()
}

#[test]
fn unwritable_directories_are_listed() {
    let runtime = TestRuntime::Runc;
    let volumes = JobVolumes::bootstrap(runtime, 0, DIR);
    let container = GitlabContainer::start(&ContainerSetup {
        runtime,
        fill: &|root: &Path| BuildImage::Busybox.fill(root),
        args: [HELPER, "steps", "serve", "sh"].map(str::to_owned).into(),
        env: Vec::new(),
        user: 1000,
        volumes: vec![(volumes.bin.path().to_owned(), DIR)],
        has_shared_memory: false,
    });
    let (status, _, err) = container.wait_for_stop();
    assert_eq!(status.code(), Some(1), "{err}");
    let begin =
        "error: no usable directory for sockets and files of jobs (/tmp: read-only file system, ";
    assert!(err.starts_with(begin), "{err}");
    for part in ["/dev/shm: ", "/opt/gitlab-runner: permission denied", "mount a tmpfs at /tmp"] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn other_commands_are_passed_to_gitlabs_program() {
    let dir = temporary_directory();
    fill_our_helper(dir.path());
    let call = |words: &[&str]| {
        let done = program::run(root_command(dir.path()).args(words));
        (done.status.code(), done.stdout, done.stderr)
    };
    let said = "original: cache-init --x /builds\n".to_owned();
    let done = call(&["gitlab-runner-helper", "cache-init", "--x", "/builds"]);
    assert_eq!(done, (Some(7), said, String::new()));
    let (code, out, _) = call(&["gitlab-runner-helper", "--version"]);
    assert!(
        out.starts_with(
            "Version:      19.4.0\nOS/Arch:      linux/amd64\nStep runner:  oci-hooks "
        )
    );
    assert_eq!(code, Some(0));

    fs::remove_file(dir.path().join("usr/bin/gitlab-runner-helper.gitlab")).unwrap();
    let (code, out, err) = call(&["gitlab-runner-helper", "health-check", "--port", "80"]);
    let expected = "error: cannot run health-check, a command of GitLab's own program: that \
                    program is not at /usr/bin/gitlab-runner-helper.gitlab: copy it there from \
                    GitLab's helper image or package\n";
    assert_eq!((code, &*out, &*err), (Some(1), "", expected));
    let (code, out, _) = call(&["gitlab-runner-helper", "--version"]);
    assert!(out.starts_with("Version:      ") && out.contains("\nOS/Arch:      linux/"), "{out}");
    assert_eq!(code, Some(0));
}
