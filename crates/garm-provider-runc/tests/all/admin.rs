//! Commands for the admin.

use std::fs;
use std::process::Command;

use garm_provider_runc::record::{ControllerRecords, InstanceFiles, InstanceRecord, RunnerOutcome};
use oci_hooks_engine::container::{LogWriter, StdStream};
use oci_hooks_host::identity::ProcessIdentity;
use oci_hooks_testsupport::cli::{TestEnv, golden, remove_origins};
use oci_hooks_testsupport::completion::complete_words;
use serde_json::{Value, json};

use crate::{DATA, PROGRAM};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns an environment with its own log directory.
fn environment() -> TestEnv {
    let env = TestEnv::new(PROGRAM);
    let settings = fs::read_to_string(env.path("settings.toml")).unwrap();
    let log = format!("[log]\ndirectory = {:?}\n", env.path("log"));
    env.write("settings.toml", &(settings + &log));
    env
}

/// Writes the record that a killed creation leaves.
fn write_record(env: &TestEnv, name: &str, controller: &str, pool: &str) -> InstanceFiles {
    let record = InstanceRecord {
        name: name.to_owned(),
        controller: controller.to_owned(),
        pool: pool.to_owned(),
        container: "0123456789ab".repeat(5),
        network: "none".to_owned(),
        created: "2026-11-21T12:00:00Z".parse().unwrap(),
        image: "debian:12".to_owned(),
        flavor: "small".to_owned(),
        arch: "amd64".to_owned(),
        log: env.path("log").join(format!("{name}.0123456789ab.log")),
        ..InstanceRecord::default()
    };
    let records = ControllerRecords::of(&env.path("run"), controller);
    let files = records.files(name).unwrap();
    files.write_record(&record).unwrap();
    files
}

#[test]
fn help_names_all_commands_for_people() {
    let env = environment();
    let ran = env.run(&["--help"]);
    assert_eq!(ran.code, Some(0));
    for command in ["instances", "logs", "doctor", "pull", "rm", "prune", "config", "completions"] {
        assert!(ran.stdout.contains(&format!("\n  {command} ")), "{}", ran.stdout);
    }
    for hidden in ["supervise", "monitor"] {
        assert!(!ran.stdout.contains(&format!("  {hidden} ")), "{hidden}");
    }
    // Without a command and without GARM_COMMAND, help is printed.
    assert_eq!(env.run(&[]).code, Some(1));
    assert_eq!(env.run(&["nonsense"]).code, Some(2));
}

#[test]
fn completions_are_for_this_program() {
    let env = environment();
    for shell in ["bash", "zsh", "fish"] {
        let ran = env.run(&["completions", shell]);
        assert_eq!(ran.code, Some(0));
        assert!(ran.stdout.contains("garm-provider-runc"));
    }
    assert_eq!(complete_words(PROGRAM, None, &["inst"]), ["instances"]);
    assert!(env.run(&["completions", "--help"]).stdout.contains("bash_completion.d/garm-provider"));
}

#[test]
fn effective_settings_combine_file_and_defaults() {
    let env = environment();
    env.write(
        "settings.toml",
        "[store]\npull = \"missing\"\n\n[flavors.small]\ncpus = 2\nmemory = \"4GiB\"\n\n\
         [images.\"ubuntu 24\"]\nreference = \"ubuntu:24.04\"\n",
    );
    let ran = env.run(&["config"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden(DATA, "config.toml", &ran.stdout);
    golden(DATA, "config.json", &env.run(&["config", "--format", "json"]).stdout);
    // The output is a settings file with the same content.
    env.write("settings.toml", &ran.stdout);
    assert_eq!(remove_origins(&env.run(&["config"]).stdout), remove_origins(&ran.stdout));
}

#[test]
fn initial_settings_file_is_the_documented_one() {
    let documented = concat!(env!("CARGO_MANIFEST_DIR"), "/garm-provider-runc.toml");
    let ran = environment().run(&["config", "--default"]);
    assert_eq!(ran.stdout, fs::read_to_string(documented).unwrap());
}

#[test]
fn variable_of_garm_selects_the_settings_file() {
    let env = environment();
    env.write("other.toml", "[boot]\nuser = \"ci\"\n");
    let mut command = Command::new(PROGRAM);
    command.env_clear().env("GARM_PROVIDER_CONFIG_FILE", env.path("other.toml")).arg("config");
    let ran = env.run_with_input(command, b"");
    assert!(ran.stdout.contains("\nuser = \"ci\" # line 2\n"), "{ran:?}");
}

#[test]
fn settings_errors_name_their_position() {
    let env = environment();
    for (text, place, message) in [
        ("[flavor.small]", "1:2", "(did you mean `flavors`?)"),
        (
            "[mounts.a]\nsource = \"/a\"\ntarget = \"/\"",
            "3:10",
            "nothing can be mounted over the root",
        ),
        ("[proxy]\nhttps = \"proxy:3128\"", "2:9", "expected a URL with its scheme"),
        ("[flavors.small]\nmemory = \"4kB\"", "2:10", "expected at least 32MiB, for example 4GiB"),
        ("[flavors.small]\npids = 1", "2:8", "expected at least 32, for example 4096"),
        ("[registry.\"https://r.test\"]\ninsecure = true", "1:2", "without a scheme or path"),
        ("[flavors.small]\ncpu = 1", "2:1", "unknown field, expected one of"),
        ("[flavors.small]\ncpus = 0", "2:8", "invalid CPU count: expected 0.01"),
        (
            "[flavors.small]\nmemory = \"4XB\"",
            "2:10",
            "invalid size: expected a number and its unit",
        ),
        ("[images.a]\nreference = \"A:B\"", "2:13", "this: the repository must be lower case"),
        (
            "[caches.a]\ntarget = \"/a/../b\"",
            "2:10",
            "invalid path: expected an absolute path without `..`",
        ),
        ("[network]\npool = \"10.0.0.0\"", "2:8", "invalid network: expected one such as"),
    ] {
        env.write("settings.toml", text);
        let ran = env.run(&["config"]);
        let expected = format!("error: {{ROOT}}/settings.toml:{place}: ");
        assert_eq!(ran.code, Some(1), "{text}");
        assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
        assert!(ran.stderr.contains(message), "{}", ran.stderr);
    }
}

#[test]
fn instances_of_all_pools_and_controllers_are_listed() {
    let env = environment();
    let ran = env.run(&["instances", "--format", "json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "[]\n"), "{}", ran.stderr);
    write_record(&env, "garm-a", "31556484-bc26-4971-aaa6-bf77c99fe7f1", "my set/1-x");
    write_record(&env, "garm-b", "another one", "\u{1b}[2J");
    let ran = env.run(&["instances", "--format", "json"]);
    assert_eq!(json(&ran.stdout).as_array().unwrap().len(), 2);
    let first = json(&ran.stdout);
    let first = first.as_array().unwrap().iter().find(|i| i["name"] == "garm-a").unwrap();
    golden(DATA, "instances.json", &format!("{:#}\n", json!([first])));
    let ran = env.run(&["instances"]);
    assert!(ran.stdout.contains("garm-b") && !ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    assert!(
        ran.stdout.starts_with("NAME ") && ran.stdout.contains(" CONTROLLER "),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("31556484-bc26-4971-aaa6-bf77c99fe7f1"), "{}", ran.stdout);
    assert!(ran.stdout.contains("error: its creation was interrupted"), "{}", ran.stdout);
    assert_eq!(ran.stderr, "note: 2 instances, 0 running\n");
}

#[test]
fn log_of_an_instance_is_shown_even_after_removal() {
    let env = environment();
    fs::create_dir(env.path("log")).unwrap();
    let path = env.path("log/garm-a.0123456789ab.log");
    let mut log = LogWriter::open(&path, 1 << 20).unwrap();
    log.add(StdStream::Stderr, b"one\ntwo\n\x1b[2Jthree\n").unwrap();
    let ran = env.run(&["logs", "garm-a"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "one\ntwo\n\u{1b}[2Jthree\n"));
    assert_eq!(env.run(&["logs", "garm-a", "--lines", "1"]).stdout, "\u{1b}[2Jthree\n");
    // The instance no longer exists, so --follow ends at once.
    assert_eq!(env.run(&["logs", "garm-a", "--follow", "-n", "2"]).stdout, "two\n\u{1b}[2Jthree\n");
    let mut lines = json(&env.run(&["logs", "garm-a", "-n", "2", "--format", "json"]).stdout);
    for line in lines.as_array_mut().unwrap() {
        line["time"] = json!("{TIME}");
    }
    let both = env.run(&["logs", "garm-a", "--follow", "--format", "json"]);
    assert!(both.stderr.contains("--follow cannot be combined"), "{both:?}");
    golden(DATA, "logs.json", &format!("{lines:#}\n"));

    for name in ["garm-b", "../log/garm-a", ""] {
        let ran = env.run(&["logs", name]);
        assert_eq!(ran.code, Some(1));
        let expected = format!("error: no log of {name} in {{ROOT}}/log\n  hint: ");
        assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
    }
}

#[test]
fn doctor_reports_status_and_fix_of_each_check() {
    let env = environment();
    let settings = fs::read_to_string(env.path("settings.toml")).unwrap();
    let more = "[mounts.a]\nsource = \"/no/such\"\ntarget = \"/a\"\n[boot]\nca = \"/dev/null\"\n";
    env.write("settings.toml", &(settings + more));
    let ran = env.run_apart(&["doctor", "--format", "json"]);
    let report = json(&ran.stdout);
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in ["user", "kernel", "cgroups", "runtime", "store", "logs", "disk", "nft"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for (name, found) in
        [("mounts", "/no/such of mount \"a\" does not exist"), ("certificates", "/dev/null")]
    {
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["status"], "fail");
        assert!(check["found"].as_str().unwrap().contains(found), "{check}");
    }
    assert_eq!((&report["ok"], ran.code), (&json!(false), Some(1)));
    // `doctor` leaves no files.
    for name in ["store", "run", "run-doctor", "log"] {
        assert!(!env.path(name).exists(), "{name}");
    }
}

#[test]
fn pulling_an_invalid_image_name_is_an_error() {
    let env = environment();
    let ran = env.run(&["pull", "ubuntu 24"]);
    assert_eq!(ran.code, Some(1));
    let expected = "error: unknown image \"ubuntu 24\": not an alias in the settings and not a valid reference: ";
    assert!(ran.stderr.starts_with(expected), "{}", ran.stderr);
}

#[test]
fn alias_is_pulled_by_its_reference() {
    let env = environment();
    let settings = fs::read_to_string(env.path("settings.toml")).unwrap();
    let more = "[images.\"ubuntu 24\"]\nreference = \"localhost:1/ubuntu:24.04\"\n";
    env.write("settings.toml", &(settings + more));
    let ran = env.run(&["pull", "ubuntu 24", "--policy", "never"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("localhost:1/ubuntu:24.04"), "{}", ran.stderr);
}

#[test]
fn prune_removes_killed_instances_at_once() {
    let env = environment();
    let ran = env.run(&["prune"]);
    let nothing =
        "removed 0 instances, 0 images, 0 layers, 0 cached runners and 0 logs; freed 0 B\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), nothing), "{}", ran.stderr);
    write_record(&env, "garm-a", "c", "p");
    golden(DATA, "prune.json", &env.run(&["prune", "--format", "json"]).stdout);
    assert_eq!(env.run(&["instances", "--format", "json"]).stdout, "[]\n");
}

#[test]
fn invalid_quantities_are_rejected() {
    let env = environment();
    for option in ["--age=7", "--size=20XB", "--ended=never"] {
        let ran = env.run(&["prune", option]);
        assert_eq!(ran.code, Some(2), "{option}");
        assert!(ran.stderr.contains(": expected "), "{}", ran.stderr);
    }
    assert_eq!(env.run(&["prune", "--all", "--age=7d"]).code, Some(2));
}

#[test]
fn instances_are_removed_on_request() {
    let env = environment();
    for wrong in [&["rm"][..], &["rm", "--force"]] {
        assert_eq!(env.run(wrong).code, Some(2), "{wrong:?}");
    }
    let ran = env.run(&["rm", "--orphans"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "removed 0 instances\n"),
        "{}",
        ran.stderr
    );
    for (name, controller) in [("garm-a", "c"), ("garm-b", "c"), ("garm-b", "d"), ("garm-c", "d")] {
        write_record(&env, name, controller, "p");
    }
    let ran = env.run(&["rm", "garm-a", "garm-b", "garm-x", "--dry-run", "--format", "json"]);
    assert_eq!(ran.code, Some(1));
    golden(DATA, "rm.json", &ran.stdout);
    let ran = env.run(&["rm", "garm-a", "garm-b", "garm-x"]);
    assert_eq!(ran.code, Some(1));
    assert_eq!(
        ran.stdout,
        "removed instance garm-a: its creation was interrupted\nremoved 1 instance\n"
    );
    let twice =
        "several controllers have an instance of this name: select one with --controller ID";
    assert_eq!(
        ran.stderr,
        format!(
            "error: cannot remove instance garm-b of controller c: {twice}\n\
             error: cannot remove instance garm-b of controller d: {twice}\n\
             error: unknown instance \"garm-x\"\n"
        )
    );
    let ran = env.run(&["rm", "garm-b", "--controller", "d"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let ran = env.run(&["rm", "--pool", "p"]);
    assert_eq!(ran.stdout.lines().last(), Some("removed 2 instances"), "{}", ran.stdout);
    assert_eq!(env.run(&["instances", "--format", "json"]).stdout, "[]\n");
    assert_eq!(complete_words(PROGRAM, None, &["rm", "--orp"]), ["--orphans"]);
}

#[test]
fn an_ended_instance_is_removed_before_its_supervisor_exits() {
    let env = environment();
    let files = write_record(&env, "garm-a", "c", "p");
    let mut supervisor = Command::new("sleep").arg("1000").spawn().unwrap();
    files.write_supervisor(ProcessIdentity::of(supervisor.id()).unwrap()).unwrap();
    let ran = env.run(&["rm", "garm-a"]);
    assert!(ran.stderr.contains("it is running; use --force to remove it"), "{}", ran.stderr);
    let at = "2026-11-21T12:01:00Z".parse().unwrap();
    files.write_outcome(&RunnerOutcome::Ended { code: 0, at }).unwrap();
    let ran = env.run(&["rm", "garm-a"]);
    let expected = "removed instance garm-a: its runner has ended\nremoved 1 instance\n";
    assert_eq!(ran.stdout, expected, "{}", ran.stderr);
    assert!(!supervisor.wait().unwrap().success());
}

#[test]
fn an_instance_of_another_version_is_removed_only_by_force() {
    let env = environment();
    write_record(&env, "garm-a", "c", "p");
    let record_path = env.path("run/garm/c/instances/garm-a/instance.json");
    for record in ["{\"name\": \"garm-a\", \"format\": 99}", "{\"version\": 9}"] {
        fs::create_dir_all(record_path.parent().unwrap()).unwrap();
        fs::write(&record_path, record).unwrap();
        for words in [&["rm", "garm-a"][..], &["rm", "--orphans"]] {
            let ran = env.run(words);
            assert_eq!(ran.code, Some(1), "{}", ran.stdout);
            assert!(ran.stderr.contains("use --force to remove it"), "{}", ran.stderr);
        }
        assert!(record_path.exists());
        let ran = env.run(&["rm", "garm-a", "--force"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        assert!(!record_path.exists());
    }
    fs::create_dir_all(record_path.parent().unwrap()).unwrap();
    fs::write(&record_path, "{").unwrap();
    let ran = env.run(&["rm", "garm-a"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!record_path.exists());
}
