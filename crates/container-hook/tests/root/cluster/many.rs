//! Load: concurrent jobs, and large output.

use std::io::Read as _;
use std::process::Stdio;

use oci_hooks_testsupport::github_runner::guid;
use sha2::{Digest as _, Sha256};

use crate::cluster::setup::{NamespaceHook, cluster, cycles};

/// Default number of megabytes that a step prints. `OCI_HOOKS_OUTPUT_MB` overrides it.
const OUTPUT_MB: u64 = 64;

#[test]
fn many_concurrent_jobs_do_not_interfere() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    std::thread::scope(|scope| {
        for job in 0..cycles(20).min(20) {
            let pods = &pods;
            scope.spawn(move || {
                let name = format!("many-{job}");
                let mut runner = pods.runner(&name);
                std::fs::write(runner.workspace().join("name"), &name).unwrap();
                runner.prepare(runner.job_container("alpine:3.20"), &[]);
                let ended = runner.run("cat name; echo $HOSTNAME >host").success();
                assert_eq!(ended.stdout().trim_end(), name);
                runner.cleanup();
                pods.check_gone(&name);
            });
        }
    });
}

#[test]
fn large_output_is_complete_and_needs_little_memory() {
    let cluster = cluster();
    let pods = NamespaceHook::new(&cluster);
    let mut runner = pods.runner("output");
    runner.prepare(runner.job_container("alpine:3.20"), &[]);
    let asked = std::env::var("OCI_HOOKS_OUTPUT_MB").ok().map(|text| text.parse().unwrap());
    let count = asked.unwrap_or(OUTPUT_MB) << 20;
    let line = "0123456789abcdef all that a step writes must come as it was written\n";
    std::fs::write(
        runner.temp().join("much.sh"),
        format!("yes '{}' | head -c {count}", line.trim_end()),
    )
    .unwrap();
    let words = ["-e".to_owned(), "/__w/_temp/much.sh".to_owned()];
    let response = runner.temp().join(format!("{}.json", guid()));
    std::fs::write(&response, "").unwrap();
    let args = runner.script_args("sh", &words, &[], "none");
    let request = serde_json::json!({
        "command": "run_script_step", "responseFile": response, "args": args, "state": runner.state,
    });
    let file = runner.temp().join("request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    let mut command = runner.command();
    command.stdin(std::fs::File::open(&file).unwrap()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let (mut sum, mut came, mut peak) = (Sha256::new(), 0_u64, 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = output.read(&mut buffer).unwrap();
        if read == 0 {
            break;
        }
        sum.update(&buffer[..read]);
        came += read as u64;
        peak = peak.max(peak_kilobytes(child.id()));
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(came, count);
    let mut expected = Sha256::new();
    let block = line.repeat((1 << 20) / line.len());
    let mut left = count;
    while left > 0 {
        let part = block.len().min(usize::try_from(left).unwrap());
        expected.update(&block.as_bytes()[..part]);
        left -= part as u64;
    }
    assert_eq!(sum.finalize(), expected.finalize());
    // The limit allows for debug builds, which use more memory than release builds.
    assert!(peak > 0 && peak < 60_000, "the hook took {peak} kB");
    runner.cleanup();
}

/// Returns the peak memory of a process, or 0 if it is gone.
fn peak_kilobytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
