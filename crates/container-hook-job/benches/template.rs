//! Measures reading, checking and merging a pod template of 1000 lines, and deserializing the same text with
//! serde without checks.
//!
//! `cargo bench -p container-hook-job --bench template`

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "prints figures; what fails panics")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::{Duration, Instant};

use container_hook_job::request::{HookCommand, HookRequest, PrepareJob};
use container_hook_job::template::{PodTemplate, base};

const LINES: usize = 1000;

/// Time limit of reading and merging.
const LIMIT: Duration = Duration::from_millis(5);

const RUNS: usize = 301;

fn main() {
    let text = text();
    let job = job();
    println!(
        "a template of {} lines, {} KiB; medians of {RUNS}",
        text.lines().count(),
        text.len() >> 10
    );
    let ours = median(|| {
        let template = PodTemplate::parse("template.yaml", &text).unwrap();
        black_box(template.merge_job(base::job(&job, "runner").unwrap()).unwrap());
    });
    let template = PodTemplate::parse("template.yaml", &text).unwrap();
    let merge = median(|| {
        black_box(template.merge_job(base::job(&job, "runner").unwrap()).unwrap());
    });
    let plain = median(|| {
        black_box(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap());
    });
    println!("read, checked, merged: {ours:?}, of which merged: {merge:?}");
    println!("serde-saphyr to a JSON value: {plain:?}");
    assert!(ours <= LIMIT, "more than {LIMIT:?}");
}

fn median(mut work: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[RUNS / 2]
}

/// Returns a template with all kinds of fields, most of them variables and mounts.
fn text() -> String {
    let mut text = "\
metadata:
  labels:
    team: ci
  annotations:
    com.example.gpu: \"true\"
spec:
  hostname: ci
  containers:
  - name: $redis
    resources:
      limits: {cpu: 2, memory: 1Gi}
  - name: $job
    env:
"
    .to_owned();
    let variables = 300;
    for number in 0..variables {
        write!(text, "    - name: VARIABLE_{number}\n      value: \"value {number}\"\n").unwrap();
    }
    text += "    volumeMounts:\n";
    let mounts = (LINES - text.lines().count() - 1) / 6;
    for number in 0..mounts {
        write!(text, "    - name: volume-{number}\n      mountPath: /mnt/{number}\n").unwrap();
        text += "      readOnly: true # nobody writes there\n";
    }
    text += "  volumes:\n";
    for number in 0..mounts {
        write!(text, "  - name: volume-{number}\n    hostPath:\n      path: /srv/{number}\n")
            .unwrap();
    }
    while text.lines().count() < LINES {
        text += "# the end\n";
    }
    text
}

fn job() -> PrepareJob {
    let request = r#"{"command": "prepare_job", "responseFile": "/response.json", "args": {
        "container": {"image": "node:22", "workingDirectory": "/__w/r/r"},
        "services": [{"image": "redis:7", "portMappings": ["6379"]}]
    }}"#;
    match HookRequest::parse(request.as_bytes()).unwrap().command {
        HookCommand::PrepareJob(job) => job,
        other => unreachable!("{other:?}"),
    }
}
