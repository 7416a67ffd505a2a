//! GARM as a provider sees it: what it calls with, what it answers instances, and a runner that
//! writes down what it was given.

pub(crate) mod answer;
pub(crate) mod faults;
pub(crate) mod images;
pub(crate) mod installation;
pub(crate) mod instances;
pub(crate) mod provider;
pub(crate) mod record;
pub(crate) mod runner;
pub(crate) mod server;
