//! Tests of the test machinery, to distinguish its failures from those of the provider.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use oci_hooks_testsupport::garm::faults::ConnectionFault;
use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::garm::record::RunnerLog;
use oci_hooks_testsupport::garm::server::{ARCHIVE, GarmServer};
use oci_hooks_testsupport::host::TestHost;
use oci_hooks_testsupport::http::Gate;
use serde_json::{Value, json};

/// Sends a request as an instance does; returns the status and the body.
fn ask(
    host: &TestHost,
    garm: &GarmServer,
    method: &str,
    path: &str,
    token: &str,
    body: &Value,
) -> (u16, String) {
    let address = garm.url("").replace("http://", "");
    let mut stream = host.enter(|| TcpStream::connect(address)).unwrap();
    let body = if body.is_null() { String::new() } else { body.to_string() };
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: {token}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    // With a fault, the connection is closed early.
    let _ = stream.read_to_string(&mut answer);
    let status = answer.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

#[test]
fn test_server_enforces_the_rules_of_garm() {
    let host = TestHost::new();
    let garm = GarmServer::start(&host);
    let document = garm.bootstrap("one", "true", json!({}));
    let token = format!("Bearer {}", document["instance-token"].as_str().unwrap());
    let get = |path: &str| ask(&host, &garm, "GET", path, &token, &Value::Null);
    let post = |path: &str, body: Value| ask(&host, &garm, "POST", path, &token, &body);
    let status =
        |status: &str| post("/api/v1/callbacks/status", json!({"status": status, "message": "m"}));

    assert_eq!(
        ask(&host, &garm, "GET", "/api/v1/metadata/credentials/runner", "Bearer x", &Value::Null).0,
        401
    );
    assert_eq!(status("idle").0, 400, "not from pending");
    assert_eq!(status("nonsense").0, 400);
    assert_eq!(status("installing"), (200, String::new()));
    assert_eq!(status("installing").0, 200);
    let (code, body) = get("/api/v1/metadata/credentials/runner/");
    assert_eq!(code, 200);
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["AgentId"], "123");
    assert_eq!(get("/api/v1/metadata/credentials/other").0, 404);
    assert_eq!(get("/api/v1/metadata/runner-registration-token").0, 401, "it is registered");
    let system = json!({"os_name": "a", "os_version": "b", "agent_id": 123});
    assert_eq!(post("/api/v1/callbacks/system-info/", system).0, 200);
    let idle = |id: Value| json!({"status": "idle", "message": "", "agent_id": id});
    assert_eq!(post("/api/v1/callbacks/status/", idle(json!("123"))).0, 400, "no number");
    assert_eq!(post("/api/v1/callbacks/status/", idle(json!(123))).0, 200);
    assert_eq!(status("failed").0, 401, "the token is dead");
    let instance = garm.wait_for("one", RunnerStatus::Idle);
    assert_eq!(instance.agent_id, Some(123));
    assert_eq!(instance.messages_with("installing"), ["m", "m"]);
}

#[test]
fn registration_token_is_issued_once_per_attempt() {
    let host = TestHost::new();
    let garm = GarmServer::start(&host);
    let old = garm.bootstrap("one", "true", json!({"jit_config_enabled": false}));
    let new = garm.bootstrap("one", "true", json!({"jit_config_enabled": false}));
    let get = |document: &Value| {
        let token = format!("Bearer {}", document["instance-token"].as_str().unwrap());
        ask(
            &host,
            &garm,
            "GET",
            "/api/v1/metadata/runner-registration-token/",
            &token,
            &Value::Null,
        )
    };
    assert_eq!(get(&old).0, 401);
    let (code, body) = get(&new);
    assert_eq!((code, body), (200, garm.instance("one").registration_token));
    assert_eq!(get(&new).0, 401);
}

#[test]
fn planned_faults_occur() {
    let host = TestHost::new();
    let garm = GarmServer::start(&host);
    garm.serve("file", vec![b'a'; 5000]);
    let get = || {
        let path = "/downloads/file";
        let address = garm.url("").replace("http://", "");
        let mut stream = host.enter(|| TcpStream::connect(address)).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (answer.split(' ').nth(1).unwrap_or_default().to_owned(), body.len(), body.contains('`'))
    };
    let gate = Gate::default();
    garm.plan("file", ConnectionFault::Status(502), 2);
    garm.plan("file", ConnectionFault::Refuse, 1);
    garm.plan("file", ConnectionFault::Cut(1000), 1);
    garm.plan("file", ConnectionFault::Change, 1);
    garm.plan("file", ConnectionFault::Hold(10, gate.clone()), 1);
    assert_eq!(get().0, "502");
    assert_eq!(get().0, "502");
    assert_eq!(get().0, "");
    assert_eq!(get(), ("200".to_owned(), 1000, false));
    assert_eq!(get(), ("200".to_owned(), 5000, true));
    std::thread::scope(|scope| {
        let held = scope.spawn(get);
        gate.wait_until_reached();
        assert!(!held.is_finished());
        gate.open();
        assert_eq!(held.join().unwrap().1, 5000);
    });
    assert_eq!(get(), ("200".to_owned(), 5000, false));
    assert_eq!(garm.count("/downloads/file"), 7);
}

#[test]
fn tls_server_is_trusted_with_its_ca() {
    let host = TestHost::new();
    let garm = GarmServer::start_tls(&host);
    let url = garm.url("/api/v1/metadata/x");
    let s_client = |authority: &str| {
        let address = url.replace("https://", "");
        let address = address.split('/').next().unwrap();
        host.shell(&format!(
            "printf 'GET /api/v1/metadata/x HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n' | \
             openssl s_client -quiet -verify_return_error -CAfile {authority} \
             -connect {address} 2>/dev/null || true"
        ))
    };
    let authority = host.certificates.authorities();
    assert!(s_client(&authority.display().to_string()).contains("401"));
    assert_eq!(s_client("/dev/null"), "");
}

#[test]
fn fake_runner_records_its_input_and_runs_its_job() {
    let host = TestHost::new();
    let garm = GarmServer::start(&host);
    assert!(garm.bootstrap("one", "true", json!({}))["tools"].to_string().contains(ARCHIVE));
    let directory = host.path().join("runner");
    std::fs::create_dir(&directory).unwrap();
    let archive = host.path().join("archive");
    std::fs::write(&archive, garm.file(ARCHIVE)).unwrap();
    let script = format!(
        "cd {0}; tar -xzf {1}; chmod 755 {2} {0}; chown -R 65534:65534 {0}; \
         echo '{{\"Job\": \"ZWNobyBkb25lOyBleGl0IDM=\"}}' >.runner; \
         env -i PATH=/bin:/usr/bin A=b setpriv --reuid 65534 --regid 65534 --clear-groups ./run.sh || echo code $?",
        directory.display(),
        archive.display(),
        host.path().display(),
    );
    let record = RunnerLog::new(host.shell(&script));
    assert_eq!(record.only_record("user"), "65534:65534");
    assert_eq!(record.only_record("cwd"), directory.display().to_string());
    assert_eq!(record.env("A"), Some("b"));
    assert_eq!(record.file(".runner").file_system, "tmpfs");
    assert_eq!(record.only_record("job"), "echo done; exit 3");
    assert_eq!(record.only_record("end"), "3");
    assert!(record.text.contains("Listening for Jobs\ndone\n@ end 3\n"), "{}", record.text);
    // Like the real runner, whatever the exit codes of its job and its listener.
    assert!(record.text.ends_with("Exiting runner...\n"), "{}", record.text);
    assert!(!record.records("process").is_empty());
}
