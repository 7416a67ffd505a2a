//! The two log formats.

use step_runner::client::{ServerAddress, StepClient};
use step_runner::wire::proto;
use tonic::Code;

use crate::service::setup::{ServerFixture, block_on, close, log, strip_stamps};

const VARIABLE: &str = "CI_STEPS_LOG_FORMAT";

/// A script whose output must reach runners without header support unchanged.
const SCRIPT: &str = "printf 'a\\r\\n\\nb'";

const PLAIN: &[u8] = b"Running step name=a\na\r\n\nb\n";

/// Returns whether each line has the header of stamped logs that GitLab's runner expects.
fn is_stamped(log: &[u8]) -> bool {
    let is_header = |line: &[u8]| line.len() >= 32 && line[10] == b'T' && line[26..28] == *b"Z ";
    log.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n').all(is_header)
}

async fn run(server: &ServerFixture, request: proto::RunRequest) -> Vec<u8> {
    let mut client = server.gitlab();
    client.run(request).await.unwrap();
    let whole = log(&mut client, "1", 0).await.unwrap();
    // Offsets count the sent bytes.
    for offset in 0..=whole.len() {
        let rest = log(&mut client, "1", i64::try_from(offset).unwrap()).await.unwrap();
        assert_eq!(rest, whole[offset..], "{offset}");
    }
    close(&mut client, "1").await;
    whole
}

fn with_variable(request: proto::RunRequest, value: &str) -> proto::RunRequest {
    let variable = proto::Variable {
        key: VARIABLE.to_owned(),
        value: value.to_owned(),
        ..proto::Variable::default()
    };
    let job = proto::Job { variables: vec![variable], ..proto::Job::default() };
    proto::RunRequest { job: Some(job), ..request }
}

#[test]
fn job_can_override_the_log_format_of_the_server() {
    block_on(async {
        let environment = [(VARIABLE, "plain")];
        for (options, env, is_plain) in [
            (&[][..], &[][..], false),
            (&["--log-format", "plain"], &[], true),
            (&["--log-format", "stamped"], &environment, false),
            (&[], &environment, true),
        ] {
            let server = ServerFixture::with(options, env);
            let request = || server.script("1", SCRIPT);
            let by_server = run(&server, request()).await;
            assert_eq!(by_server == PLAIN, is_plain);
            assert_eq!(is_stamped(&by_server), !is_plain);
            assert!(is_stamped(&run(&server, with_variable(request(), "stamped")).await));
            assert_eq!(run(&server, with_variable(request(), "plain")).await, PLAIN);
            let env = [(VARIABLE.to_owned(), "plain".to_owned())].into();
            assert_eq!(run(&server, proto::RunRequest { env, ..request() }).await, PLAIN);
        }
    });
}

#[test]
fn unknown_log_format_is_rejected() {
    block_on(async {
        let server = ServerFixture::start();
        let request = with_variable(server.script("1", "true"), "json");
        let error = server.gitlab().run(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        let text =
            "initializing request: log format: json not supported: expected stamped or plain";
        assert_eq!(error.message(), text);
        assert_eq!(server.files(), <[std::path::PathBuf; 0]>::default());
    });
}

#[test]
fn plain_log_passes_the_client_library_unchanged() {
    block_on(async {
        let server = ServerFixture::with(&["--log-format", "plain"], &[]);
        let client = StepClient::new(ServerAddress::Socket(server.socket()));
        let mut seen = Vec::new();
        let request = server.script("1", SCRIPT);
        client.execute(request, |bytes| seen.extend_from_slice(bytes)).await.unwrap();
        assert_eq!(seen, PLAIN);
        let text = String::from_utf8(PLAIN.to_vec()).unwrap();
        assert_eq!(strip_stamps(&seen), (text, String::new()));
    });
}
