use std::error::Error as _;

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
    for (script, expected) in [
        (r#"printf '{"a":\377}'"#, "its output is not JSON, at byte 5"),
        (r#"printf '{"a":"b\377"}'"#, "its output is not UTF-8, at byte 7"),
    ] {
        assert_eq!(failure(script).to_string(), expected);
    }
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
    assert_eq!(error.to_string(), "precreate hook 1 (/bin/sh) failed (stderr: why)");
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
fn output_follows_the_specification_if_the_original_does() {
    let spec =
        r#"{"ociVersion":"1.0.2","process":{"cwd":"/","user":{"uid":0,"gid":0},"args":["a"]}}"#;
    for (script, expected) in [
        (r#"sed 's/"a"/1/'"#, "invalid type: integer `1`, expected a string at line 1 column 77"),
        (
            r#"sed 's/"uid":0/"uid":-1/'"#,
            "invalid value: integer `-1`, expected u32 at line 1 column",
        ),
        (r#"sed 's/{/{"hostname":"a","hostname":"b",/'"#, "duplicate field `hostname`"),
        ("echo '{\"process\":{}}'", "missing field"),
    ] {
        let hooks = [&sh(script)];
        let run =
            |config: &str| filter(&hooks, config.as_bytes().to_vec(), &FilterOptions::new("/"));
        let error = run(spec).unwrap_err();
        assert_eq!(
            error.failure.to_string(),
            "its output does not follow the runtime specification"
        );
        let cause = error.failure.source().unwrap().to_string();
        assert!(cause.starts_with(expected), "{script}: {cause}");
        assert_eq!(String::from_utf8(error.config).unwrap(), spec);
        // The filter is not at fault.
        assert!(run(&spec.replace("\"/\"", "1")).is_ok(), "{script}");
    }
}
