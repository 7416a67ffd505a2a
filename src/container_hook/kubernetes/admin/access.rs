//! The permissions that jobs need, and what is lost without each.

use super::super::client::Verb;

/// Something that a Role has to permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    pub verb: Verb,
    pub resource: &'static str,
    pub subresource: Option<&'static str>,
    pub need: Need,
    /// What does not work without it.
    pub loss: &'static str,
}

/// How much a permission matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No job runs without it.
    Always,
    /// Something is lost without it.
    Partly,
}

/// All permissions that are ever used. Nothing else is: no watching, no patching, no events.
pub const PERMISSIONS: [Permission; 11] = [
    always(Verb::Create, "pods", None, "no job can be started"),
    always(Verb::Get, "pods", None, "nobody knows when a job's containers run"),
    always(Verb::List, "pods", None, "what an earlier job of the runner left is not found"),
    always(Verb::Delete, "pods", None, "pods stay when their job has ended"),
    always(Verb::Get, "pods", Some("exec"), "no step can be run"),
    Permission {
        verb: Verb::Create,
        resource: "pods",
        subresource: Some("exec"),
        need: Need::Partly,
        loss: "no step can be run on servers that ask for it: from Kubernetes 1.35 on",
    },
    always(Verb::Create, "secrets", None, "containers get neither variables nor registry logins"),
    always(Verb::Get, "secrets", None, "a secret whose making was not answered is not found again"),
    always(Verb::List, "secrets", None, "what an earlier job of the runner left is not found"),
    always(Verb::Delete, "secrets", None, "secrets stay when their job has ended"),
    Permission {
        verb: Verb::Get,
        resource: "pods",
        subresource: Some("log"),
        need: Need::Partly,
        loss: "what services wrote is not shown, and what containers wrote that failed",
    },
];

const fn always(
    verb: Verb,
    resource: &'static str,
    subresource: Option<&'static str>,
    loss: &'static str,
) -> Permission {
    Permission { verb, resource, subresource, need: Need::Always, loss }
}

impl Permission {
    /// Returns the permission as a Role has it: `get pods/exec`.
    #[must_use]
    pub fn name(&self) -> String {
        let Permission { verb, resource, subresource, .. } = self;
        let below = subresource.map_or(String::new(), |subresource| format!("/{subresource}"));
        format!("{} {resource}{below}", verb.name())
    }
}
