//! What the runner might write to the container hook, and all checks of it that need no machine.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use oci_hooks::container_hook::aliases::{ServiceNames, aliases};
use oci_hooks::container_hook::options::CreateOptions;
use oci_hooks::container_hook::policy::Policy;
use oci_hooks::container_hook::request::{Command, ContainerArgs, ImageSource, Request};
use oci_hooks::container_hook::volumes::{Source, Volume};
use oci_hooks::container_hook::words;
use oci_hooks::image::Reference;
use oci_hooks::network::PortMapping;

static STRICT: LazyLock<Policy> = LazyLock::new(Policy::default);

/// Allows what is asked for in `/tmp`.
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

fuzz_target!(|json: &[u8]| match Request::parse(json) {
    Err(error) => drop(error.to_string()),
    Ok(Request { command, response_file, .. }) => {
        assert!(response_file.is_none_or(|path| path.is_absolute()));
        match &command {
            Command::PrepareJob(job) => {
                job.container.iter().chain(&job.services).for_each(check);
                names(&job.services);
            }
            Command::RunContainerStep(container) => check(container),
            Command::RunScriptStep(step) => drop(words::rejoin(&step.entry_point_args)),
            Command::CleanupJob => {}
        }
    }
});

fn check(container: &ContainerArgs) {
    let _ = words::rejoin(&container.entry_point_args);
    if let Some(registry) = &container.registry {
        assert_eq!(format!("{:?}", registry.password), "***");
    }
    if let ImageSource::Image(image) = &container.source {
        let _ = image.parse::<Reference>().map_err(|error| error.to_string());
    }
    let options = options(container);
    let published = options.iter().flat_map(|options| &options.network.publish);
    for text in container.port_mappings.iter().chain(published) {
        let Ok(mappings) = PortMapping::parse(text) else { continue };
        assert!(!mappings.is_empty(), "{text:?} publishes nothing");
    }
    let mounts = container.system_mounts.iter().chain(&container.user_mounts);
    let volumes: Vec<_> = mounts.filter_map(|mount| Volume::from_mount(mount).ok()).collect();
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

/// Checks that what is allowed of the host is within what the policy names.
fn check_volume(policy: &Policy, mut volume: Volume) {
    match policy.check_volume(&mut volume) {
        Err(refused) => drop(refused.to_string()),
        Ok(()) => {
            if let Source::Bind { path, .. } = &volume.source {
                let is_within = |allowed| path.starts_with(allowed);
                assert!(policy.bind_mounts.iter().any(is_within), "{}", path.display());
                let is_plain = !path.components().any(|part| part.as_os_str() == "..");
                assert!(is_plain, "{}", path.display());
            }
        }
    }
}

/// Checks that no two services are given a name that neither was given on purpose.
fn names(services: &[ContainerArgs]) {
    let named: Vec<_> = services
        .iter()
        .map(|service| {
            let image = match &service.source {
                ImageSource::Image(image) => image.parse::<Reference>().ok(),
                ImageSource::Dockerfile(_) => None,
            };
            let image = image.as_ref().map_or("", Reference::base_name);
            let options = options(service).unwrap_or_default();
            ServiceNames::new(service.context_name.as_deref(), &options, image)
        })
        .collect();
    let all = aliases(&named);
    assert_eq!(all.len(), services.len());
    for (given, names) in named.iter().map(|service| &service.given).zip(&all) {
        assert!(names.starts_with(given) && names.len() <= given.len() + 1);
        assert!(names.iter().all(|name| !name.is_empty() || given.contains(name)));
    }
}
