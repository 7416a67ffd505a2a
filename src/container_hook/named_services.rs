//! The services that a workflow names, matched with those of a request, which have no names.

/// More than any workflow has.
const MOST: usize = 256;

/// A service as a workflow writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedService {
    /// What stands under `services:`.
    pub name: String,
    /// The image; none if it is an expression, or a secret is in it.
    pub image: Option<String>,
}

impl NamedService {
    /// Returns a service whose image is this text.
    pub(super) fn new(name: &str, image: Option<&str>) -> Self {
        // The runner masks secrets in its logs.
        let is_known = |image: &&str| !image.contains("${{") && !image.contains("***");
        let image = image.map(str::trim).filter(is_known);
        let image = image.map(|image| image.strip_prefix("docker://").unwrap_or(image));
        NamedService { name: name.to_owned(), image: image.map(str::to_owned) }
    }

    /// Returns whether its image can be this one.
    fn can_be(&self, image: &str) -> bool {
        self.image.as_ref().is_none_or(|own| own == image)
    }

    /// Returns whether the runner may have left it out: one whose image is the empty text.
    fn can_be_absent(&self) -> bool {
        self.image.as_ref().is_none_or(String::is_empty)
    }
}

/// Returns the names of services with these images. The order is that of the workflow, of which some may
/// be absent; none if there is no way to match them, or more than one.
pub fn match_services(named: &[NamedService], images: &[&str]) -> Option<Vec<String>> {
    if named.len() > MOST || images.len() > named.len() {
        return None;
    }
    let ways = ways(named, images);
    if ways[0][0] != 1 {
        return None;
    }
    let mut names = Vec::with_capacity(images.len());
    for (at, service) in named.iter().enumerate() {
        let image = names.len();
        if images.get(image).is_some_and(|i| service.can_be(i)) && ways[at + 1][image + 1] == 1 {
            names.push(service.name.clone());
        }
    }
    Some(names)
}

/// Returns in how many ways the services from each one on match the images from each one on; 2 for more
/// than one.
fn ways(named: &[NamedService], images: &[&str]) -> Vec<Vec<u8>> {
    let mut ways = vec![vec![0; images.len() + 1]; named.len() + 1];
    ways[named.len()][images.len()] = 1;
    for (at, service) in named.iter().enumerate().rev() {
        for image in 0..=images.len() {
            let absent = if service.can_be_absent() { ways[at + 1][image] } else { 0 };
            let is_it = images.get(image).is_some_and(|image| service.can_be(image));
            let present = if is_it { ways[at + 1][image + 1] } else { 0 };
            ways[at][image] = (absent + present).min(2);
        }
    }
    ways
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched(named: &[(&str, &str)], images: &[&str]) -> Option<Vec<String>> {
        let named: Vec<_> =
            named.iter().map(|(name, image)| NamedService::new(name, Some(image))).collect();
        match_services(&named, images)
    }

    #[test]
    fn services_match_by_image_and_order() {
        let named = [("db", "postgres:16"), ("cache", "redis"), ("queue", "docker://redis")];
        let names = matched(&named, &["postgres:16", "redis", "redis"]).unwrap();
        assert_eq!(names, ["db", "cache", "queue"]);
        for images in [
            &["redis", "postgres:16", "redis"][..],
            &["postgres:15", "redis", "redis"],
            &["postgres:16", "redis"],
            &["postgres:16", "redis", "redis", "redis"],
            &[],
        ] {
            assert_eq!(matched(&named, images), None, "{images:?}");
        }
        assert_eq!(matched(&[], &[]), Some(Vec::new()));
    }

    #[test]
    fn what_is_known_only_when_the_job_runs_fits_if_there_is_one_way() {
        let named = [("db", "${{ matrix.db }}"), ("cache", "redis"), ("web", "***/web:1")];
        let names = matched(&named, &["mysql:8", "redis", "x/web:1"]).unwrap();
        assert_eq!(names, ["db", "cache", "web"]);
        // The runner leaves out what has no image.
        assert_eq!(matched(&named, &["redis", "x/web:1"]).unwrap(), ["cache", "web"]);
        assert_eq!(matched(&named, &["mysql:8", "redis"]).unwrap(), ["db", "cache"]);
        assert_eq!(matched(&named, &["redis"]).unwrap(), ["cache"]);
        let two = [("one", "${{ matrix.one }}"), ("two", "${{ matrix.two }}")];
        assert_eq!(matched(&two, &["redis"]), None, "it could be either");
    }

    #[test]
    fn a_thousand_services_take_no_time() {
        let named = vec![("x", "${{ x }}"); 10_000];
        assert_eq!(matched(&named, &vec!["y"; 5_000]), None);
    }
}
