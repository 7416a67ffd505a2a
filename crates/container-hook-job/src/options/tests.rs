//! The recorded cases of Docker's command line, and the messages about rejected options.

mod engine;

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::flags::FLAGS;
use super::*;
use crate::words;

#[derive(Deserialize)]
struct OptionCase {
    options: String,
    argv: Option<Vec<String>>,
    split_error: Option<String>,
    ok: bool,
    #[serde(default)]
    create_diff: Value,
    #[serde(default)]
    query: Value,
}

fn cases() -> Vec<OptionCase> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/create-options.jsonl");
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Options that Docker's command line accepts and we reject, by reason.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "Docker's engine refuses it too",
        &[
            "--cpus -1",
            "--cpus 0.001",
            "--security-opt mask=/proc/x",
            "-w relative",
            "-v relative/path:/x",
            "-v \"$(pwd)\":/w",
            "--mount type=bind,target=/v",
            "--mount type=bad,target=/v",
            "--restart bad",
        ],
    ),
    (
        "another container, network or runtime of Docker",
        &[
            "--pid container:x",
            "--network my-net",
            "--network my-net --network other",
            "--link db:db",
            "--volumes-from other",
            "--runtime=nvidia --gpus all",
        ],
    ),
    (
        "the network assigns the addresses",
        &["--ip6 fd00::5", "--hostname container-test --ip 192.168.0.1"],
    ),
    (
        "files of the runner's machine",
        &["--label-file /opt/x", "--env-file /opt/x", "--cidfile /opt/x"],
    ),
    (
        "only GPUs of NVIDIA with all capabilities",
        &["--gpus all,capabilities=utility", "--gpus driver=nvidia,count=1"],
    ),
    ("not in the kernel any more", &["--cpu-rt-runtime 950000"]),
    ("no such limits", &["--device-read-bps /dev/sda:1mb"]),
    (
        "a word that is no option is always a mistake",
        &[
            "--entrypoint /bin/sh alpine:latest",
            "-- alpine echo hi",
            "alpine",
            "alpine --privileged",
        ],
    ),
];

/// Options that Docker's command line rejects and we accept, by reason.
const TAKEN: &[(&str, &[&str])] = &[
    (
        "the job's network is no option for us, so that another one does not contradict it",
        &[
            "--network host",
            "--network=host",
            "--net host",
            "--security-opt=no-new-privileges:true --cap-drop=ALL --net=none",
        ],
    ),
    ("ports are read where they are published", &["-p 99999:80"]),
    ("both have no effect", &["--rm --restart always"]),
];

fn is_listed(list: &[(&str, &[&str])], options: &str) -> bool {
    list.iter().any(|(_, cases)| cases.contains(&options))
}

#[test]
fn options_have_the_same_meaning_as_in_docker() {
    let mut wrong = Vec::new();
    for case in cases() {
        let expected =
            case.ok && !is_listed(REFUSED, &case.options) || is_listed(TAKEN, &case.options);
        match (CreateOptions::parse(&case.options), expected) {
            (Err(_), false) => {}
            (Err(error), true) => wrong.push(format!("{}: {error}", case.options)),
            (Ok(_), false) => wrong.push(format!("{}: taken", case.options)),
            (Ok(_), true) if !case.ok => {}
            (Ok(options), true) => {
                let ours = engine::body(&options);
                let theirs = engine::normalize_body(case.create_diff, &options);
                if ours != theirs {
                    wrong.push(format!("{}:\n ours   {ours}\n Docker {theirs}", case.options));
                }
                let query = |key: &str| Some(case.query.get(key)?[0].as_str()?.to_owned());
                if query("name") != options.name || query("platform") != options.platform {
                    wrong.push(format!("{}: {}", case.options, case.query));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn options_are_split_like_by_the_docker_hook() {
    for case in cases() {
        let words = words::split(&case.options);
        match case.split_error {
            Some(_) => assert!(words.is_err(), "{}", case.options),
            None => assert_eq!(words.ok(), case.argv, "{}", case.options),
        }
    }
}

#[test]
fn rejection_names_the_option() {
    for case in cases() {
        let Err(error) = CreateOptions::parse(&case.options) else { continue };
        let message = error.to_string();
        let names = case.argv.iter().flatten().map(|word| word.split('=').next().unwrap());
        let named = names.clone().any(|name| name.starts_with('-') && message.contains(name));
        let exempt = matches!(error, OptionError::Words(_) | OptionError::Word { .. });
        assert!(named || exempt, "{}: {message}", case.options);
    }
}

#[test]
fn table_contains_every_flag_once_in_order() {
    let names: Vec<_> = FLAGS.iter().map(|flag| flag.name).collect();
    assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
    let mut letters: Vec<_> = FLAGS.iter().filter_map(|flag| flag.short).collect();
    letters.sort_unstable();
    assert_eq!(letters, ['P', 'a', 'c', 'e', 'h', 'i', 'l', 'm', 'p', 'q', 't', 'u', 'v', 'w']);
}

fn parse(options: &str) -> CreateOptions {
    CreateOptions::parse(options).unwrap_or_else(|error| panic!("{options}: {error}"))
}

fn error(options: &str) -> String {
    CreateOptions::parse(options).expect_err(options).to_string()
}

#[test]
fn options_without_effect_are_reported() {
    let options = parse("-it --rm -q --restart no --log-driver local --log-opt max-size=1m");
    let names: Vec<_> = options.without_effect.iter().map(|idle| idle.option).collect();
    assert_eq!(names, ["interactive", "tty", "rm", "quiet", "restart", "log-driver", "log-opt"]);
    assert_eq!(parse("--tty=false --rm=0"), CreateOptions::default());
}

#[test]
fn messages_contain_a_fix() {
    assert_eq!(error("--memroy 1g"), "unknown option --memroy, did you mean --memory?");
    assert_eq!(error("-Z"), "unknown option -Z");
    assert_eq!(error("--cpus"), "option --cpus needs a value");
    assert_eq!(error("--memory x"), "option --memory: \"x\": must be a size such as 512m or 1.5g");
    assert_eq!(
        error("--link a:b"),
        "option --link is not supported: the containers of a job reach each other by name without it"
    );
    let tmpfs = error("--tmpfs /x:huge=always");
    assert!(tmpfs.contains("unknown tmpfs option \"huge=always\""), "{tmpfs}");
    let mount = error("--mount type=bind,source=/x,target=/x,bind-propagation=up");
    assert!(mount.contains("bind-propagation must be private"), "{mount}");
    let word = error("--entrypoint sh -c x");
    assert!(word.starts_with("option -c"), "{word}");
    let word = error("--entrypoint tail /dev/null");
    assert!(word.starts_with("\"/dev/null\"") && word.contains("--entrypoint"), "{word}");
}

#[test]
fn gpus_are_cdi_devices() {
    for (value, names) in [
        ("all", "all"),
        ("2", "0 1"),
        ("device=0,1", "0 1"),
        ("'\"device=0,GPU-4f28\"'", "0 GPU-4f28"),
    ] {
        let gpus = parse(&format!("--gpus {value}")).gpus.unwrap();
        let expected: Vec<_> =
            names.split(' ').map(|name| format!("nvidia.com/gpu={name}")).collect();
        assert_eq!(gpus.cdi_devices(), expected, "{value}");
    }
    for value in ["0", "-1", "device=", "device=0,,1", "device=0=1", "none", "'\"all'"] {
        assert!(error(&format!("--gpus {value}")).contains("device=ID,ID"), "{value}");
    }
    let names = parse("--device /dev/null --device vendor.com/lamp=red").cdi_devices;
    assert_eq!(names, ["vendor.com/lamp=red"]);
    for name in ["vendor.com=red", "vendor.com/lamp=", "vendor.com/lamp=red:rw,", "lamp"] {
        assert!(error(&format!("--device {name}")).contains("vendor.com/class=name"), "{name}");
    }
}

#[test]
fn contradictory_options_are_found() {
    for options in [
        "--no-healthcheck --health-cmd x",
        "--cpus 1 --cpu-quota 1000",
        "--memory 2g --memory-swap 1g",
        "--memory-swap 1g",
        "--memory 1g --memory-reservation 2g",
    ] {
        assert!(error(options).contains("contradict"), "{options}");
    }
}

#[test]
fn names_for_the_kernel_have_at_most_64_characters() {
    for option in ["--hostname", "--domainname"] {
        let parse = |length| CreateOptions::parse(&format!("{option} {}", "a".repeat(length)));
        assert!(parse(63).is_ok() && parse(65).is_err(), "{option}");
    }
}

#[test]
fn names_cannot_inject_lines_into_files() {
    for option in
        ["--hostname", "--domainname", "--name", "--network-alias", "--dns-search", "--dns-option"]
    {
        for value in ["a\nb", "a b", "a\tb", "a#b"] {
            let options = format!("{option} '{value}'");
            if option != "--dns-option" || !value.contains('#') {
                assert!(CreateOptions::parse(&options).is_err(), "{options:?}");
            }
        }
    }
    assert!(CreateOptions::parse("--add-host 'a\nb:127.0.0.1'").is_err());
}

#[test]
fn contradictory_mounts_are_rejected() {
    for mount in [
        "type=bind,source=name,target=/x",
        "type=volume,source=/x,target=/x",
        "type=tmpfs,source=/x,target=/x",
        "type=bind,source=/x",
        "type=bind,source=/x,target=x",
        "type=bind,source=/x,target=/",
        "type=bind,source=/x,target=/x,volume-nocopy",
        "type=volume,target=/x,tmpfs-size=1m",
        "type=bind,source=/x,target=/x,bind-propagation=up",
        "type=tmpfs,target=/x,tmpfs-mode=9",
        "type=bind,source=/x,target=/x,colour=red",
        "type=bind,source=\"/x,target=/x",
    ] {
        assert!(CreateOptions::parse(&format!("--mount '{mount}'")).is_err(), "{mount}");
    }
    let options = parse("--mount 'type=bind,\"source=/a,b\",dst=/x,ro,bind-recursive=disabled'");
    let volume = &options.volumes[0];
    assert!(volume.read_only && !volume.recursive, "{volume:?}");
}
