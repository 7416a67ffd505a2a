//! Checks of the test machinery: the cluster runs pods, and the proxy in front of it injects faults.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use oci_hooks_testsupport::api_proxy::{ConnectionCut, ErrorResponse};
use oci_hooks_testsupport::program;
use serde_json::json;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::cluster::setup::{NamespaceHook, cluster};

fn agent(pods: &NamespaceHook<'_>) -> Agent {
    let authority = std::fs::read(pods.proxy().authority()).unwrap();
    let roots = RootCerts::new_with_certs(&[Certificate::from_pem(&authority).unwrap()]);
    Agent::config_builder()
        .http_status_as_error(false)
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build()
        .into()
}

#[test]
fn pod_from_the_test_registry_runs_and_reports_its_exit_code() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let container =
        json!({"name": "job", "image": "alpine:3.20", "command": ["sh", "-c", "exit 7"]});
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    pods.namespace.create("pods", &json!({"metadata": {"name": "it"}, "spec": spec}));
    let pod = pods.namespace.wait_for_pod("it", |pod| pod["status"]["phase"] == "Failed");
    let state = &pod["status"]["containerStatuses"][0]["state"];
    assert_eq!(state["terminated"]["exitCode"], 7);
}

#[test]
fn proxy_forwards_requests_and_can_answer_itself() {
    let cluster = cluster();
    let mut pods = NamespaceHook::new(&cluster);
    pods.use_proxy();
    let (agent, proxy) = (agent(&pods), pods.proxy());
    let get = |path: &str| agent.get(format!("{}{path}", proxy.url())).call().unwrap();
    // The server's own response to a request without a token.
    assert_eq!(get("/api/v1/pods").status(), 401);
    proxy.refuse(1, "GET /pods", ErrorResponse { status: 429, retry_after: Some(3) });
    proxy.refuse(1, "GET /pods", ErrorResponse { status: 503, retry_after: None });
    // This request does not match the planned refusals.
    assert_eq!(get("/api/v1/secrets").status(), 401);
    let refused = get("/api/v1/pods?limit=1");
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["retry-after"]),
        (429, &"3".parse().unwrap())
    );
    assert_eq!(get("/api/v1/pods").status(), 503);
    assert_eq!(proxy.refusals_left(), 0);
    assert_eq!(get("/api/v1/pods").status(), 401);
    let asked: Vec<_> = proxy.seen_requests().into_iter().map(|asked| asked.path).collect();
    assert_eq!(asked.len(), 5);
    assert_eq!(asked[2], "/api/v1/pods?limit=1");
}

#[test]
fn proxy_cuts_and_freezes_connections() {
    let cluster = cluster();
    let mut pods = NamespaceHook::new(&cluster);
    pods.use_proxy();
    let proxy = pods.proxy();
    let address = proxy.url().replace("https://", "");
    for (how, expected) in [
        (ConnectionCut::Reset, Some(std::io::ErrorKind::ConnectionReset)),
        (ConnectionCut::Closed, None),
    ] {
        let mut client = std::net::TcpStream::connect(&address).unwrap();
        // Part of a ClientHello: the proxy waits for the rest.
        client.write_all(&[0x16, 3, 1, 0, 200]).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let silent = |read: &std::io::Result<usize>| {
            read.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
        };
        let mut read = client.read(&mut [0]);
        assert!(silent(&read), "{read:?}");
        // The proxy may not have accepted the connection yet.
        program::wait_until("the end of the connection", || {
            proxy.cut_connections(how);
            read = client.read(&mut [0]);
            !silent(&read)
        });
        match expected {
            Some(kind) => assert_eq!(read.unwrap_err().kind(), kind),
            None => assert_eq!(read.unwrap(), 0),
        }
    }
    let agent = agent(&pods);
    proxy.freeze();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::park_timeout(Duration::from_millis(500));
            proxy.thaw();
        });
        let answer = agent.get(format!("{}/version", proxy.url())).call().unwrap();
        assert_eq!(answer.status(), 401);
    });
    assert!(begin.elapsed() >= Duration::from_millis(450));
}
