//! Probes and lifecycle hooks.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    Container, ExecAction, HTTPGetAction, LifecycleHandler, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::fault::{Fault, Place};
use crate::container::{Check, Health, Stop};

/// How long a `postStart` hook may take: Kubernetes waits for ever.
pub(in crate::container_hook::engine) const POST_START: Duration = Duration::from_secs(600);
/// What Kubernetes lets a container that is to end have.
const GRACE_SECONDS: i64 = 30;

/// Returns the checks that a container has to pass before the job begins, in their order.
pub(super) fn checks(
    container: &Container,
    place: &Place,
    address: Option<IpAddr>,
) -> Result<Vec<Health>, Fault> {
    let probes = [
        ("startupProbe", &container.startup_probe),
        ("readinessProbe", &container.readiness_probe),
        ("livenessProbe", &container.liveness_probe),
    ];
    let probes = probes.into_iter().filter_map(|(name, probe)| Some((name, probe.as_ref()?)));
    let target = Target { container, address };
    probes.map(|(name, probe)| target.health(probe, &place.at(name))).collect()
}

/// Returns what is done when a container has started.
pub(super) fn post_start(
    container: &Container,
    place: &Place,
    address: Option<IpAddr>,
) -> Result<Option<Check>, Fault> {
    let lifecycle = container.lifecycle.as_ref();
    let Some(handler) = lifecycle.and_then(|all| all.post_start.as_ref()) else { return Ok(None) };
    let place = place.at("lifecycle/postStart");
    Target { container, address }.handler(handler, &place).map(Some)
}

/// Returns how a container is ended, if the template says anything of it; `grace_seconds` is of the
/// pod, `signal` of the image.
pub(super) fn stop(
    container: &Container,
    place: &Place,
    address: Option<IpAddr>,
    (grace_seconds, signal): (Option<i64>, Option<&str>),
) -> Result<Option<Stop>, Fault> {
    let place = place.at("lifecycle");
    let lifecycle = container.lifecycle.as_ref();
    let handler = lifecycle.and_then(|all| all.pre_stop.as_ref());
    let own_signal = lifecycle.and_then(|all| all.stop_signal.as_deref());
    if handler.is_none() && own_signal.is_none() && grace_seconds.is_none() {
        return Ok(None);
    }
    let target = Target { container, address };
    let before =
        handler.map(|handler| target.handler(handler, &place.at("preStop"))).transpose()?;
    let seconds = grace_seconds.unwrap_or(GRACE_SECONDS);
    Ok(Some(Stop {
        before,
        signal: Some(own_signal.or(signal).unwrap_or("SIGTERM").to_owned()),
        grace: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
    }))
}

/// What checks are made of.
#[derive(Clone, Copy)]
struct Target<'a> {
    container: &'a Container,
    /// Its own address; without one it is alone with its loopback.
    address: Option<IpAddr>,
}

impl Target<'_> {
    fn health(self, probe: &Probe, place: &Place) -> Result<Health, Fault> {
        let check = match (&probe.exec, &probe.http_get, &probe.tcp_socket) {
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
        Ok(Health {
            check,
            interval: seconds(probe.period_seconds, 10),
            timeout: seconds(probe.timeout_seconds, 1),
            start_period: seconds(probe.initial_delay_seconds, 0),
            start_interval: seconds(probe.period_seconds, 10),
            retries: count(probe.failure_threshold, 3),
            successes: count(probe.success_threshold, 1),
        })
    }

    fn handler(self, handler: &LifecycleHandler, place: &Place) -> Result<Check, Fault> {
        match (&handler.exec, &handler.http_get, &handler.sleep) {
            (Some(action), None, None) => command(action, &place.at("exec")),
            (None, Some(action), None) => self.http(action, &place.at("httpGet")),
            (None, None, Some(action)) => {
                Ok(Check::Sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))))
            }
            _ => Err(place.fault("needs one of `exec`, `httpGet` and `sleep`")),
        }
    }

    fn http(self, action: &HTTPGetAction, place: &Place) -> Result<Check, Fault> {
        let scheme = match action.scheme.as_deref() {
            None | Some("HTTP") => "http",
            Some("HTTPS") => "https",
            Some(other) => {
                let problem = format!("{other:?} is neither `HTTP` nor `HTTPS`");
                return Err(place.at("scheme").fault(problem));
            }
        };
        let port = self.port(&action.port, place)?;
        let host = match &action.host {
            Some(host) => host.clone(),
            None => {
                self.own(port).to_string().rsplit_once(':').expect("it has a port").0.to_owned()
            }
        };
        let path = action.path.as_deref().unwrap_or("/").trim_start_matches('/');
        let headers = action.http_headers.iter().flatten();
        Ok(Check::Http {
            url: format!("{scheme}://{host}:{port}/{path}"),
            headers: headers.map(|one| (one.name.clone(), one.value.clone())).collect(),
        })
    }

    fn tcp(self, action: &TCPSocketAction, place: &Place) -> Result<Check, Fault> {
        let port = self.port(&action.port, place)?;
        let Some(host) = &action.host else { return Ok(Check::Tcp(self.own(port))) };
        let address: IpAddr = host
            .parse()
            .map_err(|_| place.at("host").fault(format!("{host:?} is no address: write one")))?;
        Ok(Check::Tcp(SocketAddr::new(address, port)))
    }

    fn own(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address.unwrap_or(IpAddr::from([127, 0, 0, 1])), port)
    }

    fn port(self, port: &IntOrString, place: &Place) -> Result<u16, Fault> {
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

fn command(action: &ExecAction, place: &Place) -> Result<Check, Fault> {
    match &action.command {
        Some(command) if !command.is_empty() => Ok(Check::Command(command.clone())),
        _ => Err(place.at("command").fault("is empty: name a program")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::fault::tests::merged;
    use super::*;

    fn checked(probe: &Value, address: Option<&str>) -> Result<Health, String> {
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let container = json!({"name": "a", "ports": ports, "readinessProbe": probe});
        let container: Container = serde_json::from_value(container).unwrap();
        let address = address.map(|address| address.parse().unwrap());
        checks(&container, &merged(&json!({})).1, address)
            .map(|mut all| all.remove(0))
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
            stop(&container, &place, None, (grace, Some("SIGQUIT"))).unwrap()
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
