use std::error::Error as _;

use rustix::time::{ClockId, clock_gettime};

use super::*;

fn sh(script: &str) -> Hook {
    Hook {
        path: "/bin/sh".to_owned(),
        args: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: Some(vec!["PATH=/usr/bin:/bin".to_owned()]),
        timeout: Some(600),
    }
}

fn run_filter(script: &str) -> Result<FilteredConfig, Box<FilterError>> {
    filter(&[&sh(script)], br#"{"a":1}"#.to_vec(), &FilterOptions::new("/"))
}

fn failure(script: &str) -> FilterFailure {
    run_filter(script).unwrap_err().failure
}

#[test]
fn filter_output_is_passed_on_unchanged() {
    let config = br#"{ "x-unknown": [1e400, 1.0, null], "a": 18446744073709551616 } "#.to_vec();
    let (cat, sed) = (sh("cat"), sh("sed 's/1.0/ 2.0 /'; echo changed it >&2"));
    let filtered = filter(&[&cat, &sed, &cat], config, &FilterOptions::new("/")).unwrap();
    let expected = r#"{"x-unknown":[1e400, 2.0 ,null],"a":18446744073709551616}"#;
    assert_eq!(String::from_utf8(filtered.config).unwrap(), expected);
    assert_eq!(
        filtered.runs.iter().map(|run| run.changed).collect::<Vec<_>>(),
        [false, true, false]
    );
    assert_eq!(filtered.runs[1].stderr, b"changed it\n");
}

#[test]
fn empty_filter_list_changes_nothing() {
    let filtered = filter(&[], b"not JSON".to_vec(), &FilterOptions::new("/none")).unwrap();
    assert_eq!(filtered, FilteredConfig { config: b"not JSON".to_vec(), runs: vec![] });
}

#[test]
fn output_must_be_one_json_object() {
    for script in ["true", "echo", "echo x", "echo '{} {}'", "cat; echo x", "echo '{a:1}'"] {
        assert!(matches!(failure(script), FilterFailure::NotJson(_)), "{script}");
    }
    for (output, kind) in [
        ("[{}]", "an array"),
        ("\\\"{}\\\"", "a string"),
        ("true", "a boolean"),
        ("false", "a boolean"),
        (" -1", "a number"),
    ] {
        match failure(&format!("echo \"{output}\"")) {
            FilterFailure::NotAnObject { found } => assert_eq!(found, kind),
            other => panic!("{output}: {other}"),
        }
    }
    let failure = failure(r#"printf '{"a":\377}'"#);
    assert_eq!(failure.to_string(), "its output is not JSON, at byte 5");
}

#[test]
fn empty_result_is_rejected_unless_allowed() {
    for (script, expected) in [("echo ' { } '", "{}"), ("echo null", "null")] {
        match failure(script) {
            FilterFailure::Empty { found } => assert_eq!(found, expected),
            other => panic!("{script}: {other}"),
        }
        let options = FilterOptions { allow_empty: true, ..FilterOptions::new("/") };
        let filtered = filter(&[&sh(script)], b"{\"a\":1}".to_vec(), &options).unwrap();
        assert_eq!(filtered.config, b"{}");
    }
    assert!(run_filter(r#"echo '{"":0}'"#).is_ok());
}

#[test]
fn error_names_the_hook_and_keeps_earlier_results() {
    let hooks = [sh("sed s/1/2/"), sh("cat; echo why >&2; echo >&2; exit 3"), sh("cat")];
    let hooks: Vec<&Hook> = hooks.iter().collect();
    let error = filter(&hooks, b"{\"a\":1}".to_vec(), &FilterOptions::new("/")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot filter the configuration with hook 1, /bin/sh (stderr: why)"
    );
    assert_eq!(error.source().unwrap().to_string(), "exit status 3");
    assert_eq!((error.index, error.runs.len()), (1, 1));
    assert_eq!(error.config, b"{\"a\":2}");
    assert_eq!(error.run.stderr, b"why\n\n");
}

#[test]
fn last_stderr_line_is_escaped_for_terminals() {
    let run = FilterRun { stderr: b"first\n \x1b[2Jbad\xff\n\n".to_vec(), ..Default::default() };
    assert_eq!(run.last_stderr_line().as_deref(), Some("\u{fffd}[2Jbad\u{fffd}"));
    assert_eq!(FilterRun::default().last_stderr_line(), None);
}

#[test]
fn filter_runs_with_the_hooks_environment_in_the_bundle() {
    let bundle = tempfile::tempdir().unwrap();
    let script = r#"printf '{"cwd":"%s","A":"%s","HOME":"%s"}' "$PWD" "$A" "$HOME""#;
    let mut hook = sh(script);
    hook.env = Some(["A=b=c", "nothing", "=x"].map(str::to_owned).to_vec());
    let filtered = filter(&[&hook], vec![], &FilterOptions::new(bundle.path())).unwrap();
    let expected = format!(
        r#"{{"cwd":"{}","A":"b=c","HOME":""}}"#,
        bundle.path().canonicalize().unwrap().display()
    );
    assert_eq!(String::from_utf8(filtered.config).unwrap(), expected);
}

#[test]
fn timeouts_match_the_reference() {
    assert_eq!(timeout(5), Duration::from_secs(5));
    assert_eq!(timeout(9_223_372_036), Duration::from_secs(9_223_372_036));
    for seconds in [0, -1, i64::MIN, 9_223_372_037, i64::MAX] {
        assert_eq!(timeout(seconds), Duration::ZERO, "{seconds}");
    }
}

#[test]
fn hanging_or_flooding_filter_fails_within_limits() {
    let mut hook = sh("cat; sleep 1000 & wait");
    hook.timeout = Some(1);
    let error = filter(&[&hook], b"{}".to_vec(), &FilterOptions::new("/")).unwrap_err();
    assert_eq!(error.failure.to_string(), "timed out after 1 s");
    assert!(error.run.duration < Duration::from_secs(600));

    let options = FilterOptions {
        output_limit_bytes: 1000,
        stderr_limit_bytes: 10,
        ..FilterOptions::new("/")
    };
    let hook = sh("cat /dev/zero | head -c 100000 >&2; exec cat /dev/zero");
    let error = filter(&[&hook], b"{}".to_vec(), &options).unwrap_err();
    assert_eq!(error.failure.to_string(), "its output exceeds 1000 bytes");
    assert_eq!((error.run.stderr.len(), error.run.stderr_truncated), (10, true));
    let last = error.run.lines().pop();
    assert_eq!(last.as_deref(), Some("(more output was discarded)"));
    assert_eq!(error.config, b"{}");
}

/// A filter written for podman, which passes configurations without white space.
#[test]
fn filters_get_the_configuration_in_podmans_form() {
    let config = "{\n  \"root\": {\"readonly\": true, \"path\": \"\\u003cé\\/\"}\n}\n";
    let sed = sh(r#"sed 's/"readonly":true/"readonly":false/'"#);
    let filtered = filter(&[&sed], config.as_bytes().to_vec(), &FilterOptions::new("/")).unwrap();
    let expected = r#"{"root":{"readonly":false,"path":"\u003cé/"}}"#;
    assert_eq!(String::from_utf8(filtered.config).unwrap(), expected);

    let add_a_line = sh("cat; echo");
    for filters in [&[&sh("cat")][..], &[&add_a_line], &[&sed, &sh("sed s/false/true/")]] {
        let filtered =
            filter(filters, config.as_bytes().to_vec(), &FilterOptions::new("/")).unwrap();
        assert_eq!(String::from_utf8(filtered.config).unwrap(), config, "nothing has changed");
    }
}

#[test]
fn invalid_utf_8_becomes_replacement_characters() {
    let filtered = run_filter(r#"printf '{"hostname":"a\377\\ud800","x":[ 1.50 ]}'"#).unwrap();
    let expected =
        r#"{"hostname":"a\u{fffd}\u{fffd}","x":[1.50]}"#.replace(r"\u{fffd}", "\u{fffd}");
    assert_eq!(String::from_utf8(filtered.config).unwrap(), expected);
    // The next filter gets the raw output, as with podman.
    let hooks =
        [sh(r#"printf '{"hostname":"a\377"}'"#), sh("test $(wc -c) = 17 && echo '{\"x\":1}'")];
    assert!(filter(&hooks.each_ref(), b"{}".to_vec(), &FilterOptions::new("/")).is_ok());
}

#[test]
fn value_of_a_wrong_type_is_named() {
    for (output, expected) in [
        (r#"{"process":{"args":["a",1]}}"#, "/process/args/1: expected a string, got 1"),
        (r#"{"mounts":{}}"#, "/mounts: expected an array, got object"),
        (r#"{"Process":"a"}"#, "/Process: expected an object, got string"),
        (
            r#"{"process":{"user":{"uid":-1}}}"#,
            "/process/user/uid: expected an integer from 0 to 4294967295, got -1",
        ),
        (r#"{"annotations":{"a/b":{}}}"#, "/annotations/a~1b: expected a string, got object"),
        (
            r#"{"windows":{"credentialSpec":[{"a":1e400}]}}"#,
            "/windows/credentialSpec/0/a: expected a number that 64 bits can hold, got 1e400",
        ),
    ] {
        let error = run_filter(&format!("echo '{output}'")).unwrap_err();
        let expected = format!("its output has a value of the wrong type at {expected}");
        assert_eq!(error.failure.to_string(), expected);
        assert_eq!(error.config, br#"{"a":1}"#);
    }
}

/// Go's handling of keys that are repeated or in another case.
#[test]
fn ambiguous_keys_are_written_like_by_podman() {
    for (output, expected) in [
        (r#"{"Hostname":"a","x":1,"x":2}"#, r#"{"hostname":"a","x":1,"x":2}"#),
        (r#"{"hostname":"a","hostname":"b","HOSTNAME":"c"}"#, r#"{"hostname":"c"}"#),
        (r#"{"hostname":"a","hostname":null}"#, r#"{"hostname":"a"}"#),
        (
            r#"{"annotations":{"a":"1","b":"2"},"annotations":{"b":"3"}}"#,
            r#"{"annotations":{"a":"1","b":"3"}}"#,
        ),
        (
            r#"{"process":{"cwd":"/","args":["a"]},"process":{"args":["b"],"y":0}}"#,
            r#"{"process":{"cwd":"/","args":["b"],"y":0}}"#,
        ),
        (r#"{"process":{"cwd":"/"},"process":null,"process":{}}"#, r#"{"process":{}}"#),
        (r#"{"linux":{"a":1},"linux":null}"#, r#"{"linux":null}"#),
    ] {
        let filtered = run_filter(&format!("printf %s '{output}'")).unwrap();
        assert_eq!(String::from_utf8(filtered.config).unwrap(), expected, "{output}");
    }
    let failure = failure(r#"echo '{"mounts":[{"type":"a"}],"mounts":[{"source":"b"}]}'"#);
    assert!(failure.to_string().contains("/mounts twice"), "{failure}");
}

/// Replaces each value of a configuration with all fields, and compares with the recorded results
/// of Go's decoder.
#[test]
fn types_match_the_specification() {
    let mut lines = include_str!("../../../tests/data/conformance/types.tsv").lines();
    assert!(decode::decode(lines.next().unwrap().into()).is_ok());
    let replacements: Vec<&str> = lines.next().unwrap().split('\t').collect();
    let mut compared = 0;
    for line in lines {
        let (pointer, accepted) = line.split_once('\t').unwrap();
        for (replacement, accepted) in replacements.iter().zip(accepted.bytes()) {
            // The values around the replaced one have the right types.
            let output =
                pointer.rsplit('/').fold((*replacement).to_owned(), |inner, token| match token {
                    "" => inner,
                    "0" => format!("[{inner}]"),
                    key => format!(r#"{{"{key}":{inner}}}"#),
                });
            let decoded = decode::decode(output.into_bytes());
            assert_eq!(decoded.is_ok(), accepted == b'1', "{pointer} {replacement}: {decoded:?}");
            if let Ok(decoded) = decoded {
                assert_eq!(decode::decode(decoded.clone()).unwrap(), decoded, "{pointer}");
            }
            compared += 1;
        }
    }
    assert!(compared > 9000, "{compared}");
}

/// Filters may write large outputs.
#[test]
fn many_keys_are_decoded_quickly() {
    let keys: String = (0..100_000).map(|at| format!(r#""x{at}":1,"#)).collect();
    let same = r#""hostname":"a","#.repeat(100_000);
    let annotations: String = (0..100_000).map(|at| format!(r#""{at}":"","#)).collect();
    let output = format!(r#"{{{keys}{same}"annotations":{{{annotations}"a":""}}}}"#);
    let spent = || clock_gettime(ClockId::ThreadCPUTime).tv_sec;
    let before = spent();
    assert!(decode::decode(output.into_bytes()).is_ok());
    assert!(spent() - before < 30, "{}", spent() - before);
}
