//! `pull` command: pulls an image and reports it.

use clap::Args;
use oci_hooks_cli::context::{CliContext, OutputError};
use oci_hooks_image::{Image, ImageReference, Platform, PullError, PullRequest, pull};
use serde::Serialize;

use super::host::{HostError, HostSections};
use super::progress::PullBar;
use super::sections::PullSetting;

/// Options of a `pull` command.
#[derive(Debug, Args)]
pub struct PullOptions {
    /// Platform, e.g. linux/arm64, instead of this machine's
    #[arg(long)]
    platform: Option<Platform>,

    /// Pull policy: when to ask the registry for the image
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = PullSetting::Always)]
    policy: PullSetting,
}

impl PullOptions {
    /// Pulls an image with a progress bar, and reports it. `variable` looks up proxies in the environment.
    pub fn pull<E: From<HostError> + From<Box<PullError>> + From<OutputError>>(
        &self,
        reference: &ImageReference,
        host: HostSections<'_>,
        variable: impl Fn(&str) -> Option<String>,
        context: &mut CliContext,
    ) -> Result<(), E> {
        let store = host.store()?;
        let client = host.registries(variable)?;
        let progress = PullBar::on_stderr();
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

/// JSON output of a pulled image.
#[derive(Serialize)]
struct PulledImage {
    reference: String,
    platform: String,
    digest: String,
    id: String,
}

/// Prints a pulled image.
pub fn report(image: &Image, context: &mut CliContext) -> Result<(), OutputError> {
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
