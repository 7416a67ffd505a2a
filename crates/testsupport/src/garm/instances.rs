//! GARM's state of instances, and its checks of their requests.

use serde_json::{Value, json};

use super::super::http::{WebRequest, WebResponse};

/// Runner status in GARM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunnerStatus {
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

    fn can_become(self, next: Self) -> bool {
        match self {
            Self::Pending => matches!(next, Self::Installing | Self::Failed | Self::Other),
            Self::Installing => next != Self::Pending,
            Self::Idle | Self::Failed | Self::Other => next == Self::Other,
        }
    }
}

/// An instance as GARM knows it.
#[derive(Clone, Debug)]
pub struct KnownInstance {
    pub name: String,
    pub token: String,
    pub status: RunnerStatus,
    /// Status and text of each message of the instance, rejected ones included.
    pub messages: Vec<(String, String)>,
    pub agent_id: Option<u64>,
    pub system: Option<Value>,
    /// Names of the fetched credentials.
    pub fetched: Vec<String>,
    pub registration_token: String,
    /// GARM's install script for the instance.
    pub install_script: Option<String>,
    /// In agent mode, whether the pool has a shell enabled.
    pub agent_shell: Option<bool>,
    pub jit: bool,
    pub is_gitea: bool,
    registered: bool,
    job: String,
}

impl KnownInstance {
    pub fn new(name: &str, token: String, document: &Value, job: &str) -> Self {
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
            agent_shell: None,
            jit: document["jit_config_enabled"] == true,
            is_gitea: document["tools"].to_string().contains("act_runner"),
            registered: false,
            job: job.to_owned(),
            token,
        }
    }

    /// Returns a secret that only the runner may have.
    pub fn private_key(&self) -> String {
        format!("canary-key-{}", self.token.rsplit('.').next().expect("it has parts"))
    }

    /// Returns all messages with a status.
    pub fn messages_with(&self, status: &str) -> Vec<&str> {
        let said = self.messages.iter().filter(|(of, _)| of == status);
        said.map(|(_, message)| message.as_str()).collect()
    }

    /// Returns whether the token is still valid.
    pub fn is_young(&self) -> bool {
        matches!(self.status, RunnerStatus::Pending | RunnerStatus::Installing)
    }

    /// Handles a callback request.
    pub fn callback(&mut self, what: &str, request: &WebRequest) -> WebResponse {
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
                WebResponse::status(200)
            }
            _ => refusal(404, "not found"),
        }
    }

    fn update(&mut self, body: &Value, agent_id: Option<u64>) -> WebResponse {
        let (word, message) = (body["status"].as_str(), body["message"].as_str());
        let Some((word, next)) = word.and_then(|word| Some((word, RunnerStatus::parse(word)?)))
        else {
            return refusal(400, "invalid request");
        };
        // Recorded even if the transition is rejected.
        self.messages.push((word.to_owned(), message.unwrap_or_default().to_owned()));
        if next != self.status && !self.status.can_become(next) {
            let from = format!("{:?}", self.status).to_lowercase();
            let text = format!("invalid runner status transition from {from} to {word}");
            return refusal(400, &text);
        }
        self.agent_id = agent_id.or(self.agent_id);
        self.status = next;
        WebResponse::status(200)
    }

    /// Handles a metadata request.
    pub fn metadata(&mut self, what: &str) -> WebResponse {
        if let Some(name) = what.strip_prefix("credentials/") {
            return self.credentials(name);
        }
        match what {
            "runner-registration-token" if self.jit || self.registered => {
                refusal(401, "Authentication failed")
            }
            "runner-registration-token" => {
                self.registered = true;
                WebResponse::ok(self.registration_token.as_str())
                    .with("content-type", "application/json")
            }
            "runner-metadata" => WebResponse::ok(self.runner_metadata().to_string()),
            "system/cert-bundle" => WebResponse::ok("{}"),
            "system/service-name" => WebResponse::ok("actions.runner.acme.widgets"),
            "install-script" => match &self.install_script {
                Some(script) => WebResponse::ok(script.as_str()),
                None => refusal(409, "no template"),
            },
            _ => refusal(404, "not found"),
        }
    }

    fn credentials(&mut self, name: &str) -> WebResponse {
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
        WebResponse::ok(content.to_string())
            .with("content-type", "application/octet-stream")
            .with("content-disposition", format!("attachment; filename=.{name}"))
    }

    fn runner_metadata(&self) -> Value {
        json!({
            "forge_type": if self.is_gitea { "gitea" } else { "github" },
            "runner_name": self.name, "jit_enabled": self.jit,
            "agent_mode": self.agent_shell.is_some(), "agent_token": self.private_key(),
            "agent_shell_enabled": self.agent_shell.unwrap_or_default(),
        })
    }
}

pub fn refusal(status: u16, error: &str) -> WebResponse {
    let mut response = WebResponse::ok(json!({"error": error, "details": ""}).to_string())
        .with("content-type", "application/json");
    response.status = status;
    response
}

pub fn encode(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
