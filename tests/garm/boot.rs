//! Ways in which runners are brought up.

use serde_json::json;

use crate::setup::{ENDLESS, World, with_each_runtime, with_runtime};
use crate::support::garm::answer::Status;
use crate::support::garm::faults::Fault;
use crate::support::garm::installation::Installation;
use crate::support::garm::provider::failure;
use crate::support::garm::runner;
use crate::support::garm::server::{ARCHIVE, GITEA, Garm};
use crate::support::host::Host;
use crate::support::http::{Request, Response, Server};
use crate::support::program;
use crate::support::runtime::Runtime;

fn script(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

#[test]
fn a_runner_of_the_image_is_used_as_its_user_in_its_directory() {
    with_each_runtime("", |world| {
        let record = world.run("one", "id -un; pwd", json!({}));
        assert_eq!(record.one("user"), "1001:1001");
        assert!(record.one("groups").contains("1234"), "{}", record.one("groups"));
        assert_eq!(record.one("root"), "/home/runner/actions-runner");
        assert_eq!(record.one("cwd"), "/home/runner/actions-runner");
        assert_eq!(record.one("argv"), "/home/runner/actions-runner/bin/Runner.Listener run");
        assert_eq!(record.env("HOME"), Some("/home/runner"));
        assert!(record.env("PATH").unwrap().contains("/bin"));
        assert_eq!(record.one("writes"), "yes");
        assert_eq!(world.garm.count("/downloads/"), 0);
        world.provider().delete("one");
    });
}

#[test]
fn a_runner_is_downloaded_once_and_kept() {
    with_each_runtime("", |world| {
        let base = json!({"image": "docker.io/garm/base:1"});
        let job = "echo x >/home/runner/new && echo '@ home mine'";
        let record = world.run("one", job, base.clone());
        assert_eq!(record.one("root"), "/home/runner/actions-runner");
        assert_eq!(record.one("user"), "1001:1001");
        assert_eq!(record.one("home"), "mine");
        assert_eq!(record.one("writes"), "yes");
        world.provider().delete("one");
        world.run("two", "true", base);
        assert_eq!(world.garm.count("/downloads/"), 1);
        assert!(world.garm.requests().iter().any(|r| r.path.ends_with(ARCHIVE)));
        world.provider().delete("two");
    });
}

#[test]
fn many_instances_at_once_download_the_runner_once() {
    with_runtime(Runtime::Runc, "", |world| {
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
fn a_download_shows_its_own_token_and_nothing_of_the_instance() {
    with_runtime(Runtime::Runc, "", |world| {
        world.garm.require_download_token("canary-download");
        let mut document =
            world.garm.bootstrap("one", "true", json!({"image": "docker.io/garm/base:1"}));
        for tool in document["tools"].as_array_mut().unwrap() {
            tool["temp_download_token"] = json!("canary-download");
        }
        world.provider().create(&document);
        world.provider().wait_for("one", Status::Stopped);
        world.provider().delete("one");
    });
}

#[test]
fn a_download_that_breaks_is_tried_again() {
    with_runtime(Runtime::Runc, "", |world| {
        world.garm.plan("/downloads/", Fault::Cut(1000), 1);
        world.garm.plan("/downloads/", Fault::Status(503), 1);
        world.run("one", "true", json!({"image": "docker.io/garm/base:1"}));
        assert_eq!(world.garm.count("/downloads/"), 3);
        world.provider().delete("one");
    });
}

#[test]
fn an_image_without_a_user_for_the_runner_gets_one_or_says_so() {
    with_runtime(Runtime::Runc, "", |world| {
        let document =
            world.garm.bootstrap("one", "true", json!({"image": "docker.io/garm/plain:1"}));
        let ended = world.provider().start_create(&document).wait();
        if ended.status.success() {
            world.provider().wait_for("one", Status::Stopped);
            assert_ne!(world.installation.log("one").one("user"), "0:0");
        } else {
            let said = failure(&ended, 1);
            assert!(said.contains("runner"), "{said}");
        }
        world.provider().delete("one");
    });
}

#[test]
fn images_say_where_their_runner_is_and_who_runs_it() {
    let settings = "[images.other]\nreference = \"docker.io/garm/elsewhere:1\"\n\
                    runner-dir = \"/opt/runner\"\nuser = \"ci\"\n";
    with_each_runtime(settings, |world| {
        let record = world.run("one", "true", json!({"image": "other"}));
        assert_eq!(record.one("root"), "/opt/runner");
        assert_eq!(record.one("user"), "2000:2000");
        assert_eq!(record.one("writes"), "yes");
        assert_eq!(world.garm.count("/downloads/"), 0);
        world.provider().delete("one");
    });
}

#[test]
fn a_downloaded_runner_that_lacks_a_library_has_it_installed_unless_the_admin_says_no() {
    let base = json!({"image": "docker.io/garm/base:1"});
    with_runtime(Runtime::Crun, "", |world| {
        let record = world.run("zero", "true", base.clone());
        assert!(record.all("dependencies").is_empty(), "nothing is lacking");
        world.garm.serve(ARCHIVE, runner::archive(runner::NEEDS_LIBRARY));
        let record = world.run("one", "true", base.clone());
        assert_eq!(record.all("dependencies").len(), 1, "{}", record.text);
        world.provider().delete("one");
        world.installation.configure("[boot]\ninstall-dependencies = false\n");
        world.create_for_failure("two", "true", base.clone());
        // Whether the boot or the runner says so, it is an error or an end, and not a hang.
        program::wait_until("two has ended", || {
            world.provider().get("two").status != Status::Running
        });
        assert!(world.installation.log("two").all("dependencies").is_empty());
        world.provider().remove_all();
    });
}

#[test]
fn a_runner_registers_with_a_token_of_garm() {
    with_each_runtime("", |world| {
        let labels = json!(["nojit", "x", "runner-controller-id=c", "runner-pool-id=p"]);
        let fields = json!({
            "jit_config_enabled": false, "labels": labels, "github-runner-group": "my group",
        });
        let record = world.run("one", "echo registered", fields);
        let config = record.all("config");
        let url = world.garm.url("/acme/widgets");
        let expected = format!(
            "configure url={url} name=one \
             labels=nojit,x,runner-controller-id=c,runner-pool-id=p group=my group"
        );
        assert_eq!(config, [expected.as_str()]);
        let flags = record.all("flag");
        for flag in ["unattended", "ephemeral", "no-default-labels"] {
            assert!(flags.contains(&flag), "{flag} is not among {flags:?}");
        }
        let instance = world.garm.instance("one");
        assert_eq!(instance.agent_id, Some(77));
        assert!(!record.text.contains(&instance.registration_token), "{}", record.text);
        assert_eq!(world.garm.count("registration-token"), 1);
        assert_eq!(record.one("user"), "1001:1001");
        world.provider().delete("one");
    });
}

#[test]
fn a_gitea_runner_registers_and_does_one_job() {
    for image in ["docker.io/garm/base:1", "docker.io/garm/gitea:1"] {
        with_each_runtime("", |world| {
            let fields = json!({
                "image": image, "jit_config_enabled": false, "labels": ["x:host"],
                "tools": world.garm.gitea_tools(), "repo_url": "http://gitea.example:3000",
            });
            let record = world.run("one", "echo done by gitea", fields);
            assert_eq!(
                record.one("config"),
                "register url=http://gitea.example:3000 name=one labels=x:host"
            );
            let flags = record.all("flag");
            // The one in the image is of the times before it could be told not to ask.
            let expected: &[_] = match image {
                "docker.io/garm/base:1" => &["ephemeral", "no-interactive", "once"],
                _ => &["ephemeral", "once"],
            };
            assert_eq!(flags, expected, "{image}");
            assert_eq!(world.garm.instance("one").agent_id, Some(5));
            assert_eq!(record.one("user"), "1001:1001");
            assert!(record.text.contains("done by gitea"));
            let downloads =
                world.garm.requests().iter().filter(|r| r.path.ends_with(GITEA)).count();
            assert_eq!(downloads, usize::from(image.contains("base")));
            world.provider().delete("one");
        });
    }
}

#[test]
fn scripts_before_the_installation_run_as_root_in_the_order_of_their_names() {
    with_each_runtime("", |world| {
        let scripts = json!({
            "02-second": script("#!/bin/sh\necho \"@ script second $(id -u)\"; cat /tmp/first\n"),
            "01-first": script("#!/bin/sh\necho \"@ script first $(id -u)\"; echo kept >/tmp/first\n"),
        });
        let fields = json!({"extra_specs": {"pre_install_scripts": scripts}});
        let record = world.run("one", "cat /tmp/first", fields);
        assert_eq!(record.all("script"), ["first 0", "second 0"]);
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
fn the_script_of_garm_is_run_if_the_admin_or_the_pool_wants_it() {
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
            // It does not call GARM, as it should.
            let answer = world.provider().wait_for(name, Status::Error);
            let fault = "GARM's install script ended without reporting the runner as idle";
            assert!(answer.fault().starts_with(fault), "{}", answer.fault());
            assert_eq!(world.garm.instance(name).said("failed"), [answer.fault()]);
            let record = world.installation.log(name);
            assert_eq!(record.all("template").first(), Some(&"0"));
            assert!(record.text.contains("done by template"), "{}", record.text);
            assert!(record.all("begin").is_empty(), "{}", record.text);
            world.provider().delete(name);
        }
    });
}

#[test]
fn garm_with_a_certificate_of_its_own_authority_is_trusted_by_what_it_sends() {
    for runtime in Runtime::ALL {
        let host = Host::new();
        let installation = Installation::new(&host, runtime, "");
        let world = World { garm: Garm::start_tls(&host), installation };
        // The host must not trust it by itself.
        host.shell("mount --bind /dev/null /etc/ssl/certs/ca-certificates.crt");
        let bundle = std::fs::read_to_string(host.certificates.authorities()).unwrap();
        // The registry has a certificate of it too: the image is there by now.
        let document = world.garm.bootstrap("one", "true", json!({"ca-cert-bundle": ""}));
        let said = world.provider().create_fails(&document);
        assert!(said.contains("certificate") || said.contains("trust"), "{said}");
        world.provider().delete("one");
        host.shell("umount /etc/ssl/certs/ca-certificates.crt");
        let bundle = script(&bundle);
        let job =
            "cat \"$SSL_CERT_FILE\" \"$NODE_EXTRA_CA_CERTS\" 2>/dev/null | grep -c BEGIN; true";
        let record = world.run(
            "two",
            job,
            json!({"ca-cert-bundle": bundle, "image": "docker.io/garm/base:1"}),
        );
        assert_eq!(record.one("end"), "0");
        world.provider().delete("two");
    }
}

#[test]
fn requests_and_the_runner_go_through_the_proxy_that_garm_names() {
    with_each_runtime("", |world| {
        let listener = world.host().enter(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        // Everything ends here: what is asked for is what counts.
        let proxy = Server::start_at(listener, None, |_| Response::status(502));
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
fn a_download_goes_through_the_proxy_that_garm_names() {
    with_runtime(Runtime::Runc, "", |world| {
        // The server plays the proxy too, and every host behind it.
        let mut document = world.garm.bootstrap("one", "true", json!({
            "image": "docker.io/garm/base:1",
            "proxy_config": {"http_proxy": world.garm.url(""), "https_proxy": "", "no_proxy": "127.0.0.1"},
        }));
        for tool in document["tools"].as_array_mut().unwrap() {
            let filename = tool["filename"].as_str().unwrap();
            tool["download_url"] = json!(format!("http://downloads.example/downloads/{filename}"));
        }
        world.provider().create(&document);
        world.provider().wait_for("one", Status::Stopped);
        let asked = |r: &Request| r.path.contains("downloads.example");
        assert!(world.garm.requests().iter().any(asked));
        world.provider().delete("one");
    });
}

#[test]
fn faults_of_garm_on_the_way_are_gone_through() {
    with_runtime(Runtime::Runc, "", |world| {
        world.garm.plan("/metadata/credentials/", Fault::Status(500), 1);
        world.garm.plan("/metadata/credentials/", Fault::Refuse, 1);
        world.garm.plan("/metadata/credentials/", Fault::Cut(10), 1);
        world.garm.plan("/callbacks/system-info", Fault::Status(503), 1);
        world.run("one", "true", json!({}));
        world.provider().delete("one");
    });
}

#[test]
fn variables_of_the_pool_reach_the_runner_and_reserved_ones_are_refused() {
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

#[test]
fn a_second_instance_may_come_up_while_another_works() {
    with_each_runtime("", |world| {
        world.bring_up("one", ENDLESS, json!({}));
        world.run("two", "true", json!({}));
        assert_eq!(world.provider().get("one").status, Status::Running);
        world.provider().remove_all();
    });
}
