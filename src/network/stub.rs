#![allow(missing_docs, clippy::all)]
use std::net::IpAddr;
use std::path::*;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct NetworkError;
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct PortError;
pub struct NetworkOptions;
pub struct NetworkRequest {
    pub id: String,
}
pub struct EndpointRequest {
    pub name: String,
    pub ports: Vec<PortMapping>,
}
#[derive(Clone)]
pub struct PortMapping;
impl PortMapping {
    pub fn parse(_: &str) -> Result<Vec<Self>, PortError> {
        panic!()
    }
}
pub struct Published {
    pub container_port: u16,
    pub host_port: u16,
}
pub struct Endpoint {
    pub netns: PathBuf,
    pub addresses: Vec<IpAddr>,
    pub published: Vec<Published>,
}
pub struct Network;
impl Network {
    pub fn create(_: &NetworkOptions, _: &NetworkRequest) -> Result<Self, NetworkError> {
        panic!()
    }
    pub fn open(_: &NetworkOptions, _: &str) -> Result<Self, NetworkError> {
        panic!()
    }
    pub fn attach(&mut self, _: &EndpointRequest) -> Result<Endpoint, NetworkError> {
        panic!()
    }
    pub fn detach(&mut self, _: &str) -> Result<(), NetworkError> {
        panic!()
    }
    pub fn remove_id(_: &NetworkOptions, _: &str) -> Result<(), NetworkError> {
        panic!()
    }
    pub fn host_address(&self) -> Option<IpAddr> {
        None
    }
}
