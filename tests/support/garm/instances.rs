//! What GARM knows of instances, and its rules for what they ask and say.

use serde_json::{Value, json};

use super::super::http::{Request, Response};

/// How a runner is, in GARM's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunnerStatus {
    Pending,
    Installing,
    Idle,
    Failed,
    Other,
}

impl RunnerStatus {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "pending" => Self::Pending,
            "installing" => Self::Installing,
            "idle" => Self::Idle,
            "failed" => Self::Failed,
            "active" | "offline" | "terminated" => Self::Other,
            _ => return None,
        })
    }

    fn may_become(self, next: Self) -> bool {
        match self {
            Self::Pending => matches!(next, Self::Installing | Self::Failed | Self::Other),
            Self::Installing => next != Self::Pending,
            Self::Idle | Self::Failed | Self::Other => next == Self::Other,
        }
    }
}

/// An instance as GARM knows it.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) status: RunnerStatus,
    /// What the instance said, those refused among them, each with its status.
    pub(crate) messages: Vec<(String, String)>,
    pub(crate) agent_id: Option<u64>,
    pub(crate) system: Option<Value>,
    /// Which credentials were fetched.
    pub(crate) fetched: Vec<String>,
    pub(crate) registration_token: String,
    /// GARM's own script for it.
    pub(crate) install_script: Option<String>,
    pub(super) jit: bool,
    pub(super) is_gitea: bool,
    registered: bool,
    job: String,
}

impl Instance {
    pub(super) fn new(name: &str, token: String, document: &Value, job: &str) -> Self {
        let canary = token.rsplit('.').next().expect("it has parts");
        Self {
            name: name.to_owned(),
            status: RunnerStatus::Pending,
            messages: Vec::new(),
            agent_id: None,
            system: None,
            fetched: Vec::new(),
            registration_token: format!("REG.{canary}.{}", encode(job.as_bytes())),
            install_script: None,
            jit: document["jit_config_enabled"] == true,
            is_gitea: document["tools"].to_string().contains("act_runner"),
            registered: false,
            job: job.to_owned(),
            token,
        }
    }

    /// Returns a secret that only the runner is to have.
    pub(crate) fn private_key(&self) -> String {
        format!("canary-key-{}", self.token.rsplit('.').next().expect("it has parts"))
    }

    /// Returns all messages of a status.
    pub(crate) fn said(&self, status: &str) -> Vec<&str> {
        let said = self.messages.iter().filter(|(of, _)| of == status);
        said.map(|(_, message)| message.as_str()).collect()
    }

    /// Whether the token is good still.
    pub(crate) fn is_young(&self) -> bool {
        matches!(self.status, RunnerStatus::Pending | RunnerStatus::Installing)
    }

    /// Answers a request below the callbacks.
    pub(super) fn callback(&mut self, what: &str, request: &Request) -> Response {
        let Ok(body) = serde_json::from_str::<Value>(&request.body) else {
            return refusal(400, "invalid request");
        };
        if request.method != "POST" {
            return refusal(405, "method not allowed");
        }
        let agent_id = match &body["agent_id"] {
            Value::Null => None,
            id if id.is_u64() => id.as_u64(),
            _ => return refusal(400, "invalid request"),
        };
        match what {
            "status" => self.update(&body, agent_id),
            "system-info" => {
                let is_text = |key: &str| body[key].is_string();
                if !is_text("os_name") || !is_text("os_version") {
                    return refusal(400, "invalid request");
                }
                self.agent_id = agent_id.or(self.agent_id);
                self.system = Some(body);
                Response::status(200)
            }
            _ => refusal(404, "not found"),
        }
    }

    fn update(&mut self, body: &Value, agent_id: Option<u64>) -> Response {
        let (word, message) = (body["status"].as_str(), body["message"].as_str());
        let Some((word, next)) = word.and_then(|word| Some((word, RunnerStatus::parse(word)?)))
        else {
            return refusal(400, "invalid request");
        };
        // Recorded even if the transition is refused.
        self.messages.push((word.to_owned(), message.unwrap_or_default().to_owned()));
        if next != self.status && !self.status.may_become(next) {
            let from = format!("{:?}", self.status).to_lowercase();
            let text = format!("invalid runner status transition from {from} to {word}");
            return refusal(400, &text);
        }
        self.agent_id = agent_id.or(self.agent_id);
        self.status = next;
        Response::status(200)
    }

    /// Answers a request below the metadata.
    pub(super) fn metadata(&mut self, what: &str) -> Response {
        if let Some(name) = what.strip_prefix("credentials/") {
            return self.credentials(name);
        }
        match what {
            "runner-registration-token" if self.jit || self.registered => {
                refusal(401, "Authentication failed")
            }
            "runner-registration-token" => {
                self.registered = true;
                Response::ok(self.registration_token.as_str())
                    .with("content-type", "application/json")
            }
            "runner-metadata" => Response::ok(self.runner_metadata().to_string()),
            "system/cert-bundle" => Response::ok("{}"),
            "system/service-name" => Response::ok("actions.runner.acme.widgets"),
            "install-script" => match &self.install_script {
                Some(script) => Response::ok(script.as_str()),
                None => refusal(409, "no template"),
            },
            _ => refusal(404, "not found"),
        }
    }

    fn credentials(&mut self, name: &str) -> Response {
        if !self.jit {
            return refusal(404, "not found");
        }
        let content = match name {
            "runner" => json!({
                "AgentId": "123", "AgentName": self.name, "PoolId": "1", "Ephemeral": "True",
                "ServerUrl": "http://127.0.0.1:1/", "Job": encode(self.job.as_bytes()),
            }),
            "credentials" => json!({
                "Scheme": "OAuth", "Data": {"ClientId": self.private_key()},
            }),
            "credentials_rsaparams" => json!({"d": self.private_key(), "exponent": "AQAB"}),
            _ => return refusal(404, "not found"),
        };
        self.fetched.push(name.to_owned());
        Response::ok(content.to_string())
            .with("content-type", "application/octet-stream")
            .with("content-disposition", format!("attachment; filename=.{name}"))
    }

    fn runner_metadata(&self) -> Value {
        json!({
            "forge_type": if self.is_gitea { "gitea" } else { "github" },
            "runner_name": self.name, "jit_enabled": self.jit, "agent_mode": false,
        })
    }
}

pub(super) fn refusal(status: u16, error: &str) -> Response {
    let mut response = Response::ok(json!({"error": error, "details": ""}).to_string())
        .with("content-type", "application/json");
    response.status = status;
    response
}

pub(crate) fn encode(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
