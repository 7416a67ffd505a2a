//! The health service of gRPC.

use std::fs;

use rustix::process::Signal;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::service::setup::{ServerFixture, block_on};

const NAMES: [&str; 3] = ["", "proto.StepRunner", "oci_hooks.steps.v1.StepRunner"];

fn of(name: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: name.to_owned() }
}

#[test]
fn server_is_healthy_until_it_rejects_jobs() {
    block_on(async {
        let mut server = ServerFixture::with(&["--drain", "1h"], &[]);
        let mut client = HealthClient::new(server.channel());
        let mut watched = Vec::new();
        for name in NAMES {
            let checked = client.check(of(name)).await.unwrap().into_inner();
            assert_eq!(checked.status(), ServingStatus::Serving, "{name}");
            let mut stream = client.watch(of(name)).await.unwrap().into_inner();
            let first = stream.message().await.unwrap().unwrap();
            assert_eq!(first.status(), ServingStatus::Serving, "{name}");
            watched.push(stream);
        }
        assert_eq!(client.check(of("other")).await.unwrap_err().code(), Code::NotFound);

        let script = "while [ ! -e gate ]; do sleep 0.02; done";
        server.gitlab().run(server.script("1", script)).await.unwrap();
        server.signal(Signal::TERM);
        for stream in &mut watched {
            let next = stream.message().await.unwrap().unwrap();
            assert_eq!(next.status(), ServingStatus::NotServing);
        }
        for name in NAMES {
            let checked = client.check(of(name)).await.unwrap().into_inner();
            assert_eq!(checked.status(), ServingStatus::NotServing, "{name}");
        }
        // Open watch streams do not delay the shutdown: it ends them.
        fs::write(server.work_dir().join("gate"), "").unwrap();
        for mut stream in watched {
            assert!(stream.message().await.unwrap().is_none());
        }
        drop(client);
        assert!(server.wait_for_exit().success());
    });
}
