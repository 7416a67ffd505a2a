//! What a container is for.

/// What a container of a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The steps of the job run in it.
    Job,
    Service,
    Step,
    /// It prepares a job or a step, and has ended before that begins.
    Init,
    /// It runs beside a job container or a step.
    Sidecar,
}

impl Role {
    /// Returns how messages call a container; `name` is the first of its names.
    pub(in crate::container_hook) fn title(self, name: Option<&String>) -> String {
        let name = name.map_or("without a name", String::as_str);
        match self {
            Role::Job => "job container".to_owned(),
            Role::Service => format!("service {name}"),
            Role::Step => "container step".to_owned(),
            Role::Init => format!("init container {name}"),
            Role::Sidecar => format!("sidecar {name}"),
        }
    }

    /// Returns the name that records, annotations and the audit log have.
    pub(in crate::container_hook) fn name(self) -> &'static str {
        match self {
            Role::Job => "job",
            Role::Service => "service",
            Role::Step => "step",
            Role::Init => "init",
            Role::Sidecar => "sidecar",
        }
    }

    /// Returns whether only the template has such containers.
    pub(in crate::container_hook) fn is_helper(self) -> bool {
        matches!(self, Role::Init | Role::Sidecar)
    }
}
