//! Misbehaving clients.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;

use oci_hooks_testsupport::program::wait_until;
use prost::Message as _;
use step_runner::wire::proto;
use tonic::Code;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;

use crate::service::setup::{ServerFixture, block_on, log, output, status};

#[test]
fn vanished_clients_leave_the_job_and_no_open_files() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        let script = "i=0; while [ ! -e gate ]; do echo $((i=i+1)); sleep 0.01; done; echo end";
        client.run(server.script("1", script)).await.unwrap();
        status(&mut client, "1").await.unwrap();
        let open = || {
            let fds = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
            let targets = fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
            targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count()
        };
        let before = open();
        for _ in 0..20 {
            // Dropping the client closes its connection in the middle of the stream.
            let mut gone = server.gitlab();
            let request = proto::FollowLogsRequest { id: "1".to_owned(), offset: 0 };
            let mut stream = gone.follow_logs(request).await.unwrap().into_inner();
            stream.message().await.unwrap().unwrap();
        }
        wait_until("what they had is closed", || open() <= before);
        std::fs::write(server.work_dir().join("gate"), "").unwrap();
        assert!(output(&mut client, "1").await.0.ends_with("\nend\n"));
    });
}

#[test]
fn run_continues_after_its_client_vanishes() {
    block_on(async {
        let server = ServerFixture::start();
        for number in 0..20 {
            let mut gone = server.gitlab();
            let request = server.script(&number.to_string(), "true");
            // The call is dropped at an arbitrary point.
            let _ = tokio::time::timeout(
                std::time::Duration::from_micros(number * 100),
                gone.run(request),
            )
            .await;
        }
        let mut client = server.gitlab();
        for number in 0..20 {
            let id = number.to_string();
            client.run(server.script(&id, "true")).await.unwrap();
            log(&mut client, &id, 0).await.unwrap();
        }
    });
}

#[test]
fn invalid_http_does_not_disturb_the_server() {
    block_on(async {
        let server = ServerFixture::start();
        for garbage in
            [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\0\0\0\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nxxxx"]
        {
            let mut stream = UnixStream::connect(server.socket()).unwrap();
            stream.write_all(garbage).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = Vec::new();
            // The server closes the connection after any input.
            let _ = stream.read_to_end(&mut answer);
        }
        server.gitlab().run(server.script("1", "true")).await.unwrap();
    });
}

#[test]
fn unknown_methods_and_fields_are_answered() {
    block_on(async {
        let server = ServerFixture::start();
        let mut gitlab = server.gitlab();
        gitlab.run(server.script("1", "true")).await.unwrap();

        let channel = server.channel();
        let call = |path: &'static str, message: NewerRequest| {
            let mut grpc = Grpc::new(channel.clone());
            async move {
                grpc.ready().await.unwrap();
                let codec = tonic_prost::ProstCodec::<NewerRequest, proto::RunResponse>::default();
                let path = PathAndQuery::from_static(path);
                grpc.unary(tonic::Request::new(message), path, codec).await
            }
        };
        let newer = |id: &str| NewerRequest {
            id: id.to_owned(),
            steps: server.script("", "true").steps,
            timeout: "later".to_owned(),
        };
        for path in
            ["/proto.StepRunner/Pause", "/proto.Other/Run", "/oci_hooks.steps.v1.StepRunner/Close"]
        {
            let error = call(path, newer("1")).await.unwrap_err();
            assert_eq!(error.code(), Code::Unimplemented, "{path}");
        }
        call("/proto.StepRunner/Run", newer("2")).await.unwrap();
        assert_eq!(output(&mut gitlab, "2").await.0, "Running step name=a\n");
    });
}

/// A request with a field that this server does not know.
#[derive(Clone, PartialEq, prost::Message)]
struct NewerRequest {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(string, tag = "6")]
    steps: String,
    #[prost(string, tag = "77")]
    timeout: String,
}

/// A request with an id of any bytes.
#[derive(Clone, PartialEq, prost::Message)]
struct BytesRequest {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
}

#[test]
fn invalid_utf_8_is_an_invalid_argument() {
    block_on(async {
        let server = ServerFixture::start();
        for path in [
            "/proto.StepRunner/Run",
            "/proto.StepRunner/Close",
            "/oci_hooks.steps.v1.StepRunner/Run",
        ] {
            let mut grpc = Grpc::new(server.channel());
            grpc.ready().await.unwrap();
            let codec = tonic_prost::ProstCodec::<BytesRequest, proto::RunResponse>::default();
            let request = tonic::Request::new(BytesRequest { id: b"\xff".to_vec() });
            let error = grpc.unary(request, PathAndQuery::from_static(path), codec).await;
            let error = error.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{path}: {error}");
            assert!(error.message().contains("UTF-8"), "{error}");
        }
    });
}

#[test]
fn oversized_request_is_rejected() {
    block_on(async {
        let server = ServerFixture::start();
        let mut request = server.script("1", "true");
        request.env.insert("A".to_owned(), "x".repeat(17 << 20));
        assert!(request.encoded_len() > 16 << 20);
        let error = server.gitlab().run(request).await.unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
        server.gitlab().run(server.script("1", "true")).await.unwrap();
    });
}

#[test]
fn ids_cannot_leave_the_job_directory() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        for id in ["../../x", "a/b", "/", "..", ".", "\0", "-", "ü💥", "a\nb", &"x".repeat(1024)]
        {
            client.run(server.script(id, "echo x")).await.unwrap();
            assert_eq!(output(&mut client, id).await.0, "Running step name=a\nx\n");
        }
        let all = client.status(proto::StatusRequest::default()).await.unwrap().into_inner();
        assert_eq!(all.jobs.len(), 10);
        // All files are in one directory of the server.
        assert_eq!(std::fs::read_dir(server.tmp()).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(server.work_dir()).unwrap().count(), 0);
    });
}
