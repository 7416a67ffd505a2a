//! Dockerfile actions use the registries of the settings: mirrors, certificates, logins.

use std::fs;

use oci_hooks_testsupport::call::EndedCall;
use oci_hooks_testsupport::github_runner::{GithubRunner, built_step};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::hub::{HostRegistry, HubLogin, RegistryName};
use oci_hooks_testsupport::installation::HookInstallation;
use oci_hooks_testsupport::runtime::TestRuntime;
use oci_hooks_testsupport::threads::repeat_during;
use serde_json::json;

use crate::runner::builds::check_no_build_leftovers;
use crate::runner::setup::{runner, with_each_runtime, write};

/// Builds a Dockerfile in the workspace, and runs the image.
fn build(runner: &mut GithubRunner<'_>, text: &str) -> EndedCall {
    let dockerfile = runner.workspace().join("Dockerfile");
    write(&dockerfile, text);
    runner.container_step(built_step(&dockerfile)).0
}

#[track_caller]
fn builds(runner: &mut GithubRunner<'_>, text: &str) {
    let ended = build(runner, &format!("{text}\nENTRYPOINT [\"echo\", \"it was built\"]\n"));
    let ended = ended.success();
    assert!(ended.stdout().ends_with("it was built\n"), "{}", ended.log());
}

#[test]
fn build_uses_the_mirrors_of_the_settings() {
    for &runtime in TestRuntime::selected(0) {
        let host = TestHost::new();
        // Docker Hub itself is unreachable.
        let _mirror = HostRegistry::start(&host, RegistryName::Local, None);
        let mirrors = "[registry.\"docker.io\"]\nmirrors = [\"localhost:5000\"]\n\
                       [registry.\"localhost:5000\"]\n";
        let installation = HookInstallation::new(&host, runtime, mirrors);
        let mut runner = runner(&installation, "runner-1");
        builds(&mut runner, "FROM alpine:3.20");
        // Named in a Dockerfile, the mirror is an ordinary registry on this machine.
        builds(&mut runner, "FROM localhost:5000/library/alpine:3.20");
        builds(&mut runner, "ARG TAG=3.20\nFROM docker.io/library/alpine:${TAG}\nRUN true");
    }
}

#[test]
fn name_without_a_registry_refers_to_docker_hub() {
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
fn build_trusts_the_ca_certificates_of_the_settings() {
    for &runtime in TestRuntime::selected(0) {
        let host = TestHost::new();
        let _ghcr = HostRegistry::start(&host, RegistryName::Ghcr, None);
        // The system's CA bundle does not contain the tests' CA.
        host.shell("umount /etc/ssl/certs/ca-certificates.crt");
        let ca = host.certificates.authorities();
        let further = format!("[registry.\"ghcr.io\"]\nca = {ca:?}\n");
        let installation = HookInstallation::new(&host, runtime, &further);
        let mut runner = runner(&installation, "runner-1");
        builds(&mut runner, "FROM ghcr.io/library/alpine:3.20");
        check_no_build_leftovers(&installation);
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

/// `octocat` and the password, as Base64 in an auth file.
const AUTH: &str = "b2N0b2NhdDpjQW5BclktbG9naW4tNTVlMQ==";

#[test]
fn build_uses_logins_of_the_settings_without_exposing_them() {
    with_each_runtime("", |installation| {
        let host = installation.host();
        let _ghcr =
            HostRegistry::start(host, RegistryName::Ghcr, Some(HubLogin("octocat", PASSWORD)));
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
        let is_seen = |text: &str| [PASSWORD, AUTH].iter().any(|canary| text.contains(canary));
        let mut seen = Vec::new();
        let watch = || {
            seen.extend(host.processes().into_iter().filter(|one| is_seen(&one.line)));
            let left = host.shell(&format!(
                "grep -rlsF -e {PASSWORD} -e {AUTH} {} /run || :",
                installation.store().display()
            ));
            assert_eq!(left, "", "a file has the login");
        };
        // Steps of the Dockerfile cannot read the login.
        let hunt = format!(
            "{private}\nRUN ! grep -rlsE -e 'cAnArY[-]login' -e 'b2N0b2N[h]dDpjQW5B' /tmp /root /run \
             /etc /proc/[0-9]*/environ /proc/[0-9]*/cmdline\n"
        );
        repeat_during(watch, || builds(&mut runner, &hunt));
        assert!(seen.is_empty(), "{seen:?}");
        check_no_build_leftovers(installation);
        // The base image in the store still requires the login.
        fs::write(&settings, text).unwrap();
        let said = build(&mut runner, &format!("{private}\nRUN true\n")).failure();
        assert!(said.contains("ghcr.io"), "{said}");
    });
}

#[test]
fn build_steps_use_the_proxies_of_the_runner() {
    with_each_runtime("", |installation| {
        let mut runner = runner(installation, "runner-1");
        let variables =
            [("http_proxy", "http://127.0.0.1:3128"), ("NO_PROXY", "docker.io,.docker.io")];
        runner.variables.extend(variables.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let check = variables.map(|(name, value)| format!("test \"${name}\" = {value}"));
        builds(&mut runner, &format!("FROM alpine:3.20\nRUN {}\n", check.join(" && ")));
    });
}
