//! Answers of a registry to a pull: heads, redirects, challenges, tokens, documents, layers.
//!
//! Answers are sent in order, each once, to any request; they refer to each other's bodies in the
//! syntax of `linked`, and to the server by `$`. `fuzz/run` isolates the target from other servers.

#![no_main]

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;
use std::{fs, thread};

use libfuzzer_sys::fuzz_target;
use oci_hooks_image::{
    ClientOptions, Credentials, ImageReference, LoginMethod, Platform, PullPolicy, PullRequest,
    RegistryClient, RegistryCredential, RetryOptions, Secret, SilentProgress, pull,
};

#[path = "parts/linked.rs"]
mod linked;
#[path = "parts/scratch.rs"]
mod scratch;

use scratch::Scratch;

const PASSWORD: &str = "b6b5c3a0pass";

static ANSWERS: Mutex<VecDeque<Vec<u8>>> = Mutex::new(VecDeque::new());

/// Address of the server, which sends one answer after the other.
static SERVER: LazyLock<String> = LazyLock::new(|| {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || listener.incoming().flatten().for_each(|stream| drop(answer(stream))));
    address
});

/// Knows after its first request that the server has no TLS.
static CLIENT: LazyLock<RegistryClient> = LazyLock::new(|| {
    let retry = RetryOptions { attempts: 2, delay: Duration::ZERO, max_delay: Duration::ZERO };
    let time = Duration::from_millis(300);
    let mut options = ClientOptions::default();
    options.layers_at_once = 1;
    options.retry = retry;
    options.connect_timeout = time;
    options.idle_timeout = time;
    options.max_time = 10 * time;
    options.foreign_layers = true;
    RegistryClient::new(options).unwrap()
});

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_millis(300)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    // A TLS client gets an error: the server has no TLS.
    if reader.fill_buf()?.first().is_none_or(|byte| !byte.is_ascii_uppercase()) {
        return Ok(());
    }
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 2 {
        line.clear();
    }
    // The connection ends the answer.
    let answer = ANSWERS.lock().unwrap().pop_front();
    stream.write_all(&answer.unwrap_or_default())
}

/// Returns the body of an answer.
fn body(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n");
    end.map_or(&[], |end| &answer[end + 4..])
}

fuzz_target!(|input: &[u8]| {
    let server = SERVER.as_str();
    let mut answers = linked::split_linked(input, body);
    for answer in &mut answers {
        if let Some(head) = answer.len().checked_sub(body(answer).len()) {
            let text = String::from_utf8_lossy(&answer[..head]).replace('$', server);
            *answer = [text.as_bytes(), &answer[head..]].concat();
        }
    }
    *ANSWERS.lock().unwrap() = answers.into();
    let reference: ImageReference = format!("{server}/image:1").parse().unwrap();
    let login =
        LoginMethod::Password { username: "user".to_owned(), password: Secret::new(PASSWORD) };
    let credentials = Credentials::new(vec![RegistryCredential::new(server, login)]);
    let scratch = Scratch::new();
    let store = scratch.store();
    let request = PullRequest {
        reference: &reference,
        platform: &"linux/amd64".parse::<Platform>().unwrap(),
        credentials: &credentials,
        policy: PullPolicy::Always,
        progress: &SilentProgress,
    };
    match pull(&store, &CLIENT, &request) {
        Err(error) => {
            let said = format!("{error} {error:?}");
            assert!(!said.contains(PASSWORD), "{said}");
            assert!(store.images().unwrap().is_empty());
        }
        Ok(image) => {
            assert!(image.layers.iter().all(|layer| layer.is_dir()));
            assert_eq!(store.images().unwrap()[0].digest, image.digest);
        }
    }
    let layers = fs::read_dir(scratch.path("store/layers")).unwrap();
    let left = layers
        .flatten()
        .map(|entry| entry.file_name())
        .filter(|name| name.to_string_lossy().starts_with('.'));
    assert_eq!(left.count(), 0, "something of a layer is left");
    scratch.check();
});
