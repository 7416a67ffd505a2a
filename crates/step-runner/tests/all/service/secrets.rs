//! Secrets in every part of a job, and in everything that the server sends or stores.

use std::fs;

use step_runner::trace;
use step_runner::wire::document::FollowStepsRequest;
use step_runner::wire::proto::{Job, StatusRequest, StepResult, Variable};

use crate::service::setup::{ServerFixture, block_on, log};

/// Values that must not appear anywhere.
const SECRETS: [&str; 9] = [
    "server-canary-01",
    "masked-canary-02",
    "file-canary-03",
    "input-canary-04",
    "98765432105",
    "struct-canary-06",
    "output-canary-07",
    "default-canary-08",
    "request-canary-09",
];

const STEP: &str = r#"spec:
  inputs:
    text: {type: string, sensitive: true}
    number: {type: number, sensitive: true}
    deep: {type: struct, sensitive: true}
    default: {type: string, default: default-canary-08, sensitive: true}
    flag: {type: boolean, default: true, sensitive: true}
  outputs:
    secret: {type: string, sensitive: true}
    derived: {type: string}
---
env: {FROM_INPUT: "${{ inputs.text }}"}
exec:
  command:
    - sh
    - -c
    - |
      echo "{\"name\":\"secret\",\"value\":\"$2\"}" >"$1"
      echo "{\"name\":\"derived\",\"value\":\"x$2\"}" >>"$1"
      echo "{\"name\":\"EXPORTED\",\"value\":\"is $2\"}" >"$3"
      echo "$4 $FROM_INPUT"; env -u SERVER_API_TOKEN; env -u SERVER_API_TOKEN >&2; cat "$FILE_PATH"
    - name
    - "${{ output_file }}"
    - output-canary-07
    - "${{ export_file }}"
    - "${{ inputs }} ${{ vars }}"
    - "unprinted ${{ env.SERVER_API_TOKEN }}"
"#;

const RUN: &str = r#"
  - name: leaks
    step: ./leaks
    env: {FILE_PATH: "${{ vars.FILE }}", BY_STEP: "masked-canary-02"}
    inputs:
      text: input-canary-04
      number: 98765432105
      deep: {a: [struct-canary-06]}
  - {name: tells, script: "echo ${{ steps.leaks.outputs.secret }} ${{ steps }} $EXPORTED; cat ${{ vars.FILE }}"}
  - {name: fails, step: "./${{ steps.leaks.outputs.derived }}/${{ vars.MASKED }}"}
outputs: {all: "${{ steps }}", derived: "${{ steps.leaks.outputs.derived }}"}
"#;

fn variables() -> Job {
    let variable = |key: &str, value: &str| Variable {
        key: key.to_owned(),
        value: value.to_owned(),
        ..Variable::default()
    };
    let masked = Variable { masked: true, ..variable("MASKED", "masked-canary-02") };
    let file = Variable { file: true, ..variable("FILE", "file-canary-03") };
    Job { variables: vec![masked, file], ..Job::default() }
}

/// Output of a server about a job.
struct ServerOutput {
    results: Vec<StepResult>,
    /// Everything as text, with its origin.
    texts: Vec<(&'static str, String)>,
}

fn run(options: &[&str], steps: &str) -> ServerOutput {
    let env = [("SERVER_API_TOKEN", "server-canary-01"), ("SERVER_OTHER", "server-other")];
    let options: Vec<_> = options.iter().copied().chain(["--log-level", "debug"]).collect();
    let mut server = ServerFixture::with(&options, &env);
    fs::create_dir(server.work_dir().join("leaks")).unwrap();
    fs::write(server.work_dir().join("leaks/step.yml"), STEP).unwrap();
    let mut seen = block_on(async {
        let mut client = server.document();
        let mut request = server.request("1", steps);
        request.job = Some(variables());
        request.env.insert("REQUEST_SECRET".to_owned(), "masked-canary-02".to_owned());
        request.env.insert("REQUEST_PHRASE".to_owned(), "request-canary-09".to_owned());
        let phrases = vec!["request-canary-09".to_owned()];
        request.masking =
            Some(step_runner::wire::proto::Masking { phrases, token_prefixes: vec![] });
        client.run(request).await.unwrap();
        let request = FollowStepsRequest { id: "1".to_owned(), offset: 0 };
        let mut stream = client.follow_steps(request).await.unwrap().into_inner();
        let mut results = Vec::new();
        while let Some(answer) = stream.message().await.unwrap() {
            results.push(answer.result.unwrap());
        }
        let mut gitlab = server.gitlab();
        let log = log(&mut gitlab, "1", 0).await.unwrap();
        let status = gitlab.status(StatusRequest { id: String::new() }).await.unwrap();
        let status = format!("{:?}", status.into_inner());
        let json: Vec<_> =
            results.iter().map(|result| trace::to_json(result).to_string()).collect();
        let texts = vec![
            ("the log", String::from_utf8(log).unwrap()),
            ("the status", status),
            ("the results", format!("{results:?}")),
            ("the results as JSON", json.join("\n")),
        ];
        ServerOutput { results, texts }
    });
    let variable = |path: &std::path::PathBuf| path.ends_with("FILE");
    for path in server.files().into_iter().filter(|path| !variable(path)) {
        let text = String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned();
        seen.texts.push(("a file of the server", text));
    }
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait_for_exit().success());
    seen.texts.push(("the server's own messages", server.read_output()));
    seen
}

#[test]
fn secrets_of_a_job_are_not_exposed_or_stored() {
    let seen = run(&[], RUN);
    assert_eq!(seen.results.len(), 3);
    assert!(seen.texts.len() >= 7, "{:?}", seen.texts);
    for (origin, text) in &seen.texts {
        for secret in SECRETS {
            assert!(!text.contains(secret), "{secret} is in {origin}: {text}");
        }
    }
    let [(_, log), (_, status), (_, results), _, ..] = &seen.texts[..] else { unreachable!() };
    assert!(status.contains("expanding step path") || status.contains("[MASKED]"), "{status}");
    assert!(log.contains("[MASKED]") && results.contains("[MASKED]"));
    // The server's environment is in the log, where the job printed it, but in no result.
    assert!(log.contains("server-other") && !results.contains("server-other"));
    let leaks = trace::to_json(&seen.results[0]);
    assert_eq!(leaks["step"]["inputs"]["flag"], serde_json::Value::Null, "it was not given");
    assert_eq!(leaks["step"]["inputs"]["number"], "[MASKED]");
    assert_eq!(leaks["outputs"]["secret"], "[MASKED]");
    assert_eq!(leaks["outputs"]["derived"], "x[MASKED]");
    assert_eq!(leaks["exports"]["EXPORTED"], "is [MASKED]");
    assert_eq!(leaks["env"]["FROM_INPUT"], "[MASKED]");
    assert_eq!(leaks["env"]["SERVER_OTHER"], serde_json::Value::Null);
}

#[test]
fn unparsable_steps_are_quoted_without_secrets() {
    let server = ServerFixture::start();
    let error = block_on(async {
        let mut request = server.request("1", "  - {name: a, scirpt: masked-canary-02}\n");
        request.job = Some(variables());
        server.gitlab().run(request).await.unwrap_err()
    });
    assert!(error.message().contains("did you mean `script`?"), "{error}");
    assert!(error.message().contains("[MASKED]") && !error.message().contains("canary"));
}

#[test]
fn permitted_server_shows_secrets_in_results_but_not_in_the_log() {
    let seen = run(&["--show-secrets"], RUN);
    let [(_, log), (_, status), (_, results), ..] = &seen.texts[..] else { unreachable!() };
    for secret in SECRETS.into_iter().filter(|secret| *secret != "file-canary-03") {
        assert!(results.contains(secret), "{secret} is not in {results}");
    }
    assert!(results.contains("server-other"));
    for secret in SECRETS.into_iter().skip(1) {
        assert!(!log.contains(secret) && !status.contains(secret), "{secret} is in {log}");
    }
}
