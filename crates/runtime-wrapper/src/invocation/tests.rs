use super::*;

fn parse(line: &str) -> Invocation {
    Invocation::parse(&line.split(' ').map(OsString::from).collect::<Vec<_>>())
}

fn call(line: &str) -> ContainerCall {
    parse(line).container_call(Path::new("/cwd")).unwrap().unwrap()
}

fn args(call: &ContainerCall) -> String {
    call.args.join(OsStr::new(" ")).into_string().unwrap()
}

#[test]
fn calls_of_engines_are_passed_on_unchanged() {
    let line = "--root /run/docker/runtime-runc/moby --log /run/c/log.json --log-format json --systemd-cgroup create --bundle /run/c --pid-file /run/c/init.pid id";
    let found = parse(line);
    assert!(found.makes_container());
    assert_eq!(call(line).config, Path::new("/run/c/config.json"));
    assert_eq!(args(&call(line)), line);
    assert_eq!(found.log.as_deref(), Some(Path::new("/run/c/log.json")));
    assert_eq!(found.log_format, LogFormat::Json);
    for line in [
        "run id",
        "create -b /b --no-pivot id",
        "run -d --bundle=b -- id",
        "restore --image-path /i --work-path /w --bundle /b --detach id",
    ] {
        assert_eq!(args(&call(line)), line);
    }
    assert_eq!(call("run id").config, Path::new("./config.json"));
}

#[test]
fn ambiguous_arguments_are_normalized() {
    for (line, expected) in [
        ("create -bundle /b id", "create --bundle=/b id"),
        ("create -b=/b id", "create --bundle=/b id"),
        ("create -bb id", "create --bundle=/cwd/b id"),
        ("run id -b /b", "run --bundle=/b id"),
        ("restore id --bundle=/b", "restore --bundle=/b id"),
        ("create --bundle /a --bundle b id", "create --bundle=/cwd/b id"),
        ("create -b /a --bundle= id", "create --bundle=/cwd/ id"),
        ("--debug run --detach -b=/b -- id", "--debug run --bundle=/b --detach -- id"),
        ("create -pid-file /p --bundle /b id", "create --bundle=/b --pid-file=/p id"),
        ("create --pid-file - --bundle=/b", "create --bundle=/b --pid-file=-"),
        ("create --new --bundle=/b id", "create --bundle=/b --new id"),
        ("create --bundle=/b -- --bundle=/a", "create --bundle=/b -- --bundle=/a"),
    ] {
        let call = call(line);
        assert_eq!(args(&call), expected, "{line}");
        assert_eq!(call.config, call.bundle.join("config.json"), "{line}");
        let again = parse(&args(&call)).container_call(Path::new("/elsewhere")).unwrap().unwrap();
        assert_eq!((&again.config, &again.args), (&call.config, &call.args), "{line}");
    }
}

#[test]
fn a_configuration_is_relative_to_the_working_directory() {
    let temp = tempfile::tempdir().unwrap();
    let cwd = temp.path().canonicalize().unwrap();
    for (line, config) in [
        ("create -b /tmp -f other.json id", cwd.join("other.json")),
        ("create --config=./config.json -b/tmp id", cwd.join("config.json")),
        ("create --config config.json -b /tmp id", "/tmp/config.json".into()),
        ("create --config /proc/self/../a -b /tmp id", "/proc/a".into()),
    ] {
        let call = parse(line).container_call(&cwd).unwrap().unwrap();
        assert_eq!(call.config, config, "{line}");
        let expected = format!("create --bundle=/tmp --config={} id", config.display());
        assert_eq!(args(&call), expected, "{line}");
    }
    for line in ["create --config= id", "create -f / id", "create -f x/ id", "create -f .. id"] {
        assert!(parse(line).container_call(&cwd).is_err(), "{line}");
    }
}

#[test]
fn options_that_may_name_a_bundle_are_rejected() {
    for line in [
        "create --bund /b id",
        "create --con=/b id",
        "run -db /b id",
        "run -xf/c id",
        "run -xoof id",
    ] {
        let error = parse(line).container_call(Path::new("/cwd")).unwrap_err();
        assert!(error.to_string().starts_with("ambiguous option \"-"), "{line}: {error}");
    }
}

#[test]
fn option_value_is_not_taken_for_the_command() {
    for line in [
        "--root create --log run state id",
        "--new create=x state id",
        "--new=1 state create",
        "--new value state id",
        "-r create state id",
        "--version",
        "-",
        "--",
        "help create",
        "create --help",
    ] {
        let found = parse(line);
        assert!(!found.makes_container(), "{line}: {found:?}");
        assert_eq!(found.container_call(Path::new("/cwd")).unwrap(), None);
    }
    assert_eq!(
        parse("--root create --log run state id").command.as_deref(),
        Some("state".as_ref())
    );
    assert_eq!(parse("--version").command, None);
    for line in ["-- create id", "--new create id", "--new 1 create id", "-rx create id"] {
        assert_eq!(parse(line).command.as_deref(), Some("create".as_ref()), "{line}");
        assert_eq!(args(&call(line)), line);
    }
    let error = parse("--new create state").container_call(Path::new("/cwd")).unwrap_err();
    assert!(error.to_string().contains("\"create\" or \"state\""), "{error}");
}

#[test]
fn debug_is_on_unless_its_value_is_false() {
    for (line, expected) in [
        ("--debug create id", true),
        ("--debug=true create id", true),
        ("--debug=1 create id", true),
        ("--debug=false create id", false),
        ("create id", false),
    ] {
        assert_eq!(parse(line).debug, expected, "{line}");
    }
}

#[test]
fn wrapper_logs_to_the_log_of_the_runtime() {
    for (line, log) in [
        ("--log=/l create id", Some("/l")),
        ("-l /l create id", Some("/l")),
        ("--log file:/l create id", Some("/l")),
        ("--log journald:x create id", None),
        ("--log /a create --log /l id", Some("/l")),
    ] {
        assert_eq!(parse(line).log.as_deref(), log.map(Path::new), "{line}");
    }
}
