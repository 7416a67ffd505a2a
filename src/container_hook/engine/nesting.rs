//! Containers in a job's containers, where the policy allows them.
//!
//! All that the kernel lets root of a user namespace do was tested less than what it lets others do, so it is
//! the admin's to allow. Nothing of it is for containers whose root is root of the host.

use super::backend::EngineBackend;
use crate::bundle;
use crate::container::allow_nesting;
use crate::container_hook::error::HookError;

/// Returns the table of the settings that could allow containers in containers, if none does.
pub(super) fn denied_by(backend: &EngineBackend<'_>) -> Option<String> {
    let policy = &backend.context.settings.policy;
    (!policy.nesting).then(|| policy.section("policy"))
}

/// Gives a container what it takes to run others in it, if the policy allows that.
///
/// `is_apart` says whether its root is nobody on the host.
pub(super) fn allow(
    backend: &EngineBackend<'_>,
    title: &str,
    is_apart: bool,
    options: &mut bundle::Options,
) -> Result<(), HookError> {
    let policy = &backend.context.settings.policy;
    let security = &options.security;
    if !policy.nesting || security.privileged || security.restricted {
        return Ok(());
    }
    if !is_apart {
        backend.context.log.warning(&format!(
            "{title}: `nesting` under {} has no effect: root of this container is root of the machine",
            policy.section("policy")
        ));
        return Ok(());
    }
    Ok(allow_nesting(options)?)
}
