//! Performs an action on a container: runs a program in it, or connects over its network. `health` repeats actions as
//! checks.

use std::fs;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use oci_hooks_files::error::chain;
use oci_hooks_files::process::{FinishedProgram, ProgramEnd};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_host::netns;
use ureq::Agent;
use ureq::tls::TlsConfig;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{ContainerAction, ContainerRecord, write_json};
use crate::bundle::ExecOptions;

/// Maximum size of a command's output in messages.
const SHOWN_BYTES: usize = 4096;

impl Engine {
    /// Performs an action. The inner error describes a failure of the action.
    pub fn perform(
        &self,
        record: &ContainerRecord,
        action: &ContainerAction,
        timeout: Duration,
    ) -> Result<Result<(), String>, ContainerError> {
        match action {
            ContainerAction::Command(command) => self.command(record, command, timeout),
            ContainerAction::Http { url, headers } => {
                run_in_network(record, || http(url, headers, timeout))
            }
            ContainerAction::Tcp(address) => run_in_network(record, || {
                TcpStream::connect_timeout(address, timeout)
                    .map(drop)
                    .map_err(|error| format!("no connection to {address}: {error}"))
            }),
            ContainerAction::Sleep(time) => {
                thread::sleep(*time);
                Ok(Ok(()))
            }
        }
    }

    fn command(
        &self,
        record: &ContainerRecord,
        command: &[String],
        timeout: Duration,
    ) -> Result<Result<(), String>, ContainerError> {
        let directory = self.directory(&record.id);
        let options = ExecOptions { args: command.to_vec(), ..ExecOptions::default() };
        let process_file = directory.path().join("health.json");
        write_json(&process_file, &self.process(record, &options)?)?;
        let pid_file = directory.path().join("health.pid");
        // The PID of an earlier command may belong to another process by now.
        let _ = fs::remove_file(&pid_file);
        let program = record.runtime.probe(&record.id, &process_file, &pid_file, timeout)?;
        if program.end == ProgramEnd::TimedOut {
            // The runtime was killed, but not its process in the container.
            let pid = fs::read_to_string(&pid_file).ok();
            let process = pid.and_then(|pid| {
                ProcessIdentity::of_container(pid.trim().parse().ok()?, record.process?)
            });
            if let Some(process) = process {
                let _ = process.kill(Duration::from_secs(1));
            }
        }
        Ok(if program.end == ProgramEnd::Exited(0) {
            Ok(())
        } else {
            Err(format_failure(&program, timeout))
        })
    }
}

/// Runs `work` in the network namespace of a container.
fn run_in_network(
    record: &ContainerRecord,
    work: impl FnOnce() -> Result<(), String> + Send,
) -> Result<Result<(), String>, ContainerError> {
    let answer = record
        .process
        .map_or(Ok(None), |process| netns::run_in_process_namespace(process, work))?;
    Ok(answer.unwrap_or_else(|| Err("the container is not running".to_owned())))
}

fn http(url: &str, headers: &[(String, String)], timeout: Duration) -> Result<(), String> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .proxy(None)
        .user_agent("container-hook")
        .timeout_global(Some(timeout))
        .tls_config(TlsConfig::builder().disable_verification(true).build())
        .build();
    let mut request = Agent::new_with_config(config).get(url);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    match request.call() {
        Ok(answer) if (200..400).contains(&answer.status().as_u16()) => Ok(()),
        Ok(answer) => Err(format!("{url} answers {}", answer.status())),
        Err(error) => Err(format!("{url} does not answer: {}", chain(&error))),
    }
}

/// Describes the end of a command and its output, for messages.
fn format_failure(program: &FinishedProgram, timeout: Duration) -> String {
    let end = match program.end {
        ProgramEnd::Exited(code) => format!("code {code}"),
        ProgramEnd::Signaled(signal) => format!("signal {signal}"),
        ProgramEnd::TimedOut => format!("no answer within {} s", timeout.as_secs_f32()),
        ProgramEnd::OutputTooLarge => "too much output".to_owned(),
    };
    let said = [&program.stdout[..], &program.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said[..said.len().min(SHOWN_BYTES)]).into_owned();
    // On one line, without control characters, which could move a terminal's cursor.
    let words = said.split(|c: char| c.is_whitespace() || c.is_control());
    let said = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if said.is_empty() { end } else { format!("{end}: {said}") }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use oci_hooks_testsupport::program::DEADLINE;

    use super::*;

    #[test]
    fn http_check_accepts_status_200_to_399() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/health", listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            let mut requests = Vec::new();
            for code in ["204 No Content", "500 Internal Server Error"] {
                let mut stream = listener.accept().unwrap().0;
                let mut request = [0; 4096];
                let length = stream.read(&mut request).unwrap();
                requests.push(String::from_utf8_lossy(&request[..length]).into_owned());
                let end = "Content-Length: 0\r\nConnection: close\r\n\r\n";
                stream.write_all(format!("HTTP/1.1 {code}\r\n{end}").as_bytes()).unwrap();
            }
            requests
        });
        let headers = [("X-Who".to_owned(), "me".to_owned())];
        assert_eq!(http(&url, &headers, DEADLINE), Ok(()));
        let said = http(&url, &headers, DEADLINE).unwrap_err();
        assert!(said.ends_with("answers 500 Internal Server Error"), "{said}");
        let requests = server.join().unwrap();
        assert!(requests[0].starts_with("GET /health HTTP/1.1\r\n"), "{}", requests[0]);
        assert!(requests[0].to_lowercase().contains("x-who: me"), "{}", requests[0]);
        assert!(http(&url, &[], DEADLINE).unwrap_err().contains("does not answer"));
    }
}
