//! What the API server is, and what it lets us do.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use serde::Deserialize;

use super::Cluster;
use super::error::{ClusterError, Operation, Verb};

/// The version of an API server.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServerVersion {
    /// As `v1.31.2`.
    pub git_version: String,
    /// As `linux/amd64`.
    #[serde(default)]
    pub platform: String,
}

impl Cluster {
    /// Returns whether we may do something to the resources of the namespace.
    ///
    /// # Errors
    ///
    /// Fails if the API server cannot be asked, or refuses to say.
    pub async fn may(
        &self,
        verb: Verb,
        resource: &'static str,
        subresource: Option<&'static str>,
    ) -> Result<bool, ClusterError> {
        let attributes = ResourceAttributes {
            namespace: Some(self.namespace.clone()),
            resource: Some(resource.to_owned()),
            subresource: subresource.map(str::to_owned),
            verb: Some(verb.name().to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let body = serde_json::to_vec(&review).expect("an object is JSON");
        let request = http::Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .expect("the path is one");
        let operation = Operation {
            verb: Verb::Create,
            resource: "selfsubjectaccessreviews",
            subresource: None,
            name: Some(format!("for {} {resource}", verb.name())),
        };
        let answer: SelfSubjectAccessReview = self.ask(&operation, &request).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// Returns the version of the API server.
    ///
    /// # Errors
    ///
    /// Fails if the API server cannot be asked, or refuses to say.
    pub async fn version(&self) -> Result<ServerVersion, ClusterError> {
        let request = http::Request::get("/version").body(Vec::new()).expect("the path is one");
        let name = Some("of the API server".to_owned());
        let operation = Operation { verb: Verb::Get, resource: "version", subresource: None, name };
        self.ask(&operation, &request).await
    }
}
