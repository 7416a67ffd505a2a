//! Requests of the runner to the container hook, and all checks of them that need no machine.

#![no_main]

use std::sync::LazyLock;

use container_hook_job::options::CreateOptions;
use container_hook_job::policy::Policy;
use container_hook_job::request::{ContainerArgs, HookCommand, HookRequest, ImageSource};
use container_hook_job::volumes::{RequestVolume, VolumeSource};
use container_hook_job::words;
use libfuzzer_sys::fuzz_target;
use oci_hooks_engine::network::PortMapping;
use oci_hooks_image::ImageReference;

static STRICT: LazyLock<Policy> = LazyLock::new(Policy::default);

/// A permissive policy, with bind mounts below `/tmp`.
static LAX: LazyLock<Policy> = LazyLock::new(|| Policy {
    privileged: true,
    bind_mounts: vec!["/tmp".into()],
    shared_mounts: true,
    devices: vec!["/dev".into()],
    capabilities: vec!["ALL".to_owned()],
    annotations: vec!["a.*".to_owned()],
    oom_protection: true,
    max_pids: 0,
    ..Policy::default()
});

fuzz_target!(|json: &[u8]| match HookRequest::parse(json) {
    Err(error) => drop(error.to_string()),
    Ok(HookRequest { command, response_file, .. }) => {
        assert!(response_file.is_none_or(|path| path.is_absolute()));
        match &command {
            HookCommand::PrepareJob(job) => {
                job.container.iter().chain(&job.services).for_each(check);
            }
            HookCommand::RunContainerStep(container) => check(container),
            HookCommand::RunScriptStep(step) => drop(words::rejoin(&step.entry_point_args)),
            HookCommand::CleanupJob => {}
        }
    }
});

fn check(container: &ContainerArgs) {
    let _ = words::rejoin(&container.entry_point_args);
    if let Some(registry) = &container.registry {
        assert_eq!(format!("{:?}", registry.password), "***");
    }
    if let ImageSource::Image(image) = &container.source {
        let _ = image.parse::<ImageReference>().map_err(|error| error.to_string());
    }
    let options = options(container);
    let published = options.iter().flat_map(|options| &options.network.publish);
    for text in container.port_mappings.iter().chain(published) {
        let Ok(mappings) = PortMapping::parse(text) else { continue };
        assert!(!mappings.is_empty(), "{text:?} publishes nothing");
    }
    let mounts = container.system_mounts.iter().chain(&container.user_mounts);
    let volumes: Vec<_> =
        mounts.filter_map(|mount| RequestVolume::from_mount(mount).ok()).collect();
    assert!(volumes.iter().all(|volume| volume.target.starts_with('/')));
    for policy in [&*STRICT, &*LAX] {
        if let Some(Err(refusals)) = options.clone().map(|mut options| options.check(policy)) {
            assert!(!refusals.0.is_empty() && !refusals.to_string().is_empty());
        }
        for volume in &volumes {
            check_volume(policy, volume.clone());
        }
    }
}

fn options(container: &ContainerArgs) -> Option<CreateOptions> {
    CreateOptions::parse(container.create_options.as_deref()?).ok()
}

/// Checks that a permitted path of the host is below one that the policy names.
fn check_volume(policy: &Policy, mut volume: RequestVolume) {
    match policy.check_volume(&mut volume) {
        Err(refused) => drop(refused.to_string()),
        Ok(()) => {
            if let VolumeSource::Bind { path, .. } = &volume.source {
                let is_within = |allowed| path.starts_with(allowed);
                assert!(policy.bind_mounts.iter().any(is_within), "{}", path.display());
                let is_plain = !path.components().any(|part| part.as_os_str() == "..");
                assert!(is_plain, "{}", path.display());
            }
        }
    }
}
