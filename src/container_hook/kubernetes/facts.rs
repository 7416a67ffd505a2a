//! What registries say of images, asked while other things are done: pods can be made without it, so that
//! nobody waits for long.

use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use tracing::debug;

use super::backend::KubernetesBackend;
use super::pod::ImageFacts;
use crate::container_hook::options::CreateOptions;
use crate::container_hook::request::{ContainerArgs, ImageSource};
use crate::image::{
    Credential, ImageConfig, Login, Platform, PullError, Reference, Secret, Silent, configuration,
};
use crate::sys::error::chain;

/// How long pods wait for what they can do without.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// How long a step waits that cannot be run without.
pub const LONG_PATIENCE: Duration = Duration::from_secs(60);

/// Registries that were asked.
#[derive(Default)]
pub struct AskedFacts(Vec<(String, oneshot::Receiver<ImageConfig>)>);

impl AskedFacts {
    /// Asks for the image of a container. Nothing waits for the thread that asks: it ends with the process.
    pub fn ask(&mut self, backend: &KubernetesBackend<'_>, args: &ContainerArgs) {
        let ImageSource::Image(image) = &args.source else { return };
        match start(backend, image, args) {
            Ok(Some(receiver)) => self.0.push((image.clone(), receiver)),
            Ok(None) => {}
            Err(error) => debug!(image, error = chain(&error), "the registry cannot be asked"),
        }
    }

    /// Asks for the image of a service, if its request does not say itself how its health is checked.
    pub fn ask_of_service(&mut self, backend: &KubernetesBackend<'_>, args: &ContainerArgs) {
        let options = CreateOptions::parse(args.create_options.as_deref().unwrap_or_default());
        let says = options
            .is_ok_and(|options| options.health.disabled || options.health.command.is_some());
        if !says {
            self.ask(backend, args);
        }
    }

    /// Returns what came within a time.
    pub async fn within(self, time: Duration) -> ImageFacts {
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
    // What is wrong with the name is said by who makes the pod.
    let Ok(reference) = image.parse::<Reference>() else { return Ok(None) };
    let mut credentials = backend.credentials.clone();
    if let Some(registry) = &args.registry {
        let password = Secret::new(registry.password.expose());
        let login = Login::Password { username: registry.username.clone(), password };
        credentials = credentials.with_login(Credential::new(reference.registry(), login));
    }
    let repository = backend.registries.repository(&reference, &credentials, &Silent)?;
    let (sender, receiver) = oneshot::channel();
    let ask = move || match configuration(&repository, &reference, &Platform::host()) {
        // Nobody waits any more, perhaps.
        Ok(found) => drop(sender.send(found.config)),
        Err(error) => debug!(error = chain(&error), "the registry does not tell of the image"),
    };
    // Without a thread nothing is known of the image.
    let started = thread::Builder::new().name("image-facts".to_owned()).spawn(ask);
    Ok(started.ok().map(|_| receiver))
}
