//! Probes and lifecycle hooks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::container::{Check, Health, Stop};
use crate::container_hook::template::{Fault, FieldPath};

/// How long a `postStart` hook may take: Kubernetes waits for ever.
pub const POST_START_TIMEOUT: Duration = Duration::from_secs(600);
/// What Kubernetes lets a container that is to end have.
const GRACE_SECONDS: i64 = 30;

/// A check of something that may be at the container's own address, which is not known yet.
#[derive(Clone, Debug)]
pub enum Action {
    /// The address does not matter.
    Check(Check),
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

/// A probe; what its check says of an address does not hold.
#[derive(Clone, Debug)]
pub struct HealthPlan {
    action: Action,
    health: Health,
}

/// How a container is ended.
#[derive(Clone, Debug)]
pub struct StopPlan {
    before: Option<Action>,
    /// None for that of the image.
    signal: Option<String>,
    grace: Duration,
}

/// Returns the checks that a container has to pass before the job begins, in their order.
pub fn checks(container: &Container, place: &FieldPath) -> Result<Vec<HealthPlan>, Fault> {
    let probes = [
        ("startupProbe", &container.startup_probe),
        ("readinessProbe", &container.readiness_probe),
        ("livenessProbe", &container.liveness_probe),
    ];
    let probes = probes.into_iter().filter_map(|(name, probe)| Some((name, probe.as_ref()?)));
    let target = Target { container };
    probes.map(|(name, probe)| target.health(probe, &place.at(name))).collect()
}

/// Returns what is done when a container has started; `place` is that of the handler.
pub fn post_start(container: &Container, place: &FieldPath) -> Result<Option<Action>, Fault> {
    let lifecycle = container.lifecycle.as_ref();
    let Some(handler) = lifecycle.and_then(|all| all.post_start.as_ref()) else { return Ok(None) };
    Target { container }.handler(handler, place).map(Some)
}

/// Returns how a container is ended, if the template says anything of it; `grace_seconds` is of the
/// pod.
pub fn stop(
    container: &Container,
    place: &FieldPath,
    grace_seconds: Option<i64>,
) -> Result<Option<StopPlan>, Fault> {
    let place = place.at("lifecycle");
    let lifecycle = container.lifecycle.as_ref();
    let handler = lifecycle.and_then(|all| all.pre_stop.as_ref());
    let own_signal = lifecycle.and_then(|all| all.stop_signal.as_deref());
    if handler.is_none() && own_signal.is_none() && grace_seconds.is_none() {
        return Ok(None);
    }
    let target = Target { container };
    let before =
        handler.map(|handler| target.handler(handler, &place.at("preStop"))).transpose()?;
    let seconds = grace_seconds.unwrap_or(GRACE_SECONDS);
    Ok(Some(StopPlan {
        before,
        signal: own_signal.map(str::to_owned),
        grace: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    }))
}

impl Action {
    /// Returns the check; a container without an address is alone with its loopback.
    pub(super) fn at(&self, address: Option<IpAddr>) -> Check {
        let own = |port| SocketAddr::new(address.unwrap_or(IpAddr::from([127, 0, 0, 1])), port);
        match self {
            Action::Check(check) => check.clone(),
            Action::OwnTcp { port } => Check::Tcp(own(*port)),
            Action::OwnHttp { scheme, port, path, headers } => Check::Http {
                url: format!("{scheme}://{}/{path}", own(*port)),
                headers: headers.clone(),
            },
        }
    }
}

impl HealthPlan {
    pub(super) fn at(&self, address: Option<IpAddr>) -> Health {
        Health { check: self.action.at(address), ..self.health.clone() }
    }
}

impl StopPlan {
    /// Returns how a container with this address is ended; `signal` is the image's.
    pub fn at(&self, address: Option<IpAddr>, signal: Option<&str>) -> Stop {
        Stop {
            before: self.before.as_ref().map(|action| action.at(address)),
            signal: Some(self.signal.as_deref().or(signal).unwrap_or("SIGTERM").to_owned()),
            grace: self.grace,
        }
    }
}

/// What checks are made of.
#[derive(Clone, Copy)]
struct Target<'a> {
    container: &'a Container,
}

impl Target<'_> {
    fn health(self, probe: &Probe, place: &FieldPath) -> Result<HealthPlan, Fault> {
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
        let health = Health {
            check: action.at(None),
            interval: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            start_period: seconds(probe.initial_delay_seconds, 0),
            start_interval: seconds(probe.period_seconds, 10),
            retries: count(probe.failure_threshold, 3),
            successes: count(probe.success_threshold, 1),
        };
        Ok(HealthPlan { action, health })
    }

    fn handler(self, handler: &LifecycleHandler, place: &FieldPath) -> Result<Action, Fault> {
        match (&handler.exec, &handler.http_get, &handler.sleep) {
            (Some(action), None, None) => command(action, &place.at("exec")),
            (None, Some(action), None) => self.http(action, &place.at("httpGet")),
            (None, None, Some(action)) => {
                let seconds = u64::try_from(action.seconds).unwrap_or(0);
                Ok(Action::Check(Check::Sleep(Duration::from_secs(seconds))))
            }
            _ => Err(place.fault("needs one of `exec`, `httpGet` and `sleep`")),
        }
    }

    fn http(self, action: &HTTPGetAction, place: &FieldPath) -> Result<Action, Fault> {
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
                Action::Check(Check::Http { url, headers })
            }
            None => Action::OwnHttp { scheme, port, path: path.to_owned(), headers },
        })
    }

    fn tcp(self, action: &TCPSocketAction, place: &FieldPath) -> Result<Action, Fault> {
        let port = self.port(&action.port, place)?;
        let Some(host) = &action.host else { return Ok(Action::OwnTcp { port }) };
        let address: IpAddr = host
            .parse()
            .map_err(|_| place.at("host").fault(format!("{host:?} is not an IP address")))?;
        Ok(Action::Check(Check::Tcp(SocketAddr::new(address, port))))
    }

    fn port(self, port: &IntOrString, place: &FieldPath) -> Result<u16, Fault> {
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

fn command(action: &ExecAction, place: &FieldPath) -> Result<Action, Fault> {
    match &action.command {
        Some(command) if !command.is_empty() => Ok(Action::Check(Check::Command(command.clone()))),
        _ => Err(place.at("command").fault("is empty: name a program")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::container_hook::template::fault::tests::merged;

    fn checked(probe: &Value, address: Option<&str>) -> Result<Health, String> {
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let container = json!({"name": "a", "ports": ports, "readinessProbe": probe});
        let container: Container = serde_json::from_value(container).unwrap();
        let address = address.map(|address| address.parse().unwrap());
        checks(&container, &merged(&json!({})).1)
            .map(|all| all[0].at(address))
            .map_err(|fault| fault.problem)
    }

    #[test]
    fn what_a_probe_does_not_say_is_as_on_kubernetes() {
        let health = checked(&json!({"exec": {"command": ["a", "b"]}}), None).unwrap();
        let expected = Health {
            check: Check::Command(vec!["a".to_owned(), "b".to_owned()]),
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
    fn ports_have_numbers_or_names() {
        let url = |probe: Value, address: Option<&str>| match checked(&probe, address)?.check {
            Check::Http { url, .. } => Ok(url),
            other => Err(format!("{other:?}")),
        };
        let named = json!({"httpGet": {"port": "web", "path": "/health?x=1"}});
        assert_eq!(url(named, Some("10.1.2.3")).unwrap(), "http://10.1.2.3:8080/health?x=1");
        let secure = json!({"httpGet": {"port": 443, "scheme": "HTTPS"}});
        assert_eq!(url(secure, Some("fd00::1")).unwrap(), "https://[fd00::1]:443/");
        let elsewhere = json!({"httpGet": {"port": "81", "host": "example.com"}});
        assert_eq!(url(elsewhere, None).unwrap(), "http://example.com:81/");
        let tcp = checked(&json!({"tcpSocket": {"port": 5432}}), None).unwrap();
        assert_eq!(tcp.check, Check::Tcp("127.0.0.1:5432".parse().unwrap()));
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
    fn a_container_is_asked_to_end_if_the_template_says_anything_of_it() {
        let place = merged(&json!({})).1;
        let stopped = |lifecycle: Value, grace| {
            let container = json!({"name": "a", "lifecycle": lifecycle});
            let container = serde_json::from_value(container).unwrap();
            let stop = stop(&container, &place, grace).unwrap();
            stop.map(|stop| stop.at(None, Some("SIGQUIT")))
        };
        assert_eq!(stopped(json!({}), None), None);
        let asked = stopped(json!({}), Some(5)).unwrap();
        assert_eq!((asked.signal.as_deref(), asked.grace.as_secs()), (Some("SIGQUIT"), 5));
        let sleep = json!({"stopSignal": "SIGINT", "preStop": {"sleep": {"seconds": 2}}});
        let asked = stopped(sleep, None).unwrap();
        assert_eq!((asked.signal.as_deref(), asked.grace.as_secs()), (Some("SIGINT"), 30));
        assert_eq!(asked.before, Some(Check::Sleep(Duration::from_secs(2))));
    }
}
