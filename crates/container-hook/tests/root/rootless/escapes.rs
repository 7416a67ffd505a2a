//! Escape attempts of a hostile rootless job or image. The boundary is the runner's user: other users' files,
//! the host's network and the job's helper processes stay out of reach, and the user's programs and files
//! unchanged.

use std::fs;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::github_runner::{InstalledHook as _, merge, volume};
use oci_hooks_testsupport::leftovers::InstalledProgram as _;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::world::UserIds;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use crate::rootless::setup::{UserKind, redis, shell_step, with_each};
use crate::runner::setup::HostCanary;

/// Calls a test for each user, and for root also without new privileges: isolation must not depend on them.
fn with_all(test: impl Fn(&UserInstallation<'_>)) {
    with_each(&UserKind::ALL, "", &test);
    with_each(&[UserKind::Root], "[security]\nallow-new-privileges = false\n", &test);
}

#[test]
fn steps_are_in_no_host_network() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let host = installation.host();
        let address = SocketAddr::from_abstract_name(program::unique_name()).unwrap();
        let name = format!("@{}", String::from_utf8_lossy(address.as_abstract_name().unwrap()));
        let _abstract = host.enter(|| UnixListener::bind_addr(&address)).unwrap();
        assert!(host.shell("cat /proc/net/unix").contains(&name));
        let of_host = host.shell("readlink /proc/self/ns/net; readlink /proc/self/ns/ipc");
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("alpine:3.20"), &[]);
        let look = "ls /sys/class/net; cat /proc/net/unix /proc/net/dev; \
                    readlink /proc/self/ns/net; readlink /proc/self/ns/ipc";
        let logs = [
            runner.run(look).success().stdout(),
            runner.container_step(shell_step(look)).0.success().stdout(),
        ];
        for log in logs {
            assert!(!log.contains(&name) && !log.contains("out"), "{log}");
            for namespace in of_host.lines() {
                assert!(!log.contains(namespace), "{log}");
            }
        }
        runner.cleanup();
    });
}

#[test]
fn steps_cannot_see_or_signal_the_pause_process_and_uplink() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        let before = helper_pids(installation);
        let look = "cat /proc/[0-9]*/comm /proc/[0-9]*/cmdline | tr '\\0' '\\n'; \
                    kill -9 -1; sleep 0; for pid in $(seq 2 40); do kill -9 $pid 2>/dev/null || :; done";
        let ended = runner.run(look);
        // The step sees its own processes.
        assert!(ended.log().lines().any(|line| line == "sh"), "{}", ended.log());
        for name in ["pause-process", "pasta", "slirp4netns", "container-hook", "docker-registry"] {
            assert!(!ended.log().contains(name), "{}", ended.log());
        }
        let (ended, _) = runner.container_step(shell_step("kill -9 -1; cat /proc/[0-9]*/comm"));
        assert!(!ended.log().contains("pause-process"), "{}", ended.log());
        let after = helper_pids(installation);
        assert!(before.iter().all(|one| after.contains(one)), "{before:?}\n{after:?}");
        let pong = runner.run("printf 'PING\\r\\nQUIT\\r\\n' | nc redis 6379");
        assert_eq!(pong.success().stdout(), "+PONG\r\n");
        runner.cleanup();
    });
}

/// Returns the process ids of the job's pause process and uplink.
fn helper_pids(installation: &UserInstallation<'_>) -> Vec<u32> {
    let names = ["pause-process", "pasta", "pasta.avx2", "slirp4netns"];
    let found =
        names.iter().flat_map(|name| installation.world.find_processes(name)).collect::<Vec<_>>();
    assert!(!found.is_empty());
    found
}

#[test]
fn steps_have_no_inherited_descriptors() {
    with_all(|installation| {
        let mut runner = installation.runner("runner-1");
        for fd in [3, 7, 8] {
            let step = json!({
                "image": format!("evil/workdir:fd{fd}"), "workingDirectory": null,
                "entryPoint": "/bin/ls", "entryPointArgs": ["/bin/.."],
            });
            let ended = runner.container_step(step).0;
            assert!(!ended.failure().contains("boot"), "descriptor {fd}");
        }
        runner.prepare(runner.job_container("node:22"), &[]);
        // The standard streams, and the descriptor with which `ls` reads the directory.
        let words = ["/proc/self/fd".into()];
        let seen = runner.call("run_script_step", runner.script_args("/bin/ls", &words, &[], "x"));
        assert_eq!(seen.success().stdout(), "0\n1\n2\n3\n");
        let seen = runner.container_step(shell_step("ls /proc/self/fd")).0.success().stdout();
        assert!(seen.ends_with("0\n1\n2\n3\n"), "{seen}");
        // Other descriptors of the container's init lead only to the container's `/proc`.
        let follow = "for fd in /proc/1/fd/*; do (cd $fd/. && pwd -P) 2>/dev/null || :; done";
        let seen = runner.run(follow).success().stdout();
        assert!(seen.lines().all(|directory| directory == "/proc"), "{seen}");
        for fd in 3..=64 {
            let words = ["-c".into(), "ls -d ../../../../boot; ls .".into()];
            let mut args = runner.script_args("sh", &words, &[], "x");
            args["workingDirectory"] = json!(format!("/proc/self/fd/{fd}"));
            let said = runner.call("run_script_step", args).failure();
            assert!(!said.contains("../boot\n"), "descriptor {fd}: {said}");
        }
        runner.cleanup();
    });
}

/// In rootless jobs, container root owns these programs; in root's jobs, no host user is container root.
#[test]
fn programs_of_the_user_cannot_be_written() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let user = installation.user.unwrap();
        let own = user.home.join("own");
        let (own, id) = (own.display(), user.id);
        let runtime = installation.runtime.display().to_string();
        installation.host().shell(&format!(
            "install -d -o {id} -g {id} {own}; install -o {id} -g {id} -m 755 {runtime} {} {own}/",
            installation.program().display()
        ));
        let name = Path::new(&runtime).file_name().unwrap().to_str().unwrap();
        installation.write_settings(&format!("[runtime]\npath = \"{own}/{name}\"\n"));
        let script = fs::read_to_string(installation.entry()).unwrap();
        let (program, copy) =
            (installation.program().display().to_string(), format!("{own}/container-hook"));
        installation.write(installation.entry(), &script.replace(&program, &copy));
        assert!(fs::read_to_string(installation.entry()).unwrap().contains(&copy));
        let mut runner = installation.runner("runner-1");
        // Creates the hook's files for containers.
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.cleanup();
        let hashes = || {
            let programs = installation.host().shell(&format!(
                "find {own} {store} {run} -name containers -prune -o -name jobs -prune -o \
                 -type f -perm -100 ! -path '*/layers/*' ! -name '*.lock' -print | sort",
                store = installation.store().display(),
                run = installation.run_directory().display()
            ));
            let hash =
                |path: &str| (path.to_owned(), Sha256::digest(fs::read(path).unwrap()).to_vec());
            programs.lines().map(hash).collect::<Vec<_>>()
        };
        let before = hashes();
        assert!(before.len() >= 2, "{before:?}");
        // The step may fail to start; only the files matter.
        runner.container_step(json!({"image": "evil/self:exe"}));
        runner.prepare(runner.job_container("node:22"), &[]);
        let attack = "while :; do for p in /proc/[0-9]*; do \
                      (echo '#!/bin/sh' >$p/exe) 2>/dev/null; done; done";
        let mut call = runner.start_run(&format!("echo started; {attack}"));
        call.wait_for_line("started");
        for _ in 0..5 {
            let args = runner.script_args("/proc/self/exe", &["--version".into()], &[], "x");
            runner.call("run_script_step", args);
        }
        call.kill_after(Duration::ZERO);
        runner
            .run("chmod -R a+rwx /proc/1/exe /proc/1/root/ 2>/dev/null; echo x >>/proc/1/exe || :");
        runner.cleanup();
        assert_eq!(hashes(), before, "a program of the user has changed");
        let mut runner = installation.runner("runner-2");
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("true").success();
        runner.cleanup();
    });
}

#[test]
fn image_links_do_not_lead_to_the_host() {
    with_all(|installation| {
        let canary = HostCanary::owned_by(installation.host(), installation.ids().0);
        let mut runner = installation.runner("runner-1");
        for link in ["dev", "dev-up", "proc", "sys", "dev-null", "dev-null-trigger", "dev-console"]
        {
            let image = format!("evil/link:{link}");
            // The step may run or be rejected.
            runner.container_step(merge(shell_step("echo x >/dev/null"), json!({"image": image})));
            canary.check(link);
            let args = json!({"container": runner.job_container(&image), "services": []});
            runner.call("prepare_job", args);
            canary.check(link);
            runner.cleanup();
        }
        for image in ["evil/workdir:link", "evil/workdir:link-up"] {
            let step = merge(shell_step("pwd"), json!({"image": image, "workingDirectory": null}));
            runner.container_step(step);
            canary.check(image);
        }
        runner.prepare(runner.job_container("node:22"), &[]);
        runner.run("rm -rf /link; ln -s /run/canary /link").success();
        let mut args = runner.script_args("pwd", &[], &[], "x");
        args["workingDirectory"] = json!("/link/made");
        runner.call("run_script_step", args);
        canary.check("a script step");
        runner.cleanup();
    });
}

/// Even if the administrator allows all mounts, a job has only the user's permissions.
#[test]
fn mounts_grant_no_more_than_the_users_access() {
    let policy = "[policy]\nbind-mounts = [\"/\"]\n";
    with_each(&UserKind::ROOTLESS, policy, |installation| {
        let host = installation.host();
        let other = installation.world.user(UserIds::Ranges);
        let theirs = other.home.join("private").display().to_string();
        let id = other.id;
        host.shell(&format!(
            "echo secret >{theirs}; chown {id}:{id} {theirs}; chmod 600 {theirs}; \
             umask 77; mkdir -p /etc/of-root; echo secret >/etc/of-root/key"
        ));
        let mut runner = installation.runner("runner-1");
        let work = merge(
            runner.job_container("node:22"),
            json!({"userMountVolumes": [volume("/etc", "/host-etc", false),
                volume(other.home.to_str().unwrap(), "/theirs", false)]}),
        );
        // The job may run or be rejected.
        let args = json!({"container": work, "services": []});
        let ended = runner.call("prepare_job", args);
        if ended.status.success() {
            let script = "cat /host-etc/shadow /host-etc/of-root/key /theirs/private; \
                          echo x >/host-etc/made; echo x >/theirs/made; chown 0 /theirs/private; \
                          chmod 777 /theirs /host-etc; ls /host-etc/passwd";
            let log = runner.run(script).log();
            assert!(!log.contains("secret") && !log.contains("root:*"), "{log}");
        }
        runner.cleanup();
        let state = host.shell(&format!(
            "stat -c '%n %u %a' {theirs} {} /etc; ls /etc/made {}/made 2>&1 || true",
            other.home.display(),
            other.home.display()
        ));
        assert!(state.contains(&format!("{theirs} {id} 600\n")), "{state}");
        assert!(
            state.contains(&format!("{} {id} 755\n/etc 0 755\n", other.home.display())),
            "{state}"
        );
        assert_eq!(state.matches("No such file").count(), 2, "{state}");
    });
}

/// Device nodes and set-user-ID programs would extend a step's privileges.
#[test]
fn steps_cannot_create_devices_or_privileged_programs() {
    with_each(&UserKind::ROOTLESS, "", |installation| {
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[]);
        let script = "mknod disk b 8 0 || echo none; mknod /dev/mem c 1 1 || echo none\n\
                      cp /bin/busybox suid; chmod 6755 suid\n\
                      for file in /proc/sys/kernel/core_pattern /proc/sysrq-trigger \
                      /proc/sys/kernel/hostname /sys/kernel/uevent_helper; do \
                      if (echo x >$file) 2>/dev/null; then echo wrote $file; fi; done\n\
                      mount -t tmpfs tmpfs /mnt && echo mounted; unshare -U true && echo unshared; true";
        let ended = runner.run(script).success();
        assert_eq!(ended.stdout(), "none\nnone\n", "{}", ended.log());
        runner.cleanup();
        let left = fs::metadata(runner.workspace().join("suid")).unwrap();
        assert_eq!(left.permissions().mode() & 0o7000, 0);
        assert_eq!(left.uid(), installation.ids().0);
    });
}

#[test]
fn other_users_cannot_see_or_enter_a_job() {
    with_each(&[UserKind::Ranges], "", |installation| {
        let world = installation.world;
        let other = world.user(UserIds::Ranges);
        let mut runner = installation.runner("runner-1");
        runner.prepare(runner.job_container("node:22"), &[redis()]);
        for directory in [installation.store(), installation.run_directory()] {
            let seen = world.run_as(&other, Command::new("ls").arg(&directory));
            let said = seen.failure();
            assert!(said.contains("Permission denied"), "{}: {said}", directory.display());
        }
        for pid in helper_pids(installation) {
            let look = format!(
                "! nsenter --target {pid} --user --preserve-credentials true; ! kill -9 {pid}; \
                 ! ls /proc/{pid}/root/; ! ls /proc/{pid}/fd; ! cat /proc/{pid}/environ"
            );
            world.shell_as(&other, &look);
        }
        runner.run("true").success();
        runner.cleanup();
    });
}
