//! The names that a service can be reached by.
//!
//! Workflows call a service by its name under `services:`, which the runner does not send
//! (actions/runner#2783). So a service gets every name that can be had: the `contextName` that forks
//! send, those of its options, and its image's, which most workflows use as the service's name too.
//! [`service_names`](super::worker_log::service_names) knows the true one, if asked to look.

use std::collections::{BTreeMap, BTreeSet};

use super::options::CreateOptions;

/// What a service is called in one place or another.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ServiceNames {
    /// Names that somebody gave it on purpose, in order.
    pub given: Vec<String>,
    /// The last part of its image's name, without tag.
    pub image: String,
}

impl ServiceNames {
    /// Collects the names of a service.
    pub fn new(context_name: Option<&str>, options: &CreateOptions, image: &str) -> Self {
        let network = &options.network;
        let mut given: Vec<String> = Vec::new();
        let names = context_name.into_iter().chain(network.aliases.iter().map(String::as_str));
        for name in names.chain(options.name.as_deref()).chain(options.hostname.as_deref()) {
            if !given.iter().any(|other| other == name) {
                given.push(name.to_owned());
            }
        }
        ServiceNames { given, image: image.to_owned() }
    }
}

/// Returns the names of each service: those given to it, then its image's.
///
/// Of services with the same image the first has the image's name, the others have `-1`, `-2` and so
/// on after it. A name that was given to one service is not made up for another.
pub fn aliases(services: &[ServiceNames]) -> Vec<Vec<String>> {
    let given: BTreeSet<&str> =
        services.iter().flat_map(|service| &service.given).map(String::as_str).collect();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let named = services.iter().map(|service| {
        let count = seen.entry(&service.image).or_default();
        let image = match *count {
            0 => service.image.clone(),
            n => format!("{}-{n}", service.image),
        };
        *count += 1;
        let mut names = service.given.clone();
        if !image.is_empty() && !given.contains(image.as_str()) {
            names.push(image);
        }
        names
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(context_name: Option<&str>, options: &str, image: &str) -> ServiceNames {
        ServiceNames::new(context_name, &CreateOptions::parse(options).unwrap(), image)
    }

    #[test]
    fn a_service_has_all_names_that_can_be_had() {
        let options = "--network-alias cache --name my-redis --hostname rhost --net-alias cache";
        let names = aliases(&[service(Some("db"), options, "redis")]);
        assert_eq!(names, [["db", "cache", "my-redis", "rhost", "redis"]]);
    }

    #[test]
    fn services_with_the_same_image_are_numbered() {
        let redis = || service(None, "", "redis");
        let names = aliases(&[redis(), service(None, "", "postgres"), redis(), redis()]);
        assert_eq!(names, [["redis"], ["postgres"], ["redis-1"], ["redis-2"]]);
    }

    #[test]
    fn a_name_given_to_one_service_is_not_made_up_for_another() {
        let names = aliases(&[
            service(None, "", "redis"),
            service(None, "--network-alias redis", "valkey"),
        ]);
        assert_eq!(names, [vec![], vec!["redis", "valkey"]]);
    }
}
