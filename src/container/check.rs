//! One look at a container from outside or by a program in it: what health checks are made of.

use std::fs;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::tls::TlsConfig;

use super::engine::Engine;
use super::error::ContainerError;
use super::record::{Check, Record, write_json};
use crate::bundle::ExecOptions;
use crate::sys::error::chain;
use crate::sys::identity::Identity;
use crate::sys::netns;
use crate::sys::process::{End, Finished};

/// How much of what a check writes is worth showing.
const SHOWN_BYTES: usize = 4096;

impl Engine {
    /// Makes a check; says how it failed, if it did.
    pub fn check(
        &self,
        record: &Record,
        check: &Check,
        timeout: Duration,
    ) -> Result<Result<(), String>, ContainerError> {
        match check {
            Check::Command(command) => self.command(record, command, timeout),
            Check::Http { url, headers } => within(record, || http(url, headers, timeout)),
            Check::Tcp(address) => within(record, || {
                TcpStream::connect_timeout(address, timeout)
                    .map(drop)
                    .map_err(|error| format!("no connection to {address}: {error}"))
            }),
            Check::Sleep(time) => {
                thread::sleep(*time);
                Ok(Ok(()))
            }
        }
    }

    fn command(
        &self,
        record: &Record,
        command: &[String],
        timeout: Duration,
    ) -> Result<Result<(), String>, ContainerError> {
        let directory = self.directory(&record.id);
        let options = ExecOptions { args: command.to_vec(), ..ExecOptions::default() };
        let process_file = directory.path().join("health.json");
        write_json(&process_file, &self.process(record, &options)?)?;
        let pid_file = directory.path().join("health.pid");
        // What an earlier check left there may be the number of another process by now.
        let _ = fs::remove_file(&pid_file);
        let check = record.runtime.probe(&record.id, &process_file, &pid_file, timeout)?;
        if check.end == End::TimedOut {
            // The runtime was killed, not what it runs in the container.
            let pid = fs::read_to_string(&pid_file).ok();
            let process = pid
                .and_then(|pid| Identity::of_container(pid.trim().parse().ok()?, record.process?));
            if let Some(process) = process {
                let _ = process.kill(Duration::from_secs(1));
            }
        }
        Ok(if check.end == End::Exited(0) { Ok(()) } else { Err(shown(&check, timeout)) })
    }
}

/// Does something in the network of a container.
fn within(
    record: &Record,
    work: impl FnOnce() -> Result<(), String> + Send,
) -> Result<Result<(), String>, ContainerError> {
    let answer = record.process.map_or(Ok(None), |process| netns::within_process(process, work))?;
    Ok(answer.unwrap_or_else(|| Err("the container does not run".to_owned())))
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

/// Returns how a check ended and what it said.
fn shown(check: &Finished, timeout: Duration) -> String {
    let end = match check.end {
        End::Exited(code) => format!("code {code}"),
        End::Signaled(signal) => format!("signal {signal}"),
        End::TimedOut => format!("no answer within {} s", timeout.as_secs_f32()),
        End::OutputTooLarge => "too much output".to_owned(),
    };
    let said = [&check.stdout[..], &check.stderr[..]].concat();
    let said = String::from_utf8_lossy(&said[..said.len().min(SHOWN_BYTES)]).into_owned();
    // On one line, and nothing in it moves the cursor of a terminal.
    let words = said.split(|c: char| c.is_whitespace() || c.is_control());
    let said = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    if said.is_empty() { end } else { format!("{end}: {said}") }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_is_one_from_200_to_399() {
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
        let timeout = Duration::from_secs(5);
        assert_eq!(http(&url, &headers, timeout), Ok(()));
        let said = http(&url, &headers, timeout).unwrap_err();
        assert!(said.ends_with("answers 500 Internal Server Error"), "{said}");
        let requests = server.join().unwrap();
        assert!(requests[0].starts_with("GET /health HTTP/1.1\r\n"), "{}", requests[0]);
        assert!(requests[0].to_lowercase().contains("x-who: me"), "{}", requests[0]);
        assert!(http(&url, &[], timeout).unwrap_err().contains("does not answer"));
    }
}
