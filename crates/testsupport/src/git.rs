//! Git repositories over HTTP.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::http::{WebRequest, WebResponse};

/// Answers a request for the repositories in a directory, using `git http-backend`.
pub fn answer(root: &Path, request: &WebRequest) -> WebResponse {
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("REQUEST_METHOD", &request.method)
        .env("CONTENT_TYPE", request.header("content-type").unwrap_or_default())
        .env("GIT_PROTOCOL", request.header("git-protocol").unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("git is installed");
    let mut stdin = child.stdin.take().expect("it is a pipe");
    stdin.write_all(request.body.as_bytes()).expect("it reads all of it");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends").stdout;
    let end = output.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let end = end.expect("there is a head");
    let mut response = WebResponse::ok(&output[end + 4..]);
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let (name, value) = line.split_once(": ").expect("a header");
        if name == "Status" {
            response.status = value[..3].parse().expect("a code");
        } else {
            response = response.with(name, value);
        }
    }
    response
}
