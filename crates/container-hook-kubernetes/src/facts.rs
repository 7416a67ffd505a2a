//! Image configurations from registries, requested in the background. Pods can be created without them, so
//! the wait is short.

use std::thread;
use std::time::Duration;

use container_hook_job::options::CreateOptions;
use container_hook_job::request::{ContainerArgs, ImageSource};
use oci_hooks_files::error::chain;
use oci_hooks_image::{
    ImageConfig, ImageReference, LoginMethod, Platform, PullError, RegistryCredential, Secret,
    SilentProgress, configuration,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::backend::KubernetesBackend;
use super::pod::ImageFacts;

/// Timeout for configurations that pods can do without.
pub const CONFIG_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout for configurations that a step cannot run without.
pub const REQUIRED_CONFIG_TIMEOUT: Duration = Duration::from_secs(60);

/// Pending requests for image configurations, by image.
#[derive(Default)]
pub struct PendingImageConfigs(Vec<(String, oneshot::Receiver<ImageConfig>)>);

impl PendingImageConfigs {
    /// Requests the configuration of a container's image, on a thread that nothing joins: it ends with the
    /// process.
    pub fn ask(&mut self, backend: &KubernetesBackend<'_>, args: &ContainerArgs) {
        let ImageSource::Image(image) = &args.source else { return };
        match start(backend, image, args) {
            Ok(Some(receiver)) => self.0.push((image.clone(), receiver)),
            Ok(None) => {}
            Err(error) => debug!(image, error = chain(&error), "cannot query the registry"),
        }
    }

    /// Requests the configuration of a service's image, unless the service's options decide its
    /// health check and its program. With `restricted`, it is always requested, for the image's
    /// user.
    pub fn ask_of_service(&mut self, backend: &KubernetesBackend<'_>, args: &ContainerArgs) {
        let options = CreateOptions::parse(args.create_options.as_deref().unwrap_or_default());
        let is_known = options.is_ok_and(|options| {
            let has_health_check = options.health.disabled || options.health.command.is_some();
            // If the entry point is cleared, the image's arguments are the program.
            let entry_point = args.entry_point.as_deref().or(options.entrypoint.as_deref());
            has_health_check && entry_point != Some("")
        });
        // The restricted profile needs the image's user.
        if !is_known || backend.settings.restricted {
            self.ask(backend, args);
        }
    }

    /// Returns the configurations that arrive within `time`.
    pub async fn collect_within(self, time: Duration) -> ImageFacts {
        let end = Instant::now() + time;
        let mut facts = ImageFacts::default();
        for (image, receiver) in self.0 {
            if let Ok(Ok(config)) = timeout_at(end, receiver).await {
                facts.insert(&image, config);
            }
        }
        facts
    }
}

fn start(
    backend: &KubernetesBackend<'_>,
    image: &str,
    args: &ContainerArgs,
) -> Result<Option<oneshot::Receiver<ImageConfig>>, PullError> {
    // Creating the pod reports the invalid name.
    let Ok(reference) = image.parse::<ImageReference>() else { return Ok(None) };
    let mut credentials = backend.credentials.clone();
    if let Some(registry) = &args.registry {
        let password = Secret::new(registry.password.expose());
        let login = LoginMethod::Password { username: registry.username.clone(), password };
        credentials = credentials.with_login(RegistryCredential::new(reference.registry(), login));
    }
    let repository = backend.registries.repository(&reference, &credentials, &SilentProgress)?;
    let (sender, receiver) = oneshot::channel();
    let ask = move || match configuration(&repository, &reference, &Platform::host()) {
        // The receiver may have timed out.
        Ok(found) => drop(sender.send(found.config)),
        Err(error) => debug!(
            error = chain(&error),
            "cannot read the configuration of the image from the registry"
        ),
    };
    // If no thread can be started, the image's configuration stays unknown.
    let started = thread::Builder::new().name("image-facts".to_owned()).spawn(ask);
    Ok(started.ok().map(|_| receiver))
}
