//! What the API server refused, and why it could not be asked.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use kube::config::{InClusterError, KubeconfigError};
use kube::core::response::Status;

/// A cluster could not be asked, or said no.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    #[error("cannot use the kubeconfig")]
    Kubeconfig(#[source] Box<KubeconfigError>),
    #[error(
        "no cluster is configured: no kubeconfig, and not in a pod with a service account ({in_cluster})"
    )]
    NotConfigured { in_cluster: Box<InClusterError> },
    #[error(
        "no namespace is configured: set `namespace` under [kubernetes], \
         ACTIONS_RUNNER_KUBERNETES_NAMESPACE, or that of a context of the kubeconfig"
    )]
    NoNamespace,
    /// What the configuration names cannot be used: certificates, keys, a proxy.
    #[error("cannot connect to the cluster: {problem}")]
    Connect { problem: String },
    #[error("cannot start the runtime of the connection")]
    Runtime(#[source] std::io::Error),
    #[error("cannot {operation}")]
    Call {
        operation: Operation,
        #[source]
        fault: Fault,
    },
}

impl ClusterError {
    /// Returns what the API server said, if it was it that refused the call.
    #[must_use]
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            ClusterError::Call { fault: Fault::Refused(refusal), .. } => Some(refusal),
            _ => None,
        }
    }

    /// Returns whether a quota has no room for what was to be made.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_quota)
    }

    /// Returns whether we are unknown, or may not do that. A server that has just been started says so of
    /// everybody, until it has read its Roles.
    pub(super) fn is_denied(&self) -> bool {
        self.refusal().is_some_and(Refusal::is_denied)
    }

    /// Returns whether the same call may work later on.
    pub(in crate::container_hook::kubernetes) fn may_pass(&self) -> bool {
        matches!(self, ClusterError::Call { fault, .. } if fault.may_pass())
    }
}

/// What was asked of the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    pub verb: Verb,
    /// As a Role has it: `pods`, `secrets`.
    pub resource: &'static str,
    /// As `exec` of `pods/exec`.
    pub subresource: Option<&'static str>,
    pub name: Option<String>,
}

/// What is done to a resource, as a Role has it.
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
    /// Returns the word that a Role has for it.
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

impl Operation {
    /// Returns the rule of a Role that permits it.
    #[must_use]
    pub fn rule(&self) -> String {
        let Operation { verb, resource, subresource, .. } = self;
        let resource = match subresource {
            Some(subresource) => format!("{resource}/{subresource}"),
            None => (*resource).to_owned(),
        };
        format!("{{apiGroups: [\"\"], resources: [{resource}], verbs: [{}]}}", verb.name())
    }
}

impl Display for Operation {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Operation { verb, resource, subresource, name } = self;
        let name = name.as_deref().unwrap_or_default();
        let one = resource.strip_suffix('s').unwrap_or(resource);
        match (subresource, verb) {
            (Some("exec"), _) => write!(formatter, "start a program in pod {name}"),
            (Some("log"), _) => write!(formatter, "read the log of pod {name}"),
            (_, Verb::List) => write!(formatter, "list {resource}"),
            (_, Verb::Get) => write!(formatter, "read {one} {name}"),
            (_, verb) => write!(formatter, "{} {one} {name}", verb.name()),
        }
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    #[error(transparent)]
    Refused(Box<Refusal>),
    #[error("the API server cannot be reached: {problem}")]
    Unreachable {
        problem: String,
        /// Whether that will be so the next time too.
        permanent: bool,
    },
    #[error("the API server did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("invalid response from the API server: {problem}")]
    Malformed { problem: String },
    #[error("the request cannot be made: {problem}")]
    Request { problem: String },
    #[error("one of the same name exists, and is not being removed")]
    Exists,
    #[error("one of the same name is still being removed after {} s", .0.as_secs())]
    Going(Duration),
}

impl Fault {
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Fault::Refused(refusal) => refusal.may_pass(),
            Fault::Unreachable { permanent, .. } => !permanent,
            Fault::TimedOut(_) => true,
            _ => false,
        }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Fault::Refused(refusal) => refusal.retry_after,
            _ => None,
        }
    }

    /// Returns the fault of a call that never got an answer.
    pub(super) fn of_connection(error: &kube::Error) -> Self {
        let permanent = matches!(error, kube::Error::Auth(_)) || is_certificate(error);
        Fault::Unreachable { problem: innermost(error), permanent }
    }
}

/// What the API server answered instead of what was asked for.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    /// Of HTTP.
    pub code: u16,
    /// As `AlreadyExists`; empty if none was given.
    pub reason: String,
    pub message: String,
    /// Each field that is wrong, and what is wrong with it.
    pub causes: Vec<(String, String)>,
    /// How long the server wants to be left alone.
    pub retry_after: Option<Duration>,
    /// The rule that the Role lacks, if that is why.
    pub rule: Option<String>,
}

impl Error for Refusal {}

impl Refusal {
    /// Reads an answer that is no success.
    pub(super) fn new(
        operation: &Operation,
        code: u16,
        retry_after: Option<&str>,
        body: &[u8],
    ) -> Self {
        let status: Status = serde_json::from_slice(body).unwrap_or_default();
        let details = status.details.unwrap_or_default_details();
        let seconds = retry_after.and_then(|seconds| seconds.trim().parse().ok());
        let seconds = seconds.or((details.0 > 0).then_some(u64::from(details.0)));
        let message = match status.message {
            message if !message.is_empty() => message,
            // A load balancer's own words.
            _ => first_line(body),
        };
        let is_rbac = code == 403 && message.contains(" cannot ");
        Refusal {
            code,
            reason: status.reason,
            message,
            causes: details.1,
            retry_after: seconds.map(Duration::from_secs),
            rule: is_rbac.then(|| operation.rule()),
        }
    }

    /// Returns whether the same call may work later on.
    pub(super) fn may_pass(&self) -> bool {
        match self.code {
            408 | 429 => true,
            // These are about the request.
            501 | 505 => false,
            code => code >= 500,
        }
    }

    pub(super) fn is_denied(&self) -> bool {
        self.code == 401 || self.rule.is_some()
    }

    fn is_quota(&self) -> bool {
        self.code == 403 && self.message.contains("exceeded quota")
    }
}

/// What is read of the details of a status: seconds to wait, and causes.
trait Details {
    fn unwrap_or_default_details(self) -> (u32, Vec<(String, String)>);
}

impl Details for Option<kube::core::response::StatusDetails> {
    fn unwrap_or_default_details(self) -> (u32, Vec<(String, String)>) {
        self.map_or((0, Vec::new()), |details| {
            let causes = details.causes.into_iter().filter(|cause| !cause.message.is_empty());
            let causes = causes.map(|cause| (cause.field, cause.message)).collect();
            (details.retry_after_seconds, causes)
        })
    }
}

impl Display for Refusal {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Refusal { code, message, causes, rule, .. } = self;
        let fields = causes.iter().filter(|(field, _)| !field.is_empty());
        let fields: Vec<_> = fields.map(|(field, problem)| format!("{field}: {problem}")).collect();
        match (message.is_empty(), *code == 422 && !fields.is_empty()) {
            (_, true) => formatter.write_str(&fields.join("; "))?,
            (true, _) => write!(formatter, "the API server answered with code {code}")?,
            (false, _) => formatter.write_str(message)?,
        }
        match rule {
            Some(rule) => write!(formatter, "; the Role of the service account needs {rule}"),
            None => Ok(()),
        }
    }
}

/// Returns the beginning of a body that is no status, if it is text.
fn first_line(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    match line.starts_with(['{', '<']) {
        true => String::new(),
        false => line.chars().filter(|char| !char.is_control()).take(200).collect(),
    }
}

/// Returns the cause of all causes, which says more than those around it.
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error.to_string()
}

/// Returns whether a connection failed for what a certificate says.
fn is_certificate(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // An error of a stream hides the one that it is made of from `source`.
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
    use super::*;
    use crate::sys::error::chain;

    fn create() -> Operation {
        Operation {
            verb: Verb::Create,
            resource: "pods",
            subresource: None,
            name: Some("a".to_owned()),
        }
    }

    fn said(operation: Operation, code: u16, body: &str) -> String {
        let refusal = Refusal::new(&operation, code, None, body.as_bytes());
        chain(&ClusterError::Call { operation, fault: Fault::Refused(Box::new(refusal)) })
    }

    #[test]
    fn what_the_role_lacks_is_said_as_a_rule() {
        let body = r#"{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,
            "message":"pods is forbidden: User \"u\" cannot create resource \"pods\" in API group \"\""}"#;
        assert_eq!(
            said(create(), 403, body),
            "cannot create pod a: pods is forbidden: User \"u\" cannot create resource \"pods\" in \
             API group \"\"; the Role of the service account needs \
             {apiGroups: [\"\"], resources: [pods], verbs: [create]}"
        );
        let exec = Operation { verb: Verb::Get, subresource: Some("exec"), ..create() };
        assert!(said(exec, 403, body).ends_with("resources: [pods/exec], verbs: [get]}"));
    }

    #[test]
    fn a_quota_or_an_admission_is_no_matter_of_roles() {
        let body =
            r#"{"reason":"Forbidden","message":"pods \"a\" is forbidden: exceeded quota: q"}"#;
        let refusal = Refusal::new(&create(), 403, None, body.as_bytes());
        assert!(refusal.is_quota() && refusal.rule.is_none() && !refusal.may_pass());
        let body = r#"{"message":"pods \"a\" is forbidden: violates PodSecurity \"restricted\""}"#;
        let refusal = Refusal::new(&create(), 403, None, body.as_bytes());
        assert!(!refusal.is_quota() && refusal.rule.is_none());
    }

    #[test]
    fn fields_that_are_wrong_are_named() {
        let body = r#"{"message":"Pod \"a\" is invalid: [long]","reason":"Invalid","details":{"causes":[
            {"reason":"FieldValueRequired","message":"Required value","field":"spec.containers[0].image"},
            {"reason":"FieldValueInvalid","message":"Invalid value: \"A\"","field":"metadata.name"}]}}"#;
        assert_eq!(
            said(create(), 422, body),
            "cannot create pod a: spec.containers[0].image: Required value; metadata.name: Invalid \
             value: \"A\""
        );
    }

    #[test]
    fn what_is_no_status_is_never_shown_as_json_or_html() {
        for (body, expected) in [
            ("upstream connect error\nmore", "cannot create pod a: upstream connect error"),
            ("{\"x\": 1}", "cannot create pod a: the API server answered with code 503"),
            ("<html>", "cannot create pod a: the API server answered with code 503"),
            ("", "cannot create pod a: the API server answered with code 503"),
            ("a\x1b[2Jb", "cannot create pod a: a[2Jb"),
        ] {
            assert_eq!(said(create(), 503, body), expected);
        }
    }

    #[test]
    fn only_what_may_pass_is_repeated() {
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
            let refusal = Refusal { code, ..Refusal::default() };
            assert_eq!(refusal.may_pass(), expected, "{code}");
        }
    }

    #[test]
    fn the_server_says_how_long_to_wait_by_either_of_two_ways() {
        let body = r#"{"details":{"retryAfterSeconds":3}}"#;
        let after =
            |header, body: &str| Refusal::new(&create(), 429, header, body.as_bytes()).retry_after;
        assert_eq!(after(None, body), Some(Duration::from_secs(3)));
        assert_eq!(after(Some("7"), body), Some(Duration::from_secs(7)));
        assert_eq!(after(Some("Fri, 31 Dec 1999 23:59:59 GMT"), "{}"), None);
    }
}
