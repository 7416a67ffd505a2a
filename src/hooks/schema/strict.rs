//! What Sarus' JSON schema asks for beyond what Go decodes.

use super::{Definition, Version};
use crate::hooks::{Fault, HookError};
use crate::json::Value;

/// Checks a definition that is valid for podman.
pub(super) fn check(definition: &Definition, root: Value<'_>) -> Result<(), Fault> {
    if definition.version != Version::V1_0_0 {
        return reject("only schema 1.0.0 is read", root);
    }
    let hook = root.get("hook").unwrap_or(root);
    let when = root.get("when");
    only_keys(root, &["version", "hook", "when", "stages"])?;
    only_keys(hook, &["path", "args", "env", "timeout"])?;
    if let Some(when) = when {
        only_keys(when, &["always", "annotations", "commands", "hasBindMounts"])?;
    }
    if when.is_none_or(|when| when.members().next().is_none()) {
        return reject("`when` needs at least one condition", when.unwrap_or(root));
    }
    if !definition.hook.path.starts_with('/') {
        return reject("hook.path must be absolute", hook.get("path").unwrap_or(hook));
    }
    if definition.hook.timeout.is_some_and(|timeout| timeout < 1) {
        return reject("hook.timeout must be at least 1", hook.get("timeout").unwrap_or(hook));
    }
    Ok(())
}

fn only_keys(object: Value<'_>, keys: &[&str]) -> Result<(), Fault> {
    match object.members().find(|member| !keys.iter().any(|key| member.is_named(key))) {
        Some(member) => reject("unknown key", member.key),
        None => Ok(()),
    }
}

fn reject(reason: &'static str, at: Value<'_>) -> Result<(), Fault> {
    Err(Fault { error: HookError::Rejected(reason), location: Some(at.location()) })
}
