//! The health service of gRPC: whether this server, and each service of it, takes jobs.

use tonic::server::NamedService;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::{Health as HealthService, HealthServer};
use tonic_health::server::{HealthReporter, health_reporter};

use super::super::wire::document::step_runner_server::StepRunnerServer as DocumentServer;
use super::super::wire::proto::step_runner_server::StepRunnerServer as GitLabServer;
use super::document::Document;
use super::gitlab::GitLab;

/// The name that stands for the whole server, and those of its services.
const NAMES: [&str; 3] = [
    "",
    <GitLabServer<GitLab> as NamedService>::NAME,
    <DocumentServer<Document> as NamedService>::NAME,
];

/// The health of a server.
pub(super) struct Health {
    reporter: HealthReporter,
}

impl Health {
    /// Returns the health of a server that takes jobs, and the service that tells it.
    pub(super) async fn serving() -> (Self, HealthServer<impl HealthService>) {
        let (reporter, service) = health_reporter();
        let health = Health { reporter };
        health.set(ServingStatus::Serving).await;
        (health, service)
    }

    /// Tells that no more jobs are taken.
    pub(super) async fn stop(&self) {
        self.set(ServingStatus::NotServing).await;
    }

    /// Ends the streams of those who watch: the server would wait for them.
    pub(super) async fn end(mut self) {
        for name in NAMES {
            self.reporter.clear_service_status(name).await;
        }
    }

    async fn set(&self, status: ServingStatus) {
        for name in NAMES {
            self.reporter.set_service_status(name, status).await;
        }
    }
}
