//! Pulling an image for a user, and reporting it.

use clap::Args;
use serde::Serialize;

use super::context::{Context, OutputError};
use super::host::{Host, HostError};
use super::progress::Bar;
use super::sections::Pull;
use crate::image::{Image, Platform, PullError, PullRequest, Reference, pull};

/// How a `pull` command asks the registry.
#[derive(Debug, Args)]
pub struct PullOptions {
    /// Platform, e.g. linux/arm64, instead of this machine's
    #[arg(long)]
    platform: Option<Platform>,

    /// When to ask the registry
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = Pull::Always)]
    policy: Pull,
}

impl PullOptions {
    /// Pulls an image with a progress bar, and reports it. `variable` returns the proxies of the environment.
    pub fn pull<E: From<HostError> + From<Box<PullError>> + From<OutputError>>(
        &self,
        reference: &Reference,
        host: Host<'_>,
        variable: impl Fn(&str) -> Option<String>,
        context: &mut Context,
    ) -> Result<(), E> {
        let store = host.store()?;
        let client = host.registries(variable)?;
        let progress = Bar::on_stderr();
        let image = pull(
            &store,
            &client,
            &PullRequest {
                reference,
                platform: &self.platform.clone().unwrap_or_else(Platform::host),
                credentials: &host.credentials()?,
                policy: self.policy.into(),
                progress: &progress,
            },
        );
        progress.finish();
        Ok(report(&image.map_err(Box::new)?, context)?)
    }
}

/// An image that is in the store now, as JSON.
#[derive(Serialize)]
struct PulledImage {
    reference: String,
    platform: String,
    digest: String,
    id: String,
}

/// Prints which image is in the store now.
pub fn report(image: &Image, context: &mut Context) -> Result<(), OutputError> {
    if context.is_json() {
        return context.json(&PulledImage {
            reference: image.reference.to_string(),
            platform: image.platform.to_string(),
            digest: image.digest.to_string(),
            id: image.id.to_string(),
        });
    }
    context.line(format!("{} is {}", image.reference, image.digest))
}
