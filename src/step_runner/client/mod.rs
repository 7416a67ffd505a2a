//! A client of the service: starts jobs, follows them through lost connections, and closes them.
//!
//! It speaks GitLab's service, so that it works with GitLab's step-runner too; results of steps are
//! had by the design document's service only.
//!
//! ```no_run
//! use oci_hooks::step_runner::client::{Address, Client};
//! use oci_hooks::step_runner::wire::proto::RunRequest;
//!
//! # async fn example() -> Result<(), oci_hooks::step_runner::client::ClientError> {
//! // A server in a container, by way of its proxy.
//! let proxy = ["docker", "exec", "-i", "build", "step-runner", "proxy"];
//! let client = Client::new(Address::Command(proxy.map(Into::into).to_vec()));
//! let request = RunRequest {
//!     id: "42".to_owned(),
//!     steps: "{}\n---\nrun: [{name: hello, script: echo hello}]\n".to_owned(),
//!     ..RunRequest::default()
//! };
//! // The log as the server keeps it; `log::Demux` takes it apart.
//! let outcome = client.execute(request, |log| print!("{}", String::from_utf8_lossy(log))).await?;
//! println!("{:?}, exit code {}", outcome.status, outcome.exit_code);
//! # Ok(())
//! # }
//! ```

mod address;
mod connection;
mod error;
mod execute;
mod follow;
mod retry;

pub use address::Address;
pub use connection::Client;
pub use error::ClientError;
pub use execute::Outcome;
pub use follow::{Log, Steps};
pub use retry::Retry;
