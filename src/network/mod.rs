//! One network a job: namespaces, a bridge, addresses, published ports.
mod stub;
pub use stub::*;
