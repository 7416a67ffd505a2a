//! Dockerfile actions build from what jobs pull from: mirrors, certificates, logins.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;

use crate::builds::no_context_of;
use crate::setup::{runner, with_each_runtime, write};
use crate::support::call::Ended;
use crate::support::github_runner::{Runner, built_step};
use crate::support::host::Host;
use crate::support::hub::{Login, Name, Registry};
use crate::support::installation::Installation;
use crate::support::runtime::Runtime;

/// Builds a Dockerfile in the workspace, and runs the image.
fn build(runner: &mut Runner<'_>, text: &str) -> Ended {
    let dockerfile = runner.workspace().join("Dockerfile");
    write(&dockerfile, text);
    runner.container_step(built_step(&dockerfile)).0
}

#[track_caller]
fn builds(runner: &mut Runner<'_>, text: &str) {
    let ended = build(runner, &format!("{text}\nENTRYPOINT [\"echo\", \"it was built\"]\n"));
    let ended = ended.success();
    assert!(ended.stdout().ends_with("it was built\n"), "{}", ended.log());
}

#[test]
fn a_build_asks_the_mirrors_of_the_settings() {
    for runtime in Runtime::ALL {
        let host = Host::new();
        // Docker Hub itself is out of reach.
        let _mirror = Registry::start(&host, Name::Local, None);
        let mirrors = "[registry.\"docker.io\"]\nmirrors = [\"localhost:5000\"]\n";
        let installation = Installation::new(&host, runtime, mirrors);
        let mut runner = runner(&installation, "runner-1");
        builds(&mut runner, "FROM alpine:3.20");
        // As anywhere else in a workflow, the mirror is a registry, and one on this machine.
        builds(&mut runner, "FROM localhost:5000/library/alpine:3.20");
        builds(&mut runner, "ARG TAG=3.20\nFROM docker.io/library/alpine:${TAG}\nRUN true");
    }
}

#[test]
fn a_name_without_a_registry_is_one_of_docker_hub() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        builds(&mut runner, "FROM octo/private:1");
        builds(
            &mut runner,
            "FROM alpine:3.20 AS first\nFROM first\nCOPY --from=octo/private:1 /bin /x",
        );
    });
}

#[test]
fn an_image_may_be_named_by_its_digest() {
    with_each_runtime("", |installation| {
        installation.admin(&["pull", "alpine:3.20"]).success();
        let images = installation.admin(&["images", "--format", "json"]).success();
        let images: serde_json::Value = serde_json::from_str(&images).unwrap();
        let digest = images[0]["digest"].as_str().unwrap().to_owned();
        let mut runner = runner(installation, "runner-1");
        builds(&mut runner, &format!("FROM alpine@{digest}\nRUN true"));
    });
}

#[test]
fn a_build_trusts_the_authorities_of_the_settings() {
    for runtime in Runtime::ALL {
        let host = Host::new();
        let _ghcr = Registry::start(&host, Name::Ghcr, None);
        // The system knows nothing of the tests' authority.
        host.shell("umount /etc/ssl/certs/ca-certificates.crt");
        let ca = host.certificates.authorities();
        let further = format!("[registry.\"ghcr.io\"]\nca = {ca:?}\n");
        let installation = Installation::new(&host, runtime, &further);
        let mut runner = runner(&installation, "runner-1");
        builds(&mut runner, "FROM ghcr.io/library/alpine:3.20");
        no_context_of(&installation, 0);
        let settings = installation.variable().1;
        let text = fs::read_to_string(&settings).unwrap();
        fs::write(&settings, text.replace(&further, "")).unwrap();
        let said = build(&mut runner, "FROM ghcr.io/octo/ci-image:main\n").failure();
        assert!(said.contains("certificate"), "{said}");
        fs::write(&settings, text.replace("ca = ", "insecure = true\n#")).unwrap();
        builds(&mut runner, "FROM ghcr.io/octo/ci-image:main");
    }
}

const PASSWORD: &str = "cAnArY-login-55e1";

/// `octocat` with that password, as logins are written.
const AUTH: &str = "b2N0b2NhdDpjQW5BclktbG9naW4tNTVlMQ==";

#[test]
fn a_build_has_the_logins_of_the_settings_and_shows_them_to_nobody() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _ghcr = Registry::start(host, Name::Ghcr, Some(Login("octocat", PASSWORD)));
        let mut runner = runner(installation, "runner-1");
        let private = "FROM ghcr.io/octo/ci-image:main";
        let said = build(&mut runner, private).failure();
        assert!(said.contains("ghcr.io"), "{said}");

        let logins = host.path().join("logins.json");
        write(&logins, &json!({"auths": {"ghcr.io": {"auth": AUTH}}}).to_string());
        let settings = installation.variable().1;
        let text = fs::read_to_string(&settings).unwrap();
        fs::write(&settings, text.replace("[store]", &format!("[store]\nlogins = [{logins:?}]")))
            .unwrap();
        let done = AtomicBool::new(false);
        let is_seen = |text: &str| [PASSWORD, AUTH].iter().any(|canary| text.contains(canary));
        let seen = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut seen = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    seen.extend(host.processes().into_iter().filter(|one| is_seen(&one.line)));
                    let left = host.shell(&format!(
                        "grep -rlsF -e {PASSWORD} -e {AUTH} {} /run || :",
                        installation.store().display()
                    ));
                    assert_eq!(left, "", "a file has the login");
                }
                seen
            });
            // Of the steps of the Dockerfile none can read what the pull was given.
            let hunt = format!(
                "{private}\nRUN ! grep -rlsE -e 'cAnArY[-]login' -e 'b2N0b2N[h]dDpjQW5B' /tmp /root /run \
                 /etc /proc/[0-9]*/environ /proc/[0-9]*/cmdline\n"
            );
            builds(&mut runner, &hunt);
            done.store(true, Ordering::Relaxed);
            watch.join().unwrap()
        });
        assert!(seen.is_empty(), "{seen:?}");
        no_context_of(installation, 0);
        // What buildah keeps of it is for whoever has the login.
        fs::write(&settings, text).unwrap();
        let said = build(&mut runner, &format!("{private}\nRUN true\n")).failure();
        assert!(said.contains("ghcr.io"), "{said}");
    });
}

#[test]
fn steps_of_a_build_have_the_proxies_of_the_runner() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let variables =
            [("http_proxy", "http://127.0.0.1:3128"), ("NO_PROXY", "docker.io,.docker.io")];
        runner.variables.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let check = variables.map(|(name, value)| format!("test \"${name}\" = {value}"));
        builds(&mut runner, &format!("FROM alpine:3.20\nRUN {}\n", check.join(" && ")));
    });
}
