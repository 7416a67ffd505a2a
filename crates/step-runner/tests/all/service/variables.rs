//! The variables of CI jobs.

use step_runner::wire::proto;
use tonic::Code;

use crate::service::setup::{ServerFixture, block_on, close, output};

fn variable(key: &str, value: &str) -> proto::Variable {
    proto::Variable { key: key.to_owned(), value: value.to_owned(), ..proto::Variable::default() }
}

fn with(request: proto::RunRequest, variables: &[proto::Variable]) -> proto::RunRequest {
    let job = proto::Job { variables: variables.to_vec(), ..proto::Job::default() };
    proto::RunRequest { job: Some(job), ..request }
}

#[test]
fn gitlab_variables_are_already_expanded_and_not_in_the_environment() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.gitlab();
        let script = "echo '${{vars.B}}' '${{job.B}}' [$B]";
        let variables = [variable("A", "1"), variable("B", "$A ${A}"), variable("B", "$A-2")];
        client.run(with(server.script("1", script), &variables)).await.unwrap();
        assert_eq!(output(&mut client, "1").await.0, "Running step name=a\n$A-2 $A-2 []\n");
    });
}

#[test]
fn document_variables_are_expanded_and_in_the_environment() {
    block_on(async {
        let script = "echo '${{vars.B}}' $B";
        let variables =
            [variable("A", "1"), variable("B", "$A.${REQ}.$SRV.$NONE.$$"), variable("C", "$C")];
        let expected = "Running step name=a\n1.req.srv..$ 1.req.srv..$\n";
        let request = |server: &ServerFixture| {
            let request = with(server.script("1", script), &variables);
            let env = [("REQ".to_owned(), "req".to_owned())].into();
            proto::RunRequest { env, ..request }
        };

        let server = ServerFixture::with(&[], &[("SRV", "srv")]);
        server.document().run(request(&server)).await.unwrap();
        assert_eq!(output(&mut server.gitlab(), "1").await.0, expected);

        let server = ServerFixture::with(&["--variables", "environment"], &[("SRV", "srv")]);
        server.gitlab().run(request(&server)).await.unwrap();
        assert_eq!(output(&mut server.gitlab(), "1").await.0, expected);
    });
}

#[test]
fn file_variables_are_private_masked_and_removed_with_the_job() {
    block_on(async {
        let server = ServerFixture::start();
        let mut client = server.document();
        let file = proto::Variable { file: true, ..variable("KEY", "line-one\n$HOME") };
        let script = "stat -c %a $KEY; cat $KEY; echo; wc -c < $KEY; echo $KEY >&2";
        client.run(with(server.script("1", script), &[file])).await.unwrap();
        let (out, err) = output(&mut server.gitlab(), "1").await;
        assert_eq!(out, "Running step name=a\n600\n[MASKED]\n14\n");
        let path = std::path::Path::new(err.trim());
        assert!(path.starts_with(server.tmp()) && path.exists(), "{err}");
        close(&mut server.gitlab(), "1").await;
        assert!(!path.exists());
    });
}

#[test]
fn file_variables_cannot_leave_their_directory() {
    block_on(async {
        let server = ServerFixture::start();
        for name in ["../evil", "../../log", "/tmp/evil", "", "a b", "log/../x"] {
            let evil = [proto::Variable { file: true, ..variable(name, "x") }];
            for error in [
                server.gitlab().run(with(server.script("1", "true"), &evil)).await.unwrap_err(),
                server.document().run(with(server.script("1", "true"), &evil)).await.unwrap_err(),
            ] {
                assert_eq!(error.code(), Code::InvalidArgument, "{name}");
                assert!(error.message().contains(&format!("{name:?}")), "{error}");
            }
        }
        assert_eq!(server.files(), <[std::path::PathBuf; 0]>::default());
    });
}

#[test]
fn secrets_are_masked_before_they_are_stored() {
    block_on(async {
        let server = ServerFixture::start();
        let masked = proto::Variable { masked: true, ..variable("S", "sup3r-$A") };
        let mut request = server.script(
            "1",
            "echo raw '${{vars.S}}' $S; echo phrase-of-mine; echo mytok-abc123; echo jobtok-abc123; echo glpat-xyz",
        );
        request.masking = Some(proto::Masking {
            phrases: vec!["phrase-of-mine".to_owned()],
            token_prefixes: vec!["mytok-".to_owned()],
        });
        request.job = Some(proto::Job {
            variables: vec![masked, variable("A", "s3cret")],
            token_prefixes: vec!["jobtok-".to_owned()],
            ..proto::Job::default()
        });
        server.document().run(request).await.unwrap();
        let (out, _) = output(&mut server.gitlab(), "1").await;
        let expected = "Running step name=a\nraw [MASKED] [MASKED]\n[MASKED]\nmytok-[MASKED]\njobtok-[MASKED]\nglpat-[MASKED]\n";
        assert_eq!(out, expected);
        let logs: Vec<_> =
            server.files().into_iter().filter(|file| file.ends_with("log")).collect();
        let [log] = &logs[..] else { panic!("{logs:?}") };
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.contains("[MASKED]") && !log.contains("s3cret"), "{log}");
    });
}

#[test]
fn log_level_reaches_the_steps() {
    block_on(async {
        let server = ServerFixture::with(&[], &[("CI_STEPS_LOG_LEVEL", "error")]);
        let mut client = server.gitlab();
        let script = "echo $CI_STEPS_LOG_LEVEL";
        client.run(server.script("1", script)).await.unwrap();
        let level = [variable("CI_STEPS_LOG_LEVEL", " WARN ")];
        client.run(with(server.script("2", script), &level)).await.unwrap();
        server.document().run(with(server.script("3", script), &level)).await.unwrap();
        for (id, level) in [("1", "error"), ("2", "warn"), ("3", "warn")] {
            assert_eq!(output(&mut client, id).await.0, format!("Running step name=a\n{level}\n"));
        }
    });
}
