//! Escape attempts of hostile images and jobs of root; `rootless::escapes` has the attempts for all users.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::time::Duration;

use oci_hooks_testsupport::github_runner::{built_step, merge, volume};
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::threads::repeat_during;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::runner::setup::{
    HostCanary, runner, shell_step, with_both_runtimes, with_each_runtime, write,
};

/// Calls a test for each runtime, with and without `allow-new-privileges`: isolation must not depend on it.
fn with_both(test: impl Fn(&HookInstallation<'_>)) {
    for settings in ["", "[security]\nallow-new-privileges = false\n"] {
        with_both_runtimes(settings, &test);
    }
}

#[test]
fn container_cannot_write_to_the_runtime() {
    let hashes = || {
        ["runc", "crun", "bash"].map(|name| {
            let content = fs::read(program::find(name)).unwrap();
            Sha256::digest(content).to_vec()
        })
    };
    let own = || Sha256::digest(fs::read(env!("CARGO_BIN_EXE_container-hook")).unwrap()).to_vec();
    let before = (hashes(), own());
    with_both(|installation| {
        let mut runner = runner(installation, "runner-1");
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
        runner.cleanup();
        assert_eq!((hashes(), own()), before, "a program of the host has changed");
    });
}

#[test]
fn mount_target_replaced_by_a_link_stays_inside() {
    with_both(|installation| {
        let canary = HostCanary::new(installation.host());
        let mut runner = runner(installation, "runner-1");
        let workspace = runner.workspace();
        fs::create_dir(workspace.join("source")).unwrap();
        let place = workspace.join("place");
        let swap = || {
            let _ = fs::create_dir(&place);
            let _ = fs::remove_dir(&place);
            let _ = symlink("/run/canary", &place);
            let _ = fs::remove_file(&place);
        };
        repeat_during(swap, || {
            let source = workspace.join("source").display().to_string();
            for _ in 0..5 {
                let target = "/github/workspace/place/made";
                let step = merge(
                    shell_step("true"),
                    json!({"userMountVolumes": [volume(&source, target, false)]}),
                );
                // The step may run or be rejected, depending on the race.
                runner.container_step(step);
            }
        });
        canary.check("a target that changes");
    });
}

/// With each of these mounts, old versions of buildah mount a host directory: CVE-2024-9675, CVE-2024-1753.
#[test]
fn build_sees_no_file_of_the_host() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let canary = HostCanary::new(host);
        let socket = "/run/socket";
        let _socket = host.enter(|| UnixListener::bind(socket)).unwrap();
        host.shell(&format!("chmod 666 {socket}"));
        let mut runner = runner(installation, "runner-1");
        let look = |at: &str| {
            format!(
                "test ! -S {at}/socket && ! cat {at}/canary/file && \
                 ! (echo x >{at}/canary/made) && echo nothing there >/seen"
            )
        };
        let cache = format!(
            "FROM alpine:3.20\nRUN --mount=type=cache,id={}run,target=/mnt {}\n",
            "../".repeat(12),
            look("/mnt")
        );
        let link = format!(
            "FROM alpine:3.20 AS evil\nRUN ln -s / /link\nFROM alpine:3.20\n\
             RUN --mount=type=bind,from=evil,source=/link,target=/mnt,rw {}\n",
            look("/mnt/run")
        );
        for (name, text) in [("cache", cache), ("link", link)] {
            let dockerfile = runner.workspace().join(name).join("Dockerfile");
            write(&dockerfile, &format!("{text}ENTRYPOINT [\"cat\", \"/seen\"]\n"));
            let ended = runner.container_step(built_step(&dockerfile)).0;
            assert!(!ended.log().contains("untouched"), "{name}: {}", ended.log());
            assert!(ended.success().stdout().ends_with("nothing there\n"), "{name}");
        }
        canary.check("a build");
    });
}

#[test]
fn build_reaches_no_host_network() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        host.shell("ip addr add 169.254.169.254/32 dev lo");
        let addresses = host.shell("ip -4 -o addr | sed -n 's|.* inet \\([0-9.]*\\).*|\\1|p'");
        let addresses: Vec<_> = addresses.lines().collect();
        assert!(addresses.contains(&"127.0.0.1") && addresses.contains(&"169.254.169.254"));
        let name = SocketAddr::from_abstract_name(program::unique_name()).unwrap();
        let abstract_name = String::from_utf8_lossy(name.as_abstract_name().unwrap()).into_owned();
        let _abstract = host.enter(|| UnixListener::bind_addr(&name)).unwrap();
        let mut runner = runner(installation, "runner-1");
        let listener = host.enter(|| TcpListener::bind("0.0.0.0:0")).unwrap();
        let server = WebServer::start_at(listener, None, |_| WebResponse::ok("secret"));
        let port = server.port();
        for address in &addresses {
            let dockerfile = runner.workspace().join(address).join("Dockerfile");
            write(
                &dockerfile,
                &format!("FROM alpine:3.20\nADD http://{address}:{port}/file /file\n"),
            );
            runner.container_step(built_step(&dockerfile)).0.failure();
        }
        let dockerfile = runner.workspace().join("Dockerfile");
        let all = addresses.join(" ");
        write(
            &dockerfile,
            &format!(
                "FROM alpine:3.20\n\
                 RUN for at in {all} $(ip route | sed -n 's/^default via \\([^ ]*\\).*/\\1/p'); do \
                 ! nc -w 2 $at {port} </dev/null || exit 9; done\n\
                 RUN ! grep {abstract_name} /proc/net/unix\nENTRYPOINT [\"echo\", \"nothing reached\"]\n"
            ),
        );
        let ended = runner.container_step(built_step(&dockerfile)).0.success();
        assert!(ended.stdout().ends_with("nothing reached\n"), "{}", ended.log());
        let own = host.enter(|| TcpStream::connect(("127.0.0.1", port))).unwrap();
        assert_eq!(server.connections_before(own), 0, "requests came");
    });
}

/// Prints the privileges of a set-user-ID root program run by another user: the effective user, the effective
/// capabilities, and the host files that it could write.
const SET_USER_ID: &str = "
    cp /__e/node20/bin/node /node; chmod 4755 /node
    cat >/attack.js <<'END'
const fs = require('fs');
const status = fs.readFileSync('/proc/self/status', 'utf8');
console.log(process.geteuid(), /CapEff:\\t(\\w+)/.exec(status)[1]);
for (const file of ['/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/sys/kernel/uevent_helper',
    '/sys/kernel/debug/x', '/__e/made']) {
  try { fs.writeFileSync(file, 'x'); console.log('wrote', file); } catch (error) {}
}
fs.writeFileSync('/__w/of-root', 'x');
END
    su app -s /bin/sh -c '/node /attack.js'; ls -ln /__w/of-root | cut -d ' ' -f 1";

#[test]
fn set_user_id_program_grants_only_root_of_the_container() {
    let own_users = "1001 0000000000000000\n-rw-r--r--\n";
    let root = "0 00000000a00425fb\n-rw-r--r--\n";
    for (settings, expected) in [
        ("", root),
        ("[security]\nallow-new-privileges = false\n", own_users),
        ("[security]\nuser-namespace = \"host\"\n", own_users),
        ("[limits]\nmemory = \"1GiB\"\n[policy]\nhost-namespaces = [\"uts\"]\n", own_users),
    ] {
        with_both_runtimes(settings, |installation| {
            let canary = HostCanary::new(installation.host());
            let mut runner = runner(installation, "runner-1");
            let options = if settings.contains("uts") { "--uts=host" } else { "" };
            let job = merge(runner.job_container("node:22"), json!({"createOptions": options}));
            runner.prepare(job, &[]);
            let script = if expected == root {
                SET_USER_ID.to_owned()
            } else {
                // Without root the program may not write there.
                SET_USER_ID
                    .replace("fs.writeFileSync('/__w/of-root', 'x');", "")
                    .replace("su app", "touch /__w/of-root; su app")
            };
            let seen = runner.run(&script).success().stdout();
            assert_eq!(seen, expected, "{settings}");
            canary.check(settings);
            // The set-user-ID bit is removed from a leftover program.
            runner.run("cp /node /__w/node; chmod 6755 /__w/node").success();
            runner.cleanup();
            let mode = fs::metadata(runner.work().join("node")).unwrap().permissions().mode();
            assert_eq!(mode & 0o7000, 0, "{mode:o}");
        });
    }
}

#[test]
fn no_new_privileges_is_applied() {
    with_both_runtimes("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let options = json!({"createOptions": "--security-opt no-new-privileges"});
        runner.prepare(merge(runner.job_container("node:22"), options), &[]);
        let seen = runner.run("grep NoNewPrivs /proc/self/status").success().stdout();
        assert_eq!(seen, "NoNewPrivs:\t1\n");
        runner.cleanup();
    });
}
