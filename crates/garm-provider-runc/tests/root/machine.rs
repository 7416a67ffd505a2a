//! The fake GARM rejects the same requests as GARM; otherwise, tests would pass with a provider that GARM rejects.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use oci_hooks_testsupport::garm::instances::RunnerStatus;
use oci_hooks_testsupport::garm::server::GarmServer;
use oci_hooks_testsupport::host::TestHost;
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
    stream.read_to_string(&mut answer).unwrap();
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
