//! What the runner might write to the container hook.

#![no_main]

use libfuzzer_sys::fuzz_target;
use oci_hooks::container_hook::options::CreateOptions;
use oci_hooks::container_hook::request::{Command, ContainerArgs, Request};
use oci_hooks::container_hook::volumes::Volume;
use oci_hooks::container_hook::words;

fuzz_target!(|json: &[u8]| match Request::parse(json) {
    Err(error) => drop(error.to_string()),
    Ok(Request { command, response_file, .. }) => {
        assert!(response_file.is_none_or(|path| path.is_absolute()));
        match &command {
            Command::PrepareJob(job) => job.container.iter().chain(&job.services).for_each(check),
            Command::RunContainerStep(container) => check(container),
            Command::RunScriptStep(step) => drop(words::rejoin(&step.entry_point_args)),
            Command::CleanupJob => {}
        }
    }
});

fn check(container: &ContainerArgs) {
    let _ = words::rejoin(&container.entry_point_args);
    let _ = container.create_options.as_deref().map(CreateOptions::parse);
    if let Some(registry) = &container.registry {
        assert_eq!(format!("{:?}", registry.password), "***");
    }
    for mount in container.system_mounts.iter().chain(&container.user_mounts) {
        if let Ok(volume) = Volume::from_mount(mount) {
            assert!(volume.target.starts_with('/'));
        }
    }
}
