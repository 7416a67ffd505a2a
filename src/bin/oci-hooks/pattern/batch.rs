//! `pattern --batch`: one line of output for each line of input.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use oci_hooks::hooks::Pattern;
use oci_hooks::json::{Document, Kind};
use oci_hooks::sys::fs::PathContext;
use serde::Serialize;

use crate::Exit;
use crate::context::Context;
use crate::error::Error;

/// Length limit of an input line.
const MAX_LINE_BYTES: u64 = 16 << 20;

#[derive(Serialize)]
struct Answer {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    matches: Option<Vec<bool>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<BatchError>,
}

#[derive(Serialize)]
struct BatchError {
    class: &'static str,
    message: String,
    hint: Option<String>,
}

pub(super) fn run(context: &mut Context) -> Result<Exit, Error> {
    let mut input = BufReader::with_capacity(64 << 10, io::stdin().lock());
    let mut line = Vec::new();
    let mut exit = Exit::Yes;
    while let Some(fits) = read_line(&mut input, &mut line)? {
        let result = if fits {
            answer(&line)
        } else {
            let message = format!("line too long: limit {} MiB", MAX_LINE_BYTES >> 20);
            Err(BatchError { class: "too-large", message, hint: None })
        };
        if result.as_ref().is_err_and(|error| error.class != BAD_PATTERN) {
            exit = Exit::No;
        }
        let (matches, error) = match result {
            Ok(matches) => (Some(matches), None),
            Err(error) => (None, Some(error)),
        };
        let answer = Answer { ok: error.is_none(), matches, error };
        context.line(serde_json::to_string(&answer).expect("strings and booleans"))?;
        // An interactive writer waits for each answer; output for a file is buffered.
        if !input.buffer().contains(&b'\n') {
            context.flush()?;
        }
    }
    Ok(exit)
}

const BAD_PATTERN: &str = "bad-regex";

fn answer(line: &[u8]) -> Result<Vec<bool>, BatchError> {
    let reject = |class, message: String| BatchError { class, message, hint: None };
    let document = Document::parse(line).map_err(|error| BatchError {
        hint: error.kind.hint().map(str::to_owned),
        ..reject("json-syntax", error.to_string())
    })?;
    let root = document.root();
    let Some(pattern) = root.get("pattern").and_then(|value| value.as_str()) else {
        return Err(reject("json-type", "expected an object with a string `pattern`".to_owned()));
    };
    let texts: Option<Vec<_>> = root
        .get("texts")
        .filter(|texts| texts.kind() == Kind::Array)
        .and_then(|texts| texts.elements().map(|text| text.as_str()).collect());
    let Some(texts) = texts else {
        let message = "expected an object with an array of strings `texts`";
        return Err(reject("json-type", message.to_owned()));
    };
    let pattern = Pattern::new(pattern.into_owned()).map_err(|error| BatchError {
        hint: error.hint().map(str::to_owned),
        ..reject(BAD_PATTERN, error.to_string())
    })?;
    Ok(texts.iter().map(|text| pattern.is_match(text)).collect())
}

/// Reads a line. Returns whether it is within the limit, or `None` at the end of the input.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<Option<bool>, Error> {
    let at = Path::new("standard input");
    line.clear();
    let read = input.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', line).at("read", at)?;
    if read == 0 {
        return Ok(None);
    }
    if line.ends_with(b"\n") || (read as u64) < MAX_LINE_BYTES {
        return Ok(Some(true));
    }
    input.skip_until(b'\n').at("read", at)?;
    Ok(Some(false))
}
