//! Creates, reads, lists and deletes pods and secrets; queries the API server's version and permissions.

use http::Request;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use kube::api::{DeleteParams, GetParams, ListParams, LogParams, PostParams};
use kube::core::request;
use oci_hooks_files::fs::random_u64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ClusterClient;
use super::error::{ApiOperation, CallFault, ClusterError, Verb};

/// Annotation that identifies an object after the answer to its creation was lost.
const CALL: &str = "oci-hooks/call";
/// Maximum number of bytes read of a log.
const MAX_LOG_BYTES: i64 = 16 << 20;

trait ApiObject:
    Resource<Scope = NamespaceResourceScope>
    + Metadata<Ty = ObjectMeta>
    + Clone
    + DeserializeOwned
    + Serialize
{
}

impl ApiObject for Pod {}
impl ApiObject for Secret {}

#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct ObjectList<T> {
    // Absent if the list is empty.
    #[serde(default)]
    items: Option<Vec<T>>,
}

impl ClusterClient {
    /// Creates a pod; waits while a pod of the same name is being deleted.
    ///
    /// If the answer to the creation is lost, the retry returns the pod that exists.
    ///
    /// # Errors
    ///
    /// Fails if the API server rejects the pod, or if a pod of the same name remains.
    pub async fn create_pod(&self, pod: &Pod) -> Result<Pod, ClusterError> {
        self.create(pod).await
    }

    /// Returns the pod with this name, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the API server is unreachable or denies the request.
    pub async fn pod(&self, name: &str) -> Result<Option<Pod>, ClusterError> {
        self.get(name).await
    }

    /// Returns the pods whose labels match a selector such as `runner-pod=a`; all pods for an empty selector.
    ///
    /// # Errors
    ///
    /// Fails if the API server is unreachable or denies the request.
    pub async fn pods(&self, selector: &str) -> Result<Vec<Pod>, ClusterError> {
        self.list(selector).await
    }

    /// Deletes a pod, if it exists. Its containers have `grace` seconds to end, by default the pod's own
    /// grace period; does not wait for their end.
    ///
    /// # Errors
    ///
    /// Fails if the API server is unreachable or denies the request.
    pub async fn delete_pod(&self, name: &str, grace: Option<u32>) -> Result<(), ClusterError> {
        self.delete::<Pod>(name, grace).await
    }

    /// Creates a secret as [`ClusterClient::create_pod`] creates a pod.
    ///
    /// # Errors
    ///
    /// Fails if the API server rejects the secret, or if a secret of the same name remains.
    pub async fn create_secret(&self, secret: &Secret) -> Result<Secret, ClusterError> {
        self.create(secret).await
    }

    /// Returns the secrets whose labels match a selector.
    ///
    /// # Errors
    ///
    /// Fails if the API server is unreachable or denies the request.
    pub async fn secrets(&self, selector: &str) -> Result<Vec<Secret>, ClusterError> {
        self.list(selector).await
    }

    /// Deletes a secret, if it exists.
    ///
    /// # Errors
    ///
    /// Fails if the API server is unreachable or denies the request.
    pub async fn delete_secret(&self, name: &str) -> Result<(), ClusterError> {
        self.delete::<Secret>(name, None).await
    }

    /// Returns the log of a container as far as the node has kept it, or its last lines.
    ///
    /// # Errors
    ///
    /// Fails if the container does not exist or has not started, or if the API server denies the request.
    pub async fn log(
        &self,
        pod: &str,
        container: &str,
        tail_lines: Option<u32>,
    ) -> Result<Vec<u8>, ClusterError> {
        let params = LogParams { tail_lines: tail_lines.map(i64::from), ..LogParams::default() };
        self.log_of(pod, container, params).await
    }

    /// Returns the log as [`ClusterClient::log`] does, with a timestamp and a space before each
    /// line.
    pub(crate) async fn log_with_times(
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
        let request = check_request(&operation, self.requests::<Pod>().logs(pod, &params))?;
        self.call(&operation, &request).await
    }

    async fn create<T: ApiObject>(&self, object: &T) -> Result<T, ClusterError> {
        let mut object = object.clone();
        let call = format!("{:016x}", random_u64());
        let annotations = object.metadata_mut().annotations.get_or_insert_default();
        annotations.insert(CALL.to_owned(), call.clone());
        let name = object.metadata().name.clone().unwrap_or_default();
        let operation = operation::<T>(Verb::Create, Some(&name));
        let body = serde_json::to_vec(&object).expect("an object is JSON");
        let request =
            check_request(&operation, self.requests::<T>().create(&PostParams::default(), body))?;
        let error = match self.ask(&operation, &request).await {
            Err(error) if error.rejection().is_some_and(|rejection| rejection.code == 409) => error,
            created => return created,
        };
        // An earlier attempt of this call may have created the object: its response was lost.
        match self.get::<T>(&name).await? {
            Some(own) if is_of_call(&own, &call) => Ok(own),
            _ => Err(error),
        }
    }

    async fn get<T: ApiObject>(&self, name: &str) -> Result<Option<T>, ClusterError> {
        let operation = operation::<T>(Verb::Get, Some(name));
        let request =
            check_request(&operation, self.requests::<T>().get(name, &GetParams::default()))?;
        match self.ask(&operation, &request).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.rejection().is_some_and(|rejection| rejection.code == 404) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn list<T: ApiObject>(&self, selector: &str) -> Result<Vec<T>, ClusterError> {
        let operation = operation::<T>(Verb::List, None);
        let params = ListParams::default().labels(selector);
        let request = check_request(&operation, self.requests::<T>().list(&params))?;
        let items: ObjectList<T> = self.ask(&operation, &request).await?;
        Ok(items.items.unwrap_or_default())
    }

    async fn delete<T: ApiObject>(
        &self,
        name: &str,
        grace: Option<u32>,
    ) -> Result<(), ClusterError> {
        let operation = operation::<T>(Verb::Delete, Some(name));
        let params = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
        let request = check_request(&operation, self.requests::<T>().delete(name, &params))?;
        match self.call(&operation, &request).await {
            Ok(_) => Ok(()),
            Err(error) if error.rejection().is_some_and(|rejection| rejection.code == 404) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn requests<T: ApiObject>(&self) -> request::Request {
        let ClusterClient { namespace, .. } = self;
        let resource = T::URL_PATH_SEGMENT;
        request::Request::new(format!("/api/v1/namespaces/{namespace}/{resource}"))
    }

    pub(super) fn pod_requests(&self) -> request::Request {
        self.requests::<Pod>()
    }
}

fn operation<T: ApiObject>(verb: Verb, name: Option<&str>) -> ApiOperation {
    let name = name.map(str::to_owned);
    ApiOperation { verb, resource: T::URL_PATH_SEGMENT, subresource: None, name }
}

/// Checks a request. An invalid request, and an object name that cannot be part of a path, are
/// errors.
pub fn check_request(
    operation: &ApiOperation,
    request: Result<Request<Vec<u8>>, request::Error>,
) -> Result<Request<Vec<u8>>, ClusterError> {
    let failed = |problem| {
        let fault = CallFault::Request { problem };
        ClusterError::Call { operation: operation.clone(), fault }
    };
    // The name becomes a part of the URL's path.
    let is_name = |name: &String| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        !name.is_empty() && name.bytes().all(is_of_name) && !name.starts_with('.')
    };
    match &operation.name {
        Some(name) if !is_name(name) => Err(failed(format!("invalid name {name:?}"))),
        _ => request.map_err(|error| failed(error.to_string())),
    }
}

fn is_of_call(object: &impl ApiObject, call: &str) -> bool {
    let annotations = object.metadata().annotations.as_ref();
    annotations.and_then(|annotations| annotations.get(CALL)).is_some_and(|own| own == call)
}

/// Version of an API server.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ServerVersion {
    /// Version such as `v1.31.2`.
    pub git_version: String,
    /// Platform such as `linux/amd64`.
    #[serde(default)]
    pub platform: String,
}

impl ClusterClient {
    /// Returns whether the caller has a permission in the namespace.
    ///
    /// # Errors
    ///
    /// Fails if the API server is unreachable or denies the request.
    pub async fn has_permission(
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
        let below = subresource.map_or(String::new(), |subresource| format!("/{subresource}"));
        let operation = ApiOperation {
            verb: Verb::Create,
            resource: "selfsubjectaccessreviews",
            subresource: None,
            name: Some(format!("{} {resource}{below}", verb.name())),
        };
        let answer: SelfSubjectAccessReview = self.ask(&operation, &request).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// Returns the version of the API server.
    ///
    /// # Errors
    ///
    /// Fails if the API server is unreachable or denies the request.
    pub async fn version(&self) -> Result<ServerVersion, ClusterError> {
        let request = Request::get("/version").body(Vec::new()).expect("the path is one");
        let operation =
            ApiOperation { verb: Verb::Get, resource: "version", subresource: None, name: None };
        self.ask(&operation, &request).await
    }
}
