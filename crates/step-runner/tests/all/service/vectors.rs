//! Answers recorded from GitLab's step-runner: see tests/data/README.md.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use step_runner::wire::proto;
use step_runner::wire::proto::step_result::Status as JobStatus;
use step_runner::wire::proto::step_runner_client::StepRunnerClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::recorded::with_current_lines;
use crate::service::setup::{ServerFixture, block_on, log, strip_stamps};

const VECTORS: &str = include_str!("../../data/service.jsonl");

/// Vectors whose error text differs from GitLab's, with the start of our text.
const OUR_TEXTS: [(&str, &str); 3] = [
    // The YAML parser differs.
    ("run-bad-yaml", "loading step: reading steps \"foo: [\": "),
    // References are parsed with the steps, and the text includes the position.
    ("run-bad-ref", "loading step: reading steps "),
    // File names are not sent to clients.
    ("logs-offset-negative", "following logs for job \"1\": "),
];

/// Standard error; the recorded logs merge both streams.
const STDERR: [(&str, &str); 1] = [("logs-stdout-stderr-merged", "e1\n")];

/// Creates files that a recorded job uses, which the recording lacks.
fn make_files(vector: &str, dir: &Path) {
    let export = |name: &str, value: &str| {
        let json = format!("{{\"name\":\"{name}\",\"value\":\"{value}\"}}");
        format!(
            "spec:\n---\nexec:\n  command:\n    - sh\n    - -c\n    - echo '{json}' >> ${{{{export_file}}}}\n"
        )
    };
    let file = match vector {
        "env-precedence-export-request" | "jobs-do-not-share-exports" => {
            ("e/step.yml", export("A", "exp"))
        }
        "jobs-do-not-share-exports-serverenv-only" => {
            ("e/step.yml", export("PATH", "/bin:/usr/bin:/leak"))
        }
        "nested-failure-message" => {
            ("o/step.yml", "spec:\n---\nrun: [{name: inner, script: exit 9}]\n".to_owned())
        }
        "workdir-is-file" => ("f", String::new()),
        _ => return,
    };
    let path = dir.join(file.0);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, file.1).unwrap();
}

#[test]
fn socket_responses_match_gitlabs() {
    block_on(async {
        for vector in vectors() {
            check(&vector, ServerFixture::gitlab).await;
        }
    });
}

#[test]
fn proxy_responses_match_gitlabs() {
    block_on(async {
        for vector in vectors() {
            check(&vector, ServerFixture::gitlab_by_proxy).await;
        }
    });
}

fn vectors() -> Vec<Value> {
    let vectors = with_current_lines(VECTORS);
    let vectors: Vec<_> = vectors.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(vectors.len() > 20);
    vectors
}

async fn check(vector: &Value, client: fn(&ServerFixture) -> StepRunnerClient<Channel>) {
    let name = vector["id"].as_str().unwrap();
    let env = vector["server_env"].as_object().unwrap();
    let env: Vec<_> = env.iter().map(|(n, v)| (n.as_str(), v.as_str().unwrap())).collect();
    let server = ServerFixture::with(&[], &env);
    make_files(name, &server.work_dir());
    let mut client = client(&server);
    for call in vector["calls"].as_array().unwrap() {
        let rpc = call["rpc"].as_str().unwrap();
        let call = call.to_string().replace("$WORKDIR", server.work_dir().to_str().unwrap());
        let call: Value = serde_json::from_str(&call).unwrap();
        let answer = ask(&mut client, rpc, &call["request"]).await;
        compare(name, &call["expect"], answer);
    }
}

/// Returns the answer to a call, in the recorded format.
async fn ask(
    client: &mut StepRunnerClient<Channel>,
    rpc: &str,
    request: &Value,
) -> Result<Value, Status> {
    let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
    match rpc {
        "Run" => {
            let env = request["env"].as_object();
            let env = env.into_iter().flatten();
            let variables = request["job"]["variables"].as_array();
            assert!(variables.is_none(), "no vector has variables");
            let request = proto::RunRequest {
                id: text("id"),
                work_dir: text("work_dir"),
                steps: text("steps"),
                env: env.map(|(n, v)| (n.clone(), v.as_str().unwrap().to_owned())).collect(),
                ..proto::RunRequest::default()
            };
            client.run(request).await.map(|_| json!({}))
        }
        "FollowLogs" => {
            let log = log(client, &text("id"), request["offset"].as_i64().unwrap()).await?;
            let (out, err) = strip_stamps(&log);
            Ok(json!({ "out": out, "err": err }))
        }
        "Close" => client.close(proto::CloseRequest { id: text("id") }).await.map(|_| json!({})),
        "Status" => {
            let jobs = client.status(proto::StatusRequest { id: text("id") }).await?;
            let jobs: Vec<_> = jobs.into_inner().jobs.into_iter().map(format_status).collect();
            Ok(if jobs.is_empty() { json!({}) } else { json!({ "jobs": jobs }) })
        }
        other => panic!("unknown call {other}"),
    }
}

fn format_status(job: proto::Status) -> Value {
    let status = match job.status() {
        JobStatus::Success => "success",
        JobStatus::Failure => "failure",
        other => panic!("{other:?}"),
    };
    let mut shown = json!({ "id": job.id, "status": status });
    if !job.message.is_empty() {
        shown["message"] = job.message.into();
    }
    for (name, time) in [("start_time", job.start_time), ("end_time", job.end_time)] {
        assert!(time.unwrap().seconds > 1_700_000_000);
        shown[name] = "$TIME".into();
    }
    shown
}

/// Returns an answer without repeated file names in its messages, which ours does not have.
fn remove_repeated_name(answer: &Value) -> Value {
    let mut answer = answer.clone();
    let jobs = answer.get_mut("jobs").and_then(Value::as_array_mut);
    for job in jobs.into_iter().flatten() {
        let message = job["message"].as_str().unwrap_or_default();
        if let Some((before, rest)) = message.split_once("reading file: open ") {
            let (_, reason) = rest.split_once(": ").unwrap();
            job["message"] = format!("{before}reading file: {reason}").into();
        }
    }
    answer
}

fn compare(name: &str, expected: &Value, answer: Result<Value, Status>) {
    let Some(error) = expected.get("error") else {
        let answer = answer.unwrap_or_else(|status| panic!("{name}: {status}"));
        match expected.get("logs") {
            Some(logs) => {
                let err = STDERR.iter().find(|(id, _)| *id == name).map_or("", |(_, err)| err);
                let out = logs.as_str().unwrap().replace(err, "");
                let out = if err.is_empty() { logs.as_str().unwrap() } else { &out };
                assert_eq!((&answer["out"], &answer["err"]), (&json!(out), &json!(err)), "{name}");
            }
            None => assert_eq!(answer, remove_repeated_name(&expected["response"]), "{name}"),
        }
        return;
    };
    let status = answer.expect_err(name);
    assert_eq!(status.code(), Code::Unknown, "{name}");
    match OUR_TEXTS.iter().find(|(id, _)| *id == name) {
        Some((_, start)) => {
            assert!(status.message().starts_with(start), "{name}: {}", status.message());
        }
        None => assert_eq!(status.message(), error["message"], "{name}"),
    }
}
