//! Isolation of builds from the builds of other repositories and from their own job.

use std::io::{Read as _, Write as _};
use std::thread;

use oci_hooks_testsupport::by_user::UserInstallation;
use oci_hooks_testsupport::call::EndedCall;
use oci_hooks_testsupport::github_runner::{built_step, container, merge};
use oci_hooks_testsupport::hub::{HostRegistry, RegistryName};
use oci_hooks_testsupport::leftovers::{InstalledProgram as _, LeftoverSnapshot};
use oci_hooks_testsupport::program::compile_attack;
use oci_hooks_testsupport::world::OUTSIDE;
use serde_json::{Value, json};

use crate::rootless::setup::{UserKind, UsersRunner, with_each};

/// Returns a runner with a job of a repository.
fn runner_of<'a>(
    installation: &'a UserInstallation<'_>,
    repository: &str,
    name: &str,
) -> UsersRunner<'a> {
    let mut runner = installation.runner(name);
    runner.variables.push(("GITHUB_REPOSITORY".to_owned(), repository.to_owned()));
    runner
}

/// Builds a Dockerfile in the workspace, and runs the image.
fn build(
    installation: &UserInstallation<'_>,
    runner: &mut UsersRunner<'_>,
    text: &str,
    further: Value,
) -> EndedCall {
    let dockerfile = runner.workspace().join("action/Dockerfile");
    installation.write(&dockerfile, text);
    runner.container_step(merge(built_step(&dockerfile), further)).0
}

fn is_cached(ended: &EndedCall) -> bool {
    ended.log().contains("has not changed since it was built")
}

/// Returns the id and the name of the image that was built last.
fn built_image(installation: &UserInstallation<'_>) -> [String; 2] {
    let images = installation.admin(&["images", "--format", "json"]).success();
    let images: Vec<Value> = serde_json::from_str(&images).unwrap();
    let is_built = |image: &&Value| {
        image["reference"].as_str().is_some_and(|name| name.starts_with("localhost/"))
    };
    let image = images.iter().find(is_built).expect("it is in the store");
    ["id", "reference"].map(|key| image[key].as_str().unwrap().replace("sha256:", ""))
}

#[test]
fn build_has_a_network_of_its_own() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let server = installation.world.listen_outside();
        let port = server.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in server.incoming() {
                let (mut stream, mut said) = (stream.unwrap(), Vec::new());
                if stream.read_to_end(&mut said).is_ok() {
                    let _ = stream.write_all(b"heard\n");
                }
            }
        });
        let before = LeftoverSnapshot::take(installation);
        let mut runner = installation.runner("runner-1");
        let nginx = merge(
            container("nginx:alpine"),
            json!({"createOptions": "--network-alias packages.example.com", "portMappings": ["8080:80"]}),
        );
        runner.prepare(runner.job_container("node:22"), &[nginx]);
        let find = "until wget -q -O /dev/null http://packages.example.com/; do sleep 0.05; done; \
                    sed -n 's/[[:space:]].*nginx.*//p' /etc/hosts";
        let found = runner.run(find).success().stdout();
        let addresses = found.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(!addresses.is_empty());
        let text = format!(
            "FROM alpine:3.20\n\
             RUN ! grep -e nginx -e packages /etc/hosts\n\
             RUN for at in {addresses}; do ! nc -w 5 $at 80 </dev/null || exit 9; done; echo alone >/seen\n\
             RUN echo | timeout 100 nc {OUTSIDE} {port} >>/seen\n\
             ENTRYPOINT [\"sh\", \"-c\", \"cat /seen; ls /sys/class/net\"]\n"
        );
        // The build has a network even if the step has none.
        let options = json!({"createOptions": "--network none"});
        let ended = build(installation, &mut runner, &text, options).success();
        assert!(ended.stdout().ends_with("alone\nheard\nlo\n"), "{}", ended.log());
        runner.cleanup();
        before.check_live(installation, "a job with builds");
    });
}

#[test]
fn built_images_are_those_of_a_repository() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let text = "FROM alpine:3.20\nENTRYPOINT [\"true\"]\n";
        let build_by = |repository: &str, name: &str, variables: Value| {
            let mut runner = runner_of(installation, repository, name);
            let ended = build(installation, &mut runner, text, variables).success();
            runner.cleanup();
            is_cached(&ended)
        };
        assert!(!build_by("octo/one", "runner-1", json!({})));
        assert!(build_by("octo/one", "runner-2", json!({})));
        assert!(!build_by("octo/two", "runner-1", json!({})));
        // A workflow's `env:` does not choose the repository.
        let forged = json!({"environmentVariables": {"GITHUB_REPOSITORY": "octo/one"}});
        assert!(!build_by("octo/three", "runner-1", forged));
    });
}

#[test]
fn built_image_cannot_be_named() {
    // Queries to this address fail at once.
    let dns = format!("[network]\ndns = [{OUTSIDE:?}]\n");
    with_each(&UserKind::ROOT_AND_RANGES, &dns, |installation| {
        let mut owner = runner_of(installation, "octo/private", "runner-1");
        let secret = "FROM alpine:3.20\nRUN echo hidden-0f3a >/secret\nENTRYPOINT [\"true\"]\n";
        build(installation, &mut owner, secret, json!({})).success();
        let [id, name] = built_image(installation);
        let mut other = runner_of(installation, "octo/other", "runner-2");
        let start = &id[..12];
        for (image, text) in [
            (&name[..], "FROM NAME\nENTRYPOINT [\"cat\", \"/secret\"]\n"),
            (&id, "FROM NAME\nENTRYPOINT [\"cat\", \"/secret\"]\n"),
            (&id[..2], "FROM NAME\nENTRYPOINT [\"cat\", \"/secret\"]\n"),
            (start, "FROM alpine:3.20\nCOPY --from=NAME /secret /\n"),
            (start, "FROM alpine:3.20\nRUN --mount=type=bind,from=NAME,target=/m cat /m/secret\n"),
            // buildah expands the argument and asks the registry.
            (start, "FROM alpine:3.20\nARG FROM=NAME\nCOPY --from=$FROM /secret /\n"),
        ] {
            let text = text.replace("NAME", image);
            let said = build(installation, &mut other, &text, json!({})).failure();
            assert!(!said.contains("hidden-0f3a"), "{text}: {said}");
        }
        for options in ["", "--pull missing", "--pull never", "--pull always"] {
            let step =
                merge(container(&name), json!({"createOptions": options, "entryPoint": "cat"}));
            let said = other.container_step(step).0.failure();
            assert!(said.contains("the name is reserved"), "{said}");
        }
        let said =
            other.call("prepare_job", json!({"container": null, "services": [container(&name)]}));
        assert!(said.failure().contains("the name is reserved"));
        for mut runner in [owner, other] {
            runner.cleanup();
        }
    });
}

/// Commands can leave buildah's chroot, and change its store.
#[test]
fn hostile_build_does_not_change_later_ones() {
    with_each(&UserKind::ALL, "", |installation| {
        let mut runner = installation.runner("runner-1");
        let action = runner.workspace().join("action");
        installation.write(action.join("Dockerfile"), "");
        compile_attack(&action.join("attack"));
        let clean = |runner: &mut UsersRunner<'_>, word: &str| {
            let text = format!(
                "FROM alpine:3.20\nRUN echo {word} >/word\nENTRYPOINT [\"/bin/busybox\", \"cat\", \"/word\"]\n"
            );
            let ended = build(installation, runner, &text, json!({})).success();
            assert!(ended.stdout().ends_with(&format!("{word}\n")), "{}", ended.log());
        };
        clean(&mut runner, "first");
        let destroy = "test -d /store/root/overlay; echo left the chroot; \
            for dir in /build/images/overlay/*/diff; do \
            mount -o remount,bind,rw $dir 2>/dev/null || :; rm $dir/bin/busybox $dir/bin/sh 2>/dev/null || :; done; \
            ! echo x 2>/dev/null >/usr/bin/id; ! echo x 2>/dev/null >/buildah; \
            rm -r /store/root/overlay-layers /store/root/overlay-images; mkdir /store/root/storage.lock";
        let attack = format!(
            "FROM alpine:3.20\nCOPY attack /attack\nRUN [\"/attack\", \"outside\", {}]\n",
            json!(destroy)
        );
        let ended = build(installation, &mut runner, &attack, json!({}));
        assert!(ended.log().contains("left the chroot"), "{}", ended.log());
        clean(&mut runner, "second");
        runner.cleanup();
    });
}

#[test]
fn same_instructions_with_other_files_are_run_again() {
    with_each(&UserKind::ROOT_AND_RANGES, "", |installation| {
        let text = "FROM alpine:3.20\n\
                    RUN --mount=type=bind,source=.,target=/context sh /context/install.sh\n\
                    ENTRYPOINT [\"cat\", \"/word\"]\n";
        for word in ["one", "two"] {
            let mut runner = installation.runner("runner-1");
            let script = format!("echo {word} >/word\n");
            installation.write(runner.workspace().join("action/install.sh"), &script);
            let ended = build(installation, &mut runner, text, json!({})).success();
            assert!(ended.stdout().ends_with(&format!("{word}\n")), "{}", ended.log());
            runner.cleanup();
        }
    });
}

/// A job may publish a port of this machine and act as a registry.
#[test]
fn registry_on_loopback_is_asked_only_if_the_settings_name_it() {
    const IMAGE: &str = "localhost:5000/library/alpine:3.20";
    for (settings, is_named) in [("", false), ("[registry.\"localhost:5000\"]\n", true)] {
        with_each(&UserKind::ROOT_AND_RANGES, settings, |installation| {
            let _local = HostRegistry::start(installation.host(), RegistryName::Local, None);
            let mut runner = installation.runner("runner-1");
            let step = merge(container(IMAGE), json!({"entryPoint": "true"}));
            let text = format!("FROM {IMAGE}\nENTRYPOINT [\"true\"]\n");
            let pulled = runner.container_step(step.clone()).0;
            let built = build(installation, &mut runner, &text, json!({}));
            for ended in [pulled, built] {
                if is_named {
                    ended.success();
                    continue;
                }
                let said = ended.failure();
                let expected = "a registry on this machine is asked only if the settings name it: \
                                add [registry.\"localhost:5000\"]";
                assert!(said.contains(expected), "{said}");
            }
            // An image that the administrator pulled is used.
            installation.admin(&["pull", IMAGE]).success();
            runner.container_step(step).0.success();
            runner.cleanup();
        });
    }
}
