//! What GitLab's step-runner answered, recorded from it: see tests/data/steps.

use std::fs;
use std::path::Path;

use oci_hooks::step_runner::wire::proto;
use oci_hooks::step_runner::wire::proto::step_result::Status as JobStatus;
use oci_hooks::step_runner::wire::proto::step_runner_client::StepRunnerClient;
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::setup::{Server, block_on, log, unstamped};

const VECTORS: &str = include_str!("../data/steps/service.jsonl");

/// Errors whose text is not GitLab's, by vector: what ours begins with.
const OUR_TEXTS: [(&str, &str); 3] = [
    // The reader of YAML is another one.
    ("run-bad-yaml", "loading step: reading steps \"foo: [\": "),
    // References are read with the steps, and the text says where.
    ("run-bad-ref", "loading step: reading steps "),
    // Files are not named to clients.
    ("logs-offset-negative", "following logs for job \"1\": "),
];

/// What goes to standard error; the recorded logs have both in one.
const STDERR: [(&str, &str); 1] = [("logs-stdout-stderr-merged", "e1\n")];

/// The recording does not have the files that its jobs used.
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
fn answers_over_the_socket_are_those_of_gitlabs() {
    block_on(async {
        for vector in vectors() {
            check(&vector, Server::gitlab).await;
        }
    });
}

#[test]
fn answers_through_the_proxy_are_those_of_gitlabs() {
    block_on(async {
        for vector in vectors() {
            check(&vector, Server::gitlab_by_proxy).await;
        }
    });
}

fn vectors() -> Vec<Value> {
    let vectors: Vec<_> = VECTORS.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(vectors.len() > 20);
    vectors
}

async fn check(vector: &Value, client: fn(&Server) -> StepRunnerClient<Channel>) {
    let name = vector["id"].as_str().unwrap();
    let env = vector["server_env"].as_object().unwrap();
    let env: Vec<_> = env.iter().map(|(n, v)| (n.as_str(), v.as_str().unwrap())).collect();
    let server = Server::with(&[], &env);
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

/// What a call gave, in the form in which it was recorded.
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
            let (out, err) = unstamped(&log);
            Ok(json!({ "out": out, "err": err }))
        }
        "Close" => client.close(proto::CloseRequest { id: text("id") }).await.map(|_| json!({})),
        "Status" => {
            let jobs = client.status(proto::StatusRequest { id: text("id") }).await?;
            let jobs: Vec<_> = jobs.into_inner().jobs.into_iter().map(shown).collect();
            Ok(if jobs.is_empty() { json!({}) } else { json!({ "jobs": jobs }) })
        }
        other => panic!("unknown call {other}"),
    }
}

fn shown(job: proto::Status) -> Value {
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

/// Returns an answer in whose messages no file is named twice, as ours has it.
fn named_once(answer: &Value) -> Value {
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
            None => assert_eq!(answer, named_once(&expected["response"]), "{name}"),
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
