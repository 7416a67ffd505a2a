//! Administrator's commands.

use std::fs;
use std::process::Command;
use std::time::Duration;

use oci_hooks_testsupport::cli::{TestEnv, golden, remove_origins};
use oci_hooks_testsupport::completion::complete_words;
use oci_hooks_testsupport::http::{WebResponse, WebServer};
use serde_json::{Value, json};

use crate::{DATA, PROGRAM};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn help_names_all_commands_for_people() {
    let env = TestEnv::new(PROGRAM);
    let ran = env.run(&["--help"]);
    assert_eq!(ran.code, Some(0));
    golden(DATA, "help.txt", &ran.stdout);
    for hidden in ["as-child", "try-request", "monitor"] {
        assert!(!ran.stdout.contains(&format!("  {hidden} ")), "{hidden}");
    }
}

#[test]
fn help_of_doctor_names_what_the_probe_tries() {
    let ran = TestEnv::new(PROGRAM).run(&["doctor", "--help"]);
    assert_eq!(ran.code, Some(0));
    let help = ran.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for tried in ["a process", "the other job", "metadata services", "kernel files", "limits"] {
        assert!(help.contains(tried), "{tried}: {help}");
    }
}

#[test]
fn effective_settings_combine_file_and_defaults() {
    let env = TestEnv::new(PROGRAM);
    env.write(
        "settings.toml",
        "[store]\npull = \"never\"\nkeep-age = \"14d\"\n\n[registry.\"localhost:5000\"]\ninsecure = true\n",
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
fn settings_show_their_origin() {
    let env = TestEnv::new(PROGRAM);
    let text = "[policy]\npreset = \"docker\"\nprivileged = false\n\n[policy.max]\npids = 7\n\
                [registry.\"a.b:5\"]\ninsecure = true\n";
    env.write("settings.toml", text);
    let said = env.run(&["config"]).stdout;
    for line in [
        "preset = \"docker\" # line 2",
        "privileged = false # line 3",
        "shared-mounts = true # preset \"docker\"",
        "bind-mounts = [\"/\"] # preset \"docker\"",
        "pids = 7 # line 6",
        "when-exceeded = \"clamp\"",
        "insecure = true # line 8",
        "pull = \"newer\"",
    ] {
        assert!(said.contains(&format!("\n{line}\n")), "{line} is not in {said}");
    }
}

#[test]
fn missing_certificates_and_mirrors_are_named() {
    let env = TestEnv::new(PROGRAM);
    let ca = env.path("missing.pem");
    let text =
        format!("[registry.\"docker.io\"]\nmirrors = [\"no-such-mirror.invalid\"]\nca = {ca:?}\n");
    env.write("settings.toml", &text);
    // Runs without a network, so that no name server is asked.
    let ran = env.run_apart(&["config"]);
    assert_eq!(ran.code, Some(0));
    for expected in [
        "note: ca of [registry.\"docker.io\"]: cannot open {ROOT}/missing.pem: No such file",
        "note: mirror \"no-such-mirror.invalid\" of [registry.\"docker.io\"] has no address: ",
    ] {
        assert!(ran.stderr.contains(expected), "{expected} is not in {}", ran.stderr);
    }
    let report = json(&env.run_apart(&["doctor", "--format", "json"]).stdout);
    let names: Vec<_> =
        report["checks"].as_array().unwrap().iter().map(|check| &check["name"]).collect();
    for name in ["registry CA", "registry mirror"] {
        assert!(names.contains(&&json!(name)), "{name} is not in {names:?}");
    }
}

#[test]
fn initial_settings_file_is_the_documented_one() {
    let env = TestEnv::new(PROGRAM);
    let documented = concat!(env!("CARGO_MANIFEST_DIR"), "/container-hook.toml");
    let ran = env.run(&["config", "--default"]);
    assert_eq!(ran.stdout, fs::read_to_string(documented).unwrap());
    let defaults = env.run(&["config"]).stdout;
    env.write("settings.toml", &ran.stdout);
    let without_store = |text: &str| remove_origins(text.split("[network]").nth(1).unwrap());
    assert_eq!(without_store(&env.run(&["config"]).stdout), without_store(&defaults));
}

/// Starts a registry that sends a kilobyte a second.
fn start_trickling_registry() -> WebServer {
    WebServer::start(|_| {
        let pace = Some(Duration::from_secs(1));
        WebResponse { pace, ..WebResponse::ok(vec![b' '; 1 << 20]) }
    })
}

#[test]
fn pull_ends_at_the_time_limit_of_the_settings() {
    let server = start_trickling_registry();
    let registry = server.address();
    let env = TestEnv::new(PROGRAM);
    let store = format!("root = {:?}\nrun = {:?}\n", env.path("root"), env.path("run"));
    env.write("settings.toml", &format!("[store]\n{store}max-pull-time = \"1s\"\n"));
    let ran = env.run(&["pull", &format!("{registry}/a/b:1")]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let expected = format!("{registry}/a/b is not complete after 1 s");
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
    assert!(ran.stderr.contains("raise max-pull-time"), "{}", ran.stderr);
}

#[test]
fn pull_slower_than_the_settings_allow_is_aborted() {
    let server = start_trickling_registry();
    let registry = server.address();
    let env = TestEnv::new(PROGRAM);
    let store = format!("root = {:?}\nrun = {:?}\n", env.path("root"), env.path("run"));
    env.write("settings.toml", &format!("[store]\n{store}min-pull-speed = \"3KiB\"\n"));
    let said = env.run(&["pull", &format!("{registry}/a/b:1")]).stderr;
    let start = format!("error: {registry} sends {registry}/a/b too slowly: ");
    assert!(said.starts_with(&start), "{said}");
    assert!(said.contains(" s, expected at least 3072 bytes/s: "), "{said}");
}

#[test]
fn missing_settings_file_is_an_error() {
    let env = TestEnv::new(PROGRAM);
    fs::remove_file(env.path("settings.toml")).unwrap();
    let ran = env.run(&["config"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.starts_with("error: "), "{}", ran.stderr);
    assert!(ran.stderr.contains("{ROOT}/settings.toml: No such file"), "{}", ran.stderr);
}

#[test]
fn variable_selects_the_settings_file() {
    let env = TestEnv::new(PROGRAM);
    env.write("other.toml", "[limits]\npids = 7\n");
    let mut command = Command::new(env!("CARGO_BIN_EXE_container-hook"));
    command.env_clear().env("OCI_HOOKS_CONTAINER_HOOK_CONFIG", env.path("other.toml"));
    let ran = env.run_with_input(
        {
            command.arg("config");
            command
        },
        b"",
    );
    assert!(ran.stdout.contains("\npids = 7 # line 2\n"), "{ran:?}");
}

#[test]
fn doctor_reports_status_and_fix_of_each_check() {
    let env = TestEnv::new(PROGRAM);
    let ran = env.run_apart(&["doctor", "--format", "json"]);
    let report = json(&ran.stdout);
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in ["user", "kernel", "cgroups", "runtime", "store", "disk", "nft", "buildah"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let mut failed = false;
    for check in checks {
        let keys: Vec<_> = check.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["found", "hint", "name", "status"]);
        let status = check["status"].as_str().unwrap();
        assert!(["ok", "warn", "fail"].contains(&status), "{check}");
        assert_eq!(check["hint"].is_null(), status == "ok", "{check}");
        failed |= status == "fail";
    }
    assert_eq!(report["ok"], !failed);
    assert_eq!(ran.code, Some(i32::from(failed)));
    // `doctor` leaves nothing behind.
    for name in ["store", "run", "run-doctor"] {
        assert!(!env.path(name).exists(), "{name}");
    }
}

#[test]
fn empty_store_lists_no_images() {
    let env = TestEnv::new(PROGRAM);
    for command in ["images", "ps", "volumes"] {
        let ran = env.run(&[command, "--format", "json"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "[]\n"), "{}", ran.stderr);
    }
    assert_eq!(env.run(&["volumes", "rm", "nothing"]).code, Some(1));
    assert_eq!(env.run(&["logs", "nothing"]).code, Some(1));
    let settings = env.path("settings.toml");
    for command in ["logs", "rmi"] {
        let settings = Some(("OCI_HOOKS_CONTAINER_HOOK_CONFIG", settings.as_path()));
        let completed = complete_words(PROGRAM, settings, &[command, ""]);
        assert!(completed.iter().all(|word| !word.contains(':')), "{completed:?}");
    }
    for dir in ["store", "run"] {
        assert!(!env.path(dir).exists(), "{dir} was made by who only looked");
    }
}

#[test]
fn removing_a_missing_image_is_an_error() {
    let env = TestEnv::new(PROGRAM);
    let ran = env.run(&["rmi", "nothing:1"]);
    assert_eq!(ran.code, Some(1));
    let expected = "error: docker.io/library/nothing:1 is not in the store\n  hint: ";
    assert!(ran.stderr.starts_with(expected), "{}", ran.stderr);
}

#[test]
fn rmi_prints_removed_images_even_if_one_is_missing() {
    let env = TestEnv::new(PROGRAM);
    write_image(&env);
    let missing = "docker.io/library/no:1, docker.io/library/no:2 are not in the store";
    for format in ["human", "json"] {
        assert_eq!(env.run(&["import", "layout", "app:1"]).code, Some(0));
        assert_eq!(env.run(&["import", "layout", "app:2"]).code, Some(0));
        let ran = env.run(&["rmi", "app:1", "no:1", "no:2", "app:2", "--format", format]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains(missing), "{}", ran.stderr);
        let removed = match format {
            "json" => json(&ran.stdout).as_array().unwrap().len(),
            _ => ran.stdout.matches("removed docker.io/library/app:").count(),
        };
        assert_eq!(removed, 2, "{format}: {}", ran.stdout);
        assert_eq!(env.run(&["images", "--format", "json"]).stdout, "[]\n");
    }
}

#[test]
fn invalid_quantities_are_rejected() {
    let env = TestEnv::new(PROGRAM);
    for option in ["--age=7", "--size=20XB", "--size=-1"] {
        let ran = env.run(&["prune", option]);
        assert_eq!(ran.code, Some(2), "{option}");
        assert!(ran.stderr.contains(": expected "), "{}", ran.stderr);
    }
    assert_eq!(env.run(&["prune", "--all", "--age=7d"]).code, Some(2));
}

#[test]
fn imported_image_is_listed_and_removable() {
    let env = TestEnv::new(PROGRAM);
    write_image(&env);
    let ran = env.run(&["import", "layout", "app:1", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    golden(DATA, "import.json", &ran.stdout);
    let ran = env.run(&["images", "--format", "json"]);
    let mut images = json(&ran.stdout);
    assert!(images[0]["used"].as_str().unwrap().ends_with('Z'));
    images[0]["used"] = json!("{TIME}");
    // Disk usage depends on the file system.
    images[0]["size_bytes"] = json!(0);
    golden(DATA, "images.json", &format!("{images:#}\n"));
    let ran = env.run(&["images"]);
    assert!(ran.stdout.contains("\napp:1 "));
    assert!(ran.stderr.contains("note: 1 layer, "), "{}", ran.stderr);
    assert_eq!(
        env.run(&["rmi", "app:1"]).stdout,
        "removed docker.io/library/app:1 (linux/amd64)\n"
    );
    assert_eq!(env.run(&["images", "--format", "json"]).stdout, "[]\n");
}

/// Writes an OCI layout whose image has one empty layer, identical on every machine.
fn write_image(env: &TestEnv) {
    use oci_hooks_image::Digest;

    fs::create_dir_all(env.path("layout/blobs/sha256")).unwrap();
    let blob = |bytes: &[u8]| {
        let digest = Digest::of(bytes);
        fs::write(env.path("layout/blobs/sha256").join(digest.hex()), bytes).unwrap();
        (digest.to_string(), bytes.len())
    };
    let (layer, layer_size) = blob(&[0; 1024]);
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [layer]},
    });
    let (config, config_size) = blob(config.to_string().as_bytes());
    let kind = |name| format!("application/vnd.oci.image.{name}");
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": kind("manifest.v1+json"),
        "config": {"mediaType": kind("config.v1+json"), "digest": config, "size": config_size},
        "layers": [{"mediaType": kind("layer.v1.tar"), "digest": layer, "size": layer_size}],
    });
    let (manifest, size) = blob(manifest.to_string().as_bytes());
    let entry = json!({"mediaType": kind("manifest.v1+json"), "digest": manifest, "size": size});
    let index = json!({"schemaVersion": 2, "manifests": [entry]});
    fs::write(env.path("layout/index.json"), index.to_string()).unwrap();
    fs::write(env.path("layout/oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

#[test]
fn completions_offer_commands_and_container_names() {
    let env = TestEnv::new(PROGRAM);
    write_container(&env);
    let settings = env.path("settings.toml");
    let variable = Some(("OCI_HOOKS_CONTAINER_HOOK_CONFIG", settings.as_path()));
    let completed = |words: &[&str]| complete_words(PROGRAM, variable, words);
    assert_eq!(completed(&["doc"]), ["doctor"]);
    assert_eq!(completed(&["logs", "red"]), ["redis"]);
    assert_eq!(completed(&["logs", &ID[..4]]), [ID]);
}

/// Id of a container created by another process.
const ID: &str = "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9";

/// Writes the leftovers of a service that has exited.
fn write_container(env: &TestEnv) {
    let dir = format!("run/containers/{ID}");
    fs::create_dir_all(env.path(&dir)).unwrap();
    let record = json!({
        "id": ID,
        "name": "redis",
        "owner": "00112233445566778899aabbccddeeff",
        "role": "service",
        "image": "docker.io/library/redis:7",
        "digest": "sha256:2899631ca1c322111249b88f3601da5900d6956e54d1fb30644bbb433642fe07",
        "created": "2026-11-21T09:40:05Z",
        "runtime": {
            "kind": "runc",
            "program": "/usr/sbin/runc",
            "root": "/run/oci-hooks/runtime",
            "systemd_cgroup": false
        },
        "cgroup": "/oci-hooks/none",
        "network": null,
        "disk": env.path("store/containers/none"),
        "log_bytes": 1000,
        "process": null
    });
    env.write(&format!("{dir}/record.json"), &record.to_string());
    env.write(&format!("{dir}/end.json"), r#"{"code":137,"at":"2026-11-21T09:41:05Z"}"#);
    let log = "2026-11-21T09:40:06Z stdout ready\n2026-11-21T09:40:07Z stderr ::error::no\n";
    env.write(&format!("{dir}/log"), log);
}

#[test]
fn containers_are_listed_without_a_runtime() {
    let env = TestEnv::new(PROGRAM);
    write_container(&env);
    let ran = env.run(&["ps", "--format", "json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    golden(DATA, "ps.json", &ran.stdout);
    let ran = env.run(&["ps"]);
    assert!(ran.stdout.contains("\n0a1b2c3d4e5f  service  redis "), "{}", ran.stdout);
    assert!(ran.stdout.trim_end().ends_with("ended with 137"), "{}", ran.stdout);
}

#[test]
fn container_logs_are_found_by_name_or_id_prefix() {
    let env = TestEnv::new(PROGRAM);
    write_container(&env);
    golden(DATA, "logs.json", &env.run(&["logs", "redis", "--format", "json"]).stdout);
    assert_eq!(env.run(&["logs", "0a1b2c"]).stdout, "ready\n::error::no\n");
    let ran = env.run(&["logs", "redis", "--tail", "1", "--timestamps"]);
    assert_eq!(ran.stdout, "2026-11-21T09:40:07.000Z ::error::no\n");
    let ran = env.run(&["logs", "postgres"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("postgres"), "{}", ran.stderr);
}

#[test]
fn pruning_an_empty_store_removes_nothing() {
    let env = TestEnv::new(PROGRAM);
    let ran = env.run(&["prune", "--all", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    golden(DATA, "prune.json", &ran.stdout);
}
