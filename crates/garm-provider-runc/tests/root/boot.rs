//! Variants of booting a runner.

use oci_hooks_testsupport::garm::answer::AnswerStatus;
use oci_hooks_testsupport::garm::faults::ConnectionFault;
use oci_hooks_testsupport::garm::installation::ProviderInstallation;
use oci_hooks_testsupport::garm::provider::failure;
use oci_hooks_testsupport::garm::runner;
use oci_hooks_testsupport::garm::server::{ARCHIVE, GITEA, GarmServer};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::http::{WebRequest, WebResponse, WebServer};
use oci_hooks_testsupport::program;
use oci_hooks_testsupport::runtime::TestRuntime;
use serde_json::json;

use crate::setup::{GarmFixture, with_both_runtimes, with_each_runtime, with_runtime};

fn script(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn runner_of_the_image_runs_as_its_user_in_its_directory() {
    with_both_runtimes("", |world| {
        let record = world.run("one", "id -un; pwd", json!({}));
        assert_eq!(record.only_record("user"), "1001:1001");
        assert!(record.only_record("groups").contains("1234"), "{}", record.only_record("groups"));
        assert_eq!(record.only_record("root"), "/home/runner/actions-runner");
        assert_eq!(record.only_record("cwd"), "/home/runner/actions-runner");
        assert_eq!(
            record.only_record("argv"),
            "/home/runner/actions-runner/bin/Runner.Listener run"
        );
        assert_eq!(record.env("HOME"), Some("/home/runner"));
        assert!(record.env("PATH").unwrap().contains("/bin"));
        assert_eq!(record.only_record("writes"), "yes");
        assert_eq!(world.garm.count("/downloads/"), 0);
        world.provider().delete("one");
    });
}

#[test]
fn runner_is_downloaded_once_and_kept() {
    with_each_runtime("", |world| {
        let base = json!({"image": "docker.io/garm/base:1"});
        let job = "echo x >/home/runner/new && echo '@ home mine'";
        let record = world.run("one", job, base.clone());
        assert_eq!(record.only_record("root"), "/home/runner/actions-runner");
        assert_eq!(record.only_record("user"), "1001:1001");
        assert_eq!(record.only_record("home"), "mine");
        assert_eq!(record.only_record("writes"), "yes");
        world.provider().delete("one");
        world.run("two", "true", base);
        assert_eq!(world.garm.count("/downloads/"), 1);
        assert!(world.garm.requests().iter().any(|r| r.path.ends_with(ARCHIVE)));
        world.provider().delete("two");
    });
}

#[test]
fn concurrent_instances_download_the_runner_once() {
    with_runtime(TestRuntime::Runc, "", |world| {
        std::thread::scope(|scope| {
            for number in 0..6 {
                scope.spawn(move || {
                    let name = format!("one-{number}");
                    world.run(&name, "true", json!({"image": "docker.io/garm/base:1"}));
                    world.provider().delete(&name);
                });
            }
        });
        assert_eq!(world.garm.count("/downloads/"), 1);
    });
}

#[test]
fn download_sends_only_its_own_token() {
    with_runtime(TestRuntime::Runc, "", |world| {
        world.garm.require_download_token("canary-download");
        let mut document =
            world.garm.bootstrap("one", "true", json!({"image": "docker.io/garm/base:1"}));
        for tool in document["tools"].as_array_mut().unwrap() {
            tool["temp_download_token"] = json!("canary-download");
        }
        world.provider().create(&document);
        world.provider().wait_for("one", AnswerStatus::Stopped);
        world.provider().delete("one");
    });
}

#[test]
fn interrupted_download_is_retried() {
    with_runtime(TestRuntime::Runc, "", |world| {
        world.garm.plan("/downloads/", ConnectionFault::Cut(1000), 1);
        world.garm.plan("/downloads/", ConnectionFault::Status(503), 1);
        world.run("one", "true", json!({"image": "docker.io/garm/base:1"}));
        assert_eq!(world.garm.count("/downloads/"), 3);
        world.provider().delete("one");
    });
}

#[test]
fn image_without_a_runner_user_gets_one_or_an_error() {
    with_runtime(TestRuntime::Runc, "", |world| {
        let document =
            world.garm.bootstrap("one", "true", json!({"image": "docker.io/garm/plain:1"}));
        let ended = world.provider().start_create(&document).wait();
        if ended.status.success() {
            world.provider().wait_for("one", AnswerStatus::Stopped);
            assert_ne!(world.installation.log("one").only_record("user"), "0:0");
        } else {
            let said = failure(&ended, 1);
            assert!(said.contains("runner"), "{said}");
        }
        world.provider().delete("one");
    });
}

#[test]
fn images_declare_path_and_user_of_their_runner() {
    let settings = "[images.other]\nreference = \"docker.io/garm/elsewhere:1\"\n\
                    runner-dir = \"/opt/runner\"\nuser = \"ci\"\n";
    with_each_runtime(settings, |world| {
        let record = world.run("one", "true", json!({"image": "other"}));
        assert_eq!(record.only_record("root"), "/opt/runner");
        assert_eq!(record.only_record("user"), "2000:2000");
        assert_eq!(record.only_record("writes"), "yes");
        assert_eq!(world.garm.count("/downloads/"), 0);
        world.provider().delete("one");
    });
}

#[test]
fn missing_libraries_of_a_runner_are_installed_unless_disabled() {
    let base = json!({"image": "docker.io/garm/base:1"});
    with_runtime(TestRuntime::Crun, "", |world| {
        let record = world.run("zero", "true", base.clone());
        assert!(record.records("dependencies").is_empty(), "nothing is lacking");
        world.garm.serve(ARCHIVE, runner::archive(runner::NEEDS_LIBRARY));
        let record = world.run("one", "true", base.clone());
        assert_eq!(record.records("dependencies").len(), 1, "{}", record.text);
        world.provider().delete("one");
        world.installation.configure("[boot]\ninstall-dependencies = false\n");
        world.create_for_failure("two", "true", base.clone());
        // Either the boot or the runner fails; neither may hang.
        program::wait_until("two has ended", || {
            world.provider().get("two").status != AnswerStatus::Running
        });
        assert!(world.installation.log("two").records("dependencies").is_empty());
        world.provider().remove_all();
    });
}

#[test]
fn runner_registers_with_a_token_of_garm() {
    with_each_runtime("", |world| {
        let labels = json!(["nojit", "x", "runner-controller-id=c", "runner-pool-id=p"]);
        let fields = json!({
            "jit_config_enabled": false, "labels": labels, "github-runner-group": "my group",
        });
        let record = world.run("one", "echo registered", fields);
        let config = record.records("config");
        let url = world.garm.url("/acme/widgets");
        let expected = format!(
            "configure url={url} name=one \
             labels=nojit,x,runner-controller-id=c,runner-pool-id=p group=my group"
        );
        assert_eq!(config, [expected.as_str()]);
        let flags = record.records("flag");
        for flag in ["unattended", "ephemeral", "no-default-labels"] {
            assert!(flags.contains(&flag), "{flag} is not among {flags:?}");
        }
        let instance = world.garm.instance("one");
        assert_eq!(instance.agent_id, Some(77));
        // The record has the arguments and the environment of each process.
        assert!(!record.records("process").is_empty(), "{}", record.text);
        assert!(!record.text.contains(&instance.registration_token), "{}", record.text);
        assert_eq!(world.garm.count("registration-token"), 1);
        assert_eq!(record.only_record("user"), "1001:1001");
        world.provider().delete("one");
    });
}

#[test]
fn gitea_runner_registers_and_runs_one_job() {
    for image in ["docker.io/garm/base:1", "docker.io/garm/gitea:1"] {
        with_each_runtime("", |world| {
            let fields = json!({
                "image": image, "jit_config_enabled": false, "labels": ["x:host"],
                "tools": world.garm.gitea_tools(), "repo_url": "http://gitea.example:3000",
            });
            let record = world.run("one", "echo done by gitea", fields);
            assert_eq!(
                record.only_record("config"),
                "register url=http://gitea.example:3000 name=one labels=x:host"
            );
            let flags = record.records("flag");
            // The runner in the image is too old for `--no-interactive`.
            let expected: &[_] = match image {
                "docker.io/garm/base:1" => &["ephemeral", "no-interactive", "once"],
                _ => &["ephemeral", "once"],
            };
            assert_eq!(flags, expected, "{image}");
            assert_eq!(world.garm.instance("one").agent_id, Some(5));
            assert_eq!(record.only_record("user"), "1001:1001");
            assert!(record.text.contains("done by gitea"));
            let downloads =
                world.garm.requests().iter().filter(|r| r.path.ends_with(GITEA)).count();
            assert_eq!(downloads, usize::from(image.contains("base")));
            world.provider().delete("one");
        });
    }
}

#[test]
fn pre_install_scripts_run_as_root_in_order_of_name() {
    with_each_runtime("", |world| {
        let scripts = json!({
            "02-second": script("#!/bin/sh\necho \"@ script second $(id -u)\"; cat /tmp/first\n"),
            "01-first": script("#!/bin/sh\necho \"@ script first $(id -u)\"; echo kept >/tmp/first\n"),
        });
        let fields = json!({"extra_specs": {"pre_install_scripts": scripts}});
        let record = world.run("one", "cat /tmp/first", fields);
        assert_eq!(record.records("script"), ["first 0", "second 0"]);
        assert_eq!(record.text.matches("kept").count(), 2, "{}", record.text);
        world.provider().delete("one");

        let failing = json!({"01": script("#!/bin/sh\necho oh no; exit 9\n")});
        world.create_for_failure(
            "two",
            "true",
            json!({"extra_specs": {"pre_install_scripts": failing}}),
        );
        let said = world.boot_fails("two");
        assert!(said.contains("01") && said.contains('9'), "{said}");
        world.provider().delete("two");
    });
}

#[test]
fn output_of_a_scripts_background_process_does_not_keep_the_runner_waiting() {
    with_each_runtime("", |world| {
        let scripts = json!({"01": script("#!/bin/sh\n(while echo tick; do sleep 0.1; done) &\n")});
        let fields = json!({"extra_specs": {"pre_install_scripts": scripts}});
        let record = world.run("one", "echo the runner runs", fields);
        assert!(
            record.text.contains("tick") && record.text.contains("the runner runs"),
            "{}",
            record.text
        );
        world.provider().delete("one");
    });
}

#[test]
fn garm_script_is_run_if_admin_or_pool_request_it() {
    with_each_runtime("", |world| {
        for (name, settings, extra_specs) in [
            ("pool", "", json!({"use_garm_template": true})),
            ("admin", "[boot]\nuse-garm-template = true\n", json!({})),
        ] {
            let cache = "[caches.all]\ntarget = \"/cache\"\npools = [\"*\"]\nalways = true\n";
            world.installation.configure(&format!("{settings}{cache}"));
            let image = "docker.io/garm/bash:1";
            let fields = json!({"extra_specs": extra_specs, "image": image});
            let document = world.garm.bootstrap(name, "true", fields);
            let install = "#!/bin/bash\necho \"@ template $(id -u)\"; echo >/cache/$RANDOM && echo done by template\n";
            world.garm.set_install_script(name, install);
            world.provider().create(&document);
            // The script does not report to GARM.
            let answer = world.provider().wait_for(name, AnswerStatus::Error);
            let fault = "GARM's install script ended without reporting the runner as idle";
            assert!(answer.fault().starts_with(fault), "{}", answer.fault());
            assert_eq!(world.garm.instance(name).messages_with("failed"), [answer.fault()]);
            let record = world.installation.log(name);
            assert_eq!(record.records("template").first(), Some(&"0"));
            assert!(record.text.contains("done by template"), "{}", record.text);
            assert!(record.records("begin").is_empty(), "{}", record.text);
            world.provider().delete(name);
        }
    });
}

#[test]
fn private_ca_of_garm_is_trusted() {
    const STORED: &str =
        "[images.stored]\nreference = \"docker.io/garm/runner:1\"\npull = \"missing\"\n";
    for runtime in TestRuntime::ALL {
        let host = TestHost::new();
        let installation = ProviderInstallation::new(&host, runtime, STORED);
        let world = GarmFixture { garm: GarmServer::start_tls(&host), installation };
        // Pulled now: the registry's certificate is from the same CA as GARM's.
        world.warm_up();
        // The host must not trust the test's CA.
        host.shell("mount --bind /dev/null /etc/ssl/certs/ca-certificates.crt");
        let bundle = std::fs::read_to_string(host.certificates.authorities()).unwrap();
        world.create_for_failure("one", "true", json!({"ca-cert-bundle": "", "image": "stored"}));
        let answer = world.provider().wait_for("one", AnswerStatus::Error);
        assert!(answer.fault().contains("certificate"), "{}", answer.fault());
        world.provider().delete("one");
        let bundle = script(&bundle);
        let job =
            "cat \"$SSL_CERT_FILE\" \"$NODE_EXTRA_CA_CERTS\" 2>/dev/null | grep -c BEGIN; true";
        let record = world.run("two", job, json!({"ca-cert-bundle": bundle, "image": "stored"}));
        assert_eq!(record.only_record("end"), "0");
        world.provider().delete("two");
        host.shell("umount /etc/ssl/certs/ca-certificates.crt");
    }
}

#[test]
fn requests_and_runner_use_the_proxy_of_garm() {
    with_each_runtime("", |world| {
        let listener = world.host().enter(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        // The proxy rejects all requests; the test only checks which ones arrive.
        let proxy = WebServer::start_at(listener, None, |_| WebResponse::status(502));
        let url = format!("http://{}", proxy.address());
        let fields = json!({
            "proxy_config": {"http_proxy": url, "https_proxy": url, "no_proxy": "127.0.0.1,localhost"},
        });
        let record = world.run("one", "true", fields);
        assert_eq!(record.env("http_proxy"), Some(url.as_str()));
        assert_eq!(record.env("https_proxy"), Some(url.as_str()));
        assert_eq!(record.env("no_proxy"), Some("127.0.0.1,localhost"));
        assert!(proxy.requests().is_empty(), "GARM is reached without");
        world.provider().delete("one");
    });
}

#[test]
fn download_uses_the_proxy_of_garm() {
    with_runtime(TestRuntime::Runc, "", |world| {
        // The server is also the proxy, and answers for every host behind it.
        let mut document = world.garm.bootstrap("one", "true", json!({
            "image": "docker.io/garm/base:1",
            "proxy_config": {"http_proxy": world.garm.url(""), "https_proxy": "", "no_proxy": "127.0.0.1"},
        }));
        for tool in document["tools"].as_array_mut().unwrap() {
            let filename = tool["filename"].as_str().unwrap();
            tool["download_url"] = json!(format!("http://downloads.example/downloads/{filename}"));
        }
        world.provider().create(&document);
        world.provider().wait_for("one", AnswerStatus::Stopped);
        let asked = |r: &WebRequest| r.path.contains("downloads.example");
        assert!(world.garm.requests().iter().any(asked));
        world.provider().delete("one");
    });
}

#[test]
fn temporary_errors_of_garm_are_survived() {
    with_runtime(TestRuntime::Runc, "", |world| {
        world.garm.plan("/metadata/credentials/", ConnectionFault::Status(500), 1);
        world.garm.plan("/metadata/credentials/", ConnectionFault::Refuse, 1);
        world.garm.plan("/metadata/credentials/", ConnectionFault::Cut(10), 1);
        world.garm.plan("/callbacks/system-info", ConnectionFault::Status(503), 1);
        world.run("one", "true", json!({}));
        assert_eq!(world.garm.count("/metadata/credentials/"), 3 + 3, "each error, and each file");
        world.provider().delete("one");
    });
}

#[test]
fn pool_variables_reach_the_runner_and_reserved_ones_are_rejected() {
    with_each_runtime("", |world| {
        let env = json!({"extra_specs": {"env": {"A": "x y", "EMPTY": ""}}, "image": "docker.io/garm/env:1"});
        let record = world.run("one", "echo \"<$A>\"", env);
        assert_eq!((record.env("A"), record.env("EMPTY")), (Some("x y"), Some("")));
        assert_eq!(record.env("IMAGE"), Some("kept"));
        world.provider().delete("one");
        for name in ["GARM_COMMAND", "ACTIONS_RUNNER_INPUT_TOKEN", "LD_PRELOAD", "A=B", ""] {
            let fields = json!({"extra_specs": {"env": {name: "x"}}});
            let said = world.provider().create_fails(&world.garm.bootstrap("two", "true", fields));
            assert!(said.contains("env"), "{name:?}: {said}");
        }
    });
}
