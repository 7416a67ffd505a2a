//! Pods and secrets: made, read, listed, deleted; and what the API server is, and lets us do.

use http::Request;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use kube::api::{DeleteParams, GetParams, ListParams, LogParams, PostParams};
use kube::core::request;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::time::{Duration, Instant, sleep};

use super::Cluster;
use super::error::{ClusterError, Fault, Operation, Verb};
use crate::sys::fs::random_u64;

/// The annotation by which an object is known again after the answer to the call that made it was lost.
const CALL: &str = "oci-hooks/call";
/// How often one asks whether an object of the same name is gone.
const GONE_INTERVAL: Duration = Duration::from_millis(200);
/// The longest end of a log that is read.
const MAX_LOG_BYTES: i64 = 16 << 20;

/// An object of a namespace.
trait Object:
    Resource<Scope = NamespaceResourceScope>
    + Metadata<Ty = ObjectMeta>
    + Clone
    + DeserializeOwned
    + Serialize
{
}

impl Object for Pod {}
impl Object for Secret {}

/// The objects of an answer.
#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct Items<T> {
    // Absent if there are none.
    #[serde(default)]
    items: Option<Vec<T>>,
}

impl Cluster {
    /// Makes a pod. If one of the same name is still being removed, it is made after that.
    ///
    /// The answer to a call can be lost; then the pod is there, and is the one that is returned.
    ///
    /// # Errors
    ///
    /// Fails if the API server refuses it, or there is a pod of the same name that stays.
    pub async fn create_pod(&self, pod: &Pod) -> Result<Pod, ClusterError> {
        self.create(pod).await
    }

    /// Returns the pod with this name, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the API server cannot be asked, or refuses to say.
    pub async fn pod(&self, name: &str) -> Result<Option<Pod>, ClusterError> {
        self.get(name).await
    }

    /// Returns the pods whose labels match a selector, as `runner-pod=a`; of an empty one all.
    ///
    /// # Errors
    ///
    /// Fails if the API server cannot be asked, or refuses to say.
    pub async fn pods(&self, selector: &str) -> Result<Vec<Pod>, ClusterError> {
        self.list(selector).await
    }

    /// Deletes a pod, if there is one. Its containers have `grace` seconds to end, or as many as the pod
    /// says; nothing waits for that.
    ///
    /// # Errors
    ///
    /// Fails if the API server cannot be asked, or refuses to.
    pub async fn delete_pod(&self, name: &str, grace: Option<u32>) -> Result<(), ClusterError> {
        self.delete::<Pod>(name, grace).await
    }

    /// Makes a secret, as [`Cluster::create_pod`] makes pods.
    ///
    /// # Errors
    ///
    /// Fails if the API server refuses it, or there is a secret of the same name that stays.
    pub async fn create_secret(&self, secret: &Secret) -> Result<Secret, ClusterError> {
        self.create(secret).await
    }

    /// Returns the secrets whose labels match a selector.
    ///
    /// # Errors
    ///
    /// Fails if the API server cannot be asked, or refuses to say.
    pub async fn secrets(&self, selector: &str) -> Result<Vec<Secret>, ClusterError> {
        self.list(selector).await
    }

    /// Deletes a secret, if there is one.
    ///
    /// # Errors
    ///
    /// Fails if the API server cannot be asked, or refuses to.
    pub async fn delete_secret(&self, name: &str) -> Result<(), ClusterError> {
        self.delete::<Secret>(name, None).await
    }

    /// Returns what a container wrote: all of it, as far as the node has kept it, or the last lines.
    ///
    /// # Errors
    ///
    /// Fails if there is no such container, it has not started, or the API server refuses to say.
    pub async fn log(
        &self,
        pod: &str,
        container: &str,
        tail_lines: Option<u32>,
    ) -> Result<Vec<u8>, ClusterError> {
        let params = LogParams { tail_lines: tail_lines.map(i64::from), ..LogParams::default() };
        self.log_of(pod, container, params).await
    }

    /// Returns the same, with the time before each line and a space after it.
    pub(in crate::container_hook::kubernetes) async fn log_with_times(
        &self,
        pod: &str,
        container: &str,
        tail_lines: Option<u32>,
    ) -> Result<Vec<u8>, ClusterError> {
        let tail_lines = tail_lines.map(i64::from);
        let params = LogParams { tail_lines, timestamps: true, ..LogParams::default() };
        self.log_of(pod, container, params).await
    }

    async fn log_of(
        &self,
        pod: &str,
        container: &str,
        params: LogParams,
    ) -> Result<Vec<u8>, ClusterError> {
        let params = LogParams {
            container: Some(container.to_owned()),
            limit_bytes: Some(MAX_LOG_BYTES),
            ..params
        };
        let mut operation = operation::<Pod>(Verb::Get, Some(pod));
        operation.subresource = Some("log");
        let request = made(&operation, self.requests::<Pod>().logs(pod, &params))?;
        self.call(&operation, &request).await
    }

    async fn create<T: Object>(&self, object: &T) -> Result<T, ClusterError> {
        let mut object = object.clone();
        let call = format!("{:016x}", random_u64());
        let annotations = object.metadata_mut().annotations.get_or_insert_default();
        annotations.insert(CALL.to_owned(), call.clone());
        let name = object.metadata().name.clone().unwrap_or_default();
        let operation = operation::<T>(Verb::Create, Some(&name));
        let body = serde_json::to_vec(&object).expect("an object is JSON");
        let request = made(&operation, self.requests::<T>().create(&PostParams::default(), body))?;
        let began = Instant::now();
        loop {
            let error = match self.ask(&operation, &request).await {
                Ok(made) => return Ok(made),
                Err(error) => error,
            };
            if error.refusal().is_none_or(|refusal| refusal.code != 409) {
                return Err(error);
            }
            let failed = |fault| ClusterError::Call { operation: operation.clone(), fault };
            match self.get::<T>(&name).await? {
                Some(own) if is_of_call(&own, &call) => return Ok(own),
                Some(other) if other.metadata().deletion_timestamp.is_none() => {
                    return Err(failed(Fault::Exists));
                }
                // Now it is gone, or will be.
                _ if began.elapsed() > self.policy.limit => {
                    return Err(failed(Fault::Going(began.elapsed())));
                }
                _ => sleep(GONE_INTERVAL).await,
            }
        }
    }

    async fn get<T: Object>(&self, name: &str) -> Result<Option<T>, ClusterError> {
        let operation = operation::<T>(Verb::Get, Some(name));
        let request = made(&operation, self.requests::<T>().get(name, &GetParams::default()))?;
        match self.ask(&operation, &request).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn list<T: Object>(&self, selector: &str) -> Result<Vec<T>, ClusterError> {
        let operation = operation::<T>(Verb::List, None);
        let params = ListParams::default().labels(selector);
        let request = made(&operation, self.requests::<T>().list(&params))?;
        let items: Items<T> = self.ask(&operation, &request).await?;
        Ok(items.items.unwrap_or_default())
    }

    async fn delete<T: Object>(&self, name: &str, grace: Option<u32>) -> Result<(), ClusterError> {
        let operation = operation::<T>(Verb::Delete, Some(name));
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        let request = made(&operation, self.requests::<T>().delete(name, &params))?;
        match self.call(&operation, &request).await {
            Ok(_) => Ok(()),
            Err(error) if error.refusal().is_some_and(|refusal| refusal.code == 404) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn requests<T: Object>(&self) -> request::Request {
        let Cluster { namespace, .. } = self;
        let resource = T::URL_PATH_SEGMENT;
        request::Request::new(format!("/api/v1/namespaces/{namespace}/{resource}"))
    }

    pub(super) fn pod_requests(&self) -> request::Request {
        self.requests::<Pod>()
    }
}

fn operation<T: Object>(verb: Verb, name: Option<&str>) -> Operation {
    let name = name.map(str::to_owned);
    Operation { verb, resource: T::URL_PATH_SEGMENT, subresource: None, name }
}

/// Returns a request, unless it cannot be made: its object has no usable name.
pub fn made(
    operation: &Operation,
    request: Result<Request<Vec<u8>>, request::Error>,
) -> Result<Request<Vec<u8>>, ClusterError> {
    let failed = |problem| {
        let fault = Fault::Request { problem };
        ClusterError::Call { operation: operation.clone(), fault }
    };
    // It becomes a part of a path.
    let is_name = |name: &String| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        !name.is_empty() && name.bytes().all(is_of_name) && !name.starts_with('.')
    };
    match &operation.name {
        Some(name) if !is_name(name) => Err(failed(format!("invalid name {name:?}"))),
        _ => request.map_err(|error| failed(error.to_string())),
    }
}

fn is_of_call(object: &impl Object, call: &str) -> bool {
    let annotations = object.metadata().annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(CALL)).is_some_and(|own| own == call)
}

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
        let request = Request::post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
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
        let request = Request::get("/version").body(Vec::new()).expect("the path is one");
        let name = Some("of the API server".to_owned());
        let operation = Operation { verb: Verb::Get, resource: "version", subresource: None, name };
        self.ask(&operation, &request).await
    }
}
