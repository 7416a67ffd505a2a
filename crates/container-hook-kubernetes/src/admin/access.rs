//! Permissions that jobs need, and the effect of each missing one.

use super::super::client::Verb;

/// A permission that a Role can grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    pub verb: Verb,
    pub resource: &'static str,
    pub subresource: Option<&'static str>,
    pub need: PermissionNeed,
    /// Effect of a missing permission.
    pub loss: &'static str,
}

/// Extent to which jobs need a permission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermissionNeed {
    /// All jobs need the permission: its lack is an error.
    Always,
    /// Only some clusters or functions need the permission: its lack is a warning.
    Partly,
}

/// All permissions that the backend uses. It uses no `watch` and no `patch`, and reads no events.
pub const PERMISSIONS: [Permission; 11] = [
    always(Verb::Create, "pods", None, "no job can be started"),
    always(
        Verb::Get,
        "pods",
        None,
        "no job can be started, because the state of its containers is unknown",
    ),
    always(
        Verb::List,
        "pods",
        None,
        "no job can be started, because leftovers of earlier jobs are not found",
    ),
    always(Verb::Delete, "pods", None, "pods are not removed when their job ends"),
    always(Verb::Get, "pods", Some("exec"), "no step can be run"),
    Permission {
        verb: Verb::Create,
        resource: "pods",
        subresource: Some("exec"),
        need: PermissionNeed::Partly,
        loss: "Kubernetes 1.35 and later require it to run a step",
    },
    always(
        Verb::Create,
        "secrets",
        None,
        "no job with environment variables or registry logins can be started",
    ),
    always(
        Verb::Get,
        "secrets",
        None,
        "a job fails if the API server's answer to the creation of a secret is lost",
    ),
    always(
        Verb::List,
        "secrets",
        None,
        "no job can be started, because leftovers of earlier jobs are not found",
    ),
    always(Verb::Delete, "secrets", None, "secrets are not removed when their job ends"),
    Permission {
        verb: Verb::Get,
        resource: "pods",
        subresource: Some("log"),
        need: PermissionNeed::Partly,
        loss: "logs of services and of failed containers are not shown",
    },
];

const fn always(
    verb: Verb,
    resource: &'static str,
    subresource: Option<&'static str>,
    loss: &'static str,
) -> Permission {
    Permission { verb, resource, subresource, need: PermissionNeed::Always, loss }
}

impl Permission {
    /// Returns the permission in a Role's terms: `get pods/exec`.
    #[must_use]
    pub fn name(&self) -> String {
        let Permission { verb, resource, subresource, .. } = self;
        let below = subresource.map_or(String::new(), |subresource| format!("/{subresource}"));
        format!("{} {resource}{below}", verb.name())
    }
}
