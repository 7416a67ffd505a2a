//! Probes and lifecycle hooks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use oci_hooks_engine::container::{ContainerAction, HealthPolicy, StopPolicy};

use container_hook_job::template::{FieldPath, TemplateFault};

/// Timeout of a `postStart` hook; Kubernetes waits without limit.
pub const POST_START_TIMEOUT: Duration = Duration::from_secs(600);
/// Default termination grace period of Kubernetes.
const GRACE_SECONDS: i64 = 30;

/// An action that may need the container's own address, which is not known yet.
#[derive(Clone, Debug)]
pub enum ProbeAction {
    /// Independent of the container's address.
    Complete(ContainerAction),
    OwnTcp {
        port: u16,
    },
    OwnHttp {
        scheme: &'static str,
        port: u16,
        path: String,
        headers: Vec<(String, String)>,
    },
}

/// A probe; the address in `health.check` is a placeholder.
#[derive(Clone, Debug)]
pub struct HealthPlan {
    action: ProbeAction,
    health: HealthPolicy,
}

/// The stop sequence of a container.
#[derive(Clone, Debug)]
pub struct StopPlan {
    before: Option<ProbeAction>,
    /// Stop signal; none for the image's.
    signal: Option<String>,
    grace: Duration,
}

/// Returns the health checks that a container has to pass before the job begins, in order.
pub fn checks(container: &Container, place: &FieldPath) -> Result<Vec<HealthPlan>, TemplateFault> {
    let probes = [
        ("startupProbe", &container.startup_probe),
        ("readinessProbe", &container.readiness_probe),
        ("livenessProbe", &container.liveness_probe),
    ];
    let probes = probes.into_iter().filter_map(|(name, probe)| Some((name, probe.as_ref()?)));
    let target = ProbeTarget { container };
    probes.map(|(name, probe)| target.health(probe, &place.at(name))).collect()
}

/// Returns the `postStart` hook of a container; `place` is the path of the handler.
pub fn post_start(
    container: &Container,
    place: &FieldPath,
) -> Result<Option<ProbeAction>, TemplateFault> {
    let lifecycle = container.lifecycle.as_ref();
    let Some(handler) = lifecycle.and_then(|all| all.post_start.as_ref()) else { return Ok(None) };
    ProbeTarget { container }.handler(handler, place).map(Some)
}

/// Returns the stop sequence of a container, if the template sets any part of it; `grace_seconds` is the pod's.
pub fn stop(
    container: &Container,
    place: &FieldPath,
    grace_seconds: Option<i64>,
) -> Result<Option<StopPlan>, TemplateFault> {
    let place = place.at("lifecycle");
    let lifecycle = container.lifecycle.as_ref();
    let handler = lifecycle.and_then(|all| all.pre_stop.as_ref());
    let own_signal = lifecycle.and_then(|all| all.stop_signal.as_deref());
    if handler.is_none() && own_signal.is_none() && grace_seconds.is_none() {
        return Ok(None);
    }
    let target = ProbeTarget { container };
    let before =
        handler.map(|handler| target.handler(handler, &place.at("preStop"))).transpose()?;
    let seconds = grace_seconds.unwrap_or(GRACE_SECONDS);
    Ok(Some(StopPlan {
        before,
        signal: own_signal.map(str::to_owned),
        grace: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    }))
}

impl ProbeAction {
    /// Returns the action, on loopback if the container has no address.
    pub fn to_container_action(&self, address: Option<IpAddr>) -> ContainerAction {
        let own = |port| SocketAddr::new(address.unwrap_or(IpAddr::from([127, 0, 0, 1])), port);
        match self {
            ProbeAction::Complete(action) => action.clone(),
            ProbeAction::OwnTcp { port } => ContainerAction::Tcp(own(*port)),
            ProbeAction::OwnHttp { scheme, port, path, headers } => ContainerAction::Http {
                url: format!("{scheme}://{}/{path}", own(*port)),
                headers: headers.clone(),
            },
        }
    }
}

impl HealthPlan {
    /// Returns the health check of a container with this address.
    pub fn to_health_policy(&self, address: Option<IpAddr>) -> HealthPolicy {
        HealthPolicy { check: self.action.to_container_action(address), ..self.health.clone() }
    }
}

impl StopPlan {
    /// Returns the stop sequence of a container with this address; `signal` is the image's.
    pub fn to_stop_policy(&self, address: Option<IpAddr>, signal: Option<&str>) -> StopPolicy {
        StopPolicy {
            before: self.before.as_ref().map(|action| action.to_container_action(address)),
            signal: Some(self.signal.as_deref().or(signal).unwrap_or("SIGTERM").to_owned()),
            grace: self.grace,
        }
    }
}

/// The container that is probed.
#[derive(Clone, Copy)]
struct ProbeTarget<'a> {
    container: &'a Container,
}

impl ProbeTarget<'_> {
    fn health(self, probe: &Probe, place: &FieldPath) -> Result<HealthPlan, TemplateFault> {
        let action = match (&probe.exec, &probe.http_get, &probe.tcp_socket) {
            (Some(action), None, None) => command(action, &place.at("exec"))?,
            (None, Some(action), None) => self.http(action, &place.at("httpGet"))?,
            (None, None, Some(action)) => self.tcp(action, &place.at("tcpSocket"))?,
            _ => return Err(place.fault("needs one of `exec`, `httpGet` and `tcpSocket`")),
        };
        let seconds = |value: Option<i32>, default: u64| {
            let value = value.and_then(|value| u64::try_from(value).ok());
            Duration::from_secs(value.filter(|value| *value > 0).unwrap_or(default))
        };
        let count = |value: Option<i32>, default: u32| {
            let value = value.and_then(|value| u32::try_from(value).ok());
            value.filter(|value| *value > 0).unwrap_or(default)
        };
        let health = HealthPolicy {
            check: action.to_container_action(None),
            interval: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            start_period: seconds(probe.initial_delay_seconds, 0),
            start_interval: seconds(probe.period_seconds, 10),
            retries: count(probe.failure_threshold, 3),
            successes: count(probe.success_threshold, 1),
        };
        Ok(HealthPlan { action, health })
    }

    fn handler(
        self,
        handler: &LifecycleHandler,
        place: &FieldPath,
    ) -> Result<ProbeAction, TemplateFault> {
        match (&handler.exec, &handler.http_get, &handler.sleep) {
            (Some(action), None, None) => command(action, &place.at("exec")),
            (None, Some(action), None) => self.http(action, &place.at("httpGet")),
            (None, None, Some(action)) => {
                let seconds = u64::try_from(action.seconds).unwrap_or(0);
                Ok(ProbeAction::Complete(ContainerAction::Sleep(Duration::from_secs(seconds))))
            }
            _ => Err(place.fault("needs one of `exec`, `httpGet` and `sleep`")),
        }
    }

    fn http(self, action: &HTTPGetAction, place: &FieldPath) -> Result<ProbeAction, TemplateFault> {
        let scheme = match action.scheme.as_deref() {
            None | Some("HTTP") => "http",
            Some("HTTPS") => "https",
            Some(other) => {
                let problem = format!("{other:?} is neither `HTTP` nor `HTTPS`");
                return Err(place.at("scheme").fault(problem));
            }
        };
        let port = self.port(&action.port, place)?;
        let path = action.path.as_deref().unwrap_or("/").trim_start_matches('/');
        let headers = action.http_headers.iter().flatten();
        let headers = headers.map(|one| (one.name.clone(), one.value.clone())).collect();
        Ok(match &action.host {
            Some(host) => {
                let url = format!("{scheme}://{host}:{port}/{path}");
                ProbeAction::Complete(ContainerAction::Http { url, headers })
            }
            None => ProbeAction::OwnHttp { scheme, port, path: path.to_owned(), headers },
        })
    }

    fn tcp(
        self,
        action: &TCPSocketAction,
        place: &FieldPath,
    ) -> Result<ProbeAction, TemplateFault> {
        let port = self.port(&action.port, place)?;
        let Some(host) = &action.host else { return Ok(ProbeAction::OwnTcp { port }) };
        let address: IpAddr = host
            .parse()
            .map_err(|_| place.at("host").fault(format!("{host:?} is not an IP address")))?;
        Ok(ProbeAction::Complete(ContainerAction::Tcp(SocketAddr::new(address, port))))
    }

    fn port(self, port: &IntOrString, place: &FieldPath) -> Result<u16, TemplateFault> {
        let number = match port {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => {
                let mut ports = self.container.ports.iter().flatten();
                let named = ports.find(|port| port.name.as_ref() == Some(name));
                named.map(|port| port.container_port).or_else(|| name.parse().ok())
            }
        };
        let number = number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
        number.ok_or_else(|| {
            let problem = "is neither a port nor the name of one of the container's `ports`";
            place.at("port").fault(problem)
        })
    }
}

fn command(action: &ExecAction, place: &FieldPath) -> Result<ProbeAction, TemplateFault> {
    match &action.command {
        Some(command) if !command.is_empty() => {
            Ok(ProbeAction::Complete(ContainerAction::Command(command.clone())))
        }
        _ => Err(place.at("command").fault("is empty: name a program")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pod::testing::merge_template;

    fn checked(probe: &Value, address: Option<&str>) -> Result<HealthPolicy, String> {
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let container = json!({"name": "a", "ports": ports, "readinessProbe": probe});
        let container: Container = serde_json::from_value(container).unwrap();
        let address = address.map(|address| address.parse().unwrap());
        checks(&container, &merge_template(&json!({})).1)
            .map(|all| all[0].to_health_policy(address))
            .map_err(|fault| fault.problem)
    }

    #[test]
    fn probe_defaults_match_kubernetes() {
        let health = checked(&json!({"exec": {"command": ["a", "b"]}}), None).unwrap();
        let expected = HealthPolicy {
            check: ContainerAction::Command(vec!["a".to_owned(), "b".to_owned()]),
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(1),
            start_period: Duration::ZERO,
            start_interval: Duration::from_secs(10),
            retries: 3,
            successes: 1,
        };
        assert_eq!(health, expected);
    }

    #[test]
    fn ports_are_given_by_number_or_name() {
        let url = |probe: Value, address: Option<&str>| match checked(&probe, address)?.check {
            ContainerAction::Http { url, .. } => Ok(url),
            other => Err(format!("{other:?}")),
        };
        let named = json!({"httpGet": {"port": "web", "path": "/health?x=1"}});
        assert_eq!(url(named, Some("10.1.2.3")).unwrap(), "http://10.1.2.3:8080/health?x=1");
        let secure = json!({"httpGet": {"port": 443, "scheme": "HTTPS"}});
        assert_eq!(url(secure, Some("fd00::1")).unwrap(), "https://[fd00::1]:443/");
        let elsewhere = json!({"httpGet": {"port": "81", "host": "example.com"}});
        assert_eq!(url(elsewhere, None).unwrap(), "http://example.com:81/");
        let tcp = checked(&json!({"tcpSocket": {"port": 5432}}), None).unwrap();
        assert_eq!(tcp.check, ContainerAction::Tcp("127.0.0.1:5432".parse().unwrap()));
        for probe in [
            json!({"httpGet": {"port": "none"}}),
            json!({"tcpSocket": {"port": 70000}}),
            json!({"tcpSocket": {"port": 1, "host": "name"}}),
            json!({"exec": {}}),
            json!({"periodSeconds": 1}),
        ] {
            assert!(checked(&probe, None).is_err(), "{probe}");
        }
    }

    #[test]
    fn container_is_stopped_gracefully_if_the_template_configures_it() {
        let place = merge_template(&json!({})).1;
        let stopped = |lifecycle: Value, grace| {
            let container = json!({"name": "a", "lifecycle": lifecycle});
            let container = serde_json::from_value(container).unwrap();
            let stop = stop(&container, &place, grace).unwrap();
            stop.map(|stop| stop.to_stop_policy(None, Some("SIGQUIT")))
        };
        assert_eq!(stopped(json!({}), None), None);
        let asked = stopped(json!({}), Some(5)).unwrap();
        assert_eq!((asked.signal.as_deref(), asked.grace.as_secs()), (Some("SIGQUIT"), 5));
        let sleep = json!({"stopSignal": "SIGINT", "preStop": {"sleep": {"seconds": 2}}});
        let asked = stopped(sleep, None).unwrap();
        assert_eq!((asked.signal.as_deref(), asked.grace.as_secs()), (Some("SIGINT"), 30));
        assert_eq!(asked.before, Some(ContainerAction::Sleep(Duration::from_secs(2))));
    }
}
