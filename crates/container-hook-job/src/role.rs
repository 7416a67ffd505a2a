//! Roles of containers.

use oci_hooks_engine::container::ContainerRole;

/// The role of a container in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanRole {
    /// Runs the steps of the job.
    Job,
    Service,
    Step,
    /// Prepares a job or a step, and exits before the job or step begins.
    Init,
    /// Runs beside a job container or a step.
    Sidecar,
}

impl PlanRole {
    /// Returns the title of a container in messages; `name` is its first name.
    pub fn title(self, name: Option<&String>) -> String {
        let name = name.map_or("without a name", String::as_str);
        match self {
            PlanRole::Job => "job container".to_owned(),
            PlanRole::Service => format!("service {name}"),
            PlanRole::Step => "container step".to_owned(),
            PlanRole::Init => format!("init container {name}"),
            PlanRole::Sidecar => format!("sidecar {name}"),
        }
    }

    /// Returns the name of the role in records, annotations and the audit log.
    pub fn name(self) -> &'static str {
        ContainerRole::from(self).name()
    }

    /// Returns whether containers of this role come from the template, not from the workflow.
    pub fn is_helper(self) -> bool {
        matches!(self, PlanRole::Init | PlanRole::Sidecar)
    }
}

impl From<PlanRole> for ContainerRole {
    fn from(role: PlanRole) -> Self {
        match role {
            PlanRole::Job => ContainerRole::Job,
            PlanRole::Service => ContainerRole::Service,
            PlanRole::Step => ContainerRole::Step,
            PlanRole::Init => ContainerRole::Init,
            PlanRole::Sidecar => ContainerRole::Sidecar,
        }
    }
}
