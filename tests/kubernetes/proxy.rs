//! What other tests here stand on: the cluster runs pods, and the proxy before it does as it is told.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use serde_json::json;
use ureq::Agent;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

use crate::setup::{Pods, cluster};
use crate::support::api_proxy::{Cut, Refusal};

fn agent(pods: &Pods<'_>) -> Agent {
    let authority = std::fs::read(pods.proxy().authority()).unwrap();
    let roots = RootCerts::new_with_certs(&[Certificate::from_pem(&authority).unwrap()]);
    Agent::config_builder()
        .http_status_as_error(false)
        .tls_config(TlsConfig::builder().root_certs(roots).build())
        .build()
        .into()
}

#[test]
fn a_pod_of_an_image_from_the_registry_runs_and_ends_as_its_program_does() {
    let cluster = cluster();
    let pods = Pods::new(&cluster);
    let container =
        json!({"name": "job", "image": "alpine:3.20", "command": ["sh", "-c", "exit 7"]});
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    pods.namespace.create("pods", &json!({"metadata": {"name": "it"}, "spec": spec}));
    let pod = pods.namespace.wait_for_pod("it", |pod| pod["status"]["phase"] == "Failed");
    let state = &pod["status"]["containerStatuses"][0]["state"];
    assert_eq!(state["terminated"]["exitCode"], 7);
}

#[test]
fn the_proxy_passes_requests_and_answers_in_the_servers_place() {
    let cluster = cluster();
    let mut pods = Pods::new(&cluster);
    pods.use_proxy();
    let (agent, proxy) = (agent(&pods), pods.proxy());
    let get = |path: &str| agent.get(format!("{}{path}", proxy.url())).call().unwrap();
    // Without a token: the server's own answer.
    assert_eq!(get("/api/v1/pods").status(), 401);
    proxy.refuse(1, "GET /pods", Refusal { status: 429, retry_after: Some(3) });
    proxy.refuse(1, "GET /pods", Refusal { status: 503, retry_after: None });
    // It is none of those.
    assert_eq!(get("/api/v1/secrets").status(), 401);
    let refused = get("/api/v1/pods?limit=1");
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["retry-after"]),
        (429, &"3".parse().unwrap())
    );
    assert_eq!(get("/api/v1/pods").status(), 503);
    assert_eq!(proxy.refusals_left(), 0);
    assert_eq!(get("/api/v1/pods").status(), 401);
    let asked: Vec<_> = proxy.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(asked.len(), 5);
    assert_eq!(asked[2], "/api/v1/pods?limit=1");
}

#[test]
fn the_proxy_cuts_and_freezes_connections() {
    let cluster = cluster();
    let mut pods = Pods::new(&cluster);
    pods.use_proxy();
    let proxy = pods.proxy();
    let address = proxy.url().replace("https://", "");
    for (how, expected) in
        [(Cut::Reset, Some(std::io::ErrorKind::ConnectionReset)), (Cut::Closed, None)]
    {
        let mut client = std::net::TcpStream::connect(&address).unwrap();
        // Part of a hello: the proxy waits for the rest.
        client.write_all(&[0x16, 3, 1, 0, 200]).unwrap();
        client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        proxy.cut(how);
        let read = client.read(&mut [0]);
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
