//! Boots with a fake GARM and a fake instance.

mod ends;
mod fakes;
mod faults;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use self::fakes::*;
use super::*;
use crate::http::fake::FakeServer;
use crate::http::{HttpClient, HttpOptions};

#[test]
fn registered_runner_gets_its_credentials_in_memory() {
    let server = FakeGarm::jit().serve();
    let mut guest = FakeGuest::new(|_, _| 0);
    let ready = boot_and_run(&server, &spec(&server, Some(runner())), &mut guest).unwrap();
    assert_eq!(
        requests(&server),
        [
            "POST /c/status installing",
            "POST /c/status installing",
            "GET /m/credentials/runner",
            "GET /m/credentials/credentials",
            "GET /m/credentials/credentials_rsaparams",
            "POST /c/system-info/",
            "POST /c/status idle",
        ]
    );
    for (name, content) in [
        (".runner", "\u{feff}{\"AgentId\":\"123\",\"AgentName\":\"x\"}".as_bytes()),
        (".credentials", b"{\"c\":1}"),
        (".credentials_rsaparams", b"\x00\xffr"),
    ] {
        let file = format!("/run/garm/runner/{name}");
        let link = guest.node(&format!("/opt/runner/{name}"));
        assert_eq!(link, Some(GuestFile::Link(file.clone().into(), RUNNER)));
        assert_eq!(guest.node(&file), Some(GuestFile::File(content.to_vec(), 0o600, RUNNER)));
    }
    let info = posted_bodies(&server, "/c/system-info/");
    assert_eq!(info, [json!({"os_name": "debian", "os_version": "12", "agent_id": 123})]);
    assert_eq!(posted_bodies(&server, "/c/status").last().unwrap()["agent_id"], 123);
    assert_eq!(ready.agent_id, Some(123));
    assert_eq!(ready.command.args, ["/opt/runner/run.sh"]);
    assert_eq!((ready.command.owner, &*ready.command.cwd), (RUNNER, Path::new("/opt/runner")));
    assert_eq!(variable(&ready.command, "HOME"), Some("/home/builder"));
    assert_eq!(variable(&ready.command, "USER"), Some("builder"));
    assert_eq!(variable(&ready.command, "RUNNER_ALLOW_RUNASROOT"), None);
    assert_eq!(variable(&ready.command, "PATH"), None);
    assert_eq!(guest.commands.len(), 1, "only the version was asked for");
    assert_eq!(guest.node("/run/garm/version"), None);
}

#[test]
fn registration_token_is_in_no_argument_or_file() {
    let server = FakeGarm::default().serve();
    let mut tries = 0;
    let mut guest = FakeGuest::new(move |command, files| {
        if command.args[0] == "/opt/runner/config.sh" && command.args[1] == "--unattended" {
            tries += 1;
            if tries < 3 {
                return 1;
            }
            let own = "\u{feff}{\r\n  \"agentId\": 45\r\n}".as_bytes().to_vec();
            files.insert("/opt/runner/.runner".into(), GuestFile::File(own, 0o600, RUNNER));
        }
        0
    });
    let mut spec = spec(&server, Some(RunnerSpec { jit: false, group: "G 1".into(), ..runner() }));
    spec.env = BTreeMap::from([("HOME".into(), "/x".into()), ("FOO".into(), "bar".into())]);
    let ready = boot_and_run(&server, &spec, &mut guest).unwrap();
    let config = "/opt/runner/config.sh --unattended --url https://forge.example/acme \
                  --name garm-1 --runnergroup G 1 --labels a,runner-controller-id=7 \
                  --no-default-labels --ephemeral";
    let remove = "/opt/runner/config.sh remove";
    assert_eq!(guest.lines()[1..], [config, remove, config, remove, config]);
    for command in &guest.commands[1..] {
        assert_eq!(variable(command, "ACTIONS_RUNNER_INPUT_TOKEN"), Some(REGISTRATION));
        assert_eq!(command.owner, RUNNER);
        assert!(!command.args.concat().contains(REGISTRATION));
    }
    assert!(!format!("{:?} {:?}", guest.written, guest.notes).contains(REGISTRATION));
    assert!(!command_text(&ready.command).contains(REGISTRATION));
    assert_eq!(ready.agent_id, Some(45));
    assert_eq!(requests(&server).iter().filter(|line| line.contains("token")).count(), 1);
    assert_eq!(posted_bodies(&server, "/c/status").last().unwrap()["agent_id"], 45);
    // The runner has the pool's variables, which override the provider's.
    assert_eq!(variable(&ready.command, "HOME"), Some("/x"));
    assert_eq!(variable(&ready.command, "FOO"), Some("bar"));
}

#[test]
fn dependencies_are_installed_if_the_runner_does_not_start() {
    for (helps, is_allowed) in [(true, true), (false, true), (true, false)] {
        let server = FakeGarm::jit().serve();
        let mut is_installed = false;
        let mut guest = FakeGuest::new(move |command, files| match &*command.args[0] {
            "/opt/runner/bin/installdependencies.sh" => {
                assert_eq!(command.owner, GuestIds::ROOT);
                assert_eq!(variable(command, "USER"), Some("root"));
                is_installed = helps;
                i32::from(!helps)
            }
            "sh" => {
                assert_eq!(command.owner, RUNNER);
                let output = Path::new("/run/garm/version");
                let Some(GuestFile::File(content, 0o600, RUNNER)) = files.get_mut(output) else {
                    panic!("there is no file of the runner's to write to")
                };
                *content = b"libicu is missing\n".to_vec();
                if is_installed { 0 } else { 134 }
            }
            "/opt/runner/run.sh" => 0,
            other => panic!("{other}"),
        });
        let runner = RunnerSpec { install_dependencies: is_allowed, ..runner() };
        let result = boot_and_run(&server, &spec(&server, Some(runner)), &mut guest);
        if helps && is_allowed {
            result.unwrap();
            assert_eq!(guest.commands.len(), 3);
        } else {
            let message = "the runner does not start in this image, code 134: libicu is missing";
            assert_eq!(result.unwrap_err().to_string(), message);
            assert_eq!(failure_message(&server), message);
            assert_eq!(guest.commands.len(), if is_allowed { 3 } else { 1 });
        }
    }
}

#[test]
fn runner_of_the_image_is_used_unchanged() {
    let server = FakeGarm::jit().serve();
    let mut guest = FakeGuest::new(|_, _| 0);
    let runner = RunnerSpec { is_downloaded: false, ..runner() };
    boot_and_run(&server, &spec(&server, Some(runner)), &mut guest).unwrap();
    assert!(guest.commands.is_empty(), "{:?}", guest.lines());
}

#[test]
fn root_runner_is_allowed_to_run() {
    let server = FakeGarm::jit().serve();
    let mut guest = FakeGuest::new(|_, _| 0);
    let ready = boot_and_run(
        &server,
        &spec(&server, Some(RunnerSpec { uid: 0, gid: 0, ..runner() })),
        &mut guest,
    );
    let ready = ready.unwrap();
    assert_eq!(variable(&ready.command, "RUNNER_ALLOW_RUNASROOT"), Some("1"));
    assert_eq!(variable(&ready.command, "USER"), Some("root"));
}

#[test]
fn packages_and_scripts_run_first_with_proxies_and_certificates() {
    let server = FakeGarm::jit().serve();
    let mut guest = FakeGuest::new(|command, files| {
        if command.args[0].starts_with("/run/garm/pre-install") {
            let script = files.get(Path::new(&command.args[0])).unwrap();
            assert!(matches!(script, GuestFile::File(_, 0o700, GuestIds::ROOT)), "{script:?}");
            // The script installs a CA bundle.
            let bundle = GuestFile::File(b"made anew".to_vec(), 0o644, GuestIds::ROOT);
            files.insert("/etc/ssl/certs/ca-certificates.crt".into(), bundle);
        }
        0
    });
    let mut spec = spec(&server, Some(runner()));
    spec.packages = vec!["jq".into(), "g++".into()];
    spec.pre_install = BTreeMap::from([
        ("20-b/../x".to_owned(), b"echo no first line".to_vec()),
        ("10-a".to_owned(), b"#!/usr/bin/python3\n".to_vec()),
    ]);
    spec.http.ca_pem = CA.into();
    spec.http.proxy.http_proxy = "http://p:3128".into();
    spec.http.proxy.no_proxy = "h".into();
    let ready = boot_and_run(&server, &spec, &mut guest).unwrap();
    let lines = guest.lines();
    assert!(lines[0].starts_with("sh -c") && lines[0].ends_with(" sh jq g++"), "{}", lines[0]);
    assert_eq!(lines[1..3], ["/run/garm/pre-install-0", "sh /run/garm/pre-install-1"]);
    assert!(!guest.files.borrow().keys().any(|path| path.starts_with("/run/garm/pre-install-0")));
    for command in &guest.commands[..3] {
        assert_eq!(command.owner, GuestIds::ROOT);
        assert_eq!(variable(command, "HOME"), Some("/root"));
        assert_eq!(variable(command, "SSL_CERT_FILE"), Some("/etc/ssl/garm-ca.pem"));
    }
    for command in guest.commands.iter().chain([&ready.command]) {
        assert_eq!(variable(command, "http_proxy"), Some("http://p:3128"));
        assert_eq!(variable(command, "HTTP_PROXY"), Some("http://p:3128"));
        assert_eq!(variable(command, "NO_PROXY"), Some("h"));
        assert_eq!(variable(command, "https_proxy"), None);
        assert_eq!(variable(command, "NODE_EXTRA_CA_CERTS"), Some("/etc/ssl/garm-ca.pem"));
    }
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    assert_eq!(variable(&ready.command, "SSL_CERT_FILE"), Some(bundle));
    assert_eq!(guest.text(bundle), format!("made anew\n{CA}\n"));
    assert_eq!(guest.text("/usr/local/share/ca-certificates/garm-ca.crt"), format!("{CA}\n"));
    assert_eq!(guest.text("/etc/ssl/garm-ca.pem"), format!("{CA}\n"));
    let messages = posted_bodies(&server, "/c/status");
    let messages: Vec<_> = messages.iter().map(|m| m["message"].as_str().unwrap()).collect();
    assert_eq!(messages[1], "installing packages");
    assert_eq!(messages[2], "running the pre-install script \"10-a\"");
}

#[test]
fn certificates_are_added_once_to_existing_ones() {
    let guest = FakeGuest::new(|_, _| 0);
    guest.put_file("/etc/pki/tls/certs/ca-bundle.crt", "one");
    for _ in 0..2 {
        let env = certificates::install(&guest, CA).unwrap();
        assert_eq!(env[0].1, "/etc/pki/tls/certs/ca-bundle.crt");
        assert_eq!(guest.text("/etc/pki/tls/certs/ca-bundle.crt"), format!("one\n{CA}\n"));
    }
    let anchor = "/etc/pki/ca-trust/source/anchors/garm-ca.crt";
    assert_eq!(guest.text(anchor), format!("{CA}\n"));
    assert_eq!(guest.node("/etc/ssl/certs/ca-certificates.crt"), None);
    assert_eq!(certificates::install(&guest, " \n").unwrap(), []);
}

#[test]
fn gitea_runner_is_probed_for_its_token_option() {
    for is_new in [true, false] {
        let server = FakeGarm::default().serve();
        let mut guest = FakeGuest::new(move |command, files| {
            if command.args.contains(&"--help".to_owned()) {
                return i32::from(!is_new);
            }
            if command.args.contains(&"daemon".to_owned()) {
                return 0;
            }
            assert!(!files.contains_key(Path::new("/run/garm/runner/.runner")));
            let own = GuestFile::File(br#"{"WARNING":"x","id":9}"#.to_vec(), 0o644, RUNNER);
            files.insert("/run/garm/runner/.runner".into(), own);
            0
        });
        let runner = RunnerSpec { forge: Forge::Gitea, jit: false, ..runner() };
        let ready = boot_and_run(&server, &spec(&server, Some(runner)), &mut guest).unwrap();
        let (asked, register) = (&guest.commands[0], &guest.commands[1]);
        // The runner's directory does not exist yet.
        assert_eq!(&*asked.cwd, Path::new("/"));
        let line = "/opt/runner/act_runner register --ephemeral --instance \
                    https://forge.example/acme --name garm-1 --labels a,runner-controller-id=7";
        let variable = variable(register, "GITEA_RUNNER_REGISTRATION_TOKEN");
        if is_new {
            assert_eq!(register.args.join(" "), format!("{line} --no-interactive"));
            assert_eq!((variable, &*register.stdin), (Some(REGISTRATION), &b""[..]));
        } else {
            assert_eq!(register.args.join(" "), line);
            assert_eq!((variable, &*register.stdin), (None, &b"REG1STRATION\n"[..]));
        }
        assert_eq!(ready.agent_id, Some(9));
        assert_eq!(ready.command.args, ["/opt/runner/act_runner", "daemon", "--once"]);
        assert_eq!(&*ready.command.cwd, Path::new("/run/garm/runner"));
        assert_eq!(register.cwd, ready.command.cwd);
        assert!(!command_text(&ready.command).contains(REGISTRATION));
        assert_eq!(requests(&server).last().unwrap(), "POST /c/status idle");
    }
}

/// Returns a fake of GARM's script that reports the runner as idle and exits with 0.
fn idle_script(server: &FakeServer) -> impl FnMut(&GuestCommand, &mut GuestFiles) -> i32 + use<> {
    let url = server.url("/c/status");
    move |_, _| {
        let http = HttpClient::new(&HttpOptions::default()).unwrap();
        let idle = json!({"status": "idle", "message": "", "agent_id": null});
        http.post_json(&url, Some(TOKEN), &idle).unwrap();
        0
    }
}

#[test]
fn garm_script_is_run_from_memory() {
    let script = "TOKEN='eyJINSTANCE.T0KEN'\necho up\n";
    let server = FakeGarm::with_template(script).serve();
    let mut guest = FakeGuest::new(idle_script(&server));
    let ready = boot_and_run(&server, &spec(&server, None), &mut guest).unwrap();
    assert_eq!(
        requests(&server),
        [
            "POST /c/status installing",
            "GET /m/install-script/",
            "POST /c/status idle",
            // Rejected by GARM, because the script has reported `idle`.
            "POST /c/status failed",
        ]
    );
    assert_eq!(ready.command.stdin, script.as_bytes());
    assert_eq!(ready.command.args[..2], ["bash", "-c"]);
    assert!(!ready.command.args.concat().contains(TOKEN));
    assert_eq!(ready.command.owner, GuestIds::ROOT);
    assert_eq!(ready.agent_id, None);
    assert!(guest.commands.is_empty());
    assert!(guest.notes.iter().all(|note| !note.contains("failed")), "{:?}", guest.notes);

    let server = FakeGarm::default().serve();
    let error = boot_and_run(&server, &spec(&server, None), &mut guest).unwrap_err();
    assert!(matches!(error, BootError::Template { .. }), "{error:?}");
    let url = server.url("/m/install-script/");
    assert_eq!(
        failure_message(&server),
        format!(
            "GARM returned no install script: use_garm_template needs GARM 0.2 or later and a template for the \
             pool: GET {url}: 409: Conflict: no template"
        )
    );
}

#[test]
fn script_from_memory_is_executed_unchanged() {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let server = FakeGarm::with_template("x=1\nread y || y=none\necho $x$y\nexit 3\n").serve();
    let mut guest = FakeGuest::new(idle_script(&server));
    let ready = boot_and_run(&server, &spec(&server, None), &mut guest).unwrap();
    let mut bash = Command::new(&ready.command.args[0]);
    bash.args(&ready.command.args[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bash = bash.spawn().unwrap();
    bash.stdin.take().unwrap().write_all(&ready.command.stdin).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(3), &b"1none\n"[..]));
}
