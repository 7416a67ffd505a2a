//! The pods of the runner's requests.

use k8s_openapi::api::core::v1::Pod;

use super::asked::Asked;
use super::assemble::{self, Inputs};
use super::made::{ImageFacts, MadePod};
use crate::container_hook::context::HookContext;
use crate::container_hook::error::HookError;
use crate::container_hook::kubernetes::own_pod::OwnPod;
use crate::container_hook::kubernetes::settings::KubernetesSettings;
use crate::container_hook::plan::{ContainerRequest, JobRequest, Role};
use crate::container_hook::request::{ContainerArgs, PrepareJob};
use crate::container_hook::template::base;

/// Returns the pod of a job: the job container, if there is one, then the services.
///
/// Images are by the names of the request: what was built of a Dockerfile stands in its place by then.
///
/// # Errors
///
/// Fails with what a container asks for and cannot have, or if the template is none.
pub(in crate::container_hook::kubernetes) fn job(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    own: &OwnPod,
    job: &PrepareJob,
    images: &ImageFacts,
) -> Result<MadePod, HookError> {
    let JobRequest { container, services } = JobRequest::new(context, job);
    let containers = container.into_iter().chain(services);
    let asked = containers.map(|request| Asked::new(context, settings, request, images));
    let asked = asked.collect::<Result<Vec<_>, _>>()?;
    // By these the reference's templates find services.
    let of_job = job.container.iter().map(|_| String::new());
    let names: Vec<_> = of_job.chain(base::container_names(&job.services)).collect();
    assemble::pod(Inputs { context, settings, own, job: None }, &asked, &names)
}

/// Returns the pod of a container step. In the one of the job the services are, which it reaches by their names.
///
/// # Errors
///
/// As [`job`]; and if the step names no program and nothing is known of the image.
pub(in crate::container_hook::kubernetes) fn step(
    context: &HookContext<'_>,
    settings: &KubernetesSettings,
    own: &OwnPod,
    step: &ContainerArgs,
    images: &ImageFacts,
    job_pod: Option<&Pod>,
) -> Result<MadePod, HookError> {
    let request = ContainerRequest::new(step, Role::Step);
    let asked = Asked::new(context, settings, request, images)?;
    assemble::pod(Inputs { context, settings, own, job: job_pod }, &[asked], &[])
}
