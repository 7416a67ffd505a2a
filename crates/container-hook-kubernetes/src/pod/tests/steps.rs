//! Pods of container steps: their programs and host names.

use k8s_openapi::api::core::v1::Pod;
use oci_hooks_files::error::chain;
use serde_json::{Value, json};

use super::{PodFixture, container, has_note, services, spec};

fn facts() -> Value {
    json!({"Entrypoint": ["/entry", "-v"], "Cmd": ["default"]})
}

fn args_of(world: &PodFixture, args: &Value) -> Vec<String> {
    world.make_pod(args).program.unwrap().args
}

#[test]
fn step_runs_the_program_of_its_image_by_default() {
    let world = PodFixture::new().image("action:1", &facts());
    let step = |more: Value| {
        let mut step = json!({"image": "action:1"});
        step.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        args_of(&world, &step)
    };
    assert_eq!(step(json!({})), ["/entry", "-v", "default"]);
    assert_eq!(step(json!({"entryPointArgs": ["'a", "b'", "$X"]})), ["/entry", "-v", "a b", "$X"]);
    assert_eq!(step(json!({"entryPoint": "sh", "entryPointArgs": ["-c", "x"]})), ["sh", "-c", "x"]);
    assert_eq!(step(json!({"entryPoint": "sh"})), ["sh"]);
    assert_eq!(step(json!({"createOptions": "--entrypoint ''"})), ["default"]);
}

#[test]
fn unknown_program_differs_from_an_image_without_one() {
    let step = json!({"image": "a"});
    let service = services(&[("s", "a", "--entrypoint ''")]);
    for request in [&step, &service] {
        let error = PodFixture::new().request_error(request);
        assert!(error.contains("the program of the image a is unknown"), "{error}");
        let error = PodFixture::new().image("a", &json!({"Cmd": []})).request_error(request);
        assert!(error.contains("the image a has no program of its own"), "{error}");
    }
    // The program is known without the image.
    let step = json!({"image": "a", "createOptions": "--entrypoint ''", "entryPointArgs": ["x"]});
    assert_eq!(args_of(&PodFixture::new(), &step), ["x"]);
}

#[test]
fn step_environment_is_not_in_the_pod() {
    let made = PodFixture::new().image("a", &facts()).make_pod(&json!({
        "image": "a", "environmentVariables": {"INPUT_WHO TO": "s3cret", "CI": ""},
        "workingDirectory": "/github/workspace", "createOptions": "--env X=y", "portMappings": ["80"],
    }));
    assert!(made.secrets.is_empty());
    let text = serde_json::to_string(&made.pod).unwrap();
    assert!(!text.contains("s3cret"), "{text}");
    let program = made.program.as_ref().unwrap();
    let env: Vec<_> = program.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(env, ["X=y", "CI=", "INPUT_WHO TO=s3cret", "GITHUB_ACTIONS=true"]);
    assert!(!format!("{program:?}").contains("s3cret"));
    assert_eq!(program.directory.as_deref(), Some("/github/workspace"));
    assert!(container(&made, "job").ports.is_none());
}

#[test]
fn step_pod_mounts_the_runners_directories_and_has_its_own_name() {
    let args = json!({"image": "a", "entryPoint": "x", "systemMountVolumes": [
        {"sourceVolumePath": "/home/runner/_work/_temp/_runner_file_commands", "targetVolumePath": "/github/file_commands"},
        {"sourceVolumePath": "/home/runner/_work/repo/other", "targetVolumePath": "/github/workspace"},
        {"sourceVolumePath": "/var/run/docker.sock", "targetVolumePath": "/var/run/docker.sock"},
        {"sourceVolumePath": "/home/runner/_work/../../x", "targetVolumePath": "/x"},
    ]});
    let world = PodFixture::new().claim(None, "ReadWriteMany");
    let made = world.make_pod(&args);
    let mounts = container(&made, "job").volume_mounts.iter().flatten();
    let of_work = mounts.filter(|mount| mount.name == "work");
    let mut of_work: Vec<_> = of_work
        .map(|mount| (mount.mount_path.as_str(), mount.sub_path.as_deref().unwrap_or_default()))
        .collect();
    of_work.sort_unstable();
    assert_eq!(
        of_work,
        [
            ("/__w", ""),
            ("/github/file_commands", "_temp/_runner_file_commands"),
            ("/github/home", "_temp/_github_home"),
            ("/github/runner_temp", "_temp"),
            ("/github/workflow", "_temp/_github_workflow"),
            ("/github/workspace", "repo/other"),
        ]
    );
    let name = |made: &super::PodManifest| made.pod.metadata.name.clone().unwrap();
    assert!(name(&made).starts_with("runner-1-step-"));
    assert_ne!(name(&made), name(&world.make_pod(&args)));
    let init = container(&made, "fs-init").args.clone().unwrap();
    assert!(!init.iter().any(|arg| arg == "--copy"), "no step needs the runner's programs");
}

#[test]
fn step_reaches_the_services_of_its_job_by_name() {
    let world = PodFixture::new().image("a", &facts());
    let job = world.make_pod(&services(&[("db", "redis", "--network-alias my_cache")])).pod;
    let mut job = serde_json::to_value(job).unwrap();
    job["status"] = json!({"podIP": "10.1.2.3"});
    job["metadata"]["uid"] = "uid-of-job".into();
    let job: Pod = serde_json::from_value(job).unwrap();
    let step = json!({"image": "a", "createOptions": "--add-host x:1.2.3.4"});
    let of = |world: &PodFixture| {
        world.make_of(&step, Some(&job)).unwrap_or_else(|error| panic!("{}", chain(&error)))
    };
    let made = of(&world);
    let aliases: Vec<_> = spec(&made)
        .host_aliases
        .iter()
        .flatten()
        .map(|alias| (alias.ip.as_str(), alias.hostnames.clone().unwrap_or_default().join(" ")))
        .collect();
    assert_eq!(aliases, [("10.1.2.3", "db redis".to_owned()), ("1.2.3.4", "x".to_owned())]);
    let secret = made.secrets[0].data.as_ref().unwrap();
    let hosts = String::from_utf8(secret["hosts"].0.clone()).unwrap();
    assert!(hosts.contains("10.1.2.3\tmy_cache\n") && hosts.contains("1.2.3.4\tx\n"), "{hosts}");
    let mut world = world;
    world.own.uid = None;
    let owners = of(&world).pod.metadata.owner_references.unwrap();
    let owner = (Some(&owners[0].name), owners[0].uid.as_str());
    assert_eq!(owner, (job.metadata.name.as_ref(), "uid-of-job"));
    assert!(world.make_pod(&step).pod.metadata.owner_references.is_none());
}

#[test]
fn template_applies_to_container_steps() {
    let template = "spec: {containers: [{name: $job, env: [{name: A, value: b}], command: [x]}, \
        {name: side, image: s}, {name: $redis, env: []}]}";
    let world = PodFixture::new().image("a", &facts()).template(template);
    let made =
        world.make_pod(&json!({"image": "a", "registry": {"username": "u", "password": "p"}}));
    assert_eq!(container(&made, "side").image.as_deref(), Some("s"));
    let job = container(&made, "job");
    assert_eq!(job.env.as_ref().unwrap()[0].name, "A");
    assert_eq!(
        job.command.as_deref(),
        Some(&["/.oci-hooks/image/usr/libexec/oci-hooks/agent".to_owned()][..])
    );
    assert!(has_note(&made, "the command of $job runs in addition to the steps"));
    assert_eq!(made.secrets.len(), 1);
    assert_eq!(spec(&made).image_pull_secrets.as_ref().unwrap().len(), 1);
}
