//! Errors of the API server and of the connection to it.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use kube::config::{InClusterError, KubeconfigError};
use kube::core::response::Status;

/// Errors of using a cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("cannot use the kubeconfig (KUBECONFIG or ~/.kube/config)")]
    Kubeconfig(#[source] Box<KubeconfigError>),
    #[error(
        "no cluster is configured: there is no kubeconfig (KUBECONFIG or ~/.kube/config), and this process is \
         not in a pod with a service account ({in_cluster})"
    )]
    NotConfigured { in_cluster: Box<InClusterError> },
    #[error(
        "no namespace is configured: set `namespace` under [kubernetes] of the settings, \
         ACTIONS_RUNNER_KUBERNETES_NAMESPACE, or the namespace of the kubeconfig's context"
    )]
    NoNamespace,
    /// Certificates, keys or a proxy of the configuration cannot be used.
    #[error("cannot set up the connection to the cluster: {problem}")]
    Connect { problem: String },
    #[error("cannot start the async runtime for the connection to the cluster")]
    Runtime(#[source] std::io::Error),
    #[error("cannot {operation}")]
    Call {
        operation: ApiOperation,
        #[source]
        fault: CallFault,
    },
}

impl ClusterError {
    /// Returns the API server's answer, if it rejected the call.
    #[must_use]
    pub fn rejection(&self) -> Option<&ApiRejection> {
        match self {
            ClusterError::Call { fault: CallFault::Rejected(rejection), .. } => Some(rejection),
            _ => None,
        }
    }

    /// Returns whether the API server or an admission rule rejected the new object for its content.
    pub(crate) fn is_invalid_object(&self) -> bool {
        self.rejection().is_some_and(|rejection| {
            let is_of_content = matches!(rejection.code, 400 | 403 | 422);
            is_of_content && !rejection.is_quota() && rejection.hint.is_none()
        })
    }

    /// Returns whether a quota rejected the new object.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.rejection().is_some_and(ApiRejection::is_quota)
    }

    /// Returns whether the caller is unknown or lacks a permission. A restarted server denies all calls until
    /// it has read its Roles.
    pub(super) fn is_denied(&self) -> bool {
        self.rejection().is_some_and(ApiRejection::is_denied)
    }

    /// Returns whether a retry may succeed.
    pub(crate) fn is_temporary(&self) -> bool {
        matches!(self, ClusterError::Call { fault, .. } if fault.is_temporary())
    }
}

/// An operation of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiOperation {
    pub verb: Verb,
    /// Name in a Role: `pods`, `secrets`.
    pub resource: &'static str,
    /// Subresource, such as the `exec` of `pods/exec`.
    pub subresource: Option<&'static str>,
    pub name: Option<String>,
}

/// Verb of an operation, in a Role's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Delete,
    Patch,
}

impl Verb {
    /// Returns the verb's name in a Role.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Verb::Get => "get",
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Create => "create",
            Verb::Delete => "delete",
            Verb::Patch => "patch",
        }
    }
}

impl ApiOperation {
    /// Returns the rule of a Role or ClusterRole that permits the operation.
    #[must_use]
    pub fn rule(&self) -> String {
        let (resource, verbs) = (self.full_resource(), self.verbs());
        let group = match self.resource {
            "version" => return format!("{{nonResourceURLs: [/version], verbs: [{verbs}]}}"),
            "selfsubjectaccessreviews" => "authorization.k8s.io",
            _ => "\"\"",
        };
        format!("{{apiGroups: [{group}], resources: [{resource}], verbs: [{verbs}]}}")
    }

    /// Returns the hint to add the rule that permits the operation.
    fn hint(&self) -> String {
        let role = match self.resource {
            // Both are outside of namespaces.
            "selfsubjectaccessreviews" | "version" => "a ClusterRole bound to the service account",
            _ => "the service account's Role",
        };
        format!("add this line to `rules` of {role}: - {}", self.rule())
    }

    /// Returns the resource as a Role names it: `pods/exec`.
    fn full_resource(&self) -> String {
        let ApiOperation { resource, subresource, .. } = self;
        match subresource {
            Some(subresource) => format!("{resource}/{subresource}"),
            None => (*resource).to_owned(),
        }
    }

    /// Returns the verbs that the operation needs. For `exec`, the verb depends on the version of Kubernetes.
    fn verbs(&self) -> &'static str {
        match self.subresource {
            Some("exec") => "create, get",
            _ => self.verb.name(),
        }
    }
}

impl Display for ApiOperation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let ApiOperation { verb, resource, subresource, name } = self;
        let name = name.as_deref().unwrap_or_default();
        let one = resource.strip_suffix('s').unwrap_or(resource);
        match (subresource, verb) {
            _ if *resource == "version" => {
                formatter.write_str("read the version of the API server")
            }
            _ if *resource == "selfsubjectaccessreviews" => {
                write!(formatter, "check the permission to {name}")
            }
            (Some("exec"), _) => write!(formatter, "start a program in pod {name}"),
            (Some("log"), _) => write!(formatter, "read the log of pod {name}"),
            (_, Verb::List) => write!(formatter, "list {resource}"),
            (_, Verb::Get) => write!(formatter, "read {one} {name}"),
            (_, verb) => write!(formatter, "{} {one} {name}", verb.name()),
        }
    }
}

/// Reasons of a failed call.
#[derive(Debug, thiserror::Error)]
pub enum CallFault {
    #[error(transparent)]
    Rejected(Box<ApiRejection>),
    #[error("the API server cannot be reached: {problem}")]
    Unreachable {
        problem: String,
        /// If set, a retry fails too.
        permanent: bool,
    },
    #[error("the API server did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("invalid response from the API server: {problem}")]
    Malformed { problem: String },
    #[error("invalid request: {problem}")]
    Request { problem: String },
}

impl CallFault {
    pub(super) fn is_temporary(&self) -> bool {
        match self {
            CallFault::Rejected(rejection) => rejection.is_temporary(),
            CallFault::Unreachable { permanent, .. } => !permanent,
            CallFault::TimedOut(_) => true,
            _ => false,
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            CallFault::Rejected(rejection) => rejection.retry_after,
            _ => None,
        }
    }

    /// Returns the fault of a call without an answer.
    pub(super) fn of_connection(error: &kube::Error) -> Self {
        let permanent = matches!(error, kube::Error::Auth(_)) || is_certificate(error);
        CallFault::Unreachable { problem: innermost_cause(error), permanent }
    }
}

/// An error response of the API server.
#[derive(Clone, Debug, Default)]
pub struct ApiRejection {
    pub code: u16,
    /// Reason such as `AlreadyExists`; may be empty.
    pub reason: String,
    pub message: String,
    /// Each invalid field with its problem.
    pub causes: Vec<(String, String)>,
    /// Time to wait before a retry, from the server's `Retry-After`; `None` without one.
    pub retry_after: Option<Duration>,
    /// Hint that names the missing rule of a Role or ClusterRole, if that is the reason.
    pub hint: Option<String>,
}

impl Error for ApiRejection {}

impl ApiRejection {
    pub(super) fn new(
        operation: &ApiOperation,
        code: u16,
        retry_after: Option<&str>,
        body: &[u8],
    ) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let details = status.details.map(|details| (details.retry_after_seconds, details.causes));
        let (wait, causes) = details.unwrap_or_default();
        let causes = causes.into_iter().filter(|cause| !cause.message.is_empty());
        let seconds = retry_after.and_then(|seconds| seconds.trim().parse().ok());
        let seconds = seconds.or((wait > 0).then_some(u64::from(wait)));
        let message = match status.message {
            message if !message.is_empty() => message,
            // The text of a load balancer.
            _ => first_line(body),
        };
        // Admission plugins and quotas give a reason after "forbidden: ". Kubernetes 1.35 gives none if the
        // Role lacks the verb `create` of `pods/exec`.
        let gives_no_reason = message.trim_end().ends_with("forbidden:");
        let is_rbac = code == 403 && (gives_no_reason || message.contains(" cannot "));
        let message = match gives_no_reason {
            true => {
                let (message, verbs) = (message.trim_end(), operation.verbs());
                let resource = operation.full_resource();
                format!(
                    "{message} the service account lacks a permission for {resource} (needed: {verbs})"
                )
            }
            false => message,
        };
        ApiRejection {
            code,
            reason: status.reason,
            message,
            causes: causes.map(|cause| (cause.field, cause.message)).collect(),
            retry_after: seconds.map(Duration::from_secs),
            hint: is_rbac.then(|| operation.hint()),
        }
    }

    /// Returns whether a retry may succeed.
    pub(super) fn is_temporary(&self) -> bool {
        match self.code {
            408 | 429 => true,
            // These codes depend on the request only.
            501 | 505 => false,
            code => code >= 500,
        }
    }

    pub(super) fn is_denied(&self) -> bool {
        self.code == 401 || self.hint.is_some()
    }

    fn is_quota(&self) -> bool {
        self.code == 403 && self.message.contains("exceeded quota")
    }
}

impl Display for ApiRejection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let ApiRejection { code, message, causes, hint, .. } = self;
        let fields = causes.iter().filter(|(field, _)| !field.is_empty());
        let fields: Vec<_> = fields.map(|(field, problem)| format!("{field}: {problem}")).collect();
        match (message.is_empty(), *code == 422 && !fields.is_empty()) {
            (_, true) => formatter.write_str(&fields.join("; "))?,
            (true, _) => write!(formatter, "the API server answered with code {code}")?,
            (false, _) => formatter.write_str(message)?,
        }
        match hint {
            Some(hint) => write!(formatter, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Returns the first line of a plain text body.
fn first_line(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    match line.starts_with(['{', '<']) {
        true => String::new(),
        false => line.chars().filter(|char| !char.is_control()).take(200).collect(),
    }
}

/// Returns the innermost cause, which is more specific than the errors around it.
pub fn innermost_cause(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

/// Returns whether a connection failed because of a certificate.
fn is_certificate(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // `io::Error` does not return its inner error from `source`.
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(_)) = inner.or(error.downcast_ref()) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use oci_hooks_files::error::chain;

    use super::*;

    fn create() -> ApiOperation {
        ApiOperation {
            verb: Verb::Create,
            resource: "pods",
            subresource: None,
            name: Some("a".to_owned()),
        }
    }

    fn rejection_message(operation: ApiOperation, code: u16, body: &str) -> String {
        let rejection = ApiRejection::new(&operation, code, None, body.as_bytes());
        chain(&ClusterError::Call { operation, fault: CallFault::Rejected(Box::new(rejection)) })
    }

    #[test]
    fn missing_permission_is_shown_as_a_role_rule() {
        let body = r#"{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,
            "message":"pods is forbidden: User \"u\" cannot create resource \"pods\" in API group \"\""}"#;
        assert_eq!(
            rejection_message(create(), 403, body),
            "cannot create pod a: pods is forbidden: User \"u\" cannot create resource \"pods\" in \
             API group \"\"; add this line to `rules` of the service account's Role: - \
             {apiGroups: [\"\"], resources: [pods], verbs: [create]}"
        );
        let exec = ApiOperation { verb: Verb::Get, subresource: Some("exec"), ..create() };
        assert!(
            rejection_message(exec.clone(), 403, body)
                .ends_with("resources: [pods/exec], verbs: [create, get]}")
        );
        // As Kubernetes 1.35 answers without the verb `create`.
        let body = r#"{"reason":"Forbidden","code":403,"message":"pods \"a\" is forbidden: "}"#;
        assert_eq!(
            rejection_message(exec, 403, body),
            "cannot start a program in pod a: pods \"a\" is forbidden: the service account lacks a permission \
             for pods/exec (needed: create, get); add this line to `rules` of the service account's Role: - \
             {apiGroups: [\"\"], resources: [pods/exec], verbs: [create, get]}"
        );
    }

    #[test]
    fn missing_permission_outside_of_namespaces_is_shown_as_a_clusterrole_rule() {
        for (verb, resource, denial, expected) in [
            (
                Verb::Get,
                "version",
                "path \"/version\"",
                "nonResourceURLs: [/version], verbs: [get]",
            ),
            (
                Verb::Create,
                "selfsubjectaccessreviews",
                "resource \"selfsubjectaccessreviews\" in API group \"authorization.k8s.io\" at the cluster scope",
                "apiGroups: [authorization.k8s.io], resources: [selfsubjectaccessreviews], verbs: [create]",
            ),
        ] {
            let operation = ApiOperation { verb, resource, subresource: None, name: None };
            let message = format!("forbidden: User \"u\" cannot {} {denial}", verb.name());
            let body = serde_json::json!({ "message": message }).to_string();
            let rejection = ApiRejection::new(&operation, 403, None, body.as_bytes());
            assert!(rejection.is_denied());
            assert_eq!(
                rejection.to_string(),
                format!(
                    "{message}; add this line to `rules` of a ClusterRole bound to the service account: - {{{expected}}}"
                )
            );
        }
    }

    #[test]
    fn quotas_and_admission_are_not_reported_as_missing_roles() {
        let body =
            r#"{"reason":"Forbidden","message":"pods \"a\" is forbidden: exceeded quota: q"}"#;
        let rejection = ApiRejection::new(&create(), 403, None, body.as_bytes());
        assert!(rejection.is_quota() && rejection.hint.is_none() && !rejection.is_temporary());
        let body = r#"{"message":"pods \"a\" is forbidden: violates PodSecurity \"restricted\""}"#;
        let rejection = ApiRejection::new(&create(), 403, None, body.as_bytes());
        assert!(!rejection.is_quota() && rejection.hint.is_none());
    }

    #[test]
    fn invalid_fields_are_named() {
        let body = r#"{"message":"Pod \"a\" is invalid: [long]","reason":"Invalid","details":{"causes":[
            {"reason":"FieldValueRequired","message":"Required value","field":"spec.containers[0].image"},
            {"reason":"FieldValueInvalid","message":"Invalid value: \"A\"","field":"metadata.name"}]}}"#;
        assert_eq!(
            rejection_message(create(), 422, body),
            "cannot create pod a: spec.containers[0].image: Required value; metadata.name: Invalid \
             value: \"A\""
        );
    }

    #[test]
    fn bodies_that_are_no_status_are_not_shown_as_json_or_html() {
        for (body, expected) in [
            ("upstream connect error\nmore", "cannot create pod a: upstream connect error"),
            ("{\"x\": 1}", "cannot create pod a: the API server answered with code 503"),
            ("<html>", "cannot create pod a: the API server answered with code 503"),
            ("", "cannot create pod a: the API server answered with code 503"),
            ("a\x1b[2Jb", "cannot create pod a: a[2Jb"),
        ] {
            assert_eq!(rejection_message(create(), 503, body), expected);
        }
    }

    #[test]
    fn only_temporary_errors_are_retried() {
        for (code, expected) in [
            (400, false),
            (401, false),
            (403, false),
            (404, false),
            (408, true),
            (409, false),
            (422, false),
            (429, true),
            (500, true),
            (501, false),
            (503, true),
            (504, true),
        ] {
            let rejection = ApiRejection { code, ..ApiRejection::default() };
            assert_eq!(rejection.is_temporary(), expected, "{code}");
        }
    }

    #[test]
    fn retry_delay_is_read_from_header_or_body() {
        let body = r#"{"details":{"retryAfterSeconds":3}}"#;
        let after = |header, body: &str| {
            ApiRejection::new(&create(), 429, header, body.as_bytes()).retry_after
        };
        assert_eq!(after(None, body), Some(Duration::from_secs(3)));
        assert_eq!(after(Some("7"), body), Some(Duration::from_secs(7)));
        assert_eq!(after(Some("Fri, 31 Dec 1999 23:59:59 GMT"), "{}"), None);
    }
}
