//! A fake GARM: calls the provider, serves the instance API, and has a runner that records its arguments.

pub mod answer;
pub mod faults;
pub mod images;
pub mod installation;
pub mod instances;
pub mod provider;
pub mod record;
pub mod runner;
pub mod server;
