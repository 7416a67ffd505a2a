//! Client of the gRPC services: starts jobs, follows their logs through lost connections, closes them.
//!
//! It uses the service of GitLab's step-runner, so it works with that too. Results of steps need the
//! service `oci_hooks.steps.v1.StepRunner`, which only this program's server has.
//!
//! ```no_run
//! use step_runner::client::{ServerAddress, StepClient};
//! use step_runner::wire::proto::RunRequest;
//!
//! # async fn example() -> Result<(), step_runner::client::ClientError> {
//! // A server in a container, through its proxy.
//! let proxy = ["docker", "exec", "-i", "build", "step-runner", "proxy"];
//! let client = StepClient::new(ServerAddress::Command(proxy.map(Into::into).to_vec()));
//! let request = RunRequest {
//!     id: "42".to_owned(),
//!     steps: "{}\n---\nrun: [{name: hello, script: echo hello}]\n".to_owned(),
//!     ..RunRequest::default()
//! };
//! // The log as the server stores it; `log::LogDemux` splits it into streams.
//! let outcome = client.execute(request, |log| print!("{}", String::from_utf8_lossy(log))).await?;
//! println!("{:?}, exit code {}", outcome.status, outcome.exit_code);
//! # Ok(())
//! # }
//! ```

mod address;
mod connection;
mod error;

pub use address::ServerAddress;
pub use connection::{ClientLog, ClientSteps, ExecuteOutcome, StepClient};
pub use error::{ClientError, ConnectionError};
